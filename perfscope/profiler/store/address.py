"""Where a store is: a file on this machine, or a database by URL whose password is shown nowhere."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.errors import UsageError

VARIABLE = "PERFSCOPE_STORE"
STORE_FILE = "store.sqlite"

SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def address(asked: str | None, folder: Path | None = None) -> str | Path:
    """A URL of PostgreSQL, or the file of a local store: as asked, else by the environment, else among the runs.

    ``asked`` may be a folder, where the store's usual file is meant. ``UsageError``: a URL of another kind;
    the URL itself is not in the message.
    """
    said = asked if asked is not None else os.environ.get(VARIABLE)
    if not said:
        return (Path(RUNS_FOLDER) if folder is None else folder) / STORE_FILE
    scheme = _SCHEME.match(said)
    if scheme is None:
        path = Path(said)
        return path / STORE_FILE if path.is_dir() or said.endswith("/") else path
    if scheme[1].lower() not in SCHEMES:
        raise UsageError(f"a store by URL is postgresql://...; {scheme[1]}:// is none that can be used")
    split(said)
    return said


def split(url: str) -> SplitResult:
    """The parts of a URL; ``UsageError``, without the URL, where it has none."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (it is parsed on access)
    except ValueError:
        raise UsageError(
            "the URL of the store cannot be read: is a port a number, and every special character of its password "
            "written as %XX?"
        ) from None
    return parts


def shown_address(where: str | Path) -> str:
    """The address for people: of a URL neither user nor password nor options."""
    if isinstance(where, Path):
        return str(where)
    parts = split(where)
    port = f":{parts.port}" if parts.port is not None else ""
    host = parts.hostname or ""
    return f"postgresql://{f'[{host}]' if ':' in host else host}{port}{parts.path}"


def secrets_of(url: str) -> tuple[str, ...]:
    """What of a URL must be in no message: its password, as written and as meant, and values of its options."""
    parts = split(url)
    secrets = {parts.password or "", unquote(parts.password or "")}
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        if "pass" in name.lower():
            secrets |= {value, unquote(value)}
    return tuple(sorted((one for one in secrets if one), key=len, reverse=True))
