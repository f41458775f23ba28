// The timeline: rows of lanes on a canvas, with hover, selection and keys.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const { Wire } = ui.wire;
  const draw = ui.draw;
  const DEPTHS = [16, 10, 7, 4], OVERSCAN = 0.5, LEAST_NS = 20, HALF = 0.34, BURST_MS = 120, NARROW = 900, PANEL = 0.36;

  const element = ui.wire.element;

  class View {
    constructor(root, props) {
      this.root = root;
      this.props = props;
      this.wire = new Wire(props.url);
      this.tiles = new Map();
      this.coarse = new Map();
      this.counters = new Map();
      const at = props.at || {};
      this.open = new Set([at.trace, (at.mark || "").split(":")[0]].filter(Boolean).map((number) => `t${number}`));
      this.closed = new Set();
      this.pinned = new Set();
      this.by = "name";
      this.scroll = 0;
      this.pointer = null;
      this.selected = null;
      this.wanted = null;
      this.chosen = null;
      this.area = null;
      this.matches = null;
      this.listeners = [];
      this.dead = false;
      this.asked = 0;
      this.page = this.page_now();
      this.begin();
    }

    async begin() {
      this.status = element("div", { class: "ps-tl-status", role: "status", "aria-live": "polite" });
      this.find = element("input", { type: "search", class: "ps-tl-find", placeholder: "search names: regular expression ( / )", "aria-label": "search names by regular expression" });
      this.bar = element("div", { class: "ps-tl-bar" }, this.find,
        element("button", { class: "ps-button", onclick: () => this.fit() }, "fit"),
        element("button", { class: "ps-button", onclick: () => this.table() }, "as table"),
        element("button", { class: "ps-button", onclick: () => this.csv(), title: "the table of the selected range, or of what is visible, as CSV" }, "CSV"),
        element("button", { class: "ps-button", onclick: () => this.png(), title: "the picture as PNG" }, "PNG"),
        element("button", { class: "ps-button", onclick: () => this.help() }, "keys"), this.status);
      this.canvas = element("canvas", { class: "ps-tl-canvas", tabindex: "0", role: "application", "aria-label": "timeline; press question mark for its keys, t for a table of what is visible" });
      this.panel = element("section", { class: "ps-tl-panel", tabindex: "0", "aria-label": "selection" });
      this.stage = element("div", { class: "ps-tl-stage" }, this.canvas);
      this.tip = element("div", { class: "ps-tl-tip", hidden: "" });
      this.colours = element("ul", { class: "ps-legend ps-tl-legend", "aria-label": "legend" });
      this.stage.append(this.tip);
      this.root.append(this.bar, this.colours, element("div", { class: "ps-tl-body" }, this.stage, this.panel));
      try {
        this.about = await this.wire.about();
      } catch (error) {
        this.status.textContent = error.message;
        return;
      }
      draw.use(this.about.colors);
      this.traces = this.about.traces.filter((one) => one.events);
      if (this.dead || !this.traces.length) return;
      const at = this.props.at || {};
      if (this.linked()) this.align(at[`${this.side()}_step`]);
      this.step_picker();
      this.whole = this.extent();
      this.view = { t0: Number(at.t0), t1: Number(at.t1) };
      if (!(at.t0 && at.t1 && this.view.t1 > this.view.t0)) this.view = { ...this.whole };
      this.spread();
      this.pin_again(at.pins);
      this.lay();
      this.listen();
      this.join();
      this.legend();
      this.resize();
      for (const trace of this.traces) this.wire.load_names(trace).then(() => this.paint());
      if (at.sel && at.trace) this.select(this.traces.find((one) => String(one.trace) === at.trace) || this.traces[0], Number(at.sel));
      else if (at.mark) this.marked(at.mark, at.finding);
      else if (at.finding) this.all_pieces(at.finding);
      if (at.name) this.search_ids(at.name, !at.sel && !at.mark);
      else if (at.find) { this.find.value = at.find; this.search(); }
    }

    // As many depths of each thread as fit on the screen.
    lay() {
      for (this.depths of DEPTHS) {
        this.rank_rows();
        if (this.height < (this.linked() ? window.innerHeight * HALF : window.innerHeight - 200)) return;
      }
    }

    // Rows from top to bottom: pinned lines, then a head for each rank and group, and a row for each lane that is
    // not folded. `sign`: folded (▸) or foldable (▾).
    rank_rows() {
      this.rows = [];
      let y = 0;
      const push = (row, height) => { this.rows.push({ ...row, y, height }); y += height; };
      if (this.pinned.size) push({ kind: "group", label: "pinned", pinned: true }, draw.HEAD);
      for (const trace of this.pinned.size ? this.traces : []) for (const line of this.lines(trace)) if (this.pinned.has(line.key)) this.line_rows(trace, line, push, true);
      this.pins_height = y;
      for (const trace of this.traces) {
        const key = `t${trace.trace}`, many = this.traces.length > 8 && trace !== this.traces[0];
        const folded = this.traces.length > 1 && (many ? !this.open.has(key) : this.closed.has(key));
        if (this.traces.length > 1) push({ kind: "trace", trace, key, label: trace.label, sign: folded ? "▸" : "▾" }, draw.HEAD);
        if (folded) continue;
        for (const counter of trace.counters) push({ kind: "counter", trace, counter, label: counter.label }, draw.COUNTER);
        let group = null, found = false;
        const findings = () => { if (!found) this.finding_rows(trace, key, push); found = true; };
        for (const line of this.lines(trace)) {
          if (line.group) findings();
          const own = `${key}/${line.group}`;
          if (line.group !== group && line.group) push({ kind: "group", trace, key: own, label: line.group, sign: this.closed.has(own) ? "▸" : "▾" }, draw.HEAD);
          group = line.group;
          if (!this.closed.has(own) && !this.pinned.has(line.key)) this.line_rows(trace, line, push, false);
        }
        findings();
      }
      this.height = y;
    }

    // Lanes of one stream, thread or other line of the picture.
    lines(trace) {
      if (!trace.lines) {
        trace.lines = [];
        trace.lanes.forEach((lane, at) => {
          const last = trace.lines[trace.lines.length - 1];
          if (last && last.group === lane.group && last.label === lane.label) last.lanes.push(at);
          else trace.lines.push({ group: lane.group, label: lane.label, lanes: [at], key: `t${trace.trace}/${lane.group}/${lane.label}` });
        });
      }
      return trace.lines;
    }

    // As many depths of a line as fit; all if opened, one if closed.
    line_rows(trace, line, push, pinned) {
      const all = line.lanes.length, shown = this.closed.has(line.key) ? 1 : this.open.has(line.key) ? all : Math.min(all, this.depths);
      const twins = this.lines(trace).filter((other) => other.label === line.label).length > 1;
      const whose = pinned ? [...(this.traces.length > 1 ? [trace.label] : []), ...(twins ? [line.group] : []), ""].join(" · ") : "";
      const sign = all > 1 ? (shown < all ? "▸" : "▾") : "";
      line.lanes.slice(0, shown).forEach((lane, at) => {
        const head = at ? { label: "" } : { label: whose + line.label, more: shown < all ? ` ${shown}/${all}` : "", sign };
        push({ kind: "lane", trace, lane, line, pinned, key: all > 1 ? line.key : null, ...head }, draw.ROW);
      });
    }

    // Position of a row on screen; pinned rows do not scroll.
    top(row) { return row.y + draw.RULER - (row.pinned ? 0 : this.scroll); }

    // Where scrolling rows begin.
    edge() { return draw.RULER + this.pins_height; }

    seen(row) { const y = this.top(row); return y + row.height >= (row.pinned ? draw.RULER : this.edge()) && y <= this.shown; }

    row_at(y) { return this.rows.find((row) => { const top = this.top(row); return y >= top && y < top + row.height && Boolean(row.pinned) === (y < this.edge()); }); }

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
      on(this.find, "keydown", async (event) => {
        if (event.key !== "Enter") return;
        clearTimeout(this.typing);
        if (!this.ids) await this.search();
        await this.jump(event.shiftKey ? -1 : 1);
        this.canvas.focus({ preventScroll: true }); // so that n continues
      });
      const room = new ResizeObserver(() => this.resize());
      room.observe(this.stage);
      this.listeners.push(() => room.disconnect());
      const watch = new MutationObserver(() => { this.legend(); this.paint(); });
      watch.observe(document.documentElement, { attributes: true, attributeFilter: ["data-ps-scheme"] });
      this.listeners.push(() => watch.disconnect());
    }

    // The panel: next to the canvas for an event, below it for a table; always below on a narrow screen.
    dock(where, ...children) {
      this.root.dataset.dock = this.linked() ? "bottom" : where;
      this.panel.replaceChildren(...children);
      this.panel.scrollTop = 0;
      this.resize();
    }

    // Pixels below the canvas: its margin, and the panel if it is shown.
    below() {
      const shown = this.panel.childElementCount > 0, under = this.root.dataset.dock === "bottom" || window.innerWidth < NARROW;
      return 30 + (shown && under ? window.innerHeight * PANEL : 0);
    }

    end() {
      this.dead = true;
      for (const stop of this.listeners) stop();
    }

    resize() {
      if (this.dead || !this.rows) return;
      const ratio = window.devicePixelRatio || 1;
      this.width = Math.max(this.stage.clientWidth, 300);
      draw.room(this.width);
      const most = this.linked() ? Math.max(window.innerHeight * HALF, 200) : Math.max(window.innerHeight - (this.canvas.getBoundingClientRect().top + window.scrollY) - this.below(), 260);
      this.shown = Math.min(this.height + draw.RULER + 4, most);
      this.canvas.style.height = `${this.shown}px`;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.shown * ratio);
      this.ratio = ratio;
      this.changed();
    }

    // After a change of view: draw what is loaded, then request sharp tiles.
    changed() {
      const span = this.view.t1 - this.view.t0;
      if (span < LEAST_NS) { const middle = (this.view.t0 + this.view.t1) / 2; this.view = { t0: middle - LEAST_NS / 2, t1: middle + LEAST_NS / 2 }; }
      this.scroll = Math.max(0, Math.min(this.scroll, this.height + draw.RULER + 4 - this.shown));
      this.since = performance.now();
      this.share();
      this.paint();
      this.moved = performance.now();
      clearTimeout(this.asking);
      // in a series of wheel turns each waits for the next
      this.asking = setTimeout(() => this.ask(), this.moved - this.asked < BURST_MS ? 16 : 0);
      clearTimeout(this.naming);
      this.naming = setTimeout(() => this.remember(), 300);
    }

    visible() {
      const found = new Map();
      for (const row of this.rows) {
        if (row.kind !== "lane" || !this.seen(row)) continue;
        if (!found.has(row.trace)) found.set(row.trace, []);
        found.get(row.trace).push(row.lane);
      }
      return found;
    }

    ask() {
      if (this.dead) return;
      this.asked = performance.now();
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
          if (error.name === "AbortError" || this.dead) return;
          this.status.textContent = error.message;
          this.root.dataset.ready = "1";
        });
      }
      for (const row of this.rows) {
        if (row.kind !== "counter" || !this.seen(row)) continue;
        const query = { trace: row.trace.trace, counter: row.counter.number, t0: this.wire.absolute(row.trace, low), t1: this.wire.absolute(row.trace, high), w: columns };
        this.wire.json("counter", query).then((found) => {
          if (this.dead) return;
          this.counters.set(row.counter, { ...found, t0: low, t1: high });
          this.paint();
        }, (error) => { this.status.textContent = error.message; });
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
  }

  Object.assign(View.prototype, ui.timeline_picture, ui.timeline_findings, ui.timeline_walk, ui.timeline_linked, ui.timeline_input, ui.timeline_panel);

  ui.Timeline = ui.wire.mounted(View, "url", "ps-timeline");
})(window.perfscope_ui);
