// Draws rows of lanes on a canvas from tiles. It has no state and makes no requests.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";

  const RULER = 26, ROW = 17, HEAD = 22, COUNTER = 46, NARROW = 600, LEVELS = 16;
  let GUTTER = 196;

  // By category of dashboards/web/timeline/lanes.py, sent by the server; light and dark.
  let colors_of = { light: [], dark: [] };
  function use(colors) { colors_of = colors; }

  // Three shades of a colour, by the hash of a name: the same in every run.
  const SHADES = [0, 0.16, -0.14], made = new Map();
  function shade_of(text) {
    let hash = 2166136261;
    for (let at = 0; at < text.length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 16777619);
    return (hash >>> 0) % SHADES.length;
  }
  function shaded(color, shade) {
    const key = color + shade;
    if (!made.has(key)) {
      const by = SHADES[shade], to = by > 0 ? 255 : 0, part = (at) => { const value = parseInt(color.slice(at, at + 2), 16); return Math.round(value + (to - value) * Math.abs(by)); };
      made.set(key, `#${[1, 3, 5].map((at) => part(at).toString(16).padStart(2, "0")).join("")}`);
    }
    return made.get(key);
  }

  function theme() {
    const dark = document.documentElement.dataset.psScheme === "dark";
    return dark
      ? { name: "dark", ground: "#1a2029", band: "#1f2630", ink: "#e5e9ef", soft: "#9aa5b3", line: "#2c3440", label: "#10151b", head: "#232b36", mark: "#f2c46e", counter: "#5b8ac0" }
      : { name: "light", ground: "#ffffff", band: "#f7f8fa", ink: "#17202b", soft: "#5c6775", line: "#dfe3e8", label: "#ffffff", head: "#eef1f5", mark: "#b45309", counter: "#4e79a7" };
  }

  // By severity of a finding; the sign in its row shows it without colour.
  const FOUND = { light: { high: "#b3261e", medium: "#a85b00", low: "#3b5bbf" }, dark: { high: "#ff8a80", medium: "#f5b453", low: "#9db7ff" } };

  // The marks of one finding: single marks have a minimum width; with many, a pixel's opacity is their share of it.
  const FEW_MARKS = 60, LEAST_MARK_PX = 3, FAINT = 0.22, TITLE_PX = 90;
  function finding(context, look, one, view, width, y) {
    const inner = width - GUTTER, to_x = (ns) => GUTTER + ((ns - view.t0) / (view.t1 - view.t0)) * inner;
    const color = FOUND[look.name][one.finding.severity];
    const seen = one.spans.map((span) => [to_x(span.start), to_x(span.start + span.ns)]).filter(([from, to]) => to >= GUTTER && from <= width);
    const many = seen.length > FEW_MARKS, full = many ? new Float32Array(width + 2) : null;
    context.fillStyle = color;
    for (const [from, to] of seen) {
      if (many && to - from < LEAST_MARK_PX) {
        for (let at = Math.max(GUTTER, Math.floor(from)); at <= Math.min(width, Math.floor(to)); at++) full[at] += Math.max(Math.min(to, at + 1) - Math.max(from, at), 0.01);
        continue;
      }
      const x0 = Math.max(GUTTER, from), x1 = Math.min(width, Math.max(to, from + LEAST_MARK_PX));
      if (x1 > x0) context.fillRect(x0, y + 2, x1 - x0, ROW - 5);
    }
    for (let at = GUTTER; many && at <= width; at++) {
      if (!full[at]) continue;
      context.globalAlpha = Math.min(1, FAINT + (1 - FAINT) * full[at]);
      context.fillRect(at, y + 2, 1, ROW - 5);
    }
    context.globalAlpha = 1;
    context.fillStyle = text_on(color);
    seen.forEach(([from, to], at) => {
      const x0 = Math.max(GUTTER, from), next = at + 1 < seen.length ? seen[at + 1][0] : width, wide = Math.min(to, next, width) - x0;
      if (wide < TITLE_PX || (at && seen[at - 1][1] > x0 + 1)) return;
      const room = Math.floor((wide - 6) / 6.1), title = one.finding.title;
      context.fillText(title.length > room ? `${title.slice(0, room - 1)}…` : title, x0 + 4, y + ROW / 2);
    });
  }

  function text_on(color) {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
    return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10151b" : "#ffffff";
  }

  // What a name may lose before it is cut: it distinguishes no two boxes.
  const PREFIX = /^(autograd::engine::evaluate_function: |aten::|c10d_functional::|c10d::|nn\.Module: |(?:[^():]*\/)?(?=[^\/():]+\.py\(\d+\): ))/;

  // A name in `room` pixels: whole, else without its prefix, else cut at its end; "" if nothing is left of it.
  function fitted(context, name, room) {
    if (context.measureText(name).width <= room) return name;
    const short = name.replace(PREFIX, ""), wide = context.measureText(short).width;
    if (wide <= room) return short;
    let kept = Math.floor((short.length * room) / wide);
    while (kept > 1 && context.measureText(`${short.slice(0, kept)}…`).width > room) kept -= 1;
    return kept > 1 ? `${short.slice(0, kept)}…` : "";
  }

  function ruler(context, look, width, view, format_mark) {
    const span = view.t1 - view.t0, inner = width - GUTTER;
    const wished = span / Math.max(2, inner / 110);
    const power = Math.pow(10, Math.floor(Math.log10(wished)));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= wished) || power * 10;
    context.fillStyle = look.head;
    context.fillRect(0, 0, width, RULER);
    context.strokeStyle = look.line;
    context.fillStyle = look.soft;
    context.beginPath();
    for (let at = Math.ceil(view.t0 / step) * step; at <= view.t1; at += step) {
      const x = Math.round(GUTTER + ((at - view.t0) / span) * inner) + 0.5;
      context.moveTo(x, RULER - 6);
      context.lineTo(x, RULER);
      context.fillText(format_mark(at, step), x + 4, RULER / 2 + 1);
    }
    context.stroke();
  }

  // The cells of a tile as an image, one pixel per cell and three equal lines per lane, so that scaling does not mix
  // lanes;
  // made once per theme.
  function cells(held, colors) {
    if (held.picture && held.picture_of === colors) return held.picture;
    held.picture_of = colors;
    held.picture = null;
    if (!held.cell_x.length) return null;
    const picture = document.createElement("canvas"), context = picture.getContext("2d");
    picture.width = held.columns;
    picture.height = 3 * held.lanes.length;
    const pixels = new ImageData(picture.width, picture.height), words = new Uint32Array(pixels.data.buffer);
    const bytes = new Uint8Array(4), word = new Uint32Array(bytes.buffer), inks = colors.map((color) => Array.from({ length: LEVELS + 1 }, (_, level) => {
      bytes.set([1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)));
      bytes[3] = Math.round(255 * (0.25 + (0.75 * level) / LEVELS));
      return word[0];
    }));
    for (let at = 0; at < held.cell_x.length; at++) {
      for (let line = 0; line < 3; line++) {
        const from = (3 * held.cell_lane[at] + line) * held.columns + held.cell_x[at];
        words.fill(inks[held.cell_category[at]][held.cell_level[at]], from, from + held.cell_width[at]);
      }
    }
    context.putImageData(pixels, 0, 0);
    return (held.picture = picture);
  }

  // Cells and boxes of one tile; `place` gives the y of a lane's row, or null if it is off screen.
  function tile(context, look, held, view, width, place, options) {
    const colors = colors_of[look.name], inner = width - GUTTER;
    const scale = (held.high - held.low) / held.columns;
    const to_x = (pixel) => GUTTER + ((held.low + pixel * scale - view.t0) / (view.t1 - view.t0)) * inner;
    const rows = held.lanes.map(place);
    const picture = cells(held, colors);
    if (picture) {
      const from = Math.max(0, Math.floor((view.t0 - held.low) / scale)), to = Math.min(held.columns, Math.ceil((view.t1 - held.low) / scale));
      const x0 = to_x(from), x1 = to_x(to);
      context.save();
      context.beginPath();
      context.rect(GUTTER, 0, inner, 1e6);
      context.clip();
      context.imageSmoothingEnabled = x1 - x0 < to - from; // mixed rather than left out when scaled down
      context.globalAlpha = options.dim ? 0.25 : 1;
      rows.forEach((y, lane) => { if (y !== null && to > from) context.drawImage(picture, from, 3 * lane + 1, to - from, 1, x0, y + 1, x1 - x0, ROW - 3); });
      context.restore();
    }
    context.globalAlpha = 1;
    for (let at = 0; at < held.box_low.length; at++) {
      const y = rows[held.box_lane[at]];
      if (y === null) continue;
      const x0 = Math.max(GUTTER, to_x(held.box_low[at])), x1 = Math.min(width, to_x(held.box_high[at]));
      if (x1 <= x0) continue;
      const color = shaded(colors[held.box_category[at]], options.shade(held.box_name[at]));
      const found = options.matches && options.matches.has(held.box_name[at]);
      context.globalAlpha = options.matches && !found ? 0.25 : 1;
      context.fillStyle = color;
      context.fillRect(x0, y + 1, Math.max(x1 - x0 - 0.5, 1), ROW - 3);
      if (x1 - x0 > 26) {
        context.fillStyle = text_on(color);
        context.fillText(fitted(context, options.name(held.box_name[at]), x1 - x0 - 5), x0 + 3, y + ROW / 2);
      }
    }
    context.globalAlpha = 1;
  }

  function amount(value, unit) {
    if (unit === "bytes") {
      const units = ["B", "KiB", "MiB", "GiB", "TiB"];
      let at = 0;
      while (Math.abs(value) >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
      return `${at ? value.toPrecision(3) : value} ${units[at]}`;
    }
    return new Intl.NumberFormat("en", { notation: Math.abs(value) >= 1e6 ? "compact" : "standard", maximumFractionDigits: 2 }).format(value);
  }

  // A counter as an area: each column from its lowest to its highest value, on a scale from its minimum (or 0).
  function counter(context, look, held, about, view, width, y) {
    const inner = width - GUTTER, columns = held.high.length, floor = Math.min(about.least, 0), top = Math.max(about.most, floor + 1e-9);
    const to_y = (value) => y + COUNTER - 3 - ((value - floor) / (top - floor)) * (COUNTER - 8);
    context.fillStyle = look.counter;
    for (let at = 0; at < columns; at++) {
      if (held.high[at] === null) continue;
      const from = held.t0 + ((held.t1 - held.t0) * at) / columns, to = held.t0 + ((held.t1 - held.t0) * (at + 1)) / columns;
      const x0 = Math.max(GUTTER, GUTTER + ((from - view.t0) / (view.t1 - view.t0)) * inner);
      const x1 = Math.min(width, GUTTER + ((to - view.t0) / (view.t1 - view.t0)) * inner + 0.5);
      if (x1 <= x0) continue;
      context.globalAlpha = 0.35;
      context.fillRect(x0, to_y(held.low[at]), x1 - x0, y + COUNTER - 3 - to_y(held.low[at]));
      context.globalAlpha = 1;
      context.fillRect(x0, to_y(held.high[at]), x1 - x0, Math.max(to_y(held.low[at]) - to_y(held.high[at]), 1.2));
    }
  }

  // The box at a point, or null, from the tile drawn last.
  function box_at(held, view, width, place, x, y) {
    const inner = width - GUTTER, scale = (held.high - held.low) / held.columns;
    const pixel = (view.t0 + ((x - GUTTER) / inner) * (view.t1 - view.t0) - held.low) / scale;
    const rows = held.lanes.map(place);
    for (let at = 0; at < held.box_low.length; at++) {
      const top = rows[held.box_lane[at]];
      if (top !== null && y >= top && y < top + ROW && pixel >= held.box_low[at] && pixel < held.box_high[at]) return at;
    }
    return null;
  }

  // Width of names: smaller on a phone.
  function room(width) { GUTTER = width < NARROW ? 112 : 196; ui.draw.GUTTER = GUTTER; }

  ui.draw = { RULER, GUTTER, room, ROW, HEAD, COUNTER, FOUND, use, shade_of, shaded, color: (look, category) => colors_of[look.name][category], amount, counter, finding, theme, text_on, fitted, ruler, tile, box_at };
})(window.perfscope_ui);
