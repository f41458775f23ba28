// Around the pages: light or dark theme, and keys that open pages.
(function () {
  "use strict";
  const KEPT = "perfscope-scheme", WAIT_MS = 1200;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let switched = false; // the first call is the initial state of the switch

  function kept() {
    try { return window.localStorage.getItem(KEPT); } catch (error) { return null; }
  }

  // The system's theme until the switch is used; then the switch, in this browser.
  function scheme(on) {
    if (switched) {
      try { window.localStorage.setItem(KEPT, on ? "dark" : "light"); } catch (error) { /* a browser that keeps nothing */ }
    }
    const held = kept(), dark = switched ? Boolean(on) : held ? held === "dark" : system.matches;
    switched = true;
    document.documentElement.dataset.psScheme = dark ? "dark" : "light";
    return [dark ? "dark" : "light", Boolean(on) === dark ? window.dash_clientside.no_update : dark];
  }

  system.addEventListener("change", () => {
    const box = document.getElementById("dark");
    if (!kept() && box && box.checked !== system.matches) { switched = false; box.click(); }
  });

  // g and a letter: open a page. /: the page's search, else the list of runs.
  let began = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    if (began && Date.now() - began < WAIT_MS) {
      began = 0;
      const link = /^[a-z]$/.test(event.key) && document.querySelector(`#menu [data-key=${event.key}] a`);
      if (link) { event.preventDefault(); event.stopImmediatePropagation(); link.click(); }
      return;
    }
    began = event.key === "g" ? Date.now() : 0;
    if (event.key !== "/") return;
    const search = document.querySelector("#page input[type=search]") || document.getElementById("which");
    if (search) { event.preventDefault(); search.focus(); }
  }, true);

  window.dash_clientside = Object.assign({}, window.dash_clientside, { perfscope_page: { scheme } });
})();
