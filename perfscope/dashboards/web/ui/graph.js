// A small graph in layers: instructions or ops, bytes between them, boxes around current or possible kernels.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const EDGE = 16, NAME_CHARS = 23, WHAT_CHARS = 27, LEAST_SCALE = 0.55;
  const LEAST_TOLD = 1e-3; // of the largest value: counters and flags are negligible
  const HALF_LABEL = 32; // of the size on a line
  const BOX_HEAD = 32, WORD_PX = 6.4, WORD_HIGH = 13;
  // A line that would pass below nodes or titles goes around them: the first bow that passes fewest.
  const BOWS = [0, 80, -80, 150, -150, 230, -230, 310, -310], SAMPLES = 24, NODE_COST = 4;
  // candidates for a label's position along its line; the first free one is used
  const PLACES = [0.68, 0.55, 0.45, 0.8, 0.32, 0.2, 0.9, 0.1];

  const apart = (one, other) => one.x >= other.x + other.width || other.x >= one.x + one.width || one.y >= other.y + other.height || other.y >= one.y + one.height;

  const SPACE = "http://www.w3.org/2000/svg";

  function svg(tag, attributes, ...children) {
    const made = document.createElementNS(SPACE, tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  const bytes = (value) => window.dashAgGridFunctions.psBytes(value);

  // The address of a page with one more parameter: a regular expression that matches `name` only.
  function finding(base, name) {
    const escaped = name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    return `${base}${base.includes("?") ? "&" : "?"}${new URLSearchParams({ find: `^${escaped}$` })}`;
  }

  // Keeps a parameter of the address without a request to the server.
  function remember(values) {
    const address = new URL(location.href);
    for (const [key, value] of Object.entries(values)) {
      if (value === null || value === "") address.searchParams.delete(key);
      else address.searchParams.set(key, value);
    }
    history.replaceState(history.state, "", address);
  }

  const element = ui.wire.element;
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

  class View {
    constructor(root, props) {
      this.root = root;
      this.props = props;
      this.graph = props.graph;
      this.selected = null;
      this.whole = false;
      this.listeners = [];
      this.status = element("div", { class: "ps-tl-status", role: "status", "aria-live": "polite" });
      this.picture = element("div", { class: "ps-graph-picture", tabindex: "0", "aria-label": "graph; scroll it with the arrow keys" });
      this.tip = element("div", { class: "ps-tl-tip", hidden: "" });
      this.panel = element("section", { class: "ps-tl-panel", "aria-label": "selection" });
      this.size = element("button", { class: "ps-button", onclick: () => { this.whole = !this.whole; this.draw(); } }, "full size");
      root.append(element("div", { class: "ps-tl-bar" }, this.size, this.status), this.picture, this.tip, this.panel);
      const resized = () => this.draw();
      window.addEventListener("resize", resized);
      this.lay();
      this.listeners.push(() => window.removeEventListener("resize", resized));
      this.draw();
      const asked = props.sel ? this.graph.nodes.findIndex((node) => node.name === props.sel) : -1;
      const chosen = asked >= 0 ? asked : this.graph.nodes.findIndex((node) => node.chosen);
      if (chosen >= 0) this.select(chosen, asked >= 0);
    }

    end() { for (const stop of this.listeners) stop(); }

    draw() {
      const { graph } = this;
      const left = Math.min(0, this.low) - EDGE, width = Math.max(graph.width, this.high) + EDGE - left, height = graph.height + 2 * EDGE;
      const fit = Math.min(1, (this.root.clientWidth - 2) / width), scale = this.whole ? 1 : Math.max(fit, LEAST_SCALE);
      this.size.hidden = fit >= 1;
      this.size.textContent = this.whole ? "fit" : "full size";
      const runs = graph.nodes.filter((node) => node.runs).length;
      const said = `${runs} operations, ${graph.edges.length} values between them${graph.left ? `; ${graph.left.toLocaleString("en")} more are not drawn` : ""}`;
      this.status.textContent = said;
      const picture = svg("svg", { width: width * scale, height: height * scale, viewBox: `${left} ${-EDGE} ${width} ${height}`, role: "group", "aria-label": `${graph.title}: ${said}; the table below holds the same` });
      const space = picture.appendChild(svg("defs", {}));
      for (const kind of ["plain", "saved"]) {
        space.append(svg("marker", { id: `ps-arrow-${kind}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8z", class: `ps-arrow-${kind}` })));
      }
      const names = graph.boxes.map((box) => this.box(picture, box));
      graph.edges.forEach((edge, at) => this.edge(picture, edge, this.curves[at]));
      graph.nodes.forEach((node, at) => this.node(picture, node, at));
      // Labels last, so that no line covers them.
      for (const name of names) name();
      const taken = this.taken();
      for (const saved of [true, false]) graph.edges.forEach((edge, at) => { if (Boolean(edge.saved) === saved) this.words(picture, edge, this.curves[at], taken); });
      this.picture.replaceChildren(picture);
      this.root.dataset.ready = "1";
    }

    // Draws the box; the returned function writes its name.
    box(picture, box) {
      if (box.at.length < 4) return () => {};
      const [x, y, width, height] = box.at, room = Math.floor((width - 16) / 6.6);
      picture.append(svg("rect", { x, y, width, height, rx: 9, class: box.one ? "ps-box" : "ps-box ps-could" }));
      return () => picture.append(svg("text", { x: x + 10, y: y + 15, class: "ps-box-name" }, cut(box.title, room)), svg("text", { x: x + 10, y: y + 28, class: "ps-tick ps-box-said" }, cut(box.said, room), svg("title", {}, box.said)));
    }

    ends(edge) {
      const [width, height] = this.graph.node, from = this.graph.nodes[edge.from], to = this.graph.nodes[edge.to];
      return [from.x + width / 2, from.y + height, to.x + width / 2, to.y];
    }

    // The path of each line, as the four x and y of a curve, and its horizontal extent.
    lay() {
      const [width, height] = this.graph.node;
      this.low = this.high = 0;
      this.curves = this.graph.edges.map((edge) => {
        const [x0, y0, x1, y1] = this.ends(edge), bend = Math.max(18, Math.abs(y1 - y0) / 2.4);
        const others = this.graph.nodes.filter((node, at) => at !== edge.from && at !== edge.to).map(({ x, y }) => ({ x, y, width, height }));
        const heads = this.heads();
        let chosen = null, least = Infinity;
        for (const bow of BOWS) {
          const curve = { xs: [x0, x0 + bow, x1 + bow, x1], ys: [y0, y0 + bend, y1 - bend, y1] }, points = this.samples(curve);
          const passed = (areas) => areas.filter((area) => points.some(([x, y]) => !apart({ x, y, width: 0, height: 0 }, area))).length;
          const cost = NODE_COST * passed(others) + passed(heads);
          if (cost < least) [chosen, least] = [curve, cost];
          if (!least) break;
        }
        for (const [x] of this.samples(chosen)) { this.low = Math.min(this.low, x - HALF_LABEL); this.high = Math.max(this.high, x + HALF_LABEL); }
        return chosen;
      });
    }

    point({ xs, ys }, t) {
      const weights = [(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t ** 3], of = (held) => held.reduce((sum, one, at) => sum + one * weights[at], 0);
      return [of(xs), of(ys)];
    }

    samples(curve) { return Array.from({ length: SAMPLES - 1 }, (_, at) => this.point(curve, (at + 1) / SAMPLES)); }

    edge(picture, edge, { xs, ys }) {
      const line = svg("path", { d: `M${xs[0]} ${ys[0]}C${xs[1]} ${ys[1]} ${xs[2]} ${ys[2]} ${xs[3]} ${ys[3]}`, class: `ps-edge${edge.saved ? " ps-saved" : ""}${edge.bytes === null ? " ps-inside" : ""}`, "marker-end": `url(#ps-arrow-${edge.saved ? "saved" : "plain"})` });
      if (this.selected === edge.from || this.selected === edge.to) line.classList.add("ps-near");
      picture.append(line);
    }

    // Titles of boxes.
    heads() {
      return this.graph.boxes.filter((box) => box.at.length >= 4).map(({ at, title, said }) => ({ x: at[0], y: at[1], width: Math.min(at[2], 12 + Math.max(title.length * 7.4, said.length * WORD_PX)), height: BOX_HEAD }));
    }

    // Areas without labels: nodes, and titles of boxes.
    taken() {
      const [width, height] = this.graph.node;
      return [...this.graph.nodes.map(({ x, y }) => ({ x, y, width, height })), ...this.heads()];
    }

    // A free position on the line, preferably near its end, where lines of one source are apart. In a graph with many
    // lines
    // only large values have labels.
    words(picture, edge, curve, taken) {
      const most = Math.max(...this.graph.edges.map((one) => one.bytes || 0));
      if (edge.bytes === null || edge.bytes < most * LEAST_TOLD || (this.graph.edges.length > 40 && !edge.saved && this.selected !== edge.from && this.selected !== edge.to)) return;
      const text = bytes(edge.bytes), width = text.length * WORD_PX + 4;
      // a short line that could stay on the chip is alone: its label is away from the arrow
      for (const t of edge.saved ? [0.42, ...PLACES] : PLACES) {
        const [x, y] = this.point(curve, t), room = { x: x - width / 2, y: y - WORD_HIGH / 2, width, height: WORD_HIGH };
        if (!taken.every((one) => apart(room, one))) continue;
        taken.push(room);
        picture.append(svg("text", { x, y: y + 4, class: `ps-edge-said${edge.saved ? " ps-saved-said" : ""}`, "text-anchor": "middle" }, text, svg("title", {}, edge.said)));
        return;
      }
    }

    node(picture, node, at) {
      const [width, height] = this.graph.node, select = () => this.select(at, true);
      const group = svg("g", {
        class: `ps-node${node.chosen ? " ps-centre" : ""}${node.runs ? "" : " ps-value"}${this.selected === at ? " ps-chosen-node" : ""}`, tabindex: "0", role: "button",
        "aria-label": [node.name, node.what, node.line].filter(Boolean).join(", "), onclick: select,
        onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(); } },
      });
      const time = node.ns ? ui.wire.format_ns(node.ns) : "";
      group.append(svg("rect", { x: node.x, y: node.y, width, height, rx: 6 }), svg("text", { x: node.x + 9, y: node.y + 18, class: "ps-node-name" }, cut(node.name, NAME_CHARS - (time ? time.length + 1 : 0))),
        svg("text", { x: node.x + width - 8, y: node.y + 18, class: "ps-tick", "text-anchor": "end" }, time),
        svg("text", { x: node.x + 9, y: node.y + 35, class: "ps-tick" }, cut(node.what, WHAT_CHARS)), svg("title", {}, [node.name, node.what, node.line].filter(Boolean).join("\n")));
      picture.append(group);
    }

    select(at, told) {
      const node = this.graph.nodes[at], box = node.box >= 0 ? this.graph.boxes[node.box] : null;
      const focused = this.root.contains(document.activeElement) && document.activeElement.classList.contains("ps-node");
      this.selected = at;
      if (told) remember({ sel: node.name });
      const around = (edges, side) => edges.map((edge) => element("li", {}, element("button", { class: "ps-link", onclick: () => this.select(edge[side], true) }, this.graph.nodes[edge[side]].name),
        ` ${edge.bytes === null ? "inside the kernel" : bytes(edge.bytes)}${edge.said ? `, ${edge.said}` : ""}`));
      const reads = this.graph.edges.filter((edge) => edge.to === at), read = this.graph.edges.filter((edge) => edge.from === at);
      const facts = [["what", node.what], ["line", node.line], ["result", node.bytes === null ? "" : bytes(node.bytes)], ["time", node.ns === null ? "" : ui.wire.format_ns(node.ns)],
        ["in", box === null ? "" : [box.title, box.said].filter(Boolean).join(": ")]].filter(([, value]) => value);
      const list = element("dl", { class: "ps-tl-facts" });
      for (const [name, value] of facts) list.append(element("dt", {}, name), element("dd", {}, value));
      for (const [name, items] of [["reads", around(reads, "from")], ["read by", around(read, "to")]]) {
        if (items.length) list.append(element("dt", {}, name), element("dd", {}, element("ul", { class: "ps-around" }, ...items)));
      }
      const text = node.text ? [element("div", { class: "ps-spelled" }, element("button", { class: "copy ps-button" }, "copy"), element("pre", { tabindex: "0" }, node.text))] : [];
      const wanted = box !== null && box.one ? box.title : node.name;
      const href = this.props.timeline && finding(this.props.timeline, this.props.named === "ops" ? `aten::${wanted}` : wanted);
      const link = href ? [element("p", {}, element("a", { href }, "in the timeline"))] : [];
      this.panel.replaceChildren(element("h2", {}, node.name), list, ...text, ...link);
      this.draw();
      if (focused) this.picture.querySelectorAll(".ps-node")[at].focus();
    }
  }

  ui.Graph = ui.wire.mounted(View, "graph", "ps-timeline ps-graph");
})(window.perfscope_ui);
