// HTML made by perfscope's own reports, which escape its texts. The page's policy runs no script in it.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  // Link rows of a waterfall to timelines on this page, else to another page.
  function linked(root, links) {
    for (const word of root.querySelectorAll(".fall > div:first-child")) {
      const held = links[word.textContent];
      if (!held || word.querySelector("a")) continue;
      const link = document.createElement("a");
      link.href = held.href;
      link.textContent = word.textContent;
      link.addEventListener("click", (event) => {
        const sides = Object.entries(held.find).map(([side, pattern]) => [document.getElementById(`timeline-${side}`), pattern]).filter(([there]) => there && there.perfscope);
        if (!sides.length) return;
        event.preventDefault();
        for (const there of document.querySelectorAll(".ps-timeline:not(.ps-flame)")) there.perfscope.release();
        for (const [there, pattern] of sides) there.perfscope.look_for(pattern, there === sides[sides.length - 1][0]);
        sides[0][0].scrollIntoView({ block: "center" });
      });
      word.replaceChildren(link);
    }
  }

  ui.Fragment = function (props) {
    const place = React.useRef(null);
    // Make only scrollable elements reachable by keys.
    React.useEffect(function () {
      if (props.links) linked(place.current, props.links);
      if (props.source) ui.link_source(place.current, props.source);
      const parts = [place.current, ...place.current.querySelectorAll(".scroll")];
      const watch = new ResizeObserver(function () {
        for (const part of parts) {
          const longer = part.scrollWidth > part.clientWidth || part.scrollHeight > part.clientHeight;
          if (longer && getComputedStyle(part).overflow !== "visible") part.tabIndex = 0; else part.removeAttribute("tabindex");
        }
      });
      for (const part of parts) watch.observe(part);
      return function () { watch.disconnect(); };
    }, [props.html, props.links, props.source]);
    return React.createElement("div", {
      id: props.id,
      ref: place,
      className: "ps-report",
      dangerouslySetInnerHTML: { __html: props.html || "" },
    });
  };

  // Buttons that copy their block of code.
  document.addEventListener("click", function (event) {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const code = button.parentElement.querySelector("pre");
    const say = function (word) {
      button.textContent = word;
      setTimeout(function () { button.textContent = "copy"; }, 1500);
    };
    const range = document.createRange();
    range.selectNodeContents(code);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    if (navigator.clipboard) {
      navigator.clipboard.writeText(code.textContent).then(function () { say("copied"); }, function () { say("selected"); });
    } else {
      say("selected");
    }
  });
})(window.perfscope_ui);
