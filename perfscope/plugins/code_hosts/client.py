"""HTTP client for a code host's API: JSON over TLS with one token, bounded in time and size.

The token is sent to one server only: redirects are not followed, and addresses in an answer are not requested.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from typing import Any, NoReturn, Protocol, TypeVar
from urllib.parse import urlencode, urlsplit

from msgspec import Struct

from perfscope.model.errors import PerfscopeError, UsageError
from perfscope.model.untrusted_text import sanitize

SOCKET_SECONDS = 30.0
ANSWER_SECONDS = 120.0
"""Seconds for one whole answer, so that a server that sends one byte every 29 seconds is given up too."""
MOST_TRIES = 4
MOST_WAIT = 120.0
"""Most seconds of waiting for one request: GitHub demands 60 at its secondary limit, and a job is billed by time."""
ROWS = 100
"""Rows per page: the maximum of GitHub and GitLab."""
MOST_PAGES = 100
MOST_BYTES = 64 << 20
"""Most bytes of an answer: a hundred of GitHub's longest comments, in four-byte characters, are 26 MB."""
READ_AT_ONCE = 1 << 16
MESSAGE_LIMIT = 200
LOOPBACK = ("127.0.0.1", "::1")
"""The only hosts that may be used without TLS. By number, because a name can be redirected."""

RATE_LIMITED = 429
FORBIDDEN = 403
SERVER_FAULT = 500


Taken = TypeVar("Taken")


class HostError(PerfscopeError):
    """A code host refused a request, or its answer is not as documented. Exit code 4."""

    def __init__(self, line: str, status: int | None = None) -> None:
        super().__init__(line)
        self.status = status


class HostTroubleError(HostError):
    """The connection failed: whether the request was carried out is unknown."""


class _Response(Protocol):
    def read1(self, amount: int = ..., /) -> bytes: ...


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Blocks redirects, because urllib would send the Authorization header to the address of the answer."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return None: a redirect is an answer like any other, and its status is reported."""


class Reply(Struct, frozen=True, kw_only=True):
    """An answer: its JSON, and the headers by lower-case name."""

    value: Any
    headers: Mapping[str, str]


class Client:
    """A client of one server."""

    def __init__(
        self,
        *,
        host: str,
        base: str,
        headers: Mapping[str, str],
        missing: Mapping[int, str] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``UsageError`` if the address ``base`` of the API is not allowed.

        ``host``: name of the server in messages, ``GitHub``; ``headers`` carry the token; ``missing``: status -> the
        probable reason and its remedy.
        """
        check_address(base)
        self.host, self.base, self.headers, self.missing, self.sleep = host, base, headers, missing or {}, sleep

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        payload: Mapping[str, Any] | None = None,
        again: bool,
    ) -> Reply:
        """Send one request. ``again``: it may be repeated if its outcome is unknown.

        ``HostError``: refused; ``HostTroubleError``: the connection failed every time.
        """
        url = self.base.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        body = None if payload is None else json.dumps(payload).encode()
        what = f"{self.host}: {method} {sanitize(path)}"
        waited = 0.0
        tries = 0
        while True:
            tries += 1
            try:
                return self._once(method, url, body, what)
            except _BusyError as busy:
                pause, last = busy.seconds, busy.refusal
            except HostTroubleError as trouble:
                if not again:
                    raise
                pause, last = 2.0 ** (tries - 1), trouble
            if tries == MOST_TRIES or waited + pause > MOST_WAIT:
                raise last
            self.sleep(pause)
            waited += pause

    def rows(self, path: str, query: Mapping[str, str | int] | None = None) -> Iterator[Mapping[str, Any]]:
        """All rows of a list over all pages. Pages are counted here; links in answers are not followed."""
        for page in range(1, MOST_PAGES + 1):
            reply = self.request("GET", path, query={**(query or {}), "per_page": ROWS, "page": page}, again=True)
            if not isinstance(reply.value, list):
                self.unexpected(path)
            for row in reply.value:
                if not isinstance(row, dict):
                    self.unexpected(path)
                yield row
            link = reply.headers.get("link")
            more = len(reply.value) == ROWS if link is None else re.search(r';\s*rel="?next"?', link) is not None
            if not more:
                return
        raise HostError(
            f"{self.host}: {sanitize(path)}: more than {MOST_PAGES * ROWS:,} rows; not all of them were read"
        )

    def unexpected(self, path: str) -> NoReturn:
        """The error for an answer whose shape differs from the documentation."""
        raise HostError(
            f"{self.host}: {sanitize(path)}: the answer does not match its documentation; is {self.base} its API?"
        )

    def taken(self, value: Any, path: str, take: Callable[[Mapping[str, Any]], Taken]) -> Taken:
        """Return ``take`` of an answer; raise `unexpected` if the answer has another shape."""
        try:
            return take(value)
        except (KeyError, TypeError, ValueError):
            self.unexpected(path)

    def write(
        self, method: str, path: str, body: str, read: Callable[[Mapping[str, Any]], Taken], *, again: bool
    ) -> Taken:
        """Send the text of a comment; return ``read`` of the answer. ``again``: as in `request`."""
        return self.taken(self.request(method, path, payload={"body": body}, again=again).value, path, read)

    def user(self, key: str) -> str:
        """The token's user: ``key`` of ``/user``."""
        name = self.taken(self.request("GET", "/user", again=True).value, "/user", lambda row: row[key])
        if not isinstance(name, str):
            self.unexpected("/user")
        return name

    def _once(self, method: str, url: str, body: bytes | None, what: str) -> Reply:
        headers = {"User-Agent": "perfscope", "Accept": "application/json", **self.headers}
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(url, data=body, headers=headers, method=method)  # noqa: S310 (checked above)
        try:
            with _opener(url).open(request, timeout=SOCKET_SECONDS) as response:
                content = self._read(response, what)
                response_headers = {name.lower(): value for name, value in response.headers.items()}
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error, what)
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise HostTroubleError(f"{what}: no answer: {reason or type(error).__name__}") from error
        try:
            return Reply(value=json.loads(content) if content else None, headers=response_headers)
        except (ValueError, RecursionError) as error:
            raise HostError(f"{what}: the answer is not JSON; is {self.base} the API's address?") from error

    def _read(self, response: _Response, what: str) -> bytes:
        end = time.monotonic() + ANSWER_SECONDS
        content = bytearray()
        while chunk := response.read1(READ_AT_ONCE):
            content += chunk
            if len(content) > MOST_BYTES:
                raise HostError(f"{what}: the answer is larger than {MOST_BYTES >> 20} MiB")
            if time.monotonic() > end:
                raise HostTroubleError(f"{what}: the answer took longer than {ANSWER_SECONDS:.0f} s")
        return bytes(content)

    def _refused(self, error: urllib.error.HTTPError, what: str) -> NoReturn:
        status = error.code
        line = f"{what}: {status}{_message(error)}"
        if status >= SERVER_FAULT:
            raise HostTroubleError(line, status) from error
        seconds = _pause(error)
        if seconds is not None:
            refusal = HostError(f"{line}: too many requests; wait {seconds:.0f} s", status)
            raise _BusyError(seconds, refusal) from error
        why = self.missing.get(status)
        raise HostError(line if why is None else f"{line}: {why}", status) from error


class _BusyError(Exception):
    """The request was rejected because there were too many."""

    def __init__(self, seconds: float, refusal: HostError) -> None:
        self.seconds = seconds
        self.refusal = refusal


def check_address(address: str) -> None:
    """``UsageError`` unless it is https, or http to this machine, without a login."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{sanitize(address)}: invalid address: {error}") from error
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment or not host:
        raise UsageError(f"{sanitize(address)}: an API's address must be https://HOST/PATH")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in LOOPBACK):
        raise UsageError(f"{sanitize(address)}: a token is sent over https only")


def checked_token(token: str, variable: str) -> str:
    """Return the token without the newline that a secret store may add; ``UsageError`` if it cannot be a token."""
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"{variable}: contains characters that are not allowed in a token")
    return token


def _opener(url: str) -> urllib.request.OpenerDirector:
    """Use the environment's proxy for https (which hides the token from it), and no proxy for this machine."""
    proxies = urllib.request.ProxyHandler({} if urlsplit(url).scheme == "http" else None)
    return urllib.request.build_opener(proxies, _NoRedirect)


def _message(error: urllib.error.HTTPError) -> str:
    """The host's message in brackets; for a redirect its target."""
    location = error.headers.get("Location")
    if location is not None:
        return f" (moved to {sanitize(location, MESSAGE_LIMIT)}; not followed)"
    try:
        value = json.loads(error.read(READ_AT_ONCE))
    except (OSError, ValueError, RecursionError, HTTPException):
        return ""
    message = value.get("message") or value.get("error") if isinstance(value, dict) else None
    return f" ({sanitize(str(message), MESSAGE_LIMIT)})" if message else ""


def _pause(error: urllib.error.HTTPError) -> float | None:
    """Seconds to wait as the host demands; ``None`` if it refused for another reason.

    GitHub reports limits with 403 or 429: ``retry-after``, or ``x-ratelimit-remaining: 0`` with the end of the limit
    (docs.github.com, "Rate limits for the REST API"). GitLab: 429 with ``retry-after``.
    """
    if error.code not in (FORBIDDEN, RATE_LIMITED):
        return None
    after = error.headers.get("Retry-After", "")
    if after.isascii() and after.isdigit():
        return float(after)
    if error.headers.get("X-RateLimit-Remaining") == "0":
        reset = error.headers.get("X-RateLimit-Reset", "")
        return max(1.0, float(reset) - time.time()) if reset.isascii() and reset.isdigit() else MOST_WAIT
    return MOST_WAIT / 2 if error.code == RATE_LIMITED else None
