"""``api/export/<key>/<form>``: begins an export, says how far it is, and hands it out."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from perfscope.dashboards.web.server.exports import Export, ask, export_of
from perfscope.dashboards.web.server.shelf import Shelf
from perfscope.dashboards.web.server.workshop import Workshop
from perfscope.model.errors import UsageError

if TYPE_CHECKING:
    from flask.typing import ResponseReturnValue

RETRY_S = 1


def downloads(shelf: Shelf, workshop: Workshop) -> tuple[Callable[..., ResponseReturnValue], ...]:
    """Two views of Flask: ``GET`` and ``DELETE``.

    ``GET`` answers 202 with ``{"told"}`` while it is made, 200 with the file (``?ask=1``: with what it is), 422 with
    ``{"error"}`` where it cannot be made; ``?anew=1`` tries again what failed. ``DELETE`` ends what makes it.
    """
    from flask import jsonify, request, send_file

    def found(key: str, form: str) -> Export | None:
        item = shelf.find(key)
        try:
            return None if item is None else export_of(item, form)
        except UsageError:
            return None

    def nothing() -> ResponseReturnValue:
        return jsonify({"error": "there is nothing of that name here"}), HTTPStatus.NOT_FOUND

    def get(key: str, form: str) -> ResponseReturnValue:
        # A browser says where a request comes from; another page must not make this machine work.
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            return jsonify({"error": "the request comes from another page"}), HTTPStatus.FORBIDDEN
        export = found(key, form)
        if export is None:
            return nothing()
        answer = ask(workshop, export, anew=request.args.get("anew") == "1")
        if answer.problem:
            return jsonify({"error": answer.told}), HTTPStatus.UNPROCESSABLE_ENTITY
        if answer.file is None:
            told = jsonify({"told": answer.told})
            told.headers["Retry-After"] = str(RETRY_S)
            told.headers["Cache-Control"] = "no-store"
            return told, HTTPStatus.ACCEPTED
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
