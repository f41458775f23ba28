"""URLs that a person gives: what of them may be shown. Keys in them (logins, signatures) reach no report or error."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

HIDDEN = "***"

SHOWN = frozenset({"alt", "file", "filename", "generation", "name", "path", "rank", "version", "versionId"})
"""Parameters whose values are shown: they tell files apart. Each storage signs with others, so all else is hidden."""

LEAST_SECRET = 4
"""Characters of a value below which it is not looked for in other texts: it would be found everywhere."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://")
_PORT = re.compile(r"[^:]*:\d*$")
_KEYS = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")
_SIGNED = re.compile(
    r"(?i)((?:x-(?:amz|goog)-(?:signature|credential|security-token)|signature|awsaccesskeyid|googleaccessid|sig|"
    r"(?:access_?|api_?)?token|secret|password)=)[^&\s'\"<>]+"
)
_LOGIN = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@'\"]+@", re.IGNORECASE)


def is_remote(path: object) -> bool:
    """Whether a path begins with a scheme (``s3://bucket/traces``)."""
    return isinstance(path, str | Path) and _SCHEME.match(str(path)) is not None


def shown_url(url: str) -> str:
    """The URL without login and without the values of parameters but ``SHOWN``."""
    scheme, rest, login = _parts(url)
    place, mark, query = rest.partition("?")
    given = "&".join(_shown_parameter(one) for one in query.split("&"))
    return f"{scheme}{HIDDEN + '@' if login else ''}{place}{mark}{given if query else ''}"


def without_secrets(text: str, url: str) -> str:
    """A text about ``url`` (an error of its storage) without what ``shown_url`` hides, and without other keys."""
    text = text.replace(url, shown_url(url))
    _, rest, login = _parts(url)
    values = [one.partition("=")[2] for one in rest.partition("?")[2].split("&") if _shown_parameter(one) != one]
    for secret in sorted({login, *login.split(":"), *values}, key=len, reverse=True):
        for spelled in (secret, unquote(secret)):
            if len(spelled) >= LEAST_SECRET:
                text = text.replace(spelled, HIDDEN)
    return _KEYS.sub(HIDDEN, _SIGNED.sub(rf"\1{HIDDEN}", _LOGIN.sub(rf"\1{HIDDEN}@", text)))


def _parts(url: str) -> tuple[str, str, str]:
    """Scheme, what follows the login, and the login; ``''`` if there is none. A secret may have slashes in it."""
    found = _SCHEME.match(url)
    if found is None:
        return "", url, ""
    scheme, rest = found[0], url[found.end() :]
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in host:
        login = host.rpartition("@")[0]
    elif ":" in host and not _PORT.match(host) and "@" in rest:
        login = rest.rpartition("@")[0]
    else:
        return scheme, rest, ""
    return scheme, rest[len(login) + 1 :], login


def _shown_parameter(parameter: str) -> str:
    name, equals, value = parameter.partition("=")
    if not equals:  # a bare value may be a token
        return HIDDEN if parameter else ""
    return parameter if name in SHOWN or not value else f"{name}={HIDDEN}"
