// Pointer and keys of a timeline.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const draw = ui.draw;
  const { format_ns } = ui.wire;
  const element = ui.wire.element;
  const DRAG_PX = 4, DENSE_PX = 1.5, REST_MS = 40, PIN_PX = 22;

  const KEYS = [
    ["w / s", "zoom in and out, at the pointer"], ["a / d", "left and right"], ["wheel", "zoom at the pointer; over the names, or with Shift: up and down"],
    ["drag", "move"], ["Shift + drag", "select a range: its events by name, category or module"], ["click", "select an event"],
    ["← / →", "previous and next event; with Shift: of the same name"], ["↑ / ↓", "the event at the same time in the lane above or below, findings too"],
    ["Home / End", "the first and the last event of the lane"], ["PageUp / PageDown", "up and down"], ["Enter", "of a finding: open it"], ["f", "fit the selection, or everything"],
    ["click in a dense lane", "the longest event under the pointer, zoomed to"], ["p", "pin the lane of the selected event to the top, or unpin it (☆ next to its name)"], ["click on a name", "fold a rank, device, process or thread (▾), or open it (▸)"], ["m", "mark the time of the selected event"], ["t", "what is visible, as a table"], ["/", "search names by regular expression"],
    ["n / N", "next and previous match"], ["?", "this help"], ["Esc", "let go"],
  ];

  // Parts of the class in timeline.js.
  ui.timeline_input = {
    wheel(event) {
      event.preventDefault();
      const x = event.offsetX;
      if (event.shiftKey || x < draw.GUTTER) { this.scroll += event.deltaY || event.deltaX; this.changed(); return; }
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { this.pan(event.deltaX / (this.width - draw.GUTTER)); return; }
      this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 240))), x);
    },

    down(event) {
      this.canvas.setPointerCapture(event.pointerId);
      this.grip = { x: event.offsetX, y: event.offsetY, view: { ...this.view }, scroll: this.scroll, area: event.shiftKey, moved: false };
      if (event.shiftKey) event.preventDefault();
    },

    move(event) {
      this.pointer = { x: event.offsetX, y: event.offsetY };
      const grip = this.grip;
      if (!grip) { this.hover(event); if (event.offsetX < draw.GUTTER) this.paint(); return; }
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
    },

    up(event) {
      const grip = this.grip;
      this.grip = null;
      if (!grip) return;
      if (grip.area && grip.moved) { this.table(this.area); return; }
      if (grip.moved) return;
      this.canvas.focus({ preventScroll: true });
      this.tip.hidden = true;
      const row = this.row_at(grip.y);
      if (row && row.kind === "finding" && grip.y > draw.RULER && grip.x < draw.GUTTER) { this.go_finding({ trace: row.trace, one: row.one, at: row.one.first }); return; }
      if (row && row.line && grip.y > draw.RULER && grip.x < draw.GUTTER && grip.x > draw.GUTTER - PIN_PX) { this.pin(row.line.key); return; }
      if (row && grip.y > draw.RULER && (grip.x < draw.GUTTER || ["trace", "group"].includes(row.kind))) { this.fold(row); return; }
      const found = row && row.kind === "finding" && this.finding_at(grip.x, grip.y), hit = this.hit(grip.x, grip.y);
      if (found) this.choose(found);
      else if (hit) this.select(hit.trace, hit.tile.box_event[hit.box]);
      else if (row && row.kind === "lane") this.largest(row, grip.x).then((one) => (one ? this.show(row.trace, one) : this.release()));
      else this.release();
    },

    // Fold a rank, device or process to its head; a line to one depth, to as many as fit, or to all.
    fold(row) {
      if (!row.key) return;
      const many = row.kind === "trace" && this.traces.length > 8 && row.trace !== this.traces[0];
      const turn = (held) => { if (held.has(row.key)) held.delete(row.key); else held.add(row.key); };
      if (many || (row.kind === "group" && row.key.endsWith("/findings"))) turn(this.open);
      else if (row.kind === "lane" && row.line.lanes.length > this.depths && !this.closed.has(row.key)) {
        if (this.open.delete(row.key)) this.closed.add(row.key); else this.open.add(row.key);
      } else turn(this.closed);
      this.lay();
      this.resize();
    },

    // Pin a line to the top, or unpin it.
    pin(key) {
      if (!this.pinned.delete(key)) this.pinned.add(key);
      this.lay();
      this.resize();
    },

    // The line of the selection, else the line under the pointer.
    pin_here() {
      const one = this.selected, row = one ? this.rows.find((each) => each.trace === one.trace && each.lane === one.lane) : this.pointer && this.row_at(this.pointer.y);
      if (row && row.line) this.pin(row.line.key);
    },

    // In the address a line is its trace and first lane.
    pin_words() { return this.traces.flatMap((trace) => this.lines(trace).filter((line) => this.pinned.has(line.key)).map((line) => `${trace.trace}.${line.lanes[0]}`)).join(","); },

    pin_again(words) {
      const wanted = new Set((words || "").split(","));
      for (const trace of wanted.size ? this.traces : []) for (const line of this.lines(trace)) if (wanted.has(`${trace.trace}.${line.lanes[0]}`)) this.pinned.add(line.key);
    },

    hit(x, y) {
      if (x < draw.GUTTER || y < draw.RULER || !this.placed) return null;
      for (const [trace, rows] of this.placed) {
        const tile = this.tiles.get(trace);
        if (!tile) continue;
        const box = draw.box_at(tile, this.view, this.width, (lane) => (rows.has(lane) && rows.get(lane) + draw.ROW > this.edge() === y >= this.edge() ? rows.get(lane) : null), x, y);
        if (box !== null) return { trace, tile, box };
      }
      return null;
    },

    hover(event) {
      const hit = this.hit(event.offsetX, event.offsetY), found = hit ? null : this.finding_at(event.offsetX, event.offsetY);
      const sample = hit ? null : found ? this.finding_words(found) : this.sample(event.offsetX, event.offsetY);
      this.tip.hidden = !hit && !sample;
      if (sample) { this.tip.textContent = sample; this.tell(event); }
      clearTimeout(this.looking);
      if (!hit && !sample) this.looking = setTimeout(() => this.hover_dense(event.offsetX, event.offsetY), REST_MS);
      if (!hit) return;
      const { trace, tile, box } = hit;
      const cut = tile.box_low[box] <= -3 || tile.box_high[box] >= tile.columns + 3;
      const scale = (tile.high - tile.low) / tile.columns;
      const long = (cut ? "at least " : "") + format_ns((tile.box_high[box] - tile.box_low[box]) * scale);
      this.tip.textContent = `${this.wire.name(trace, tile.box_name[box])}\n${long} · ${this.about.categories[tile.box_category[box]]}`;
      this.tell(event);
    },

    // Among events too narrow to draw, the longest under a point, or null.
    async largest(row, x) {
      const at = (px) => this.wire.absolute(row.trace, this.time(px));
      try {
        return await this.wire.json("largest", { trace: row.trace.trace, lane: row.lane, t0: at(x - DENSE_PX), t1: at(x + DENSE_PX) });
      } catch (error) {
        this.status.textContent = error.message;
        return null;
      }
    },

    async hover_dense(x, y) {
      const row = this.row_at(y);
      if (!row || row.kind !== "lane" || x < draw.GUTTER || y < draw.RULER) return;
      const one = await this.largest(row, x);
      const still = this.pointer && this.pointer.x === x && this.pointer.y === y && !this.grip;
      if (!one || !still || this.dead) return;
      const others = one.events > 1 ? `\nthe longest of ${one.events.toLocaleString("en")} here; click zooms to it` : "\nclick zooms to it";
      this.tip.textContent = `${one.text}\n${format_ns(one.ns)} · ${this.about.categories[one.category]}${others}`;
      this.tip.hidden = false;
      this.tell({ offsetX: x, offsetY: y });
    },

    // The value of the counter under the pointer, in words.
    sample(x, y) {
      const row = this.row_at(y);
      const held = row && row.kind === "counter" && x > draw.GUTTER && this.counters.get(row.counter);
      if (!held) return null;
      const at = Math.floor(((this.time(x) - held.t0) / (held.t1 - held.t0)) * held.high.length), high = held.high[at], low = held.low[at];
      if (high === null || high === undefined) return null;
      const range = low === high ? draw.amount(high, row.counter.unit) : `${draw.amount(low, row.counter.unit)} to ${draw.amount(high, row.counter.unit)}`;
      return `${row.label}\n${range}`;
    },

    tell(event) {
      this.tip.style.left = `${Math.max(0, Math.min(event.offsetX + 14, this.width - 330))}px`;
      this.tip.style.top = `${event.offsetY + 16}px`;
    },

    key(event) {
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
      if (event.key === "Escape") { if (typing) event.target.blur(); this.release(); return; }
      if (typing || event.ctrlKey || event.metaKey || event.altKey || !this.hears()) return;
      const x = this.pointer ? this.pointer.x : undefined;
      const does = {
        w: () => this.zoom(0.7, x), s: () => this.zoom(1 / 0.7, x), a: () => this.pan(-0.15), d: () => this.pan(0.15), f: () => this.fit(),
        m: () => { if (this.selected) { this.area = this.range_of(this.selected); this.table(this.area); this.paint(); } },
        t: () => this.table(), "/": () => this.find.focus(), p: () => this.pin_here(), "?": () => this.help(), n: () => this.jump(1), N: () => this.jump(-1),
      };
      const on_canvas = document.activeElement === this.canvas;
      if (on_canvas) {
        does.ArrowLeft = () => this.step(-1, event.shiftKey);
        does.ArrowRight = () => this.step(1, event.shiftKey);
        does.ArrowUp = () => this.across(-1);
        does.ArrowDown = () => this.across(1);
        does.Home = () => this.to_end(-1);
        does.End = () => this.to_end(1);
        does.PageUp = () => { this.scroll -= this.shown / 2; this.changed(); };
        does.PageDown = () => { this.scroll += this.shown / 2; this.changed(); };
        if (this.matches) does.Enter = () => this.jump(event.shiftKey ? -1 : 1);
        if (this.chosen && this.props.findings) does.Enter = () => { window.location.href = this.finding_url(this.chosen.one); };
      }
      const act = does[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    },

    help() {
      const rows = KEYS.flatMap(([keys, what]) => [element("dt", {}, element("kbd", {}, keys)), element("dd", {}, what)]);
      this.dock("right", element("h2", {}, "Keys"), element("dl", { class: "ps-tl-facts" }, ...rows));
    },
  };
})(window.perfscope_ui);
