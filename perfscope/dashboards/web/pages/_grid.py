"""Tables of views as grids: sortable, searchable, with units, and downloadable."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag
from dash import ClientsideFunction, Input, Output, dcc, html

from perfscope.dashboards.web.pages import PageRequest

_NUMBERS = {
    "ns": "psNs",
    "bytes": "psBytes",
    "count": "psCount",
    "share": "psShare",
    "number": "psNumber",
    "chance": "psChance",
}
"""Formats of assets/grid.js by unit."""

LINES = frozenset({"line", "place", "where", "from_line", "to_line"})
"""Columns that hold places in source files."""

FEW_ROWS = 18
ROW_PX, HEAD_PX = 34, 50
HEAD_ROOM_PX, LETTER_PX = 52, 8
"""Pixels next to the words of a column title (padding, filter sign), and the largest mean width of a letter."""


def grid(
    name: str,
    held: dict[str, Any],
    request: PageRequest,
    *,
    table: str,
    links: dict[str, tuple[str, str, str]] | None = None,
    key: str | None = None,
    view: str | None = None,
    picks: bool = False,
    by: dict[str, tuple[str, str, str]] | None = None,
) -> Any:
    """The grid of a table (`views._tables.table`) with its search and its CSV.

    ``name``: of the page, for ids; ``table``: its name in the view, for the download. ``links``: column -> (page,
    parameter, template of the parameter, with ``{}`` for the value as a regular expression); a page may be an address.
    ``by``: column -> (page, parameter, column with the parameter's value; empty: no link in that row).
    ``key`` and ``view``: where the table comes from, if not from the item and the page.
    ``picks``: rows can be ticked (``selectedRows`` of the grid), and there is no download. A column without title is
    hidden; the column ``href`` is the link of the first column, ``whole`` its tooltip. Columns that are empty in every
    row are hidden and named below the grid.
    """
    columns = [
        _column(column, request, (links or {}).get(column["key"]), (by or {}).get(column["key"]))
        for column in held["columns"]
    ]
    keys = [column["key"] for column in held["columns"]]
    rows = [dict(zip(keys, row, strict=True)) for row in held["rows"]]
    empty = [column for column in held["columns"] if column["title"] and _is_empty(held["rows"], keys, column["key"])]
    for column in columns:
        if column["field"] in {item["key"] for item in empty}:
            column |= {"hide": True}
    whose = key if key is not None else "" if request.item is None else request.item.key
    csv = f"{request.base_path}api/table/{whose}/{view or name}/{table}.csv"
    label = html.Label("search in the table", htmlFor=f"{name}-search", className="ps-hidden")
    search = dcc.Input(id=f"{name}-search", type="search", placeholder="search", className="ps-tl-find")
    file = [] if picks else [html.A("CSV", href=csv, className="ps-button", download=f"{name}-{table}.csv")]
    if "whole" in keys:
        columns[0] |= {"tooltipField": "whole"}
    if "href" in keys:
        columns[0] |= {"cellRenderer": "PsTo"}
    # A page that is drawn again, because something was read meanwhile, keeps what was ticked.
    kept = {"persistence": name, "persistence_type": "memory", "getRowId": "params.data.key"} if picks else {}
    ticks = {"rowSelection": {"mode": "multiRow", "enableClickSelection": False}} if picks else {}
    left = [html.P(f"{held['left']:,} more rows are left out", className="ps-soft")] if held["left"] else []
    absent = " · ".join(item["title"] for item in empty)
    left += [html.P(f"empty columns are hidden: {absent}", className="ps-soft ps-absent")] if absent else []
    return html.Div(
        [
            html.Div([label, search, *file], className="ps-tl-bar"),
            dag.AgGrid(
                **kept,
                id=f"{name}-grid",
                columnDefs=columns,
                rowData=rows,
                defaultColDef={"sortable": True, "resizable": True, "wrapHeaderText": True,
                               "autoHeaderHeight": True, "filter": True, "tooltipComponentParams": {},
                               "suppressKeyboardEvent": {"function": "psEnter(params)"}},
                dashGridOptions={
                    "theme": {"function": "psTheme(themeQuartz)"},
                    "animateRows": False,
                    "enableCellTextSelection": True,
                    "ensureDomOrder": True,
                    "tabToNextCell": {"function": "psLeave(params)"},
                    "rowHeight": ROW_PX,
                    "tooltipShowDelay": 400,
                    # otherwise rows below the fold are empty in print and in pictures
                    "suppressContentVisibilityAuto": True,
                    **ticks,
                },
                style={"height": f"{HEAD_PX + 14 + ROW_PX * min(max(len(rows), 3), FEW_ROWS)}px"},
            ),
            *left,
        ],
        className="ps-card ps-grid",
    )  # fmt: skip


def register_grid(app: Any, name: str) -> None:
    """Connect the search above a grid to it; on a phone, adapt the widths of its columns."""
    app.clientside_callback(
        ClientsideFunction(namespace="perfscope_grid", function_name="fit"),
        Output(f"{name}-grid", "className"),
        Input(f"{name}-grid", "id"),
    )
    app.clientside_callback(
        ClientsideFunction(namespace="perfscope_grid", function_name="search"),
        Output(f"{name}-grid", "dashGridOptions"),
        Input(f"{name}-search", "value"),
        prevent_initial_call=True,
    )


def _is_empty(rows: list[list[Any]], keys: list[str], key: str) -> bool:
    index = keys.index(key)
    return bool(rows) and all(row[index] is None or row[index] == "" for row in rows)


def _column(
    column: dict[str, Any], request: PageRequest, link: tuple[str, str, str] | None, by: tuple[str, str, str] | None
) -> dict[str, Any]:
    unit, key = column["unit"], column["key"]
    made: dict[str, Any] = {"field": key, "headerName": column["title"], "minWidth": 70}
    if not column["title"]:
        made |= {"hide": True}
    if column["width"] is None:
        made |= {"flex": 1, "minWidth": 300}
    else:
        longest = max(map(len, column["title"].split()), default=0)
        made |= {"width": max(column["width"], HEAD_ROOM_PX + LETTER_PX * longest)}
    if unit in _NUMBERS:
        made |= {
            "type": "rightAligned",
            "filter": "agNumberColumnFilter",
            "valueFormatter": {"function": f"{_NUMBERS[unit]}(params.value)"},
        }
    else:
        made |= {"filter": "agTextColumnFilter", "tooltipField": key}
    if key in LINES:
        made |= {"valueFormatter": {"function": "psLine(params.value)"}}
    if unit == "code":
        made |= {"cellClass": "ps-code"}
    if link is not None:
        page, parameter, pattern = link
        base = page if page.startswith("/") else request.link(page)
        made |= {
            "cellRenderer": "PsLink",
            "cellRendererParams": {
                "base": base,
                "parameter": parameter,
                "pattern": pattern,
            },
        }
    if by is not None:
        page, parameter, source = by
        made |= {
            "cellRenderer": "PsLink",
            "cellRendererParams": {"base": request.link(page), "parameter": parameter, "source": source},
        }
    return made
