// Findings on a timeline: one row each below the steps, with a mark for every section in which it occurs.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const draw = ui.draw;
  const { format_ns } = ui.wire;
  const element = ui.wire.element;
  const MOST = 6, MOST_LINKED = 3, NEAR_PX = 3;
  const SIGNS = { high: "▲", medium: "◆", low: "●" };
  const HOW = { piece: "pieces of time of the finding", line: "events of its source line", name: "events of its kernel or op" };
  const MARK = /^(?:(\d{1,7}):)?(-?\d{1,19})-(-?\d{1,19})$/;

  // Parts of the class in timeline.js.
  ui.timeline_findings = {
    // Findings by trace, with their sections in time order.
    spread() {
      for (const trace of this.traces) {
        trace.found = [];
        for (const finding of this.about.findings || []) {
          const spans = finding.spans.filter(([number]) => number === trace.trace)
            .map(([, start, end]) => ({ start: this.wire.relative(trace, start), ns: Number(BigInt(end) - BigInt(start)) }));
          const first = spans[0];
          spans.sort((a, b) => a.start - b.start);
          if (spans.length) trace.found.push({ finding, spans, first: spans.indexOf(first) });
        }
      }
    },

    finding_rows(trace, key, push) {
      if (!trace.found.length) return;
      const own = `${key}/findings`, most = this.linked() ? MOST_LINKED : MOST, folds = trace.found.length > most, open = this.open.has(own);
      const more = folds && !open ? ` (${most} of ${trace.found.length})` : "";
      push({ kind: "group", trace, label: `findings${more}`, key: folds ? own : null, sign: folds ? (open ? "▾" : "▸") : "" }, draw.HEAD);
      for (const one of open ? trace.found : trace.found.slice(0, most)) {
        push({ kind: "finding", trace, one, label: `${SIGNS[one.finding.severity]} ${one.finding.rule}` }, draw.ROW);
      }
    },

    // The section under a point; of several the shortest.
    finding_at(x, y) {
      const row = this.row_at(y);
      if (!row || row.kind !== "finding" || x < draw.GUTTER || y < draw.RULER) return null;
      let best = null;
      row.one.spans.forEach((span, at) => {
        const under = x >= this.x(span.start) - NEAR_PX && x <= this.x(span.start + span.ns) + NEAR_PX;
        if (under && (best === null || span.ns < row.one.spans[best].ns)) best = at;
      });
      return best === null ? null : { trace: row.trace, one: row.one, at: best };
    },

    finding_words({ one, at }) {
      const span = one.spans[at];
      return `${one.finding.rule}: ${one.finding.title}\n${one.finding.severity}, ${one.finding.gain}; ${format_ns(span.ns)}, ${at + 1} of ${one.spans.length}`;
    },

    choose(found) {
      const { trace, one, at } = found, span = one.spans[at];
      this.selected = this.wanted = null;
      this.chosen = found;
      this.area = { t0: span.start, t1: span.start + Math.max(span.ns, 1), trace };
      this.tell_finding();
      this.changed();
    },

    // The same, also if the section is outside the picture.
    go_finding(found) {
      const span = found.one.spans[found.at];
      this.bring({ t0: span.start, t1: span.start + Math.max(span.ns, 1) });
      this.reveal((row) => row.kind === "finding" && row.trace === found.trace && row.one === found.one, `t${found.trace.trace}/findings`);
      this.choose(found);
    },

    finding_url(one) {
      const url = new URL(this.props.findings, window.location.href);
      url.searchParams.set("at", one.finding.finding);
      return url.pathname + url.search;
    },

    rule_url(one) {
      const url = new URL(this.props.findings, window.location.href);
      url.searchParams.set("rule", one.finding.rule);
      return url.pathname + url.search;
    },

    tell_finding() {
      const { trace, one, at } = this.chosen, span = one.spans[at], finding = one.finding;
      const line = (word, value) => [element("dt", {}, word), element("dd", {}, value)];
      const step = (by, word) => element("button", { class: "ps-button", onclick: () => this.go_finding({ trace, one, at: (at + by + one.spans.length) % one.spans.length }) }, word);
      const list = element("dl", { class: "ps-tl-facts" }, ...line("saves up to", finding.gain), ...line("severity", finding.severity), ...line("basis", finding.known_by),
        ...line("marked", `${HOW[finding.how]}, ${finding.cut ? "the most expensive: " : ""}${one.spans.length > 1 ? `${one.spans.length.toLocaleString("en")} pieces, ${format_ns(one.spans.reduce((sum, each) => sum + each.ns, 0))} together` : "one piece"}${this.traces.length > 1 ? ` of ${trace.label}` : ""}`),
        ...line("this one", `${format_ns(span.ns)}, begins ${format_ns(span.start)} after the start (${at + 1} of ${one.spans.length})`));
      const links = [element("button", { class: "ps-button", onclick: () => this.table(this.area) }, "what runs in it")];
      if (one.spans.length > 1) links.unshift(step(-1, "one before"), step(1, "next one"));
      if (this.props.findings) links.unshift(element("a", { class: "ps-button", href: this.finding_url(one) }, "open the finding"), element("a", { class: "ps-button", href: this.rule_url(one) }, "the rule"));
      this.dock("right", element("h2", {}, `${finding.rule}: ${finding.title}`), list, element("div", { class: "ps-tl-links" }, ...links));
      this.status.textContent = `finding ${finding.rule}, ${finding.severity}: ${format_ns(span.ns)}, ${at + 1} of ${one.spans.length}`;
    },

    // The section in the address: of one trace, or of the common time.
    marked(word, number) {
      const parts = MARK.exec(word);
      const trace = parts && (this.traces.find((one) => String(one.trace) === parts[1]) || (parts[1] ? null : this.traces[0]));
      if (!trace) return;
      const t0 = this.wire.relative(trace, parts[2]), t1 = this.wire.relative(trace, parts[3]);
      if (!(t1 >= t0)) return;
      this.area = { t0, t1: Math.max(t1, t0 + 1), trace: parts[1] ? trace : null };
      if (!this.props.at.t0) this.around(this.area);
      const one = trace.found.find((each) => String(each.finding.finding) === number);
      const at = one ? one.spans.findIndex((span) => span.start === t0 && span.ns === t1 - t0) : -1;
      if (at >= 0) {
        this.reveal((row) => row.kind === "finding" && row.trace === trace && row.one === one, `t${trace.trace}/findings`);
        this.choose({ trace, one, at });
      } else {
        const top = () => { this.reveal((row) => row.trace === trace, null, true); this.changed(); };
        top();
        this.table(this.area).then(() => { if (this.area) top(); });
      }
    },

    // Select all sections of a finding, on the rank that has most; the panel shows the first.
    all_pieces(number) {
      const rows = this.traces.flatMap((trace) => trace.found.filter((each) => String(each.finding.finding) === number).map((one) => ({ trace, one })));
      if (!rows.length) { this.status.textContent = "0 pieces: the finding has no piece of time"; return; }
      const best = rows.reduce((held, row) => (row.one.spans.length > held.one.spans.length ? row : held));
      const spans = best.one.spans, t1 = Math.max(...spans.map((span) => span.start + span.ns));
      this.go_finding({ ...best, at: best.one.first });
      if (!this.props.at.t0) this.fit({ t0: spans[0].start, t1 });
    },

    // Show a section in the middle third, because what comes before and after it matters as much.
    around({ t0, t1 }) {
      const span = t1 - t0;
      this.fit({ t0: Math.max(t0 - span, Math.min(t0, this.whole.t0)), t1: Math.min(t1 + span, Math.max(t1, this.whole.t1)) });
    },

    mark_word() {
      if (!this.area) return null;
      const { trace, t0, t1 } = this.area, whose = trace || this.traces[0];
      return `${trace ? `${trace.trace}:` : ""}${this.wire.absolute(whose, t0)}-${this.wire.absolute(whose, t1)}`;
    },
  };
})(window.perfscope_ui);
