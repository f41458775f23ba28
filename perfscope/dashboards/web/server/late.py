"""A WSGI application that is still being made: its port is open while the libraries of its pages are imported."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable
from typing import Any

_BROKEN = b"The dashboard could not be started; see the terminal."

STARTING = "perfscope_starting"
"""Cookie of a browser that shows the first page; its next request waits for the application."""
STARTING_S = 20
FIRST_PAGE = b"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="0">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>perfscope</title>
<style>
:root{color-scheme:light dark;--ground:#f6f7f9;--card:#fff;--ink:#16202c;--soft:#5b6673;--line:#dfe3e8}
@media (prefers-color-scheme:dark){:root{--ground:#11161d;--card:#1a212a;--ink:#e7edf4;--soft:#9aa7b5;--line:#2b343f}}
body{margin:0;background:var(--ground);color:var(--ink)}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
header{background:var(--card);border-bottom:1px solid var(--line);height:54px;line-height:54px;padding:0 16px}
header b{font-size:17px;letter-spacing:-.01em}
main{padding:18px 16px;color:var(--soft)}
</style></head>
<body><header><b>perfscope</b></header><main role="status">Starting the dashboard. The pages follow.</main>
</body></html>
"""
"""The frame of the dashboard without any data: anyone who reaches the port may see it. It reloads itself."""
_HEADERS = [
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Length", str(len(FIRST_PAGE))),
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
]


class Late:
    """Answers with the application that ``make`` returns. Until then a browser gets `FIRST_PAGE`, other requests wait.

    ``make`` runs once, in its own thread, after `begin`.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        """Keep the function that makes the application."""
        self._make = make
        self._there = threading.Event()
        self._application: Any = None
        self.problem: BaseException | None = None
        """Why there is no application; the server's main thread raises it."""

    def begin(self) -> None:
        """Start to make the application. On failure the main thread gets SIGTERM and reads ``problem``."""
        threading.Thread(target=self._made, name="dashboard", daemon=True).start()

    def _made(self) -> None:
        try:
            self._application = self._make()
        except BaseException as error:  # any error: the main thread reports it
            self.problem = error
            _thread.interrupt_main(signal.SIGTERM)
        finally:
            self._there.set()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """Answer one request."""
        if not self._there.is_set() and _opens_a_page(environ):
            cookie = ("Set-Cookie", f"{STARTING}=1; Max-Age={STARTING_S}; Path=/; SameSite=Strict; HttpOnly")
            start_response("200 OK", [*_HEADERS, cookie])
            return [FIRST_PAGE]
        self._there.wait()
        if self.problem is not None:
            start_response("500 Internal Server Error", [("Content-Type", "text/plain; charset=utf-8")])
            return [_BROKEN]
        return self._application(environ, start_response)


def _opens_a_page(environ: dict[str, Any]) -> bool:
    """Whether a browser opens a page, by its header, and does not show the first page yet."""
    opens = environ.get("REQUEST_METHOD") == "GET" and environ.get("HTTP_SEC_FETCH_DEST") == "document"
    return opens and f"{STARTING}=" not in environ.get("HTTP_COOKIE", "")
