// A tree of times as an icicle: the whole on top, its parts below, as wide as their time, in the timeline's colours.
// Largest first or in time order, with a search and a table.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const ROW = 20, MOST_ROWS = 300, LEAST_PX = 0.6, NAME_PX = 110, MOST_PARTS = 10;

  const element = ui.wire.element;

  class View {
    constructor(root, props) {
      this.root = root;
      this.props = props;
      this.tree = props.tree;
      this.zoomed = 0;
      this.at = 0;
      this.pattern = null;
      this.listeners = [];
      const size = this.tree.name.length;
      this.children = Array.from({ length: size }, () => []);
      for (let node = 1; node < size; node++) this.children[this.tree.parent[node]].push(node);
      const first = (node) => (this.tree.first_ns[node] === null ? Infinity : this.tree.first_ns[node]);
      if (props.order === "start") for (const below of this.children) below.sort((a, b) => first(a) - first(b));
      this.find = element("input", { type: "search", class: "ps-tl-find", placeholder: "search names: regular expression ( / )", "aria-label": "search names by regular expression" });
      this.find.value = props.find || "";
      this.status = element("div", { class: "ps-tl-status", role: "status", "aria-live": "polite" });
      this.canvas = element("canvas", { class: "ps-tl-canvas", tabindex: "0", role: "application", "aria-label": "flame graph; arrow keys walk, Enter zooms, Escape goes back, t shows a table" });
      this.tip = element("div", { class: "ps-tl-tip", hidden: "" });
      this.panel = element("section", { class: "ps-tl-panel", "aria-label": "selection" });
      root.append(element("div", { class: "ps-tl-bar" }, this.find, element("button", { class: "ps-button", onclick: () => this.zoom(0) }, "whole"),
        element("button", { class: "ps-button", onclick: () => this.table() }, "as table"), this.status), this.legend(), this.canvas, this.tip, this.panel);
      const on = (target, name, what) => { target.addEventListener(name, what); this.listeners.push(() => target.removeEventListener(name, what)); };
      on(window, "resize", () => this.draw());
      on(this.canvas, "mousemove", (event) => this.hover(event));
      on(this.canvas, "mouseleave", () => { this.tip.hidden = true; });
      on(this.canvas, "click", (event) => { const node = this.hit(event.offsetX, event.offsetY); if (node !== null) { this.select(node); this.zoom(node); } });
      on(this.find, "input", () => this.search());
      on(document, "keydown", (event) => this.key(event));
      const watch = new MutationObserver(() => { this.root.replaceChild(this.legend(), this.colours_before()); this.draw(); });
      watch.observe(document.documentElement, { attributes: true, attributeFilter: ["data-ps-scheme"] });
      this.listeners.push(() => watch.disconnect());
      if (this.tree.said) this.search();
      else { this.select(0); this.search(); }
    }

    // Legend of the colours in use: by self time, largest first; for changes in their natural order.
    legend() {
      const own = new Map(), look = ui.draw.theme();
      this.tree.category.forEach((category, node) => own.set(category, (own.get(category) || 0) + this.tree.own_ns[node]));
      const items = [...own].sort((a, b) => (this.props.look.flat ? a[0] - b[0] : b[1] - a[1])).map(([category]) => {
        const swatch = element("span", { class: "ps-swatch", "aria-hidden": "true" });
        swatch.style.background = this.color(look, category);
        return element("li", { "data-category": category }, swatch, this.props.look.categories[category]);
      });
      return element("ul", { class: "ps-legend ps-tl-legend", "aria-label": "legend" }, ...items);
    }

    color(look, category) { return this.props.look.colors[look.name][category]; }

    colours_before() { return this.root.querySelector(".ps-tl-legend"); }

    end() { for (const stop of this.listeners) stop(); }

    path(node) {
      const found = [];
      for (let at = node; at >= 0; at = this.tree.parent[at]) found.unshift(at);
      return found;
    }

    // Visible boxes: those above the zoomed node are as wide as the picture.
    boxes() {
      const width = this.width, found = [], above = this.path(this.zoomed).filter((node) => !this.folded(node));
      const outer = above.filter((node) => node !== this.zoomed);
      outer.forEach((node, depth) => found.push({ node, x: 0, width, depth, above: true }));
      const waiting = [{ node: this.zoomed, x: 0, width, depth: outer.length }];
      while (waiting.length) {
        const box = waiting.pop();
        if (!this.folded(box.node) || box.node === this.zoomed) found.push(box);
        else box.depth -= 1; // its children take its place
        let x = box.x;
        const scale = box.width / Math.max(this.tree.ns[box.node], 1);
        for (const child of this.children[box.node]) {
          const wide = this.tree.ns[child] * scale;
          if (wide >= LEAST_PX) waiting.push({ node: child, x, width: wide, depth: box.depth + 1 });
          x += wide;
        }
      }
      return found;
    }

    // Frames that only lead to the next one; the first launcher of a row represents all.
    folded(node) { return this.props.fold && this.tree.fold[node] === "-"; }

    label(node) {
      const { name, merged, fold } = this.tree;
      if (this.props.fold && fold[node].length > 1) return fold[node];
      return merged[node] > 1 ? `${name[node]} × ${merged[node]}` : name[node];
    }

    draw() {
      const ratio = window.devicePixelRatio || 1, look = ui.draw.theme(), dark = look.name === "dark";
      this.width = Math.max(this.root.clientWidth, 320);
      this.shown = this.boxes();
      const depth = this.shown.reduce((most, box) => Math.max(most, box.depth), 0) + 1;
      this.canvas.style.height = `${depth * ROW + 2}px`;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round((depth * ROW + 2) * ratio);
      const context = this.canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.font = "11.5px system-ui, sans-serif";
      context.textBaseline = "middle";
      for (const box of this.shown) {
        const name = this.label(box.node), y = box.depth * ROW, hit = this.pattern && this.pattern.test(this.text(box.node));
        const color = ui.draw.shaded(this.color(look, this.tree.category[box.node]), this.props.look.flat ? 0 : ui.draw.shade_of(this.tree.name[box.node]));
        context.globalAlpha = box.above ? 0.5 : this.pattern && !hit ? 0.25 : 1;
        context.fillStyle = color;
        context.fillRect(box.x, y, Math.max(box.width - 0.6, 0.5), ROW - 1);
        if (box.node === this.at) {
          context.globalAlpha = 1;
          context.lineWidth = 2;
          context.strokeStyle = dark ? "#ffffff" : "#17202b";
          context.strokeRect(box.x + 1, y + 1, Math.max(box.width - 2.6, 1), ROW - 3);
        }
        if (box.width > 30) {
          context.globalAlpha = Math.max(context.globalAlpha, 0.6);
          context.fillStyle = context.globalAlpha < 1 ? look.ink : ui.draw.text_on(color);
          const amount = this.amount(context, box), room = box.width - 8 - (amount ? context.measureText(amount).width + 8 : 0);
          context.fillText(ui.draw.fitted(context, name, room), box.x + 4, y + ROW / 2);
          if (amount) { context.textAlign = "right"; context.fillText(amount, box.x + box.width - 5, y + ROW / 2); context.textAlign = "left"; }
        }
      }
      context.globalAlpha = 1;
      this.root.dataset.ready = "1";
    }

    // Time and share in a box, at its right: both, the share alone, or nothing, so that the name keeps its room.
    amount(context, box) {
      if (this.tree.said) return "";
      const ns = this.tree.ns[box.node], share = `${((100 * ns) / Math.max(this.tree.ns[0], 1)).toFixed(1)}%`;
      const fits = (text) => context.measureText(text).width + 8 <= box.width - 8 - Math.min(context.measureText(this.label(box.node)).width, NAME_PX);
      return [`${ui.wire.format_ns(ns)}  ${share}`, share].find(fits) || "";
    }

    hit(x, y) {
      const depth = Math.floor(y / ROW);
      const box = this.shown.find((one) => one.depth === depth && x >= one.x && x < one.x + one.width);
      return box ? box.node : null;
    }

    text(node) { return this.tree.whole[node] || this.tree.name[node]; }

    words(node) {
      if (this.tree.said) return this.tree.said[node];
      const whole = this.tree.ns[0], ns = this.tree.ns[node];
      const of = (part, all) => `${((100 * part) / Math.max(all, 1)).toFixed(1)}%`;
      return [`${ui.wire.format_ns(ns)}, ${of(ns, whole)} of all`, `its own ${ui.wire.format_ns(this.tree.own_ns[node])}`,
        ...(this.tree.count[node] ? [`${this.tree.count[node].toLocaleString("en")} ${this.tree.sampled[node] ? "samples" : "times"}`] : []),
        ...(this.tree.merged[node] > 1 ? [`${this.tree.merged[node].toLocaleString("en")} of them merged`] : [])];
    }

    hover(event) {
      const node = this.hit(event.offsetX, event.offsetY);
      this.tip.hidden = node === null;
      if (node === null) return;
      this.tip.textContent = [this.label(node), ...(this.tree.whole[node] ? [this.tree.whole[node]] : []), ...this.words(node), this.props.look.categories[this.tree.category[node]], ...(this.tree.line[node] ? [this.tree.line[node]] : [])].join("\n");
      this.tip.style.left = `${Math.min(event.offsetX + 14, this.width - 330)}px`;
      this.tip.style.top = `${this.canvas.offsetTop + event.offsetY + 16}px`;
    }

    select(node) {
      this.at = node;
      const name = this.label(node), { whole, ids, line } = this.tree;
      const join = this.props.timeline.includes("?") ? "&" : "?";
      const steps = this.path(node).filter((one) => !this.folded(one)).map((one) => element("button", { class: "ps-link", onclick: () => { this.select(one); this.zoom(one); } }, this.label(one)));
      const trail = element("p", { class: "ps-trail" });
      steps.forEach((step, at) => trail.append(...(at ? [" › ", step] : [step])));
      const link = ids[node] && this.props.timeline ? [element("a", { href: `${this.props.timeline}${join}${new URLSearchParams({ name: ids[node] })}` }, "in the timeline")] : [];
      this.panel.replaceChildren(element("h2", {}, name), ...(whole[node] ? [element("p", { class: "ps-tl-whole", title: whole[node] }, whole[node])] : []),
        element("p", {}, this.words(node).join(", ")), ...(steps.length > 1 ? [trail] : []), ...ui.source(line[node], this.props.look.code[line[node]]), ...link, ...this.parts(node));
      this.status.textContent = `${name}: ${this.words(node)[0]}`;
      this.draw();
    }

    // What the time of a node is spent in: names below it by their own time.
    parts(node) {
      if (this.tree.said || !this.children[node].length) return [];
      const rows = this.by_name(node);
      const title = `Inside, by own time${rows.length > MOST_PARTS ? ` (${MOST_PARTS} of ${rows.length.toLocaleString("en")} names)` : ""}`;
      return [element("h3", {}, title), this.name_table(rows.slice(0, MOST_PARTS), this.tree.ns[node], node ? "of this" : "of all")];
    }

    // [name, {own, count, node}] of a node and all below it, longest own time first; `node` has most of it.
    by_name(top) {
      const sums = new Map(), inside = new Array(this.tree.name.length).fill(false);
      for (let node = top; node < inside.length; node++) {
        inside[node] = node === top || (node > 0 && inside[this.tree.parent[node]]);
        if (!inside[node]) continue;
        const own = this.tree.own_ns[node], held = sums.get(this.label(node)) || { own: 0, count: 0, node, most: -1 };
        if (own > held.most) { held.most = own; held.node = node; }
        sums.set(this.label(node), { ...held, own: held.own + own, count: held.count + this.tree.count[node] });
      }
      return [...sums].filter(([, held]) => held.own > 0).sort((a, b) => b[1].own - a[1].own);
    }

    name_table(rows, whole, of) {
      const line = (name, node) => (this.tree.line[node] && !name.endsWith(")") ? [element("span", { class: "ps-soft" }, ` ${this.tree.line[node]}`)] : []);
      const body = rows.map(([name, held]) => element("tr", {}, element("td", { class: "ps-n" }, ui.wire.format_ns(held.own)), element("td", { class: "ps-n" }, `${((100 * held.own) / Math.max(whole, 1)).toFixed(1)}%`),
        element("td", { class: "ps-n" }, held.count.toLocaleString("en")), element("td", {}, element("button", { class: "ps-link", onclick: () => { this.select(held.node); this.zoom(held.node); } }, name), ...line(name, held.node))));
      const head = element("tr", {}, ...["own time", of, (this.tree.sampled || []).some(Boolean) ? "times, samples" : "times", "name"].map((word, at) => element("th", { scope: "col", ...(at < 3 ? { class: "ps-n" } : {}) }, word)));
      return element("div", { class: "ps-scroll", tabindex: "0" }, element("table", { class: "ps-table ps-parts" }, element("thead", {}, head), element("tbody", {}, ...body)));
    }

    zoom(node) { this.zoomed = node; this.tip.hidden = true; this.draw(); }

    search() {
      this.pattern = null;
      const word = this.find.value;
      if (word) {
        try {
          this.pattern = new RegExp(word, word === word.toLowerCase() ? "i" : "");
          // Time below the outermost match only, so that recursion counts once.
          let ns = 0, count = 0;
          const inside = new Array(this.tree.name.length).fill(false);
          for (let node = 0; node < this.tree.name.length; node++) {
            const parent = this.tree.parent[node], match = this.pattern.test(this.text(node));
            inside[node] = match || (parent >= 0 && inside[parent]);
            if (match) count += 1;
            if (match && !(parent >= 0 && inside[parent])) ns += this.tree.ns[node];
          }
          this.status.textContent = `${count.toLocaleString("en")} places, ${ui.wire.format_ns(ns)} (${((100 * ns) / Math.max(this.tree.ns[0], 1)).toFixed(1)}%)`;
        } catch (error) {
          this.status.textContent = "not a regular expression";
        }
      } else {
        this.status.textContent = "";
      }
      this.draw();
    }

    // The picture as a table: names by own time, which sums to the whole.
    table() {
      const rows = this.by_name(0);
      const more = rows.length > MOST_ROWS ? [element("p", { class: "ps-soft" }, `and ${rows.length - MOST_ROWS} more names`)] : [];
      this.panel.replaceChildren(element("h2", {}, `${ui.wire.format_ns(this.tree.ns[0])} by name`), this.name_table(rows.slice(0, MOST_ROWS), this.tree.ns[0], "of all"), ...more);
    }

    key(event) {
      if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) { if (event.key === "Escape") event.target.blur(); return; }
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (this.props.look.flat && !this.root.contains(document.activeElement)) return; // the page also has timelines
      const parent = this.tree.parent[this.at], beside = parent >= 0 ? this.children[parent] : [0], place = beside.indexOf(this.at);
      const does = {
        "/": () => this.find.focus(), t: () => this.table(), Escape: () => { if (this.tree.said) this.panel.replaceChildren(); else this.select(0); this.zoom(0); },
      };
      if (document.activeElement === this.canvas) {
        does.ArrowDown = () => { let inner = this.children[this.at][0]; while (inner !== undefined && this.folded(inner)) inner = this.children[inner][0]; if (inner !== undefined) this.select(inner); };
        does.ArrowUp = () => { let outer = parent; while (outer > 0 && this.folded(outer)) outer = this.tree.parent[outer]; if (outer >= 0) this.select(outer); };
        does.ArrowRight = () => this.select(beside[Math.min(place + 1, beside.length - 1)]);
        does.ArrowLeft = () => this.select(beside[Math.max(place - 1, 0)]);
        does.Enter = () => this.zoom(this.at);
      }
      if (!does[event.key]) return;
      event.preventDefault();
      does[event.key]();
    }
  }

  ui.Flame = ui.wire.mounted(View, "tree", "ps-timeline ps-flame");
})(window.perfscope_ui);
