"""A WSGI application that is still being made: its port can be told while the libraries of its pages are imported."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable
from typing import Any

_BROKEN = b"The dashboard could not be made; the terminal says why."


class Late:
    """Answers as soon as what ``make`` returns is there; until then a request waits, so a page opens by itself.

    ``make`` runs once, in a thread of its own, from `begin` on.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        """Hold what makes the application."""
        self._make = make
        self._there = threading.Event()
        self._application: Any = None
        self.problem: BaseException | None = None
        """Why there is no application; whoever serves it raises this."""

    def begin(self) -> None:
        """Begin to make it. If that fails the main thread gets a SIGTERM, to look at ``problem``."""
        threading.Thread(target=self._made, name="dashboard", daemon=True).start()

    def _made(self) -> None:
        try:
            self._application = self._make()
        except BaseException as error:  # whatever it is, it is told by the main thread
            self.problem = error
            _thread.interrupt_main(signal.SIGTERM)
        finally:
            self._there.set()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """One request."""
        self._there.wait()
        if self.problem is not None:
            start_response("500 Internal Server Error", [("Content-Type", "text/plain; charset=utf-8")])
            return [_BROKEN]
        return self._application(environ, start_response)
