// A small graph in layers: instructions or ops, the bytes between them, boxes around what is (or could be) one kernel.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const EDGE = 16, NAME_CHARS = 23, WHAT_CHARS = 27, LEAST_SCALE = 0.55;
  const LEAST_TOLD = 1e-3; // of the largest value: counters and flags are no traffic

  const { svg, bytes, finding, remember } = ui.svg;
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
      this.listeners.push(() => window.removeEventListener("resize", resized));
      this.draw();
      const asked = props.sel ? this.graph.nodes.findIndex((node) => node.name === props.sel) : -1;
      const chosen = asked >= 0 ? asked : this.graph.nodes.findIndex((node) => node.chosen);
      if (chosen >= 0) this.select(chosen, asked >= 0);
    }

    end() { for (const stop of this.listeners) stop(); }

    draw() {
      const { graph } = this, width = graph.width + 2 * EDGE, height = graph.height + 2 * EDGE;
      const fit = Math.min(1, (this.root.clientWidth - 2) / width), scale = this.whole ? 1 : Math.max(fit, LEAST_SCALE);
      this.size.hidden = fit >= 1;
      this.size.textContent = this.whole ? "fit" : "full size";
      const runs = graph.nodes.filter((node) => node.runs).length;
      const said = `${runs} that run, ${graph.edges.length} values between them${graph.left ? `; ${graph.left.toLocaleString("en")} more beside them are not drawn` : ""}`;
      this.status.textContent = said;
      const picture = svg("svg", { width: width * scale, height: height * scale, viewBox: `${-EDGE} ${-EDGE} ${width} ${height}`, role: "group", "aria-label": `${graph.title}: ${said}; the table below holds the same` });
      const space = picture.appendChild(svg("defs", {}));
      for (const kind of ["plain", "saved"]) {
        space.append(svg("marker", { id: `ps-arrow-${kind}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8z", class: `ps-arrow-${kind}` })));
      }
      const names = graph.boxes.map((box) => this.box(picture, box));
      for (const edge of graph.edges) this.edge(picture, edge);
      graph.nodes.forEach((node, at) => this.node(picture, node, at));
      // Words last, so that no line lies over them.
      for (const name of names) name();
      for (const edge of graph.edges) this.words(picture, edge);
      this.picture.replaceChildren(picture);
      this.root.dataset.ready = "1";
    }

    // Draws the box; what is returned writes its name.
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

    edge(picture, edge) {
      const [x0, y0, x1, y1] = this.ends(edge), bend = Math.max(18, Math.abs(y1 - y0) / 2.4);
      const line = svg("path", { d: `M${x0} ${y0}C${x0} ${y0 + bend} ${x1} ${y1 - bend} ${x1} ${y1}`, class: `ps-edge${edge.saved ? " ps-saved" : ""}${edge.bytes === null ? " ps-inside" : ""}`, "marker-end": `url(#ps-arrow-${edge.saved ? "saved" : "plain"})` });
      if (this.selected === edge.from || this.selected === edge.to) line.classList.add("ps-near");
      picture.append(line);
    }

    // Beside its end, where lines of one source have parted; a graph of many lines tells only the large ones.
    words(picture, edge) {
      const most = Math.max(...this.graph.edges.map((one) => one.bytes || 0));
      if (edge.bytes === null || edge.bytes < most * LEAST_TOLD || (this.graph.edges.length > 40 && !edge.saved && this.selected !== edge.from && this.selected !== edge.to)) return;
      const [x0, y0, x1, y1] = this.ends(edge), near = y1 > y0 ? 0.68 : 0.5;
      picture.append(svg("text", { x: x0 + (x1 - x0) * near, y: y0 + (y1 - y0) * near + 3, class: `ps-edge-said${edge.saved ? " ps-saved-said" : ""}`, "text-anchor": "middle" }, bytes(edge.bytes), svg("title", {}, edge.said)));
    }

    node(picture, node, at) {
      const [width, height] = this.graph.node, select = () => this.select(at, true);
      const group = svg("g", {
        class: `ps-node${node.chosen ? " ps-centre" : ""}${node.runs ? "" : " ps-value"}${this.selected === at ? " ps-chosen-node" : ""}`, tabindex: "0", role: "button",
        "aria-label": [node.name, node.what, node.line].filter(Boolean).join(", "), onclick: select,
        onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(); } },
      });
      group.append(svg("rect", { x: node.x, y: node.y, width, height, rx: 6 }), svg("text", { x: node.x + 9, y: node.y + 18, class: "ps-node-name" }, cut(node.name, NAME_CHARS)),
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
      this.panel.replaceChildren(element("h2", {}, node.name), list, ...text, element("p", {}, element("a", { href: finding(this.props.timeline, this.props.named === "ops" ? `aten::${wanted}` : wanted) }, "in the timeline")));
      this.draw();
      if (focused) this.picture.querySelectorAll(".ps-node")[at].focus();
    }
  }

  ui.Graph = ui.wire.mounted(View, "graph", "ps-timeline ps-graph");
})(window.perfscope_ui);
