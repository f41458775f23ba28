// Draws the tiles, counters, marks and names of a timeline on its canvas.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const draw = ui.draw;
  const { format_mark, element } = ui.wire;

  // Parts of the class in timeline.js.
  ui.timeline_picture = {
    // Legend of the colours in use.
    legend() {
      const peers = this.peers ? [...this.peers] : [this], first = peers.find((one) => one.side() === "base") || peers[0];
      if (first !== this) { this.colours.replaceChildren(); first.legend(); return; }
      const look = draw.theme(), kinds = new Set(peers.flatMap((one) => one.about.kinds));
      this.colours.replaceChildren(...[...kinds].map((category) => {
        const swatch = element("span", { class: "ps-swatch", "aria-hidden": "true" });
        swatch.style.background = draw.color(look, category);
        return element("li", { "data-category": category }, swatch, this.about.categories[category]);
      }));
    },

    paint() {
      if (this.dead || this.waiting || !this.view) return;
      this.waiting = true;
      requestAnimationFrame(() => { this.waiting = false; this.picture(); });
    },

    picture() {
      const began = performance.now(), context = this.canvas.getContext("2d"), look = draw.theme(), width = this.width;
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";
      context.fillStyle = look.ground;
      context.fillRect(0, 0, width, this.shown);
      this.placed = new Map();
      this.part(context, look, false);
      if (this.pins_height) {
        context.fillStyle = look.ground;
        context.fillRect(0, 0, width, this.edge());
        this.part(context, look, true);
      }
      this.overlays(context, look);
      this.names(context, look);
      this.joins(context, look);
      draw.ruler(context, look, width, this.view, format_mark);
      this.root.dataset.paintMs = (performance.now() - began).toFixed(1);
      if (this.since) this.root.dataset.repaintMs = (performance.now() - this.since).toFixed(1);
      if (this.sharpening) this.root.dataset.sharpMs = (performance.now() - this.sharpening).toFixed(1);
      this.since = this.sharpening = null;
      // there are events to click on
      if ([...this.visible().keys()].every((trace) => this.tiles.has(trace))) this.root.dataset.ready = "1";
    },

    // The pinned rows, or all others.
    part(context, look, pinned) {
      const width = this.width, at = new Map();
      this.rows.forEach((row, number) => {
        if (Boolean(row.pinned) !== pinned || !this.seen(row)) return;
        const y = this.top(row);
        if (row.kind === "counter" && this.counters.has(row.counter)) {
          draw.counter(context, look, this.counters.get(row.counter), row.counter, this.view, width, y);
        }
        if (row.kind === "finding") draw.finding(context, look, row.one, this.view, width, y);
        if (row.kind !== "lane") return;
        for (const rows of [at, this.placed]) {
          if (!rows.has(row.trace)) rows.set(row.trace, new Map());
          rows.get(row.trace).set(row.lane, y);
        }
        if (number % 2) { context.fillStyle = look.band; context.fillRect(draw.GUTTER, y, width - draw.GUTTER, row.height); }
      });
      for (const [trace, rows] of at) {
        const place = (lane) => (rows.has(lane) ? rows.get(lane) : null);
        const options = { name: (code) => this.wire.name(trace, code), shade: (code) => this.wire.shade(trace, code), matches: this.matches && this.matches.get(trace), dim: Boolean(this.matches) };
        const fine = this.tiles.get(trace), coarse = this.coarse.get(trace);
        const covers = fine && fine.low <= this.view.t0 + 1 && fine.high >= this.view.t1 - 1;
        if (coarse && coarse !== fine && !covers) draw.tile(context, look, coarse, this.view, width, place, options);
        if (fine) {
          if (!covers && coarse && coarse !== fine) this.clear(context, look, fine, rows);
          draw.tile(context, look, fine, this.view, width, place, options);
        }
      }
    },

    clear(context, look, tile, rows) {
      const x0 = Math.max(draw.GUTTER, this.x(tile.low)), x1 = Math.min(this.width, this.x(tile.high));
      context.fillStyle = look.ground;
      for (const y of rows.values()) if (x1 > x0) context.fillRect(x0, y, x1 - x0, draw.ROW);
    },

    overlays(context, look) {
      if (this.area) {
        const [top, bottom] = this.reach(this.area.trace), x0 = this.x(this.area.t0), wide = Math.max(this.x(this.area.t1) - x0, 1);
        context.fillStyle = look.mark;
        context.globalAlpha = 0.16;
        context.fillRect(x0, top, wide, bottom - top);
        context.globalAlpha = 1;
        context.fillRect(x0, top, 1, bottom - top);
        context.fillRect(x0 + wide - 1, top, 1, bottom - top);
      }
      if (!this.selected) return;
      const own = this.corner(this.selected, this.selected.trace);
      context.strokeStyle = look.ink;
      context.lineWidth = 2;
      if (own) context.strokeRect(Math.max(own.x0, draw.GUTTER) - 1, own.y, Math.max(own.x1 - Math.max(own.x0, draw.GUTTER), 2) + 2, draw.ROW - 1);
      context.lineWidth = 1;
    },

    // Where an event is drawn, or null.
    corner(one, trace) {
      const rows = this.placed.get(trace), y = rows && rows.get(one.lane), start = this.wire.relative(trace, one.start);
      return y === undefined || y === null ? null : { x0: this.x(start), x1: this.x(start + one.ns), y };
    },

    // Arrows from the selection, on top.
    joins(context, look) {
      const own = this.selected && this.corner(this.selected, this.selected.trace);
      if (!own) return;
      context.save();
      context.beginPath();
      context.rect(draw.GUTTER, draw.RULER, this.width - draw.GUTTER, this.shown);
      context.clip();
      for (const flow of this.flows(this.selected)) {
        const other = this.corner(flow.event, flow.trace);
        if (other) this.arrow(context, flow.kind === "launch" ? look.mark : look.ink, flow.kind, own, other);
      }
      context.restore();
      context.lineWidth = 1;
    },

    // Events connected to the selection: its launch, forward (backward) op, collective on other ranks.
    flows(one) {
      const mine = (kind, event) => (event ? [{ kind, event, trace: one.trace }] : []);
      const peers = (one.peers || []).map((event) => ({ kind: "peer", event, trace: this.traces.find((trace) => trace.trace === event.trace) }));
      return [...mine("launch", one.partner), ...mine("forward", one.forward), ...peers.filter((flow) => flow.trace)];
    },

    // From the earlier to the later event; dashed between sides of a collective.
    arrow(context, color, kind, own, other) {
      const [from, to] = own.x0 <= other.x0 ? [own, other] : [other, own], half = draw.ROW / 2;
      context.strokeStyle = color;
      context.lineWidth = 1.5;
      context.setLineDash(kind === "peer" ? [4, 3] : []);
      context.beginPath();
      if (kind === "peer") {
        context.moveTo(from.x0, from.y + half);
        context.bezierCurveTo(from.x0 - 14, from.y + half, to.x0 - 14, to.y + half, to.x0, to.y + half);
      } else {
        context.moveTo(from.x1, from.y + half);
        context.bezierCurveTo(from.x1 + 40, from.y + half, to.x0 - 40, to.y + half, to.x0, to.y + half);
        context.lineTo(to.x0 - 6, to.y + half - 4);
        context.moveTo(to.x0, to.y + half);
        context.lineTo(to.x0 - 6, to.y + half + 4);
      }
      context.stroke();
      context.setLineDash([]);
    },

    // Vertical extent of a trace's rows; without a trace, of the picture.
    reach(trace) {
      const mine = trace ? this.rows.filter((row) => row.trace === trace && !row.pinned) : [];
      if (!mine.length) return [draw.RULER, this.shown];
      const last = mine[mine.length - 1], y = (at) => Math.max(this.edge(), at - this.scroll + draw.RULER);
      return [y(mine[0].y), y(last.y + last.height)];
    },

    names(context, look) {
      context.fillStyle = look.ground;
      context.fillRect(0, 0, draw.GUTTER, this.shown);
      context.strokeStyle = look.line;
      context.beginPath();
      context.moveTo(draw.GUTTER - 0.5, 0);
      context.lineTo(draw.GUTTER - 0.5, this.shown);
      context.stroke();
      const order = [...this.rows.filter((row) => !row.pinned), null, ...this.rows.filter((row) => row.pinned)];
      for (const row of order) {
        if (!row && this.pins_height) { context.fillStyle = look.ground; context.fillRect(0, 0, draw.GUTTER - 1, this.edge()); }
        if (row && this.seen(row)) this.name_of(context, look, row, this.top(row));
      }
      if (!this.pins_height) return;
      context.fillStyle = look.mark;
      context.fillRect(0, this.edge() - 1, this.width, 1);
    },

    name_of(context, look, row, y) {
      const more = row.more || "", room = draw.GUTTER - (row.kind === "lane" ? 40 : 28) - context.measureText(more).width, middle = y + row.height / 2;
      const cut = (text) => { let word = text; while (word.length > 4 && context.measureText(word).width > room) word = `${word.slice(0, -2)}…`; return word; };
      const sign = (x) => { if (row.sign) context.fillText(row.sign, x, middle); };
      if (row.kind === "counter") {
        context.fillStyle = look.soft;
        context.fillText(cut(row.label), 22, middle - 6);
        context.fillText(`to ${draw.amount(row.counter.most, row.counter.unit)}`, 22, middle + 8);
      } else if (row.kind !== "lane" && row.kind !== "finding") {
        context.fillStyle = look.head;
        context.fillRect(0, y, this.width, row.height);
        context.fillStyle = look.ink;
        context.font = "600 11px system-ui, sans-serif";
        sign(4);
        context.fillText(row.label, row.kind === "trace" ? 16 : 18, middle);
        context.font = "11px system-ui, sans-serif";
      } else {
        context.fillStyle = row.kind === "finding" ? draw.FOUND[look.name][row.one.finding.severity] : look.soft;
        sign(8);
        if (row.label) context.fillText(cut(row.label) + more, 22, middle);
        const here = this.pointer && this.pointer.x < draw.GUTTER && this.pointer.y >= y && this.pointer.y < y + row.height;
        if (row.label && row.kind === "lane" && (row.pinned || here)) { context.fillStyle = row.pinned ? look.mark : look.soft; context.fillText(row.pinned ? "★" : "☆", draw.GUTTER - 16, middle); }
      }
    },
  };
})(window.perfscope_ui);
