// Requests of the timeline: tiles (binary, see dashboards/web/timeline/index.py), names, events.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";

  const KINDS = {
    cell_lane: Uint16Array, cell_x: Uint16Array, cell_width: Uint16Array, cell_category: Uint8Array, cell_level: Uint8Array,
    box_event: Uint32Array, box_low: Float32Array, box_high: Float32Array, box_lane: Uint16Array, box_name: Uint32Array,
    box_category: Uint8Array,
  };

  // "0-3,7" of [0, 1, 2, 3, 7].
  function ranges(numbers) {
    const parts = [];
    let from = null, last = null;
    for (const at of numbers) {
      if (last !== null && at === last + 1) { last = at; continue; }
      if (from !== null) parts.push(from === last ? `${from}` : `${from}-${last}`);
      from = last = at;
    }
    if (from !== null) parts.push(from === last ? `${from}` : `${from}-${last}`);
    return parts.join(",");
  }

  function parse(buffer) {
    const size = new DataView(buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
    const tile = { columns: head.columns, lanes: head.lanes, bytes: buffer.byteLength };
    for (const key of Object.keys(KINDS)) {
      const [offset, length] = head.arrays[key];
      tile[key] = new KINDS[key](buffer, 4 + size + offset, length);
    }
    return tile;
  }

  // One item's timeline on the server. Times are numbers, ns from the origin of a trace.
  class Wire {
    constructor(url) {
      this.url = url;
      this.names = new Map();
      this.loading = new Map();
      this.going = new Map();
    }

    async json(what, query) {
      const answer = await fetch(`${this.url}${what}?${new URLSearchParams(query)}`, { credentials: "same-origin" });
      const found = await answer.json();
      if (!answer.ok) throw new Error(found.error || `the server answers ${answer.status}`);
      return found;
    }

    about() { return this.json("about", {}); }

    absolute(trace, ns) { return (BigInt(trace.origin) + BigInt(Math.round(ns))).toString(); }

    relative(trace, text) { return Number(BigInt(text) - BigInt(trace.origin)); }

    // All names of a trace; concurrent requests share one answer.
    load_names(trace) {
      if (!this.loading.has(trace.trace)) this.loading.set(trace.trace, this.fetch_names(trace));
      return this.loading.get(trace.trace);
    }

    async fetch_names(trace) {
      const held = { text: new Map(), shade: new Map(), rows: await this.json("names", { trace: trace.trace }) };
      for (const [code, text] of held.rows) { held.text.set(code, text); held.shade.set(code, ui.draw.shade_of(text)); }
      this.names.set(trace.trace, held);
      return held;
    }

    name(trace, code) {
      const held = this.names.get(trace.trace);
      return (held && held.text.get(code)) || "";
    }

    shade(trace, code) {
      const held = this.names.get(trace.trace);
      return (held && held.shade.get(code)) || 0;
    }

    // A tile; it replaces the pending request of the same slot.
    async tile(slot, trace, low, high, columns, lanes) {
      const before = this.going.get(slot);
      if (before) before.abort();
      const control = new AbortController();
      this.going.set(slot, control);
      const query = new URLSearchParams({
        trace: trace.trace, t0: this.absolute(trace, low), t1: this.absolute(trace, high), w: columns, lanes: ranges(lanes),
      });
      const answer = await fetch(`${this.url}tile?${query}`, { credentials: "same-origin", signal: control.signal });
      if (!answer.ok) {
        const said = await answer.json().catch(() => ({}));
        throw new Error(said.error || `the server answers ${answer.status}`);
      }
      const tile = parse(await answer.arrayBuffer());
      if (this.going.get(slot) === control) this.going.delete(slot);
      tile.low = low;
      tile.high = high;
      return tile;
    }
  }

  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]];

  function format_ns(ns) {
    const size = Math.abs(ns);
    for (const [unit, word] of UNITS) {
      if (size >= unit) {
        const value = ns / unit;
        const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
        return `${unit === 1 ? Math.round(value) : value.toFixed(digits)} ${word}`;
      }
    }
    return "0 ns";
  }

  // A time on the ruler, with enough digits to distinguish neighbouring marks.
  function format_mark(ns, step) {
    for (const [unit, word] of UNITS) {
      if (Math.abs(ns) >= unit || unit === 1) {
        const digits = Math.max(0, Math.min(9, Math.ceil(Math.log10(unit / step))));
        return `${(ns / unit).toFixed(unit === 1 ? 0 : digits)} ${word}`;
      }
    }
    return "0";
  }

  // An element with properties and children; names that begin with "on" are listeners. Texts stay texts.
  function element(kind, properties, ...children) {
    const made = document.createElement(kind);
    for (const [key, value] of Object.entries(properties || {})) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (key === "class") made.className = value;
      else made.setAttribute(key, value);
    }
    for (const child of children) made.append(child);
    return made;
  }

  // A React component around one of our views, recreated when its main property changes.
  function mounted(View, property, class_name) {
    return function (props) {
      const place = React.useRef(null);
      React.useEffect(() => {
        const root = place.current;
        root.replaceChildren();
        const view = new View(root, props);
        root.perfscope = view;
        return () => view.end();
      }, [props[property]]);
      return React.createElement("div", { id: props.id, className: class_name, ref: place });
    };
  }

  ui.wire = { Wire, mounted, element, ranges, parse, format_ns, format_mark };
})(window.perfscope_ui);
