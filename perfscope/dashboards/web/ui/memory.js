// What a memory holds over time, by category: pointed at, it says who holds; clicked, which blocks are alive.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const LEFT = 76, RIGHT = 12, TOP = 26, PLOT = 250, BAND = 16, BELOW = 22, NEAR = 1.5, MOST_ROWS = 60;
  const element = ui.wire.element;
  const bytes = (value) => window.dashAgGridFunctions.psBytes(value);
  const count = (value) => value.toLocaleString("en");

  // A round number of bytes near a fifth of the picture's height.
  function mark_step(most) {
    const rough = most / 4, power = 2 ** Math.floor(Math.log2(Math.max(rough, 1)));
    return rough / power > 1.5 ? power * 2 : power;
  }

  class View {
    constructor(root, props) {
      this.root = root;
      this.props = props;
      this.curve = props.memory;
      this.total = this.curve.positions.map((_, at) => this.curve.areas.reduce((sum, area) => sum + area.bytes[at], 0));
      this.moment = this.nearest_moment(this.curve.peak.place);
      this.listeners = [];
      this.status = element("div", { class: "ps-tl-status", role: "status", "aria-live": "polite" });
      this.canvas = element("canvas", { class: "ps-tl-canvas", tabindex: "0", role: "application", "aria-label": "memory over time by category; left and right walk moments, t shows the curve as a table, p goes to the peak" });
      this.tip = element("div", { class: "ps-tl-tip", hidden: "" });
      this.panel = element("section", { class: "ps-tl-panel", "aria-label": "blocks alive" });
      const legend = element("div", { class: "ps-legend ps-mem-legend" });
      const swatch = (color, words) => { const mark = element("span", { class: "ps-swatch" }); mark.style.background = color; legend.append(element("span", {}, mark, words)); };
      for (const area of [...this.curve.areas].reverse()) swatch(area.color, area.name);
      if (this.curve.reserved) swatch("var(--soft)", "reserved (line)");
      const phases = new Map(this.curve.phases.map((one) => [one.name, one.color]));
      for (const [name, color] of phases) swatch(color, `${name} (below)`);
      root.append(element("div", { class: "ps-tl-bar" }, element("button", { class: "ps-button", onclick: () => this.show(this.nearest_moment(this.curve.peak.place)) }, "peak"),
        element("button", { class: "ps-button", onclick: () => this.table() }, "as table"), this.status), legend, this.canvas, this.tip, this.panel);
      const on = (target, name, what) => { target.addEventListener(name, what); this.listeners.push(() => target.removeEventListener(name, what)); };
      on(window, "resize", () => this.draw());
      on(this.canvas, "mousemove", (event) => this.hover(event));
      on(this.canvas, "mouseleave", () => { this.tip.hidden = true; });
      on(this.canvas, "click", (event) => this.show(this.nearest_moment(this.place(event.offsetX))));
      on(this.canvas, "keydown", (event) => this.press(event));
      const watch = new MutationObserver(() => this.draw());
      watch.observe(document.documentElement, { attributes: true, attributeFilter: ["data-ps-scheme"] });
      this.listeners.push(() => watch.disconnect());
      const at = Number(props.at);
      this.show(props.at && Number.isFinite(at) ? this.nearest_moment(this.place_of(at)) : this.moment, false);
    }

    end() { for (const stop of this.listeners) stop(); }

    words(position) {
      if (this.curve.axis === "ns") return ui.wire.format_ns(position);
      return `${this.curve.axis} ${count(position + 1)} of ${count(this.curve.span)}`;
    }

    x(position) { return LEFT + (position / this.curve.span) * (this.width - LEFT - RIGHT); }

    // The point of the curve that holds at a position: the last one that is not behind it.
    place_of(position) {
      let low = 0, high = this.curve.positions.length - 1;
      while (low < high) { const middle = (low + high + 1) >> 1; if (this.curve.positions[middle] <= position) low = middle; else high = middle - 1; }
      return low;
    }

    place(x) { return this.place_of(((x - LEFT) / (this.width - LEFT - RIGHT)) * this.curve.span); }

    nearest_moment(place) {
      let best = 0;
      this.curve.moments.forEach((one, at) => { if (Math.abs(one - place) < Math.abs(this.curve.moments[best] - place)) best = at; });
      return best;
    }

    draw() {
      const ratio = window.devicePixelRatio || 1, curve = this.curve, style = getComputedStyle(document.documentElement);
      const soft = style.getPropertyValue("--soft").trim(), ink = style.getPropertyValue("--ink").trim(), line = style.getPropertyValue("--line").trim();
      this.width = Math.max(this.root.clientWidth, 300);
      const strips = [curve.phases, curve.steps].filter((one) => one.length);
      const height = TOP + PLOT + strips.length * BAND + BELOW;
      this.canvas.style.height = `${height}px`;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(height * ratio);
      const context = this.canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      let most = Math.max(curve.peak.bytes, ...(curve.reserved || []));
      const roomy = curve.capacity && curve.capacity > NEAR * most;
      if (curve.capacity && !roomy) most = Math.max(most, curve.capacity);
      most *= 1.04;
      const y = (value) => TOP + PLOT * (1 - value / most), right = this.width - RIGHT;
      context.textAlign = "right";
      for (let at = 0, step = mark_step(most); at <= most; at += step) {
        context.fillStyle = line;
        context.fillRect(LEFT, y(at), right - LEFT, 1);
        context.fillStyle = soft;
        context.fillText(bytes(at), LEFT - 8, y(at));
      }
      const below = new Float64Array(curve.positions.length);
      for (const area of curve.areas) {
        context.fillStyle = area.color;
        context.beginPath();
        const upper = area.bytes.map((value, at) => below[at] + value), end = (at) => (at + 1 < curve.positions.length ? this.x(curve.positions[at + 1]) : right);
        upper.forEach((value, at) => { context.lineTo(this.x(curve.positions[at]), y(value)); context.lineTo(end(at), y(value)); });
        for (let at = below.length - 1; at >= 0; at--) { context.lineTo(end(at), y(below[at])); context.lineTo(this.x(curve.positions[at]), y(below[at])); }
        context.fill();
        upper.forEach((value, at) => { below[at] = value; });
      }
      if (curve.reserved) {
        context.strokeStyle = soft;
        context.lineWidth = 1.5;
        context.beginPath();
        curve.reserved.forEach((value, at) => { context.lineTo(this.x(curve.positions[at]), y(value)); context.lineTo(at + 1 < below.length ? this.x(curve.positions[at + 1]) : right, y(value)); });
        context.stroke();
      }
      const dashed = (color, from, to) => { context.strokeStyle = color; context.lineWidth = 1.5; context.setLineDash([5, 4]); context.beginPath(); context.moveTo(...from); context.lineTo(...to); context.stroke(); context.setLineDash([]); };
      context.textAlign = "left";
      if (curve.capacity && !roomy) {
        dashed(style.getPropertyValue("--high").trim(), [LEFT, y(curve.capacity)], [right, y(curve.capacity)]);
        context.fillStyle = style.getPropertyValue("--high").trim();
        context.fillText(`the device has ${bytes(curve.capacity)}`, LEFT + 6, y(curve.capacity) + 9);
      }
      for (const at of curve.failed) dashed(style.getPropertyValue("--high").trim(), [this.x(at), TOP], [this.x(at), TOP + PLOT]);
      const peak = this.x(curve.positions[curve.peak.place]), said = `peak ${bytes(curve.peak.bytes)} at ${this.words(curve.positions[curve.peak.place])}`;
      context.fillStyle = ink;
      context.textAlign = "left";
      const long = context.measureText(said).width;
      context.fillText(said, Math.max(2, Math.min(peak > this.width * 0.6 ? peak - long : peak, this.width - long - 2)), 12);
      dashed(ink, [peak, 20], [peak, y(curve.peak.bytes)]);
      const moment = this.x(curve.positions[curve.moments[this.moment]]);
      context.fillStyle = ink;
      context.fillRect(moment - 1, TOP, 2, PLOT);
      let strip = TOP + PLOT + 2;
      for (const bands of strips) {
        bands.forEach((band, at) => {
          const from = this.x(band.start), wide = Math.max(this.x(band.end) - from, 1);
          context.fillStyle = band.color || (at % 2 ? line : soft);
          context.fillRect(from, strip, Math.max(wide - 0.5, 0.5), BAND - 4);
          const words = band.color ? band.name : `step ${band.name}`;
          if (wide > context.measureText(words).width + 10) {
            context.fillStyle = band.color ? "#17202b" : at % 2 ? ink : style.getPropertyValue("--card").trim();
            context.textAlign = "left";
            context.fillText(words, from + 5, strip + (BAND - 4) / 2);
          }
        });
        strip += BAND;
      }
      context.fillStyle = soft;
      context.textAlign = "left";
      context.fillText(this.words(0), LEFT, strip + 9);
      context.textAlign = "right";
      context.fillText(this.words(curve.span - 1), right, strip + 9);
      this.root.dataset.ready = "1";
    }

    held(place) {
      const rows = this.curve.areas.map((area) => [area.name, area.bytes[place]]).filter(([, value]) => value).sort((a, b) => b[1] - a[1]);
      return rows.map(([name, value]) => `${name} ${bytes(value)} (${((100 * value) / Math.max(this.total[place], 1)).toFixed(1)}%)`);
    }

    hover(event) {
      const inside = event.offsetX >= LEFT && event.offsetX <= this.width - RIGHT;
      this.tip.hidden = !inside;
      if (!inside) return;
      const place = this.place(event.offsetX), reserved = this.curve.reserved ? [`reserved ${bytes(this.curve.reserved[place])}`] : [];
      this.tip.textContent = [`${this.words(this.curve.positions[place])}: ${bytes(this.total[place])} in use`, ...reserved, ...this.held(place)].join("\n");
      this.tip.style.left = `${event.offsetX > this.width - 340 ? event.offsetX - 310 : event.offsetX + 14}px`;
      this.tip.style.top = `${this.canvas.offsetTop + Math.min(event.offsetY, 140) + 16}px`;
    }

    // The blocks alive at a moment: largest first, the rest as a sum.
    show(moment, told = true) {
      this.moment = moment;
      const place = this.curve.moments[moment], position = this.curve.positions[place], [places, more, rest] = this.curve.alive[moment];
      const cells = (block) => {
        const [size, what, name, module, where, op, phase, step, blocks, made, gone] = block;
        const lasts = `${made === null ? "before" : this.words(made)} to ${gone === null ? "the end" : this.words(gone)}`;
        return element("tr", {}, element("td", { class: "ps-n" }, bytes(size)), element("td", {}, blocks > 1 ? `${what}, ${count(blocks)} blocks` : what), element("td", {}, element("code", {}, name || module || "")),
          element("td", {}, where ? element("code", {}, where) : ""), element("td", {}, op ? element("code", {}, op) : ""), element("td", {}, [phase, step === null ? "" : `step ${step}`].filter(Boolean).join(", ")), element("td", {}, lasts));
      };
      const head = element("tr", {}, ...["bytes", "what", "tensor or module", "line", "op", "made in", "alive"].map((word, at) => element("th", { scope: "col", ...(at ? {} : { class: "ps-n" }) }, word)));
      const left = [more ? `and ${count(more)} smaller blocks, ${bytes(rest)}` : "", this.curve.unseen ? `${bytes(this.curve.unseen)} held before the recording: nobody knows by whom` : ""].filter(Boolean);
      const to = this.address(position);
      this.panel.replaceChildren(element("h2", {}, `Alive at ${this.words(position)}${place === this.curve.peak.place ? ", the peak" : ""}: ${bytes(this.total[place])}`),
        element("p", {}, this.held(place).join(", "), ...(to ? [" ", element("a", { href: to }, "in the timeline")] : [])),
        element("div", { class: "ps-scroll", tabindex: "0" }, element("table", { class: "ps-table ps-mem-blocks" }, element("thead", {}, head), element("tbody", {}, ...places.map((one) => cells(this.curve.blocks[one]))))),
        ...left.map((words) => element("p", { class: "ps-soft" }, words)));
      this.status.textContent = `${this.words(position)}: ${bytes(this.total[place])}`;
      this.draw();
      if (!told) return;
      const url = new URL(window.location.href);
      url.searchParams.set("at", String(position));
      window.history.replaceState(window.history.state, "", url);
    }

    address(position) {
      if (this.props.origin === null || this.props.origin === undefined || this.curve.axis !== "ns") return null;
      const at = Number(BigInt(this.curve.first) + BigInt(position) - BigInt(this.props.origin));
      const step = this.curve.steps.find((one) => one.start <= position && position < one.end);
      const around = step ? (step.end - step.start) / 2 : this.curve.span / 20;
      const join = this.props.timeline.includes("?") ? "&" : "?";
      return `${this.props.timeline}${join}${new URLSearchParams({ t0: Math.round(at - around), t1: Math.round(at + around) })}`;
    }

    table() {
      const step = Math.max(1, Math.ceil(this.curve.positions.length / MOST_ROWS));
      const places = this.curve.positions.map((_, at) => at).filter((at) => at % step === 0 || at === this.curve.peak.place);
      const names = this.curve.areas.map((area) => area.name), head = element("tr", {}, ...["at", "in use", ...(this.curve.reserved ? ["reserved"] : []), ...names].map((word, at) => element("th", { scope: "col", ...(at ? { class: "ps-n" } : {}) }, word)));
      const rows = places.map((at) => element("tr", {}, element("td", {}, this.words(this.curve.positions[at])), element("td", { class: "ps-n" }, bytes(this.total[at])),
        ...(this.curve.reserved ? [element("td", { class: "ps-n" }, bytes(this.curve.reserved[at]))] : []), ...this.curve.areas.map((area) => element("td", { class: "ps-n" }, bytes(area.bytes[at])))));
      this.panel.replaceChildren(element("h2", {}, "In use over time"), element("div", { class: "ps-scroll", tabindex: "0" }, element("table", { class: "ps-table" }, element("thead", {}, head), element("tbody", {}, ...rows))));
    }

    press(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const last = this.curve.moments.length - 1;
      const does = {
        ArrowLeft: () => this.show(Math.max(this.moment - 1, 0)), ArrowRight: () => this.show(Math.min(this.moment + 1, last)),
        Home: () => this.show(0), End: () => this.show(last), p: () => this.show(this.nearest_moment(this.curve.peak.place)), t: () => this.table(),
      };
      if (!does[event.key]) return;
      event.preventDefault();
      does[event.key]();
    }
  }

  ui.MemoryCurve = ui.wire.mounted(View, "memory", "ps-timeline ps-memory-curve");
})(window.perfscope_ui);
