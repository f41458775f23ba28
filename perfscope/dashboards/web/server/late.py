"""A WSGI application that is still being made: its port is open while the libraries of its pages are imported."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable
from typing import Any

_BROKEN = b"The dashboard could not be started; see the terminal."


class Late:
    """Answers with the application that ``make`` returns; until then requests wait, so that a page opens by itself.

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
        self._there.wait()
        if self.problem is not None:
            start_response("500 Internal Server Error", [("Content-Type", "text/plain; charset=utf-8")])
            return [_BROKEN]
        return self._application(environ, start_response)
