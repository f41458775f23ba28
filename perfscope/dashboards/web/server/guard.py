"""Who may ask the server, and what a page of it may load: token, Host, Origin, and a policy without exceptions.

A dashboard on 127.0.0.1 is reachable by every page that the user's browser has open (DNS rebinding, forged forms) and
by every user of the machine. So each request needs a secret, must name a host that we are, and if it changes anything
must come from our own page.
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
"""Of a request: callbacks send a few hundred bytes."""
MOST_QUERY = 8_192
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
TOKEN_BYTES = 24
LEAST_TOKEN = 16


def new_token() -> str:
    """A secret for one server."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def read_token(file: Path) -> str:
    """The token in ``file``; ``UsageError`` if it cannot be read or is too short to be a secret."""
    try:
        text = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read ({error})") from error
    if len(text) < LEAST_TOKEN:
        raise UsageError(f"{file}: a token has at least {LEAST_TOKEN} characters")
    return text


class Guard(Struct, frozen=True, kw_only=True):
    """``hosts``: names under which we may be asked, without port. ``token``: ``None`` asks for none."""

    token: str | None
    hosts: frozenset[str]
    base_path: str = "/"
    inline_hashes: tuple[str, ...] = field(default=())
    """Of the inline scripts that Dash itself writes into its page."""

    def install(self, server: Flask) -> None:
        """Ask before, and mark after, every request."""
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
        """A browser names the page a request comes from; one that names none is no browser's form."""
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
    """The names a server on ``host`` is known by; one on all interfaces needs to be told its own (``more``)."""
    local = {"127.0.0.1", "localhost", "::1"}
    return frozenset({*local, *([host] if host not in ("0.0.0.0", "::") else []), *(name.lower() for name in more)})  # noqa: S104


def host_name(given: str) -> str:
    """Without its port; an address of IPv6 without its brackets."""
    name = given.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.rpartition(":")[0] if ":" in name else name


def _cookie_name(host: str) -> str:
    """Cookies do not tell ports apart: without the port in its name two dashboards log each other out."""
    port = host.rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdigit() else COOKIE


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())


def _digest(token: str) -> str:
    return hashlib.sha256(f"perfscope:{token}".encode()).hexdigest()


def _refused(code: HTTPStatus, why: str) -> ResponseReturnValue:
    return f"perfscope: {why}\n", code, {"Content-Type": "text/plain; charset=utf-8"}
