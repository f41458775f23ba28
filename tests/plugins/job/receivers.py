"""HTTP servers on loopback that keep what they are sent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Receiver:
    """Requests so far, and the answer to the next ones."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, bytes]] = []
        """(Path, body)."""
        self.answer = 200
        self.address = ""


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    """A server that answers each POST."""
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.posts.append((self.path, body))
            self.send_response(kept.answer)
            if kept.answer == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
