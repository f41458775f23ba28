// A roofline: FLOP/s against FLOP/byte on logarithmic axes, a disc a point as large as its time, and the device's roofs.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const HEIGHT = 470, LEFT = 76, RIGHT = 18, TOP = 16, BOTTOM = 46;
  const LEAST_R = 3, MOST_R = 24, LABEL_PX = 13, LETTER_PX = 6.2, ABOVE_PX = 13, MOST_COVERED_PX = 3;
  // Fewer FLOPs per byte than this is a move with a counter beside it: no roof but memory's is anywhere near.
  const LEAST_INTENSITY = 1e-3;
  const HUES = { compute: "var(--ps-compute)", memory: "var(--ps-memory)", link: "var(--ps-link)" };
  const WORDS = { compute: "arithmetic", memory: "memory", link: "links", unknown: "not known", "": "no roof known" };

  const { svg, short, bytes, percent, finding, remember } = ui.svg;
  const element = ui.wire.element;

  const drawable = (point) => point.rate > 0 && point.intensity >= LEAST_INTENSITY;

  class View {
    constructor(root, props) {
      this.root = root;
      this.props = props;
      const keys = props.table.columns.map((column) => column.key);
      this.points = props.table.rows.map((row) => Object.fromEntries(keys.map((key, at) => [key, row[at]])));
      this.whole = this.points.reduce((sum, point) => sum + point.ns, 0);
      this.byTime = [...this.points].sort((a, b) => b.ns - a.ns);
      const asked = Number(props.most);
      this.most = asked >= 1 && asked <= 100 ? Math.round(asked) : 100;
      this.selected = null;
      this.listeners = [];
      this.slider = element("input", { type: "range", min: "1", max: "100", value: String(this.most), class: "ps-range", "aria-label": "share of the time to show, the longest first, in percent" });
      this.word = element("span", { class: "ps-soft" });
      this.find = element("input", { type: "search", class: "ps-tl-find", placeholder: "name or line", "aria-label": "mark names and lines that hold this" });
      this.find.value = props.find || "";
      this.status = element("div", { class: "ps-tl-status", role: "status", "aria-live": "polite" });
      this.picture = element("div", { class: "ps-roof" });
      this.tip = element("div", { class: "ps-tl-tip", hidden: "" });
      this.panel = element("section", { class: "ps-tl-panel", "aria-label": "selection" });
      root.append(element("div", { class: "ps-tl-bar" }, element("label", { class: "ps-soft" }, "those that make up ", this.slider), this.word, this.find, this.status), this.picture, this.tip, this.panel);
      const on = (target, name, what) => { target.addEventListener(name, what); this.listeners.push(() => target.removeEventListener(name, what)); };
      on(window, "resize", () => this.draw());
      on(this.slider, "input", () => { this.most = Number(this.slider.value); remember({ most: this.most === 100 ? null : String(this.most) }); this.draw(); });
      on(this.find, "input", () => { remember({ find: this.find.value }); this.draw(); });
      this.draw();
      const wanted = props.sel && this.points.find((point) => point.name === props.sel);
      if (wanted) this.select(wanted);
    }

    end() { for (const stop of this.listeners) stop(); }

    // The longest that together make up the asked share of the time; those without FLOPs count and have no place.
    shown() {
      const found = [];
      let sum = 0;
      for (const point of this.byTime) {
        if (sum >= (this.most / 100) * this.whole) break;
        sum += point.ns;
        found.push(point);
      }
      return { found, sum, drawn: found.filter(drawable) };
    }

    // Powers of ten around everything that can be drawn, roofs included: moving the slider moves no axis.
    axes() {
      const all = this.points.filter(drawable);
      const xs = all.map((point) => point.intensity), ys = all.map((point) => point.rate);
      for (const device of this.props.devices) {
        for (const peak of device.peaks) { ys.push(peak.flops); xs.push(peak.flops / device.bandwidth); }
      }
      const low = (values) => Math.floor(Math.log10(Math.min(...values)) - 0.15), high = (values) => Math.ceil(Math.log10(Math.max(...values)) + 0.15);
      return { x0: low(xs), x1: high(xs), y0: low(ys), y1: high(ys) };
    }

    draw() {
      const { found, sum, drawn } = this.shown();
      const width = Math.max(this.root.clientWidth - 2, 320), axes = this.axes();
      const x = (value) => LEFT + ((Math.log10(value) - axes.x0) / (axes.x1 - axes.x0)) * (width - LEFT - RIGHT);
      const y = (value) => HEIGHT - BOTTOM - ((Math.log10(value) - axes.y0) / (axes.y1 - axes.y0)) * (HEIGHT - BOTTOM - TOP);
      const word = this.find.value.toLowerCase();
      const hit = (point) => word && `${point.name}\n${point.line}`.toLowerCase().includes(word);
      const said = `${drawn.length} of ${this.points.length} ${this.props.what} drawn, roofs of ${this.props.devices.map((one) => one.name).join(", ") || "no device"}; the table below holds all`;
      const picture = svg("svg", { width, height: HEIGHT, role: "group", "aria-label": `Roofline, FLOP/s by FLOP/byte: ${said}` });
      this.grid(picture, axes, x, y, width);
      for (const device of this.props.devices) this.roofs(picture, device, axes, x, y, width);
      // The largest first, so that small ones lie above them.
      for (const point of drawn) {
        const r = this.radius(point), select = () => this.select(point);
        const disc = svg("circle", {
          cx: x(point.intensity), cy: y(point.rate), r, class: "ps-disc", fill: HUES[point.bound] || "var(--ps-plain)", tabindex: "0", role: "button",
          "fill-opacity": word && !hit(point) ? "0.08" : "0.5", "aria-label": `${point.name}, ${this.words(point).join(", ")}`,
          onclick: select, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(); } },
          onmousemove: (event) => this.hover(event, point), onmouseleave: () => { this.tip.hidden = true; },
        });
        if (point === this.selected) disc.classList.add("ps-chosen");
        if (hit(point)) disc.classList.add("ps-hit");
        picture.append(disc);
      }
      this.picture.replaceChildren(picture);
      this.word.textContent = `${this.most}% of the time`;
      const plain = found.length - drawn.length;
      const marked = word ? `, ${drawn.filter(hit).length} marked` : "";
      this.status.textContent = `${drawn.length.toLocaleString("en")} drawn${marked}${plain ? `; ${plain.toLocaleString("en")} with no FLOPs, or under ${LEAST_INTENSITY} a byte, are in the table alone` : ""} (${ui.wire.format_ns(sum)} together)`;
      this.root.dataset.drawn = String(drawn.length);
      this.root.dataset.ready = "1";
    }

    grid(picture, axes, x, y, width) {
      const step = (low, high) => Math.max(1, Math.ceil((high - low) / 9));
      for (let power = axes.x0; power <= axes.x1; power += step(axes.x0, axes.x1)) {
        const at = x(10 ** power);
        picture.append(svg("line", { x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM, class: "ps-rule" }), svg("text", { x: at, y: HEIGHT - BOTTOM + 17, class: "ps-tick", "text-anchor": "middle" }, short(10 ** power).trim()));
      }
      for (let power = axes.y0; power <= axes.y1; power += step(axes.y0, axes.y1)) {
        const at = y(10 ** power);
        picture.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: at, y2: at, class: "ps-rule" }), svg("text", { x: LEFT - 8, y: at + 4, class: "ps-tick", "text-anchor": "end" }, short(10 ** power).trim()));
      }
      picture.append(svg("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 8, class: "ps-axis", "text-anchor": "middle" }, "FLOPs per byte of device memory"),
        svg("text", { x: -(HEIGHT - BOTTOM + TOP) / 2, y: 15, class: "ps-axis", "text-anchor": "middle", transform: "rotate(-90)" }, "FLOP/s"));
    }

    // One slope, bandwidth times intensity, that ends at each peak.
    roofs(picture, device, axes, x, y, width) {
      const highest = Math.max(...device.peaks.map((peak) => peak.flops));
      const from = Math.max(10 ** axes.x0, 10 ** axes.y0 / device.bandwidth), knee = highest / device.bandwidth;
      picture.append(svg("line", { x1: x(from), y1: y(from * device.bandwidth), x2: x(knee), y2: y(highest), class: "ps-roofline" }));
      // Labels from the highest peak down, each below the one before it, however close their lines are.
      let last = -Infinity;
      const taken = [];
      for (const peak of [...device.peaks].reverse()) {
        const at = y(peak.flops), knee = x(peak.flops / device.bandwidth);
        picture.append(svg("line", { x1: knee, x2: width - RIGHT, y1: at, y2: at, class: "ps-roofline" }));
        last = Math.max(at - 5, last + LABEL_PX);
        const word = `${peak.label} ${short(peak.flops)}FLOP/s`;
        picture.append(svg("text", { x: LEFT + 8, y: last, class: "ps-tick ps-roof-said" }, word));
        for (let at = 0; at < word.length * LETTER_PX; at += LABEL_PX) taken.push([LEFT + 8 + at, last - 4, LABEL_PX / 2]);
        picture.append(svg("line", { x1: LEFT, x2: knee, y1: at, y2: at, class: "ps-faint" }));
      }
      this.slope(picture, device, x, y, from, knee, taken);
    }

    // The word of the slope stands above or below it, where no discs and no words of the peaks (`taken`) are. Where there
    // is no such place it is left out: the sentence above the picture says it too.
    slope(picture, device, x, y, from, knee, taken) {
      const word = `memory ${short(device.bandwidth)}B/s`, long = word.length * LETTER_PX;
      const [x0, y0, x1, y1] = [x(from), y(from * device.bandwidth), x(knee), y(knee * device.bandwidth)];
      const steep = Math.atan2(y1 - y0, x1 - x0), whole = Math.hypot(x1 - x0, y1 - y0), [along, up] = [Math.cos(steep), Math.sin(steep)];
      const discs = [...taken, ...this.shown().drawn.map((point) => [x(point.intensity), y(point.rate), this.radius(point)])];
      let best = null;
      for (let at = long / 2 + 8; at <= Math.max(whole - long / 2 - 8, long / 2 + 8); at += 12) {
        for (const above of [ABOVE_PX, -ABOVE_PX]) {
          const [cx, cy] = [x0 + at * along + above * up, y0 + at * up - above * along];
          let covered = 0;
          for (const [dx, dy, r] of discs) {
            const side = Math.abs((dx - cx) * along + (dy - cy) * up) - long / 2, across = Math.abs((dy - cy) * along - (dx - cx) * up);
            covered = Math.max(covered, Math.min(r + 2 - side, r + 8 - across));
          }
          const worth = covered + Math.abs(at - 0.6 * whole) / whole + (above < 0 ? 0.5 : 0);
          if (covered <= MOST_COVERED_PX && (!best || worth < best.worth)) best = { worth, cx, cy };
        }
      }
      if (!best) return;
      const turn = `rotate(${(steep * 180) / Math.PI} ${best.cx} ${best.cy})`;
      picture.append(svg("text", { x: best.cx, y: best.cy + 4, class: "ps-tick ps-roof-said", "text-anchor": "middle", transform: turn }, word));
    }

    radius(point) { return Math.max(LEAST_R, MOST_R * Math.sqrt(point.ns / (this.byTime.length ? this.byTime[0].ns : 1))); }

    words(point) {
      const said = [`${ui.wire.format_ns(point.ns)} (${percent(point.share)}), ${point.basis}`, `${short(point.rate)}FLOP/s at ${ui.svg.compact.format(point.intensity)} FLOP/byte`];
      if (point.of_roof !== null) said.push(`${percent(point.of_roof)} of its roof`);
      return said;
    }

    hover(event, point) {
      const box = this.root.getBoundingClientRect();
      this.tip.hidden = false;
      this.tip.textContent = [point.name, ...this.words(point), ...(point.line ? [point.line] : [])].join("\n");
      this.tip.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 14, box.width - 330))}px`;
      this.tip.style.top = `${event.clientY - box.top + 16}px`;
    }

    select(point) {
      this.selected = point;
      remember({ sel: point.name });
      const least = point.least_ns === null ? null : `${ui.wire.format_ns(point.least_ns)} a run, held back by ${WORDS[point.bound] || point.bound} (modelled)`;
      const facts = [
        ["what", [point.what, point.dtype].filter(Boolean).join(", ")], ["line", point.line], ["program", point.program],
        ["time", `${ui.wire.format_ns(point.ns)} in ${point.runs.toLocaleString("en")} runs, ${ui.wire.format_ns(point.run_ns)} each (${point.basis})`],
        ["rate", point.rate === null ? "no FLOPs are counted for it" : `${short(point.rate)}FLOP/s at ${ui.svg.compact.format(point.intensity)} FLOP/byte`],
        ["a run has", [point.flops === null ? null : `${short(point.flops)}FLOPs`, point.bytes === null ? null : bytes(point.bytes)].filter(Boolean).join(", ")],
        ["least possible", least],
        ["beyond it", point.headroom_ns === null ? null : `${ui.wire.format_ns(point.headroom_ns)}: at most what a perfect kernel would save`],
      ].filter(([, value]) => value);
      const list = element("dl", { class: "ps-tl-facts" });
      for (const [name, value] of facts) list.append(element("dt", {}, name), element("dd", {}, value));
      this.panel.replaceChildren(element("h2", {}, point.name), list, element("p", {}, element("a", { href: finding(this.props.timeline, point.name) }, "in the timeline"),
        ...(this.props.graph ? [" · ", element("a", { href: finding(this.props.graph, point.name) }, "in the graph")] : [])));
      this.draw();
    }
  }

  ui.Roofline = ui.wire.mounted(View, "table", "ps-timeline ps-roofs");
})(window.perfscope_ui);
