// A line of the program: its code, if known, and a link that opens it in the editor configured on the server.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";

  // The address of a line in the editor, or null: `perfscope serve --editor` sets the template.
  function editor_url(path, line) {
    const page = document.getElementById("page"), template = page && page.dataset.editor;
    if (!template) return null;
    return template.replace("{file}", path.split("/").map(encodeURIComponent).join("/")).replace("{line}", String(line));
  }

  // Turns the place of a finding into a link into the editor: `place` as shown in `root`.
  ui.link_source = function (root, { place, path }) {
    const url = editor_url(path, Number(/:(\d+)$/.exec(place)[1]));
    for (const code of url ? root.querySelectorAll(".where code") : []) {
      if (code.textContent !== place || code.closest("a")) continue;
      const link = ui.wire.element("a", { href: url, title: "open in the editor" });
      code.replaceWith(link);
      link.append(code);
    }
  };

  // Elements for `train.py:88`; `code`: its path, number of the first line and lines, or undefined.
  ui.source = function (place, code) {
    const element = ui.wire.element, number = Number((/:(\d+)$/.exec(place || "") || [])[1]);
    if (!place) return [];
    const label = element("code", {}, place), url = code && editor_url(code.path, number);
    const made = [element("p", { class: "ps-source" }, url ? element("a", { href: url, title: "open in the editor" }, label) : label)];
    if (code) {
      const rows = code.lines.map((text, at) => element("span", code.first + at === number ? { class: "ps-here" } : {}, `${String(code.first + at).padStart(5)}  ${text}`));
      made.push(element("pre", { class: "ps-source", tabindex: "0" }, ...rows));
    }
    return made;
  };
})(window.perfscope_ui);
