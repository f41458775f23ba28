// A heat map of ranks: rows of cells that are pointed at, walked with the arrow keys, and lead to the timeline.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const LABEL = 92, TOP = 4, BELOW = 22, MOST_HEIGHT = 520, LEAST_ROW = 1;
  const element = ui.wire.element;
  const percent = (share) => `${(100 * share).toFixed(1)}%`;
  const mix = (from, to, share) => from.map((part, at) => Math.round(part + (to[at] - part) * share));

  // From hardly anything to the most: red for waiting, which is lost, blue for work.
  const COLORS = {
    wait: { light: [[250, 238, 229], [160, 28, 18]], dark: [[48, 38, 38], [255, 128, 108]] },
    busy: { light: [[232, 239, 248], [24, 86, 168]], dark: [[34, 42, 54], [122, 178, 250]] },
  };

  class View {
    constructor(root, props) {
      this.root = root;
      this.props = props;
      this.heat = props.heat;
      this.kind = props.kind;
      this.at = { row: 0, column: 0 };
      this.touched = false;
      this.listeners = [];
      this.most = this.heat.value.reduce((most, one) => (one !== null && one > most ? one : most), 0);
      if (this.kind === "busy") this.most = 1;
      this.status = element("div", { class: "ps-tl-status", role: "status", "aria-live": "polite" });
      this.key = element("canvas", { class: "ps-heat-key", width: "120", height: "12", "aria-hidden": "true" });
      this.canvas = element("canvas", { class: "ps-tl-canvas", tabindex: "0", role: "application", "aria-label": `${props.label}; arrow keys walk, Enter opens the timeline; the table below holds the same` });
      this.tip = element("div", { class: "ps-tl-tip", hidden: "" });
      const ends = this.kind === "busy" ? ["0%", "100% busy"] : ["0", `${ui.wire.format_ns(this.most)} waited`];
      root.append(element("div", { class: "ps-tl-bar" }, element("span", { class: "ps-soft ps-heat-ends" }, ends[0]), this.key, element("span", { class: "ps-soft ps-heat-ends" }, ends[1]), this.status), this.canvas, this.tip);
      const on = (target, name, what) => { target.addEventListener(name, what); this.listeners.push(() => target.removeEventListener(name, what)); };
      on(window, "resize", () => this.draw());
      on(this.canvas, "mousemove", (event) => this.hover(event));
      on(this.canvas, "mouseleave", () => { this.tip.hidden = true; });
      on(this.canvas, "click", (event) => { const cell = this.hit(event.offsetX, event.offsetY); if (cell) { this.at = cell; this.go(); } });
      on(this.canvas, "keydown", (event) => this.press(event));
      const watch = new MutationObserver(() => this.draw());
      watch.observe(document.documentElement, { attributes: true, attributeFilter: ["data-ps-scheme"] });
      this.listeners.push(() => watch.disconnect());
      this.draw();
    }

    end() { for (const stop of this.listeners) stop(); }

    value(row, column) { return this.heat.value[row * this.heat.columns + column]; }

    // Waits spread over decades: the square root keeps the small ones visible beside the worst.
    color(value, dark) {
      const [from, to] = COLORS[this.kind][dark ? "dark" : "light"];
      const share = this.most ? value / this.most : 0;
      return `rgb(${mix(from, to, this.kind === "busy" ? share : Math.sqrt(share)).join(",")})`;
    }

    draw() {
      const ratio = window.devicePixelRatio || 1, dark = document.documentElement.dataset.psScheme === "dark";
      const rows = this.heat.rows.length, columns = this.heat.columns;
      this.width = Math.max(this.root.clientWidth, 300);
      this.row = Math.max(LEAST_ROW, Math.min(26, MOST_HEIGHT / rows));
      this.column = (this.width - LABEL - 10) / columns;
      const height = Math.ceil(TOP + rows * this.row + BELOW);
      this.canvas.style.height = `${height}px`;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(height * ratio);
      const context = this.canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      const soft = style.getPropertyValue("--soft").trim() || "#5c6775";
      const each = Math.max(1, Math.ceil(15 / this.row)), gap = this.row > 8 ? 1 : 0, apart = this.column > 5 ? 1 : 0;
      for (let row = 0; row < rows; row++) {
        const y = TOP + row * this.row;
        if (row % each === 0) { context.fillStyle = soft; context.textAlign = "right"; context.fillText(this.heat.rows[row].label.slice(0, 14), LABEL - 8, y + Math.max(this.row, 12) / 2); }
        for (let column = 0; column < columns; column++) {
          const value = this.value(row, column);
          if (value === null) continue;
          context.fillStyle = this.color(value, dark);
          context.fillRect(LABEL + column * this.column, y, Math.max(this.column - apart, 0.6), this.row - gap);
        }
      }
      context.strokeStyle = dark ? "#ffffff" : "#17202b";
      context.lineWidth = 2;
      if (this.touched) context.strokeRect(LABEL + this.at.column * this.column, TOP + this.at.row * this.row, Math.max(this.column - apart, 2), Math.max(this.row - gap, 2));
      context.fillStyle = soft;
      context.textAlign = "left";
      context.fillText(this.edge(0), LABEL, TOP + rows * this.row + 12);
      context.textAlign = "right";
      context.fillText(this.edge(columns - 1), this.width - 10, TOP + rows * this.row + 12);
      const key = this.key.getContext("2d");
      for (let x = 0; x < 120; x++) { key.fillStyle = this.color((this.most * x) / 119, dark); key.fillRect(x, 0, 1, 12); }
      this.root.dataset.ready = "1";
    }

    edge(column) {
      if (this.heat.labels) return this.heat.labels[column];
      return column === 0 ? "first collective" : `collective ${this.heat.count.toLocaleString("en")}`;
    }

    hit(x, y) {
      const row = Math.floor((y - TOP) / this.row), column = Math.floor((x - LABEL) / this.column);
      return row >= 0 && row < this.heat.rows.length && column >= 0 && column < this.heat.columns ? { row, column } : null;
    }

    words({ row, column }) {
      const value = this.value(row, column), who = this.heat.rows[row].label, cell = row * this.heat.columns + column;
      if (this.kind === "busy") return [`${who}, ${this.heat.labels[column]}`, value === null ? "no such window" : `device busy ${percent(value)} of ${ui.wire.format_ns(this.heat.spans[cell])}`];
      if (value === null) return [who, "took no part"];
      const [number, words, core, last] = this.heat.collectives[this.heat.of[cell]];
      const many = this.heat.sum ? [`all of this cell: ${ui.wire.format_ns(this.heat.sum[cell])}; this is the worst`] : [];
      return [`${who} waited ${ui.wire.format_ns(value)}`, `collective ${(number + 1).toLocaleString("en")}: ${words}`, `itself ${ui.wire.format_ns(core)}; came last: ${last}`, ...many];
    }

    hover(event) {
      const cell = this.hit(event.offsetX, event.offsetY);
      this.tip.hidden = cell === null;
      if (cell === null) return;
      this.tip.textContent = this.words(cell).join("\n");
      this.tip.style.left = `${Math.min(event.offsetX + 14, this.width - 330)}px`;
      this.tip.style.top = `${this.canvas.offsetTop + event.offsetY + 16}px`;
    }

    // The address of the timeline at a cell; null where the rank has none.
    address({ row, column }) {
      const cell = row * this.heat.columns + column, trace = this.heat.rows[row].trace, origin = this.props.origins[trace];
      if (this.heat.value[cell] === null || trace === null || trace === undefined || origin === undefined) return null;
      const start = this.kind === "busy" ? BigInt(this.heat.starts[cell]) : BigInt(this.heat.base) + BigInt(this.heat.at[cell]);
      const from = Number(start - BigInt(origin));
      const lasts = this.kind === "busy" ? this.heat.spans[cell] : this.heat.value[cell] + this.heat.collectives[this.heat.of[cell]][2];
      const pad = Math.max(lasts * 0.25, 1000), join = this.props.timeline.includes("?") ? "&" : "?";
      return `${this.props.timeline}${join}${new URLSearchParams({ t0: Math.round(from - pad), t1: Math.round(from + lasts + pad), trace })}`;
    }

    go() {
      this.touched = true;
      const to = this.address(this.at);
      this.draw();
      this.status.replaceChildren(`${this.words(this.at).join("; ")} `, ...(to ? [element("a", { href: to }, "in the timeline")] : []));
    }

    press(event) {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (move) {
        this.at = { row: Math.min(Math.max(this.at.row + move[0], 0), this.heat.rows.length - 1), column: Math.min(Math.max(this.at.column + move[1], 0), this.heat.columns - 1) };
        this.go();
      } else if (event.key === "Enter") {
        const to = this.address(this.at);
        if (to) window.location.assign(to);
      } else return;
      event.preventDefault();
    }
  }

  ui.HeatMap = ui.wire.mounted(View, "heat", "ps-timeline ps-heat");
})(window.perfscope_ui);
