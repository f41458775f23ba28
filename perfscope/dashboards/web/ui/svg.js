// What pictures in SVG have in common: elements with text as text, numbers in few digits.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
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

  const compact = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

  // 989400000000000 is "989 T"; decimal prefixes, for FLOPs and bytes per second.
  function short(value) {
    const steps = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
    for (const [size, unit] of steps) if (Math.abs(value) >= size) return `${compact.format(value / size)} ${unit}`;
    return `${compact.format(value)} `;
  }

  function bytes(value) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let at = 0;
    while (Math.abs(value) >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
    return `${compact.format(value)} ${units[at]}`;
  }

  const percent = (share) => `${(100 * share).toFixed(1)}%`;

  // The address of a page with one more parameter, which is a regular expression that finds `name` alone.
  function finding(base, name) {
    const escaped = name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    return `${base}${base.includes("?") ? "&" : "?"}${new URLSearchParams({ find: `^${escaped}$` })}`;
  }

  // Keeps a parameter of the address without asking the server for a page.
  function remember(values) {
    const address = new URL(location.href);
    for (const [key, value] of Object.entries(values)) {
      if (value === null || value === "") address.searchParams.delete(key);
      else address.searchParams.set(key, value);
    }
    history.replaceState(history.state, "", address);
  }

  ui.svg = { svg, short, bytes, percent, finding, remember, compact };
})(window.perfscope_ui);
