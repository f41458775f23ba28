// HTML that perfscope's own reports made, with its texts escaped there. The page's policy runs no script in it.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  ui.Fragment = function (props) {
    const place = React.useRef(null);
    // What scrolls must be reachable by keys, and nothing else.
    React.useEffect(function () {
      const parts = [place.current, ...place.current.querySelectorAll(".scroll")];
      const watch = new ResizeObserver(function () {
        for (const part of parts) {
          const longer = part.scrollWidth > part.clientWidth || part.scrollHeight > part.clientHeight;
          if (longer && getComputedStyle(part).overflow !== "visible") part.tabIndex = 0; else part.removeAttribute("tabindex");
        }
      });
      for (const part of parts) watch.observe(part);
      return function () { watch.disconnect(); };
    }, [props.html]);
    return React.createElement("div", {
      id: props.id,
      ref: place,
      className: "ps-report",
      dangerouslySetInnerHTML: { __html: props.html || "" },
    });
  };

  // Buttons that copy the block of code they stand in, wherever they come from.
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
