// The panel of a timeline (selection, marks, search), and the address that restores it.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const draw = ui.draw;
  const { format_ns } = ui.wire;
  const element = ui.wire.element;
  const MOST_ROWS = 200, NARROW_PX = 5, AROUND = 30;
  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

  // A value of the panel with its unit.
  function fact(value, unit) {
    const functions = window.dashAgGridFunctions || {};
    if (unit === "code") return element("code", {}, value);
    if (unit === "bytes") return `${functions.psBytes(value)} (${Math.round(value).toLocaleString("en")} B)`;
    if (unit === "ns") return format_ns(value);
    if (unit === "percent") return `${value.toFixed(0)}%`;
    if (unit === "share") return functions.psShare(value);
    if (unit === "number") return functions.psNumber(value);
    return unit === "id" ? String(value) : typeof value === "number" ? value.toLocaleString("en") : value;
  }
  const KEEP_MS = 60000; // until the browser has surely written the file

  // A CSV cell, as in server/api.py: a text that looks like a formula is marked as text.
  function cell(value) {
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  // Parts of the class in timeline.js.
  ui.timeline_panel = {
    // The last of several requests counts; a pending one is not repeated.
    async select(trace, event) {
      if (this.wanted && this.wanted.trace === trace && this.wanted.event === event) return;
      const mine = (this.wanted = { trace, event });
      try {
        const found = await this.wire.json("event", { trace: trace.trace, event });
        if (this.wanted !== mine || this.dead) return;
        this.selected = { ...found, trace };
        if (this.chosen) this.area = this.chosen = null;
      } catch (error) {
        if (this.wanted === mine) this.status.textContent = error.message;
        return;
      } finally {
        if (this.wanted === mine) this.wanted = null;
      }
      this.told();
      this.changed();
    },

    release() {
      this.wanted = null;
      this.selected = null;
      this.chosen = null;
      this.area = null;
      this.matches = this.ids = null;
      this.find.value = "";
      this.dock("right");
      this.changed();
    },

    told() {
      const one = this.selected, trace = one.trace, start = this.wire.relative(trace, one.start);
      const line = (word, value) => [element("dt", {}, word), element("dd", {}, value)];
      const link = (other, word) => element("button", { class: "ps-link", onclick: () => this.go(trace, other) }, word);
      const list = element("dl", { class: "ps-tl-facts" }, ...line("lasts", `${format_ns(one.ns)} (${one.ns.toLocaleString("en")} ns)`),
        ...line("begins", `${format_ns(start)} after the start`), ...line("what", this.about.categories[one.category]),
        ...line("where", [one.group, one.lane_label].filter(Boolean).join(" · ")));
      if (one.partner) {
        const gap = this.wire.relative(trace, one.partner.start) - start;
        const word = ["calls", "slices"].includes(one.table) ? "launched" : "launched by";
        list.append(...line(word, link(one.partner, `${one.partner.text} (${format_ns(Math.abs(gap))} ${gap < 0 ? "earlier" : "later"})`)));
        if (gap < 0 && word === "launched by") list.append(...line("launch delay", `${format_ns(-gap)} from the start of the call; ${format_ns(Math.max(-gap - one.partner.ns, 0))} from its end`));
      }
      if (one.forward) list.append(...line(this.wire.relative(trace, one.forward.start) < start ? "forward op" : "backward op", link(one.forward, one.forward.text)));
      const peers = this.flows(one).filter((flow) => flow.kind === "peer").map(({ event, trace: other }) => element("div", {},
        element("button", { class: "ps-link", onclick: () => this.go(other, event) }, `${this.lane_words(other, event.lane)}: ${format_ns(event.ns)}`)));
      if (peers.length) list.append(...line("other sides", element("div", {}, ...peers)));
      if (one.op) list.append(...line("op", link(one.op, one.op.text)));
      for (const [word, value, unit] of one.facts || []) list.append(...line(word, fact(value, unit)));
      one.enclosing.slice(0, 12).forEach((outer, at) => list.append(...line(at ? "" : "inside", link(outer, `${outer.text} (${format_ns(outer.ns)})`))));
      const stack = (one.stack || []).map((frame) => element("li", {}, frame));
      const around = stack.length ? [element("details", { class: "ps-tl-stack", open: "" }, element("summary", {}, `stack (${stack.length})`), element("ol", {}, ...stack))] : [];
      const alike = element("button", { class: "ps-button", onclick: () => this.search_text(one.text) }, "all of this name");
      const whole = one.short !== one.text ? [element("p", { class: "ps-tl-whole", title: one.text }, one.text)] : [];
      this.dock("right", element("h2", {}, one.short), ...whole, ...(one.site ? ui.source(one.site.label, one.code) : []), list, ...around, element("div", { class: "ps-tl-links" }, alike));
      const place = this.place_words ? `, ${this.place_words}` : "";
      this.place_words = null;
      this.status.textContent = `${one.text}: ${format_ns(one.ns)}, ${this.lane_words(trace, one.lane)}${place}`;
    },

    // Bring an event into the picture if necessary, and select it.
    go(trace, other) {
      this.bring(this.range_of({ ...other, trace }));
      const lane = trace.lanes[other.lane];
      this.reveal((row) => row.kind === "lane" && row.trace === trace && row.lane === other.lane, `t${trace.trace}/${lane.group}/${lane.label}`);
      this.select(trace, other.event);
    },

    // The same, zoomed in if it would be too narrow to see.
    show(trace, other) {
      const range = this.range_of({ ...other, trace }), length = range.t1 - range.t0;
      if ((length / (this.view.t1 - this.view.t0)) * (this.width - draw.GUTTER) < NARROW_PX) {
        const middle = (range.t0 + range.t1) / 2, span = length * AROUND;
        this.view = { t0: middle - span / 2, t1: middle + span / 2 };
      }
      this.go(trace, other);
    },

    bring(range) {
      if (range.t1 >= this.view.t0 && range.t0 <= this.view.t1) return;
      const span = Math.max(this.view.t1 - this.view.t0, (range.t1 - range.t0) * 4), middle = (range.t0 + range.t1) / 2;
      this.view = { t0: middle - span / 2, t1: middle + span / 2 };
    },

    // Scroll to a row; `fold`: what hides it if it is missing; `top`: make it the first row.
    reveal(is, fold, top) {
      if (fold && !this.rows.some(is)) { this.unfold(fold); this.lay(); }
      const row = this.rows.find(is);
      if (row && top) this.scroll = row.y - this.pins_height;
      else if (row && !row.pinned && (row.y - this.pins_height < this.scroll || row.y + row.height > this.scroll + this.shown - draw.RULER)) this.scroll = row.y - this.shown / 2;
    },

    // A line, and its group.
    unfold(key) {
      for (const each of [...this.closed]) if (key === each || key.startsWith(`${each}/`)) this.closed.delete(each);
      this.open.add(key.split("/")[0]);
      this.open.add(key);
    },

    async search() {
      const word = this.find.value;
      this.ids = null;
      if (!word) { this.matches = this.matching = null; this.status.textContent = ""; this.paint(); return; }
      let pattern;
      try {
        pattern = new RegExp(word, word === word.toLowerCase() ? "i" : "");
      } catch (error) {
        this.status.textContent = "not a regular expression";
        return;
      }
      await this.match((row) => pattern.test(row[1]));
    },

    // Dimmed events: those whose name does not match the search.
    async match(is) {
      const mine = (this.matching = new Map());
      let events = 0, ns = 0, text = null;
      for (const trace of this.traces) {
        const names = await this.wire.load_names(trace), codes = new Set();
        for (const row of names.rows) if (is(row)) { codes.add(row[0]); events += row[2]; ns += row[3]; text = text || row[1]; }
        mine.set(trace, codes);
      }
      if (this.matching !== mine || this.dead) return null;
      this.matches = mine;
      this.status.textContent = `${events.toLocaleString("en")} events, ${format_ns(ns)} in all`;
      this.paint();
      this.remember();
      return text;
    },

    // Names by id, as in links of other pages; `jump`: to the first event with one of them.
    async search_ids(word, jump) {
      const ids = new Set(word.split(","));
      this.ids = word;
      const text = await this.match((row) => ids.has(row[4]));
      if (this.ids !== word) return;
      if (text === null) { this.status.textContent = "0 events of that name here"; return; }
      this.find.value = ids.size === 1 ? text : "";
      if (jump) await this.jump(1);
    },

    search_text(text) {
      this.find.value = `^${escaped(text)}$`;
      this.search();
    },

    // To the next match (by = -1: the previous one), across traces.
    async jump(by) {
      const having = this.matches ? this.traces.filter((one) => (this.matches.get(one) || new Set()).size) : [];
      if (!having.length) return;
      const ask = (trace, t0) => this.wire.json("matches", { trace: trace.trace, names: [...this.matches.get(trace)].slice(0, 2000).join(","), t0, by });
      const one = this.selected, at = one ? having.indexOf(one.trace) : -1, from = one ? this.range_of(one).t0 + (by > 0 ? 1 : 0) : this.view.t0;
      let trace = having[Math.max(at, 0)], found = await ask(trace, this.wire.absolute(trace, from));
      if (one && found.wrapped && having.length > 1) {
        trace = having[(Math.max(at, 0) + by + having.length) % having.length];
        found = await ask(trace, by > 0 ? trace.low : String(BigInt(trace.high) + 1n));
      }
      if (!found.first || this.dead) return;
      this.place_words = `${(found.at + 1).toLocaleString("en")} of ${found.events.toLocaleString("en")} (n, N: next, previous)`;
      this.show(trace, found.first);
    },

    // Events of a section (or of the visible part) by name: the picture as a table.
    async sums(range) {
      const rows = [];
      let events = 0;
      for (const [trace, lanes] of this.visible()) {
        if (range.trace && range.trace !== trace) continue;
        const query = { trace: trace.trace, t0: this.wire.absolute(trace, range.t0), t1: this.wire.absolute(trace, range.t1), lanes: ui.wire.ranges([...new Set(lanes)].sort((a, b) => a - b)), by: this.by };
        const found = await this.wire.json("selection", query);
        await this.wire.load_names(trace);
        events += found.events;
        for (const row of found.rows) rows.push({ ...row, trace });
      }
      if (this.by === "name") return { rows: rows.sort((a, b) => b.ns - a.ns), events };
      const sums = new Map(); // totals over ranks
      for (const row of rows) {
        const held = sums.get(row.text) || { ...row, ns: 0, own_ns: 0, count: 0 };
        sums.set(row.text, { ...held, ns: held.ns + row.ns, own_ns: held.own_ns + row.own_ns, count: held.count + row.count });
      }
      return { rows: [...sums.values()].sort((a, b) => b.own_ns - a.own_ns), events };
    },

    async table(area) {
      const range = area || this.view, { rows, events } = await this.sums(range);
      const span = range.t1 - range.t0, named = this.by === "name", number = (text) => element("td", { class: "ps-n" }, text);
      const words = named ? ["time", "of the piece", "own time", "events", "mean", "what", "name"] : ["own time", "of the piece", "events", this.by];
      const head = element("tr", {}, ...words.map((word, at) => element("th", { scope: "col", ...(at < words.length - (named ? 2 : 1) ? { class: "ps-n" } : {}) }, word)));
      const one = this.selected, here = (row) => (one && named && row.trace === one.trace && row.name === one.name && row.category === one.category ? { class: "ps-tl-here", "aria-current": "true" } : {});
      const share = (ns) => number(`${((100 * ns) / span).toFixed(1)}%`);
      const body = rows.slice(0, MOST_ROWS).map((row) => (named
        ? element("tr", here(row), number(format_ns(row.ns)), share(row.ns), number(format_ns(row.own_ns)), number(row.count.toLocaleString("en")), number(format_ns(row.ns / row.count)),
          element("td", {}, this.about.categories[row.category]), element("td", {}, element("code", {}, this.wire.name(row.trace, row.name) || `name ${row.name}`)))
        : element("tr", {}, number(format_ns(row.own_ns)), share(row.own_ns), number(row.count.toLocaleString("en")), element("td", {}, row.text || "(not known)"))));
      const ways = element("div", { class: "ps-tl-links", role: "group", "aria-label": "summed by" }, ...["name", "category", "module"].map((by) => element("button", { class: "ps-button", "aria-pressed": String(by === this.by), onclick: () => { this.by = by; this.table(area); } }, `by ${by}`)));
      const whose = range.trace && this.traces.length > 1 ? ` of ${range.trace.label}` : "";
      const title = `${events.toLocaleString("en")} events in ${format_ns(span)}${whose}${area ? "" : " (visible)"}`;
      const more = rows.length > MOST_ROWS ? [element("p", { class: "ps-soft" }, `and ${rows.length - MOST_ROWS} more`)] : [];
      const back = this.chosen && area ? [element("div", { class: "ps-tl-links ps-tl-back" }, element("button", { class: "ps-button", onclick: () => this.tell_finding() }, "back to the finding"))] : [];
      this.dock("bottom", element("h2", {}, title), ways, ...back,
        element("div", { class: "ps-scroll", tabindex: "0" }, element("table", { class: "ps-table" }, element("thead", {}, head), element("tbody", {}, ...body))), ...more);
    },

    // The same as CSV: all rows, full names, raw numbers.
    async csv() {
      const range = this.area || this.view, span = range.t1 - range.t0, { rows } = await this.sums(range);
      const named = this.by === "name", name = (row) => this.wire.name(row.trace, row.name) || `name ${row.name}`;
      const lines = [["time_ns", "share", "own_ns", "events", "mean_ns", ...(named ? ["what", "name", "trace"] : [this.by])]];
      for (const row of rows) lines.push([row.ns, row.ns / span, row.own_ns, row.count, row.ns / row.count, ...(named ? [this.about.categories[row.category], name(row), row.trace.label] : [row.text])]);
      const text = lines.map((line) => line.map(cell).join(",")).join("\r\n");
      this.save(new Blob([text, "\r\n"], { type: "text/csv;charset=utf-8" }), "timeline.csv");
    },

    // The picture with its background.
    png() {
      const copy = element("canvas", { width: this.canvas.width, height: this.canvas.height }), on = copy.getContext("2d");
      on.fillStyle = window.getComputedStyle(this.root).backgroundColor;
      on.fillRect(0, 0, copy.width, copy.height);
      on.drawImage(this.canvas, 0, 0);
      copy.toBlob((blob) => { if (blob) this.save(blob, "timeline.png"); else this.status.textContent = "the browser cannot make a picture of it"; }, "image/png");
    },

    save(blob, name) {
      const link = element("a", { href: URL.createObjectURL(blob), download: name });
      document.body.append(link);
      link.click();
      link.remove();
      setTimeout(() => URL.revokeObjectURL(link.href), KEEP_MS);
    },

    // The address holds the whole view, so that it can be shared.
    page_now() {
      const { pathname, search } = window.location, asked = new URLSearchParams(search);
      return [pathname, ...["run", "base", "head"].map((key) => asked.get(key))].join(" ");
    },

    remember() {
      // the address already belongs to another page
      if (this.dead || !this.view || this.page !== this.page_now()) return;
      const url = new URL(window.location.href);
      url.searchParams.set("t0", Math.round(this.view.t0));
      url.searchParams.set("t1", Math.round(this.view.t1));
      const own = this.linked() ? (this.steps().length > 1 ? [[`${this.side()}_step`, this.step_at]] : []) : [["sel", this.selected && this.selected.event], ["trace", this.selected && this.selected.trace.trace], ["find", this.ids ? null : this.find.value], ["name", this.ids],
        ["pins", this.pin_words()], ["mark", this.mark_word()], ["finding", this.chosen && this.chosen.one.finding.finding]];
      for (const [key, value] of own) {
        if (value === null || value === undefined || value === "") url.searchParams.delete(key);
        else url.searchParams.set(key, value);
      }
      window.history.replaceState(window.history.state, "", url);
    },
  };
})(window.perfscope_ui);
