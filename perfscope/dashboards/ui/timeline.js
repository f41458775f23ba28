// The timeline: rows of lanes on a canvas, what is under the pointer, what is selected, and keys for all of it.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const { Wire, format_ns, format_mark } = ui.wire;
  const draw = ui.draw;
  const DEPTHS = [16, 10, 7, 4], OVERSCAN = 0.5, LEAST_NS = 20, MOST_ROWS = 200, DRAG_PX = 4;

  const KEYS = [
    ["w / s", "zoom in and out, at the pointer"], ["a / d", "left and right"], ["wheel", "zoom at the pointer; over the names, or with Shift: up and down"],
    ["drag", "move"], ["Shift + drag", "select a piece: what lies in it, by name"], ["click", "select an event"],
    ["← / →", "the event before and behind; with Shift: of the same name"], ["f", "fit the selection, or everything"],
    ["m", "mark the time of the selected event"], ["t", "what is visible, as a table"], ["/", "search names by regular expression"],
    ["n / N", "next and previous match"], ["?", "this help"], ["Esc", "let go"],
  ];

  function element(kind, properties, ...children) {
    const made = document.createElement(kind);
    for (const [key, value] of Object.entries(properties || {})) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (key === "class") made.className = value;
      else made.setAttribute(key, value);
    }
    for (const child of children) made.append(child);
    return made;
  }

  class View {
    constructor(root, props) {
      this.root = root;
      this.props = props;
      this.wire = new Wire(props.url);
      this.tiles = new Map();
      this.coarse = new Map();
      this.counters = new Map();
      this.open = new Set();
      this.closed = new Set();
      this.scroll = 0;
      this.pointer = null;
      this.selected = null;
      this.area = null;
      this.matches = null;
      this.listeners = [];
      this.dead = false;
      this.begin();
    }

    async begin() {
      this.status = element("div", { class: "ps-tl-status", role: "status", "aria-live": "polite" });
      this.find = element("input", { type: "search", class: "ps-tl-find", placeholder: "search names: regular expression ( / )", "aria-label": "search names by regular expression" });
      this.bar = element("div", { class: "ps-tl-bar" }, this.find,
        element("button", { class: "ps-button", onclick: () => this.fit() }, "fit"),
        element("button", { class: "ps-button", onclick: () => this.table() }, "as table"),
        element("button", { class: "ps-button", onclick: () => this.help() }, "keys"), this.status);
      this.canvas = element("canvas", { class: "ps-tl-canvas", tabindex: "0", role: "application", "aria-label": "timeline; press question mark for its keys, t for a table of what is visible" });
      this.panel = element("section", { class: "ps-tl-panel", "aria-label": "selection" });
      this.tip = element("div", { class: "ps-tl-tip", hidden: "" });
      this.root.append(this.bar, this.canvas, this.tip, this.panel);
      try {
        this.about = await this.wire.about();
      } catch (error) {
        this.status.textContent = error.message;
        return;
      }
      this.traces = this.about.traces.filter((one) => one.events);
      if (this.dead || !this.traces.length) return;
      this.whole = { t0: Infinity, t1: -Infinity };
      for (const trace of this.traces) {
        this.whole.t0 = Math.min(this.whole.t0, this.wire.relative(trace, trace.low));
        this.whole.t1 = Math.max(this.whole.t1, this.wire.relative(trace, trace.high));
      }
      const pad = Math.max((this.whole.t1 - this.whole.t0) * 0.01, 1);
      this.whole.t0 -= pad;
      this.whole.t1 += pad;
      const at = this.props.at || {};
      this.view = { t0: Number(at.t0), t1: Number(at.t1) };
      if (!(at.t0 && at.t1 && this.view.t1 > this.view.t0)) this.view = { ...this.whole };
      this.lay();
      this.listen();
      this.resize();
      for (const trace of this.traces) this.wire.load_names(trace).then(() => this.paint());
      if (at.sel && at.trace) this.select(this.traces.find((one) => String(one.trace) === at.trace) || this.traces[0], Number(at.sel));
      if (at.find) { this.find.value = at.find; this.search(); }
    }

    // As many depths of each thread as fit on the screen together.
    lay() {
      for (this.depths of DEPTHS) {
        this.rank_rows();
        if (this.height < window.innerHeight - 230) return;
      }
    }

    // Rows from top to bottom: a head for each rank and group, a row for each lane that is not folded away.
    rank_rows() {
      this.rows = [];
      let y = 0;
      const push = (row, height) => { this.rows.push({ ...row, y, height }); y += height; };
      for (const trace of this.traces) {
        const key = `t${trace.trace}`;
        if (this.traces.length > 1) push({ kind: "trace", trace, key, label: trace.label }, draw.HEAD);
        const many = this.traces.length > 8 && trace !== this.traces[0];
        if (this.traces.length > 1 && (many ? !this.open.has(key) : this.closed.has(key))) continue;
        for (const counter of trace.counters) push({ kind: "counter", trace, counter, label: counter.label }, draw.COUNTER);
        let group = null, line = null, depths = 0;
        trace.lanes.forEach((lane, at) => {
          if (lane.group !== group && lane.group) push({ kind: "group", label: lane.group }, draw.HEAD);
          if (lane.group !== group || lane.label !== line) depths = trace.lanes.filter((one) => one.group === lane.group && one.label === lane.label).length;
          group = lane.group;
          line = lane.label;
          const folds = depths > this.depths, own = `${key}/${group}/${line}`;
          if (folds && !this.open.has(own) && lane.depth >= this.depths) return;
          const word = lane.depth ? "" : lane.label + (folds ? (this.open.has(own) ? " ▾" : ` ▸ ${depths}`) : "");
          push({ kind: "lane", trace, lane: at, label: word, key: folds ? own : null }, draw.ROW);
        });
      }
      this.height = y;
    }

    listen() {
      const on = (target, name, what, options) => {
        target.addEventListener(name, what, options);
        this.listeners.push(() => target.removeEventListener(name, what, options));
      };
      on(window, "resize", () => this.resize());
      on(this.canvas, "wheel", (event) => this.wheel(event), { passive: false });
      on(this.canvas, "pointerdown", (event) => this.down(event));
      on(this.canvas, "pointermove", (event) => this.move(event));
      on(this.canvas, "pointerup", (event) => this.up(event));
      on(this.canvas, "pointerleave", () => { this.pointer = null; this.tip.hidden = true; });
      on(document, "keydown", (event) => this.key(event));
      on(this.find, "input", () => { clearTimeout(this.typing); this.typing = setTimeout(() => this.search(), 200); });
      on(this.find, "keydown", (event) => { if (event.key === "Enter") this.jump(event.shiftKey ? -1 : 1); });
      const watch = new MutationObserver(() => this.paint());
      watch.observe(document.documentElement, { attributes: true, attributeFilter: ["data-ps-scheme"] });
      this.listeners.push(() => watch.disconnect());
    }

    end() {
      this.dead = true;
      for (const stop of this.listeners) stop();
    }

    resize() {
      const ratio = window.devicePixelRatio || 1;
      this.width = Math.max(this.root.clientWidth, 320);
      const most = Math.max(window.innerHeight - this.canvas.getBoundingClientRect().top - 190, 260);
      this.shown = Math.min(this.height + draw.RULER + 4, most);
      this.canvas.style.height = `${this.shown}px`;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.shown * ratio);
      this.ratio = ratio;
      this.changed();
    }

    // After any change of what is visible: draw what there is at once, ask for what is sharp.
    changed() {
      const span = this.view.t1 - this.view.t0;
      if (span < LEAST_NS) { const middle = (this.view.t0 + this.view.t1) / 2; this.view = { t0: middle - LEAST_NS / 2, t1: middle + LEAST_NS / 2 }; }
      this.scroll = Math.max(0, Math.min(this.scroll, this.height + draw.RULER + 4 - this.shown));
      this.since = performance.now();
      this.paint();
      this.moved = performance.now();
      clearTimeout(this.asking);
      this.asking = setTimeout(() => this.ask(), 16);
      clearTimeout(this.naming);
      this.naming = setTimeout(() => this.remember(), 300);
    }

    visible() {
      const found = new Map();
      for (const row of this.rows) {
        const y = row.y - this.scroll + draw.RULER;
        if (row.kind !== "lane" || y + row.height < draw.RULER || y > this.shown) continue;
        if (!found.has(row.trace)) found.set(row.trace, []);
        found.get(row.trace).push(row.lane);
      }
      return found;
    }

    ask() {
      if (this.dead) return;
      const span = this.view.t1 - this.view.t0;
      const low = Math.max(this.view.t0 - span * OVERSCAN, this.whole.t0), high = Math.min(this.view.t1 + span * OVERSCAN, this.whole.t1);
      if (high <= low) return;
      const columns = Math.max(16, Math.min(8192, Math.round(((this.width - draw.GUTTER) * (high - low)) / span)));
      const moved = this.moved;
      for (const [trace, lanes] of this.visible()) {
        const kept = (tile) => {
          if (this.dead) return;
          this.tiles.set(trace, tile);
          if (!this.coarse.has(trace) || high - low >= (this.whole.t1 - this.whole.t0) * 0.9) this.coarse.set(trace, tile);
          this.sharpening = moved;
          this.paint();
          this.root.dataset.tileBytes = tile.bytes;
          this.root.dataset.tiles = Number(this.root.dataset.tiles || 0) + 1;
        };
        this.wire.tile(trace.trace, trace, low, high, columns, lanes).then(kept, (error) => {
          if (error.name !== "AbortError" && !this.dead) this.status.textContent = error.message;
        });
      }
      for (const row of this.rows) {
        const y = row.y - this.scroll + draw.RULER;
        if (row.kind !== "counter" || y + row.height < draw.RULER || y > this.shown) continue;
        const query = { trace: row.trace.trace, counter: row.counter.number, t0: this.wire.absolute(row.trace, low), t1: this.wire.absolute(row.trace, high), w: columns };
        this.wire.json("counter", query).then((found) => {
          if (this.dead) return;
          this.counters.set(row.counter, { ...found, t0: low, t1: high });
          this.paint();
        }, (error) => { this.status.textContent = error.message; });
      }
    }

    paint() {
      if (this.dead || this.waiting || !this.view) return;
      this.waiting = true;
      requestAnimationFrame(() => { this.waiting = false; this.picture(); });
    }

    picture() {
      const began = performance.now(), context = this.canvas.getContext("2d"), look = draw.theme(), width = this.width;
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";
      context.fillStyle = look.ground;
      context.fillRect(0, 0, width, this.shown);
      const at = new Map();
      this.rows.forEach((row, number) => {
        const y = row.y - this.scroll + draw.RULER;
        if (y + row.height < draw.RULER || y > this.shown) return;
        if (row.kind === "counter" && this.counters.has(row.counter)) {
          draw.counter(context, look, this.counters.get(row.counter), row.counter, this.view, width, y);
        }
        if (row.kind === "lane") {
          if (!at.has(row.trace)) at.set(row.trace, new Map());
          at.get(row.trace).set(row.lane, y);
          if (number % 2) { context.fillStyle = look.band; context.fillRect(draw.GUTTER, y, width - draw.GUTTER, row.height); }
        }
      });
      this.placed = at;
      for (const [trace, rows] of at) {
        const place = (lane) => (rows.has(lane) ? rows.get(lane) : null);
        const options = { name: (code) => this.wire.name(trace, code), matches: this.matches && this.matches.get(trace), dim: Boolean(this.matches) };
        const fine = this.tiles.get(trace), coarse = this.coarse.get(trace);
        const covers = fine && fine.low <= this.view.t0 + 1 && fine.high >= this.view.t1 - 1;
        if (coarse && coarse !== fine && !covers) draw.tile(context, look, coarse, this.view, width, place, options);
        if (fine) {
          if (!covers && coarse && coarse !== fine) this.clear(context, look, fine, rows);
          draw.tile(context, look, fine, this.view, width, place, options);
        }
      }
      this.overlays(context, look);
      this.names(context, look);
      draw.ruler(context, look, width, this.view, format_mark);
      this.root.dataset.paintMs = (performance.now() - began).toFixed(1);
      if (this.since) this.root.dataset.repaintMs = (performance.now() - this.since).toFixed(1);
      if (this.sharpening) this.root.dataset.sharpMs = (performance.now() - this.sharpening).toFixed(1);
      this.since = this.sharpening = null;
      this.root.dataset.ready = "1";
    }

    clear(context, look, tile, rows) {
      const x0 = Math.max(draw.GUTTER, this.x(tile.low)), x1 = Math.min(this.width, this.x(tile.high));
      context.fillStyle = look.ground;
      for (const y of rows.values()) if (x1 > x0) context.fillRect(x0, y, x1 - x0, draw.ROW);
    }

    overlays(context, look) {
      if (this.area) {
        context.fillStyle = look.mark;
        context.globalAlpha = 0.16;
        context.fillRect(this.x(this.area.t0), draw.RULER, this.x(this.area.t1) - this.x(this.area.t0), this.shown);
        context.globalAlpha = 1;
      }
      if (!this.selected) return;
      const corner = (one) => {
        const rows = this.placed.get(this.selected.trace);
        const y = rows && rows.get(one.lane);
        const start = this.wire.relative(this.selected.trace, one.start);
        return y === undefined || y === null ? null : { x0: this.x(start), x1: this.x(start + one.ns), y };
      };
      const own = corner(this.selected), other = this.selected.partner && corner(this.selected.partner);
      context.strokeStyle = look.ink;
      context.lineWidth = 2;
      if (own) context.strokeRect(Math.max(own.x0, draw.GUTTER) - 1, own.y, Math.max(own.x1 - Math.max(own.x0, draw.GUTTER), 2) + 2, draw.ROW - 1);
      if (own && other) {
        const [from, to] = own.x0 <= other.x0 ? [own, other] : [other, own];
        context.strokeStyle = look.mark;
        context.lineWidth = 1.5;
        context.beginPath();
        context.moveTo(from.x1, from.y + draw.ROW / 2);
        context.bezierCurveTo(from.x1 + 40, from.y + draw.ROW / 2, to.x0 - 40, to.y + draw.ROW / 2, to.x0, to.y + draw.ROW / 2);
        context.lineTo(to.x0 - 6, to.y + draw.ROW / 2 - 4);
        context.moveTo(to.x0, to.y + draw.ROW / 2);
        context.lineTo(to.x0 - 6, to.y + draw.ROW / 2 + 4);
        context.stroke();
      }
      context.lineWidth = 1;
    }

    names(context, look) {
      context.fillStyle = look.ground;
      context.fillRect(0, 0, draw.GUTTER, this.shown);
      context.strokeStyle = look.line;
      context.beginPath();
      context.moveTo(draw.GUTTER - 0.5, 0);
      context.lineTo(draw.GUTTER - 0.5, this.shown);
      context.stroke();
      const cut = (text) => { let word = text; while (word.length > 4 && context.measureText(word).width > draw.GUTTER - 28) word = `${word.slice(0, -2)}…`; return word; };
      for (const row of this.rows) {
        const y = row.y - this.scroll + draw.RULER;
        if (y + row.height < draw.RULER || y > this.shown) continue;
        if (row.kind === "counter") {
          context.fillStyle = look.soft;
          context.fillText(cut(row.label), 22, y + row.height / 2 - 6);
          context.fillText(`to ${draw.amount(row.counter.most, row.counter.unit)}`, 22, y + row.height / 2 + 8);
        } else if (row.kind !== "lane") {
          context.fillStyle = look.head;
          context.fillRect(0, y, this.width, row.height);
          context.fillStyle = look.ink;
          context.font = "600 11px system-ui, sans-serif";
          context.fillText(row.label, row.kind === "trace" ? 8 : 14, y + row.height / 2);
          context.font = "11px system-ui, sans-serif";
        } else if (row.label) {
          context.fillStyle = look.soft;
          context.fillText(cut(row.label), 22, y + row.height / 2);
        }
      }
    }

    x(ns) { return draw.GUTTER + ((ns - this.view.t0) / (this.view.t1 - this.view.t0)) * (this.width - draw.GUTTER); }

    time(x) { return this.view.t0 + ((x - draw.GUTTER) / (this.width - draw.GUTTER)) * (this.view.t1 - this.view.t0); }

    zoom(factor, x) {
      const at = this.time(Math.max(x === undefined ? (this.width + draw.GUTTER) / 2 : x, draw.GUTTER));
      const most = (this.whole.t1 - this.whole.t0) * 1.5;
      const limit = Math.min(factor, most / (this.view.t1 - this.view.t0));
      this.view = { t0: at - (at - this.view.t0) * limit, t1: at + (this.view.t1 - at) * limit };
      this.changed();
    }

    pan(share) {
      const by = (this.view.t1 - this.view.t0) * share;
      this.view = { t0: this.view.t0 + by, t1: this.view.t1 + by };
      this.changed();
    }

    fit(range) {
      const own = this.selected && this.range_of(this.selected);
      const wanted = range || this.area || own || this.whole;
      const pad = wanted === this.whole ? 0 : Math.max((wanted.t1 - wanted.t0) * 0.08, LEAST_NS / 2);
      this.view = { t0: wanted.t0 - pad, t1: wanted.t1 + pad };
      this.changed();
    }

    range_of(one) {
      const start = this.wire.relative(one.trace, one.start);
      return { t0: start, t1: start + Math.max(one.ns, 1) };
    }

    wheel(event) {
      event.preventDefault();
      const x = event.offsetX;
      if (event.shiftKey || x < draw.GUTTER) { this.scroll += event.deltaY || event.deltaX; this.changed(); return; }
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { this.pan(event.deltaX / (this.width - draw.GUTTER)); return; }
      this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 240))), x);
    }

    down(event) {
      this.canvas.setPointerCapture(event.pointerId);
      this.grip = { x: event.offsetX, y: event.offsetY, view: { ...this.view }, scroll: this.scroll, area: event.shiftKey, moved: false };
      if (event.shiftKey) event.preventDefault();
    }

    move(event) {
      this.pointer = { x: event.offsetX, y: event.offsetY };
      const grip = this.grip;
      if (!grip) { this.hover(event); return; }
      const dx = event.offsetX - grip.x, dy = event.offsetY - grip.y;
      if (Math.abs(dx) + Math.abs(dy) > DRAG_PX) grip.moved = true;
      if (!grip.moved) return;
      this.tip.hidden = true;
      if (grip.area) {
        const ends = [this.time(grip.x), this.time(event.offsetX)].sort((a, b) => a - b);
        this.area = { t0: ends[0], t1: ends[1] };
        this.paint();
      } else {
        const by = (-dx / (this.width - draw.GUTTER)) * (grip.view.t1 - grip.view.t0);
        this.view = { t0: grip.view.t0 + by, t1: grip.view.t1 + by };
        this.scroll = grip.scroll - dy;
        this.changed();
      }
    }

    up(event) {
      const grip = this.grip;
      this.grip = null;
      if (!grip) return;
      if (grip.area && grip.moved) { this.table(this.area); return; }
      if (grip.moved) return;
      this.canvas.focus({ preventScroll: true });
      const row = this.rows.find((one) => { const y = one.y - this.scroll + draw.RULER; return grip.y >= y && grip.y < y + one.height; });
      if (row && grip.y > draw.RULER && (grip.x < draw.GUTTER || ["trace", "group"].includes(row.kind))) { this.fold(row); return; }
      const hit = this.hit(grip.x, grip.y);
      if (hit) this.select(hit.trace, hit.tile.box_event[hit.box]);
      else this.release();
    }

    fold(row) {
      if (!row.key) return;
      const many = row.kind === "trace" && this.traces.length <= 8;
      const held = many || (row.kind === "trace" && row.trace === this.traces[0]) ? this.closed : this.open;
      if (held.has(row.key)) held.delete(row.key); else held.add(row.key);
      this.lay();
      this.resize();
    }

    hit(x, y) {
      if (x < draw.GUTTER || y < draw.RULER || !this.placed) return null;
      for (const [trace, rows] of this.placed) {
        const tile = this.tiles.get(trace);
        if (!tile) continue;
        const box = draw.box_at(tile, this.view, this.width, (lane) => (rows.has(lane) ? rows.get(lane) : null), x, y);
        if (box !== null) return { trace, tile, box };
      }
      return null;
    }

    hover(event) {
      const hit = this.hit(event.offsetX, event.offsetY);
      const sample = hit ? null : this.sample(event.offsetX, event.offsetY);
      this.tip.hidden = !hit && !sample;
      if (sample) { this.tip.textContent = sample; this.tell(event); }
      if (!hit) return;
      const { trace, tile, box } = hit;
      const cut = tile.box_low[box] <= -3 || tile.box_high[box] >= tile.columns + 3;
      const scale = (tile.high - tile.low) / tile.columns;
      const long = (cut ? "at least " : "") + format_ns((tile.box_high[box] - tile.box_low[box]) * scale);
      this.tip.textContent = `${this.wire.name(trace, tile.box_name[box])}\n${long} · ${this.about.categories[tile.box_category[box]]}`;
      this.tell(event);
    }

    // The value of the counter under the pointer, in words.
    sample(x, y) {
      const row = this.rows.find((one) => { const top = one.y - this.scroll + draw.RULER; return one.kind === "counter" && y >= top && y < top + one.height; });
      const held = row && x > draw.GUTTER && this.counters.get(row.counter);
      if (!held) return null;
      const at = Math.floor(((this.time(x) - held.t0) / (held.t1 - held.t0)) * held.high.length), high = held.high[at], low = held.low[at];
      if (high === null || high === undefined) return null;
      const range = low === high ? draw.amount(high, row.counter.unit) : `${draw.amount(low, row.counter.unit)} to ${draw.amount(high, row.counter.unit)}`;
      return `${row.label}\n${range}`;
    }

    tell(event) {
      this.tip.style.left = `${Math.min(event.offsetX + 14, this.width - 330)}px`;
      this.tip.style.top = `${this.canvas.offsetTop + event.offsetY + 16}px`;
    }

    async select(trace, event) {
      try {
        const found = await this.wire.json("event", { trace: trace.trace, event });
        this.selected = { ...found, trace };
      } catch (error) {
        this.status.textContent = error.message;
        return;
      }
      this.told();
      this.changed();
    }

    release() {
      this.selected = null;
      this.area = null;
      this.matches = null;
      this.find.value = "";
      this.panel.replaceChildren();
      this.changed();
    }

    told() {
      const one = this.selected, trace = one.trace, start = this.wire.relative(trace, one.start);
      const line = (word, value) => [element("dt", {}, word), element("dd", {}, value)];
      const link = (other, word) => element("button", { class: "ps-link", onclick: () => this.go(trace, other) }, word);
      const list = element("dl", { class: "ps-tl-facts" }, ...line("lasts", `${format_ns(one.ns)} (${one.ns.toLocaleString("en")} ns)`),
        ...line("begins", `${format_ns(start)} behind the start`), ...line("what", this.about.categories[one.category]),
        ...line("where", [one.group, one.lane_label].filter(Boolean).join(" · ")));
      if (one.site) list.append(...line("line", element("code", {}, one.site.label)));
      const numbers = { copies: "bytes", kernels: "thread blocks", steps: "number" };
      if (one.number !== null && numbers[one.table]) list.append(...line(numbers[one.table], one.number.toLocaleString("en")));
      if (one.partner) {
        const gap = this.wire.relative(trace, one.partner.start) - start;
        const word = ["calls", "slices"].includes(one.table) ? "launched" : "launched by";
        list.append(...line(word, link(one.partner, `${one.partner.text} (${format_ns(Math.abs(gap))} ${gap < 0 ? "earlier" : "later"})`)));
      }
      one.enclosing.slice(0, 12).forEach((outer, at) => list.append(...line(at ? "" : "inside", link(outer, `${outer.text} (${format_ns(outer.ns)})`))));
      this.panel.replaceChildren(element("h2", {}, one.text), list);
      this.status.textContent = `${one.text}: ${format_ns(one.ns)}`;
    }

    // To an event: bring it into the picture where it is not, and select it.
    go(trace, other) {
      const range = this.range_of({ ...other, trace });
      if (range.t1 < this.view.t0 || range.t0 > this.view.t1) {
        const span = Math.max(this.view.t1 - this.view.t0, (range.t1 - range.t0) * 4), middle = (range.t0 + range.t1) / 2;
        this.view = { t0: middle - span / 2, t1: middle + span / 2 };
      }
      const row = this.rows.find((one) => one.kind === "lane" && one.trace === trace && one.lane === other.lane);
      if (!row) {
        const lane = trace.lanes[other.lane];
        this.open.add(`t${trace.trace}/${lane.group}/${lane.label}`);
        this.lay();
      }
      const shown = this.rows.find((one) => one.kind === "lane" && one.trace === trace && one.lane === other.lane);
      if (shown && (shown.y < this.scroll || shown.y + shown.height > this.scroll + this.shown - draw.RULER)) this.scroll = shown.y - this.shown / 2;
      this.select(trace, other.event);
    }

    async step(by, alike) {
      if (!this.selected) return;
      const trace = this.selected.trace;
      const found = await this.wire.json("next", { trace: trace.trace, event: this.selected.event, by, ...(alike ? { name: "1" } : {}) });
      this.go(trace, found);
    }

    async search() {
      const word = this.find.value;
      if (!word) { this.matches = null; this.status.textContent = ""; this.paint(); return; }
      let pattern;
      try {
        pattern = new RegExp(word, word === word.toLowerCase() ? "i" : "");
      } catch (error) {
        this.status.textContent = "not a regular expression";
        return;
      }
      this.matches = new Map();
      let events = 0, ns = 0;
      for (const trace of this.traces) {
        const names = await this.wire.load_names(trace), codes = new Set();
        for (const [code, text, count, time] of names.rows) if (pattern.test(text)) { codes.add(code); events += count; ns += time; }
        this.matches.set(trace, codes);
      }
      this.status.textContent = `${events.toLocaleString("en")} events, ${format_ns(ns)} in all`;
      this.paint();
      this.remember();
    }

    async jump(by) {
      if (!this.matches) return;
      const trace = (this.selected && this.selected.trace) || this.traces.find((one) => (this.matches.get(one) || new Set()).size);
      const codes = trace && this.matches.get(trace);
      if (!codes || !codes.size) return;
      if (this.selected && codes.has(this.selected.name) && codes.size === 1) { this.step(by, true); return; }
      const from = this.selected ? this.range_of(this.selected).t0 + 1 : this.view.t0;
      const found = await this.wire.json("matches", { trace: trace.trace, names: [...codes].slice(0, 2000).join(","), t0: this.wire.absolute(trace, from) });
      if (found.first) this.go(trace, found.first);
    }

    // What lies in a piece (or in what is visible), by name: the picture as a table.
    async table(area) {
      const range = area || this.view, rows = [];
      let events = 0;
      for (const [trace, lanes] of this.visible()) {
        const query = { trace: trace.trace, t0: this.wire.absolute(trace, range.t0), t1: this.wire.absolute(trace, range.t1), lanes: ui.wire.ranges(lanes) };
        const found = await this.wire.json("selection", query);
        await this.wire.load_names(trace);
        events += found.events;
        for (const row of found.rows) rows.push({ ...row, trace });
      }
      rows.sort((a, b) => b.ns - a.ns);
      const head = element("tr", {}, ...["time", "of the piece", "events", "mean", "what", "name"].map((word) => element("th", { scope: "col" }, word)));
      const span = range.t1 - range.t0;
      const body = rows.slice(0, MOST_ROWS).map((row) => element("tr", {}, element("td", { class: "ps-n" }, format_ns(row.ns)),
        element("td", { class: "ps-n" }, `${((100 * row.ns) / span).toFixed(1)}%`), element("td", { class: "ps-n" }, row.count.toLocaleString("en")),
        element("td", { class: "ps-n" }, format_ns(row.ns / row.count)), element("td", {}, this.about.categories[row.category]),
        element("td", {}, element("code", {}, this.wire.name(row.trace, row.name) || `name ${row.name}`))));
      const title = `${events.toLocaleString("en")} events in ${format_ns(span)}${area ? "" : " (visible)"}`;
      const more = rows.length > MOST_ROWS ? [element("p", { class: "ps-soft" }, `and ${rows.length - MOST_ROWS} more names`)] : [];
      this.panel.replaceChildren(element("h2", {}, title),
        element("div", { class: "ps-scroll", tabindex: "0" }, element("table", { class: "ps-table" }, element("thead", {}, head), element("tbody", {}, ...body))), ...more);
    }

    help() {
      const rows = KEYS.flatMap(([keys, what]) => [element("dt", {}, element("kbd", {}, keys)), element("dd", {}, what)]);
      this.panel.replaceChildren(element("h2", {}, "Keys"), element("dl", { class: "ps-tl-facts" }, ...rows));
    }

    key(event) {
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
      if (event.key === "Escape") { if (typing) event.target.blur(); this.release(); return; }
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const x = this.pointer ? this.pointer.x : undefined;
      const does = {
        w: () => this.zoom(0.7, x), s: () => this.zoom(1 / 0.7, x), a: () => this.pan(-0.15), d: () => this.pan(0.15), f: () => this.fit(),
        m: () => { if (this.selected) { this.area = this.range_of(this.selected); this.table(this.area); this.paint(); } },
        t: () => this.table(), "/": () => this.find.focus(), "?": () => this.help(), n: () => this.jump(1), N: () => this.jump(-1),
      };
      const on_canvas = document.activeElement === this.canvas;
      if (on_canvas) {
        does.ArrowLeft = () => this.step(-1, event.shiftKey);
        does.ArrowRight = () => this.step(1, event.shiftKey);
        does.ArrowUp = () => { this.scroll -= 3 * draw.ROW; this.changed(); };
        does.ArrowDown = () => { this.scroll += 3 * draw.ROW; this.changed(); };
      }
      const act = does[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    }

    // The address holds the whole view, so that it can be sent.
    remember() {
      if (this.dead || !this.view) return;
      const url = new URL(window.location.href);
      url.searchParams.set("t0", Math.round(this.view.t0));
      url.searchParams.set("t1", Math.round(this.view.t1));
      for (const [key, value] of [["sel", this.selected && this.selected.event], ["trace", this.selected && this.selected.trace.trace], ["find", this.find.value]]) {
        if (value === null || value === undefined || value === "") url.searchParams.delete(key);
        else url.searchParams.set(key, value);
      }
      window.history.replaceState(window.history.state, "", url);
    }
  }

  ui.Timeline = function (props) {
    const place = React.useRef(null);
    React.useEffect(() => {
      const root = place.current;
      root.replaceChildren();
      const view = new View(root, props);
      root.perfscope = view;
      return () => view.end();
    }, [props.url]);
    return React.createElement("div", { id: props.id, className: "ps-timeline", ref: place });
  };
})(window.perfscope_ui);
