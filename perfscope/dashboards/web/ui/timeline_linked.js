// Two timelines that show the same period, each from the beginning of one of its steps.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const { format_ns, element } = ui.wire;

  // Name of a link -> its timelines on the page.
  const LINKED = new Map();
  const least = (values) => values.reduce((held, one) => (held === null || one < held ? one : held), null);

  // Parts of the class in timeline.js.
  ui.timeline_linked = {
    linked() { return (this.props.at || {}).link || null; },

    side() { return (this.props.at || {}).side || ""; },

    // Steps of the trace that has most; ranks of a job have the same steps.
    steps() {
      return this.traces.reduce((held, trace) => (trace.steps.length > held.length ? trace.steps : held), []);
    },

    // The event at 0: the beginning of a step; for ranks on a common clock the earliest one.
    align(at) {
      const steps = this.steps();
      this.step_at = Math.max(0, Math.min(Number(at) || 0, steps.length - 1));
      if (!steps.length) return;
      const number = steps[this.step_at][0];
      const begins = (trace) => { const one = trace.steps.find((step) => step[0] === number); return one ? BigInt(one[1]) : null; };
      const all = least(this.traces.map(begins).filter((one) => one !== null));
      for (const trace of this.traces) {
        const own = begins(trace);
        const origin = this.about.together ? all : own;
        if (origin !== null) trace.origin = String(origin);
      }
    },

    extent() {
      const lows = this.traces.map((trace) => this.wire.relative(trace, trace.low)), highs = this.traces.map((trace) => this.wire.relative(trace, trace.high));
      const low = Math.min(...lows), high = Math.max(...highs), pad = Math.max((high - low) * 0.01, 1);
      return { t0: low - pad, t1: high + pad };
    },

    step_picker() {
      const steps = this.steps();
      if (!this.linked() || steps.length < 2) return;
      const options = steps.map(([number, , ns], at) => element("option", { value: at, ...(at === this.step_at ? { selected: "" } : {}) }, `${number} (${format_ns(ns)})`));
      this.picker = element("select", { class: "ps-tl-step", onchange: () => this.pick_step(Number(this.picker.value)) }, ...options);
      this.bar.append(element("label", { class: "ps-soft" }, this.side() === "head" ? "against step " : "from step ", this.picker));
    },

    // The base moves both, to steps with the same index; the head moves alone.
    pick_step(at) {
      const moved = this.side() === "head" || !this.peers ? [this] : [...this.peers];
      for (const one of moved) one.turn(at);
      const all = this.peers ? [...this.peers] : [this];
      this.meet(all);
      const longest = Math.max(...all.map((one) => { const steps = one.steps(); return steps.length ? steps[one.step_at][2] : 0; }));
      if (longest) this.fit({ t0: 0, t1: longest });
      else this.changed();
    },

    turn(at) {
      this.release();
      this.align(at);
      this.spread();
      this.lay();
      if (this.picker) this.picker.value = String(this.step_at);
      this.whole = this.extent();
      this.tiles.clear();
      this.coarse.clear();
      this.counters.clear();
    },

    // A linked timeline shows the time range that all of its link need.
    join() {
      const link = this.linked();
      if (!link) return;
      if (!LINKED.has(link)) LINKED.set(link, new Set());
      this.peers = LINKED.get(link);
      this.peers.add(this);
      this.listeners.push(() => this.peers.delete(this));
      const fitted = this.view.t0 === this.whole.t0 && this.view.t1 === this.whole.t1;
      this.meet([...this.peers]);
      if (fitted) this.view = { ...this.whole };
    },

    meet(all) {
      const extents = all.map((one) => one.extent());
      const whole = { t0: Math.min(...extents.map((one) => one.t0)), t1: Math.max(...extents.map((one) => one.t1)) };
      for (const one of all) one.whole = whole;
    },

    share() {
      if (!this.peers || this.following) return;
      for (const one of this.peers) {
        if (one === this) continue;
        one.following = true;
        one.view = { ...this.view };
        one.changed();
        one.following = false;
      }
    },

    // Keys go to the linked timeline with the focus, else the pointer, else to the first.
    hears() {
      if (!this.peers) return true;
      const all = [...this.peers];
      return (all.find((one) => document.activeElement === one.canvas) || all.find((one) => one.pointer) || all[0]) === this;
    },

    // Search for a pattern; `go`: jump to its first match that is visible or later.
    async look_for(pattern, go) {
      this.find.value = pattern;
      await this.search();
      if (go) await this.jump(1);
    },
  };
})(window.perfscope_ui);
