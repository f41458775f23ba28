// Formats, cells and style of tables. dash-ag-grid finds functions and components by these two names.
(function () {
  "use strict";
  const functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
  const components = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});
  const LINE_CHARS = 26;
  const absent = (value) => value === null || value === undefined;
  const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });

  functions.psNs = (value) => (absent(value) ? "" : window.perfscope_ui.wire.format_ns(value));
  // The end of a source place, which distinguishes it from its neighbours.
  functions.psLine = (value) => {
    if (absent(value) || value.length <= LINE_CHARS) return value;
    const parts = value.split("/");
    let held = parts.pop();
    while (parts.length && held.length + parts[parts.length - 1].length < LINE_CHARS - 2) held = `${parts.pop()}/${held}`;
    return parts.length ? `…/${held}` : held;
  };
  functions.psCount = (value) => (absent(value) ? "" : typeof value === "string" ? value : grouped.format(value));
  // 989400000000000 is "989 T": decimal prefixes, for FLOPs and bytes per second.
  const compact = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
  functions.psNumber = (value) => {
    if (absent(value)) return "";
    const steps = [[1e18, " E"], [1e15, " P"], [1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]];
    const [size, unit] = steps.find(([least]) => Math.abs(value) >= least) || [1, ""];
    return `${compact.format(value / size)}${unit}`;
  };
  functions.psChance = (value) => (absent(value) ? "" : Number(value).toPrecision(2));
  functions.psShare = (value) => (absent(value) ? "" : `${(100 * value).toFixed(1)}%`);
  functions.psBytes = (value) => {
    if (absent(value)) return "";
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let at = 0;
    while (Math.abs(value) >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
    return `${at === 0 || value >= 100 ? Math.round(value) : value.toFixed(value >= 10 ? 1 : 2)} ${units[at]}`;
  };

  // Keys in a grid: arrows move, Enter follows a cell's link, Tab leaves (a table of 300 rows is one stop, not 2,000).
  functions.psEnter = (params) => {
    const link = params.event.key === "Enter" && params.event.target.querySelector && params.event.target.querySelector("a[href]");
    if (link) link.click();
    return Boolean(link);
  };
  functions.psLeave = () => false;

  // On a phone no column takes more than half of the grid, so that a name and its numbers are visible together; longer
  // names wrap. Earlier widths are kept for when the phone is turned.
  const NARROW_PX = 560, LEAST_PX = 70, SHARE = 0.5;
  function fit(api, grid) {
    let usual = null;
    return function () {
      const room = grid.clientWidth, most = Math.floor(room * SHARE), narrow = room < NARROW_PX;
      if (api.isDestroyed() || !room || narrow === Boolean(usual)) return;
      const now = api.getColumnDefs();
      const first = now.find((one) => !one.hide && one.field);
      const less = (one) => ({ ...one, width: most, minWidth: LEAST_PX, flex: null, wrapText: one === first, autoHeight: one === first });
      const defs = usual || now.map((one) => (one.flex || one.width > most ? less(one) : one));
      usual = usual ? null : now.map((one) => ({ ...one, wrapText: false, autoHeight: false }));
      api.setGridOption("columnDefs", defs);
    };
  }

  // The grid's theme in the page's colours, so that light and dark follow the switch.
  functions.psTheme = (quartz) => quartz.withParams({
    backgroundColor: "var(--card)", foregroundColor: "var(--ink)", borderColor: "var(--line)", accentColor: "var(--link)",
    headerBackgroundColor: "var(--code)", headerTextColor: "var(--soft)", textColor: "var(--ink)", chromeBackgroundColor: "var(--code)",
    oddRowBackgroundColor: "var(--card)", rowHoverColor: "var(--code)", fontSize: 13, headerFontSize: 12.5, wrapperBorderRadius: 8,
    fontFamily: "system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif",
  });

  // A cell that links to another page, with another column's value, or its own as a regular expression.
  components.PsLink = function (props) {
    if (absent(props.value)) return null;
    const source = props.source && props.data[props.source];
    if (props.source && !source) return String(props.value);
    const escaped = String(props.value).replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    const asked = new URLSearchParams({ [props.parameter]: source || props.pattern.replace("{}", () => escaped) });
    const href = `${props.base}${props.base.includes("?") ? "&" : "?"}${asked}`;
    return React.createElement("a", { href, className: "ps-code", tabIndex: -1 }, String(props.value));
  };

  // A cell that links to the address in its row.
  components.PsTo = function (props) {
    if (absent(props.value)) return null;
    return React.createElement("a", { href: props.data.href, tabIndex: -1 }, String(props.value));
  };

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    perfscope_grid: {
      search: function (words) { return { quickFilterText: words || "" }; },
      fit: function (id) {
        window.dash_ag_grid.getApiAsync(id).then((api) => {
          const grid = document.getElementById(id);
          if (grid) new ResizeObserver(fit(api, grid)).observe(grid);
        });
        return window.dash_clientside.no_update;
      },
    },
  });
})();
