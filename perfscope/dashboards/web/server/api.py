"""What pages fetch besides Dash's own callbacks: tiles of the timeline, downloads. Errors are JSON with a code."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.web.server.downloads import downloads
from perfscope.dashboards.web.server.shelf import Shelf
from perfscope.dashboards.web.server.works import find_work
from perfscope.dashboards.web.server.workshop import Workshop
from perfscope.model.errors import DataError, UsageError

if TYPE_CHECKING:
    from flask import Flask
    from flask.typing import ResponseReturnValue


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
            return jsonify({"error": "that is not there (any more)"}), HTTPStatus.NOT_FOUND
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
        return jsonify({"error": "there is nothing of that name here"}), HTTPStatus.NOT_FOUND

    def csv(key: str, view: str, table: str) -> ResponseReturnValue:
        from perfscope.dashboards.web.server.tables import csv_of

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
    """The rules of our reports, for elements of class ``ps-report``; their colours for the whole page."""
    from perfscope.dashboards.report.compare.html import OWN_STYLE
    from perfscope.dashboards.report.history import STYLE
    from perfscope.dashboards.report.html_page import DARK, LIGHT, RULES

    root = f":root{{color-scheme:light;{LIGHT}}}:root[data-ps-scheme=dark]{{color-scheme:dark;{DARK}}}"
    return f"{root}\n.ps-report{{{RULES}{OWN_STYLE}}}\n.ps-report:has(.ps-history){{{STYLE}}}\n"
