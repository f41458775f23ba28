// The menu of downloads: requests one from the server, shows its progress, fetches it, or hands it to Perfetto's page.
window.perfscope_ui = window.perfscope_ui || {};
(function (ui) {
  "use strict";
  const POLL_MS = 500, PING_MS = 100, ANSWER_MS = 60000;
  const PERFETTO = "perfetto";

  const wait = (ms) => new Promise((done) => setTimeout(done, ms));

  // The line in the header belongs to Dash and is set through it.
  const tell = (text) => window.dash_clientside.set_props("live", { children: text });

  function size(bytes) {
    for (const [unit, word] of [[1 << 30, "GiB"], [1 << 20, "MiB"], [1 << 10, "KiB"]]) if (bytes >= unit) return `${(bytes / unit).toFixed(1)} ${word}`;
    return `${bytes} B`;
  }

  // Start the export if necessary, and wait for it; an error has the reason.
  async function made(url, signal) {
    for (let retry = "&retry=1"; ; retry = "") {
      const answer = await fetch(`${url}?ask=1${retry}`, { credentials: "same-origin", signal });
      const said = await answer.json().catch(() => ({}));
      if (answer.status === 200) return said;
      if (answer.status !== 202) throw new Error(said.error || `the server answers ${answer.status}`);
      tell(said.told);
      await wait(POLL_MS);
      if (signal.aborted) throw new DOMException("given up", "AbortError");
    }
  }

  async function download(url, signal) {
    const said = await made(url, signal);
    const link = document.createElement("a");
    link.href = url;
    link.download = said.name;
    document.body.append(link);
    link.click();
    link.remove();
    tell([`${said.name}, ${size(said.bytes)}`, ...said.remarks].join("; "));
  }

  // The address of Perfetto's page by its port on this host.
  function address_of(port) {
    const held = new URL(window.location.origin);
    held.port = port;
    // The page of this build requests a trace unless the address names one of its pages.
    held.hash = "#!/viewer";
    return held;
  }

  // Until the other window answers.
  async function listening(other, origin) {
    let heard = false;
    const hear = (event) => { if (event.source === other && event.origin === origin && event.data === "PONG") heard = true; };
    window.addEventListener("message", hear);
    try {
      const end = performance.now() + ANSWER_MS;
      while (!heard) {
        if (other.closed) throw new Error("Perfetto's page was closed");
        if (performance.now() > end) throw new Error("Perfetto's page does not answer");
        other.postMessage("PING", "*"); // contains no data; the trace is sent to its origin only
        await wait(PING_MS);
      }
    } finally {
      window.removeEventListener("message", hear);
    }
  }

  async function hand_over(props, url, signal) {
    const place = address_of(props.perfetto);
    const other = window.open(place.href, "_blank"); // at once: browsers open tabs only in response to a click
    if (!other) throw new Error("the browser does not let this page open a tab");
    const said = await made(url, signal);
    tell(`${said.name}, ${size(said.bytes)}: to Perfetto`);
    const answer = await fetch(url, { credentials: "same-origin", signal });
    if (answer.status !== 200) throw new Error(`the server answers ${answer.status}`);
    const buffer = await answer.arrayBuffer();
    await listening(other, place.origin);
    other.postMessage({ perfetto: { buffer, title: props.item.title, fileName: said.name, localOnly: true } }, place.origin, [buffer]);
    tell([`${said.name}: opened in Perfetto`, ...said.remarks].join("; "));
  }

  ui.Exports = function (props) {
    const [open, show] = React.useState(false);
    const [going, go] = React.useState(null);
    const place = React.useRef(null);
    React.useEffect(() => {
      if (!open) return undefined;
      const away = (event) => { if (!place.current.contains(event.target)) show(false); };
      const key = (event) => { if (event.key === "Escape") { show(false); place.current.querySelector("button").focus(); } };
      document.addEventListener("pointerdown", away);
      document.addEventListener("keydown", key);
      return () => { document.removeEventListener("pointerdown", away); document.removeEventListener("keydown", key); };
    }, [open]);

    async function start(form, act) {
      const url = `${props.url}${encodeURIComponent(props.item.key)}/${form}`, control = new AbortController();
      show(false);
      go({ form, url, control });
      try {
        await act(url, control.signal);
      } catch (error) {
        tell(error.name === "AbortError" ? "" : error.message);
      }
      go((now) => (now && now.control === control ? null : now));
    }

    async function cancel() {
      show(false);
      going.control.abort();
      go(null);
      await fetch(going.url, { method: "DELETE", credentials: "same-origin" });
      tell("the export was cancelled");
    }

    const make = React.createElement;
    const line = (id, word, act) => make("li", { key: id }, make("button", { type: "button", id: `export-${id}`, onClick: act }, word));
    const lines = going
      ? [line("cancel", "Cancel what is being made", cancel)]
      : props.forms.map((one) => line(one.form, one.word, () => start(one.form, download)));
    if (!going && props.perfetto) lines.unshift(line("open", "Open in Perfetto", () => start(PERFETTO, (url, signal) => hand_over(props, url, signal))));
    return make("div", { id: props.id, className: "ps-exports", ref: place },
      make("button", { type: "button", className: "ps-button", id: "export", "aria-expanded": open, "aria-controls": "export-list",
        disabled: !props.item, onClick: () => show(!open) }, going ? "Export …" : "Export"),
      make("ul", { id: "export-list", className: "ps-exports-list", hidden: !open }, ...lines));
  };
})(window.perfscope_ui);
