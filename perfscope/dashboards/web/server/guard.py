"""Access control: token, Host, Origin, and a content policy for all pages.

A dashboard on 127.0.0.1 can be reached from every page in the user's browser (DNS rebinding, forged forms) and by every
user of the machine. So each request needs a secret, must address a host name of this server, and must come from our own
page if it changes anything.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from msgspec import Struct, field

from perfscope.model.errors import UsageError

if TYPE_CHECKING:
    from flask import Flask
    from flask.typing import ResponseReturnValue

COOKIE = "perfscope"
MOST_BODY_BYTES = 1 << 20
"""Most bytes of a request: callbacks send a few hundred."""
MOST_QUERY = 8_192
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
TOKEN_BYTES = 24
LEAST_TOKEN = 16


def new_token() -> str:
    """Generate the secret of a server."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def read_token(file: Path) -> str:
    """Read the token in ``file``; ``UsageError`` if it cannot be read or is too short to be a secret."""
    try:
        text = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read ({error})") from error
    if len(text) < LEAST_TOKEN:
        raise UsageError(f"{file}: a token must have at least {LEAST_TOKEN} characters")
    return text


class Guard(Struct, frozen=True, kw_only=True):
    """``hosts``: host names of this server, without port. ``token``: ``None``: requests need no token."""

    token: str | None
    hosts: frozenset[str]
    base_path: str = "/"
    inline_hashes: tuple[str, ...] = field(default=())
    """Hashes of the inline scripts that Dash writes into its page."""

    def install(self, server: Flask) -> None:
        """Check every request and set headers on every answer."""
        server.config["MAX_CONTENT_LENGTH"] = MOST_BODY_BYTES
        server.before_request(self._before)
        server.after_request(self._after)

    def policy(self) -> str:
        """The Content-Security-Policy of every answer."""
        scripts = " ".join(("'self'", *self.inline_hashes))
        return (
            f"default-src 'self'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
            "worker-src 'self' blob:; connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
            "frame-ancestors 'none'"
        )

    def _before(self) -> ResponseReturnValue | None:
        from flask import request

        if host_name(request.host) not in self.hosts:
            return _refused(HTTPStatus.MISDIRECTED_REQUEST, "this server is not known by that name (--allow-host NAME)")
        if len(request.query_string) > MOST_QUERY:
            return _refused(HTTPStatus.REQUEST_URI_TOO_LONG, "the address is too long")
        if not request.path.isprintable():
            return _refused(HTTPStatus.BAD_REQUEST, "the address has control characters")
        if request.method not in SAFE_METHODS and not self._own_origin(request.headers.get("Origin"), request.host):
            return _refused(HTTPStatus.FORBIDDEN, "the request comes from another page")
        return self._known()

    def _known(self) -> ResponseReturnValue | None:
        from flask import redirect, request

        if self.token is None:
            return None
        given = request.args.get("token")
        if given is not None and request.method == "GET" and _same(given, self.token):
            rest = [(name, value) for name, value in request.args.items(multi=True) if name != "token"]
            path = request.path if not rest else f"{request.path}?{urlencode(rest)}"
            answer = redirect(path if path.startswith("/") and not path.startswith("//") else self.base_path)
            answer.set_cookie(
                _cookie_name(request.host),
                _digest(self.token),
                httponly=True,
                samesite="Strict",
                path=self.base_path,
                secure=request.is_secure,
            )
            return answer
        bearer = request.headers.get("Authorization", "")
        if bearer.startswith("Bearer ") and _same(bearer.removeprefix("Bearer "), self.token):
            return None
        if _same(request.cookies.get(_cookie_name(request.host), ""), _digest(self.token)):
            return None
        return _refused(HTTPStatus.UNAUTHORIZED, "open the address with ?token=... that `perfscope serve` printed")

    def _own_origin(self, origin: str | None, host: str) -> bool:
        """Compare a browser's Origin header; a request without one does not come from a browser form."""
        if origin is None:
            return True
        return urlsplit(origin).netloc.lower() == host.lower()

    def _after(self, answer: Any) -> Any:
        headers = answer.headers
        headers["Content-Security-Policy"] = self.policy()
        headers["X-Content-Type-Options"] = "nosniff"
        headers["Referrer-Policy"] = "no-referrer"
        headers["Cross-Origin-Resource-Policy"] = "same-origin"
        headers["X-Frame-Options"] = "DENY"
        return answer


def hosts_of(host: str, more: Iterable[str] = ()) -> frozenset[str]:
    """Host names of a server on ``host``; on all interfaces it needs its own names in ``more``."""
    local = {"127.0.0.1", "localhost", "::1"}
    return frozenset({*local, *([host] if host not in ("0.0.0.0", "::") else []), *(name.lower() for name in more)})  # noqa: S104


def host_name(given: str) -> str:
    """The host name without its port, an IPv6 address without brackets."""
    name = given.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.rpartition(":")[0] if ":" in name else name


def _cookie_name(host: str) -> str:
    """Name the cookie by port: cookies ignore ports, so two dashboards would log each other out."""
    port = host.rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdigit() else COOKIE


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())


def _digest(token: str) -> str:
    return hashlib.sha256(f"perfscope:{token}".encode()).hexdigest()


def _refused(code: HTTPStatus, why: str) -> ResponseReturnValue:
    return f"perfscope: {why}\n", code, {"Content-Type": "text/plain; charset=utf-8"}
