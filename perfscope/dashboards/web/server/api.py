"""Requests of pages besides Dash's callbacks: tiles of the timeline, downloads. Errors are JSON with a code."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.web.server.exports import Export, export_of, export_state
from perfscope.dashboards.web.server.shelf import Shelf, read_view
from perfscope.dashboards.web.server.works import find_work
from perfscope.dashboards.web.server.workshop import Workshop
from perfscope.model.errors import DataError, UsageError

if TYPE_CHECKING:
    from flask import Flask
    from flask.typing import ResponseReturnValue


# ``api/export/<key>/<form>``: starts an export, reports its progress, and delivers the file.


RETRY_S = 1

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Characters that a spreadsheet takes as the start of a formula."""


def downloads(shelf: Shelf, workshop: Workshop) -> tuple[Callable[..., ResponseReturnValue], ...]:
    """Two views of Flask: ``GET`` and ``DELETE``.

    ``GET`` answers 202 with ``{"told"}`` while the export runs, 200 with the file (``?ask=1``: with its description),
    422
    with ``{"error"}`` if it failed; ``?retry=1`` repeats a failed export. ``DELETE`` cancels it.
    """
    from flask import jsonify, request, send_file

    def found(key: str, form: str) -> Export | None:
        item = shelf.find(key)
        try:
            return None if item is None else export_of(item, form)
        except UsageError:
            return None

    def nothing() -> ResponseReturnValue:
        return jsonify({"error": "unknown name"}), HTTPStatus.NOT_FOUND

    def get(key: str, form: str) -> ResponseReturnValue:
        # A browser sends the origin of a request; other pages must not make this machine work.
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            return jsonify({"error": "the request comes from another page"}), HTTPStatus.FORBIDDEN
        export = found(key, form)
        if export is None:
            return nothing()
        answer = export_state(workshop, export, retry=request.args.get("retry") == "1")
        if answer.problem:
            return jsonify({"error": answer.words}), HTTPStatus.UNPROCESSABLE_ENTITY
        if answer.file is None:
            response = jsonify({"told": answer.words})
            response.headers["Retry-After"] = str(RETRY_S)
            response.headers["Cache-Control"] = "no-store"
            return response, HTTPStatus.ACCEPTED
        if request.args.get("ask") == "1":
            whole = jsonify({"name": export.name, "bytes": answer.file.stat().st_size, "remarks": answer.remarks})
            whole.headers["Cache-Control"] = "no-store"
            return whole
        sent = send_file(
            answer.file, mimetype="application/octet-stream", as_attachment=True, download_name=export.name, etag=False
        )
        sent.headers["Cache-Control"] = "no-store"
        return sent

    def delete(key: str, form: str) -> ResponseReturnValue:
        export = found(key, form)
        if export is None:
            return nothing()
        return jsonify({"cancelled": workshop.cancel(export)})

    return get, delete


def install_api(server: Flask, shelf: Shelf, workshop: Workshop, base_path: str) -> None:
    """Add the routes below ``<base_path>api/``."""
    from flask import Response, jsonify, request

    def folder_of(key: str) -> Path | None:
        work = find_work(shelf, key)
        return None if work is None else workshop.state(work, start=False).folder

    def answered(key: str, make: Callable[[Path], tuple[bytes, str]]) -> ResponseReturnValue:
        folder = folder_of(key)
        if folder is None:
            return jsonify({"error": "no such run or trace is open here"}), HTTPStatus.NOT_FOUND
        try:
            content, kind = make(folder)
        except UsageError as error:
            return jsonify({"error": str(error)}), HTTPStatus.BAD_REQUEST
        except (DataError, FileNotFoundError):
            return jsonify({"error": "not found, or not any more"}), HTTPStatus.NOT_FOUND
        answer = Response(content, mimetype=kind)
        answer.headers["Cache-Control"] = "no-store"
        return answer

    def tile(key: str) -> ResponseReturnValue:
        from perfscope.dashboards.web.timeline.answer import tile_of

        return answered(key, lambda folder: (tile_of(folder, request.args), "application/octet-stream"))

    def look(key: str, what: str) -> ResponseReturnValue:
        from perfscope.dashboards.web.timeline.answer import LOOKS

        if what not in LOOKS:
            return unknown(what)
        return answered(key, lambda folder: (LOOKS[what](folder, request.args), "application/json"))

    def unknown(rest: str) -> ResponseReturnValue:
        return jsonify({"error": "unknown name"}), HTTPStatus.NOT_FOUND

    def csv(key: str, view: str, table: str) -> ResponseReturnValue:

        return answered(key, lambda folder: (csv_of(folder, view, table), "text/csv"))

    def style() -> ResponseReturnValue:
        return Response(report_style(), mimetype="text/css")

    routes: dict[str, Callable[..., Any]] = {
        "style.css": style,
        "table/<key>/<view>/<table>.csv": csv,
        "timeline/<key>/tile": tile,
        "timeline/<key>/<what>": look,
        "<path:rest>": unknown,
    }
    for rule, view in routes.items():
        server.add_url_rule(f"{base_path}api/{rule}", endpoint=f"perfscope-{rule}", view_func=view, methods=["GET"])
    for method, view in zip(("GET", "DELETE"), downloads(shelf, workshop), strict=True):
        rule = f"{base_path}api/export/<key>/<form>"
        server.add_url_rule(rule, endpoint=f"perfscope-export-{method}", view_func=view, methods=[method])


def report_style() -> str:
    """The style rules of our reports for elements of class ``ps-report``; their colours for the whole page."""
    from perfscope.dashboards.report.renderers.page import DARK, LIGHT, RULES

    root = f":root{{color-scheme:light;{LIGHT}}}:root[data-ps-scheme=dark]{{color-scheme:dark;{DARK}}}"
    return f"{root}\n.ps-report{{{RULES}}}\n"


# Tables of a page as CSV, safe to open with a spreadsheet.


def csv_of(folder: Path, view: str, table: str) -> bytes:
    """A table of a view as CSV: all rows, raw numbers (ns, bytes). ``DataError`` if the table does not exist."""
    held = read_view(folder, view)
    result = None if held is None else held.get("view", {}).get("tables", {}).get(table)
    if result is None:
        raise DataError(f"{view}/{table}: no such table")
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow([cell(column["key"]) for column in result["columns"]])
    writer.writerows([cell(value) for value in row] for row in result["rows"])
    return out.getvalue().encode("utf-8", "replace")


def cell(value: Any) -> Any:
    """Mark a text that looks like a formula as text, as spreadsheets do; numbers are unchanged."""
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return "" if value is None else value
