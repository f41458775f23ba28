// Moves from event to event on a timeline: along a lane, to the lanes above and below, and into findings.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const draw = ui.draw;
  const FAR = 2 ** 61;

  // Parts of the class in timeline.js.
  ui.timeline_walk = {
    // The first visible event from the top, where the arrow keys begin.
    first() {
      for (const [trace, rows] of this.placed || []) {
        const tile = this.tiles.get(trace);
        if (!tile) continue;
        const scale = (tile.high - tile.low) / tile.columns;
        let best = null;
        for (let at = 0; at < tile.box_low.length; at++) {
          const y = rows.get(tile.lanes[tile.box_lane[at]]), start = tile.low + tile.box_low[at] * scale, end = tile.low + tile.box_high[at] * scale;
          if (y === undefined || y < draw.RULER || end <= this.view.t0 || start >= this.view.t1) continue;
          if (!best || y < best.y || (y === best.y && start < best.start)) best = { y, start, event: tile.box_event[at] };
        }
        if (best) return { trace, event: best.event };
      }
      return null;
    },

    async step(by, alike) {
      if (this.chosen) {
        const { trace, one, at } = this.chosen;
        this.go_finding({ trace, one, at: Math.max(0, Math.min(at + by, one.spans.length - 1)) });
        return;
      }
      if (!this.selected) {
        const first = this.first();
        if (first) await this.select(first.trace, first.event);
        return;
      }
      const trace = this.selected.trace;
      const found = await this.wire.json("next", { trace: trace.trace, event: this.selected.event, by, ...(alike ? { name: "1" } : {}) });
      this.go(trace, found);
    },

    // The position of a lane in words, for screen readers.
    lane_words(trace, at) {
      const lane = trace.lanes[at], rank = this.traces.length > 1 ? trace.label : "";
      return [rank, lane.group, lane.label, lane.depth ? `depth ${lane.depth + 1}` : ""].filter(Boolean).join(", ");
    },

    // The row of the selection among those that can be reached.
    row_of(rows) {
      const one = this.selected, found = this.chosen;
      if (one) return rows.findIndex((row) => row.kind === "lane" && row.trace === one.trace && row.lane === one.lane);
      return found ? rows.findIndex((row) => row.kind === "finding" && row.one === found.one && row.trace === found.trace) : -1;
    },

    // To the lane above or below, at the same time.
    async across(by) {
      const rows = this.rows.filter((row) => row.kind === "lane" || row.kind === "finding"), at = this.row_of(rows);
      if (at < 0) { await this.step(1, false); return; }
      const next = rows[at + by];
      if (!next) return;
      const range = this.selected ? this.range_of(this.selected) : this.area;
      await this.enter(next, Math.min(Math.max((range.t0 + range.t1) / 2, this.view.t0), this.view.t1));
    },

    async to_end(by) {
      const rows = this.rows.filter((row) => row.kind === "lane" || row.kind === "finding"), at = this.row_of(rows);
      if (at >= 0) await this.enter(rows[at], by * FAR, true);
    },

    // Select the event of a row at a time (ns from the trace's start; beyond the ends the first or last).
    async enter(row, time, far) {
      if (row.kind === "finding") {
        const off = (span) => Math.max(span.start - time, time - span.start - span.ns, 0);
        const spans = row.one.spans, best = spans.reduce((held, span, at) => (off(span) < off(spans[held]) ? at : held), 0);
        this.go_finding({ trace: row.trace, one: row.one, at: best });
        return;
      }
      const t = far ? String(BigInt(time)) : this.wire.absolute(row.trace, time);
      try {
        this.go(row.trace, await this.wire.json("near", { trace: row.trace.trace, lane: row.lane, t }));
      } catch (error) {
        this.status.textContent = error.message;
      }
    },
  };
})(window.perfscope_ui);
