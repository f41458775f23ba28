"""Files that lie elsewhere (``s3://``, ``gs://``, whatever fsspec opens): listed, and fetched one at a time to be read.

A reader maps its file, so the bytes go into a temporary file for as long as the trace is judged: at most one a process.
Of a file that is no trace only the beginning is fetched.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from perfscope.analyzers.readers.file_bytes import HEAD_BYTES
from perfscope.analyzers.readers.load import MOST_FILES, Skipped, Unit, reader_of
from perfscope.analyzers.readers.run.parts import DividedRun, RunPart, divide_run
from perfscope.model.documents.run_folders import LATEST
from perfscope.model.errors import DataError, UsageError

# URLs that a person gives: what of them may be shown. Keys in them (logins, signatures) reach no report or error.


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


MOST_BYTES = 16 << 30
"""Of one file: more than any profiler's own limit, less than the disk of a machine that reads traces."""

_S3 = frozenset({"s3", "s3a"})
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (FileNotFoundError, "no such file, folder or bucket"),
    (PermissionError, "access denied"),
)


def remote_files(url: str) -> tuple[tuple[str, ...], bool]:
    """(files at or below ``url``, sorted; whether it is a folder). ``DataError`` if there are none, or too many."""
    system, path = _opened(url)
    with _one_line(url):
        if system.isfile(path):
            return (url,), False
        # a bucket may hold millions: s3fs stops listing where it is told to
        bounded = {"max_items": MOST_FILES + 1} if _S3 & set(_protocols(system)) else {}
        found = sorted(system.find(path, **bounded))
    files = [
        file for file in found if not any(part.startswith(".") for part in PurePosixPath(_below(file, path)).parts)
    ]
    if not files:
        raise DataError(f"{shown_url(url)}: no such file or folder, or nothing in it")
    if len(found) > MOST_FILES:
        raise DataError(f"{shown_url(url)}: more than {MOST_FILES:,} files below it; name a narrower folder")
    return tuple(system.unstrip_protocol(file) for file in files), True


@contextmanager
def fetched(url: str) -> Iterator[Path]:
    """A temporary copy of a file under its own name: whole if it is a trace, else what it begins with.

    ``DataError`` if it cannot be had, or is too large.
    """
    system, path = _opened(url)
    name = PurePosixPath(path.partition("?")[0] if set(_protocols(system)) & {"http", "https"} else path).name
    with tempfile.TemporaryDirectory(prefix="perfscope-") as folder:
        copy = Path(folder, name or "file")
        size = _size(system, path, url)
        with _one_line(url), system.open(path, "rb", block_size=HEAD_BYTES) as stream:
            copy.write_bytes(stream.read(HEAD_BYTES))
        if (size is None or size > HEAD_BYTES) and reader_of(copy) is not None:
            with _one_line(url):
                system.get_file(path, str(copy))
        yield copy


def files_below(url: str, folders: Sequence[str]) -> list[str]:
    """Paths, relative to ``url``, of all files in ``folders`` of it, sorted. ``DataError`` if it cannot be listed."""
    system, root = _opened(url)
    found: list[str] = []
    for folder in folders:
        _check_inside(url, folder)
        with _one_line(url):
            found += (_below(file, root) for file in system.find(f"{root.rstrip('/')}/{folder}"))
    return sorted(found)


def fetch_all(url: str, names: Sequence[str], folder: Path) -> None:
    """Copy the files ``names`` (paths relative to ``url``) to the same places in ``folder``.

    ``DataError`` if one cannot be had, leaves the folder, or is too large.
    """
    system, root = _opened(url)
    for name in names:
        _check_inside(url, name)
        _size(system, f"{root.rstrip('/')}/{name}", url)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    if names:
        with _one_line(url):  # in one call: s3fs fetches small files at the same time
            system.get([f"{root.rstrip('/')}/{name}" for name in names], [str(folder / name) for name in names])


def _check_inside(url: str, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise DataError(f"{shown_url(url)}: {name} lies outside of it")


def _size(system: Any, path: str, url: str) -> int | None:
    """``DataError`` if it is larger than what is fetched."""
    with _one_line(url):
        size: int | None = system.size(path)
    if size is not None and size > MOST_BYTES:
        raise DataError(f"{shown_url(url)}: {size:,} bytes, of which {MOST_BYTES:,} are fetched at most")
    return size


def _opened(url: str) -> tuple[Any, str]:
    shown = shown_url(url)
    try:
        import fsspec
    except ImportError as missing:
        raise UsageError(f"{shown}: fsspec is not installed; pip install 'perfscope[cluster]'") from missing
    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:  # an import error names the package of that storage
        raise UsageError(f"{shown}: {without_secrets(str(error), url)}") from error
    return system, str(path)


@contextmanager
def _one_line(url: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each storage has its own errors (credentials, network); all mean: not to be had
        raise DataError(f"{shown_url(url)}: {_error_text(error, url)}") from error


def _protocols(system: Any) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def _below(file: str, folder: str) -> str:
    return file.removeprefix(folder).lstrip("/")


def _error_text(error: Exception, url: str) -> str:
    """What kind of failure it is, and the first line of what the storage says."""
    lines = without_secrets(str(error), url).splitlines()
    kind = next((said for one, said in _REASONS if isinstance(error, one)), type(error).__name__)
    return f"{kind} ({lines[0]})" if lines and kind != type(error).__name__ else ": ".join([kind, *lines[:1]])


# Run directories that lie elsewhere: their manifests are fetched to divide them, then each part's files to read it.


_MANIFEST = re.compile(r"run(-task\d+)?\.json$")
_OF_PROCESS = re.compile(r"rank[^/]*/process\.json$")


def remote_units(url: str) -> tuple[tuple[Unit, ...], bool]:
    """What lies at or below ``url``, and whether it is a folder of several things (a run alone is not one).

    ``DataError`` if there is nothing, too much, or several runs.
    """
    files, folder = remote_files(url)
    if not folder:
        return files, False
    roots = sorted({file.rpartition("/")[0] for file in files if _MANIFEST.match(file.rpartition("/")[2])})
    copies = [root for root in roots if len(roots) > 1 and root.rpartition("/")[2] == LATEST]  # a link, copied along
    runs = [root for root in roots if root not in copies]
    if len(runs) > 1:
        named = ", ".join(root.rpartition("/")[2] for root in runs[:2])
        raise DataError(f"{shown_url(url)}: holds several runs ({named} ...); name one")
    others: list[Unit] = [file for file in files if not any(file.startswith(f"{root}/") for root in roots)]
    if not runs:
        return tuple(others), True
    (root,) = runs
    divided = _divided(root, [file.removeprefix(f"{root}/") for file in files if file.startswith(f"{root}/")])
    if isinstance(divided, DividedRun) and not others and root.rstrip("/").endswith(url.partition("://")[2].strip("/")):
        return (divided,), False
    return (*others, divided), True


def _divided(root: str, names: Sequence[str]) -> DividedRun | Skipped:
    shown = shown_url(root)
    manifests = [name for name in names if _MANIFEST.match(name) or _OF_PROCESS.match(name)]
    with tempfile.TemporaryDirectory(prefix="perfscope-") as folder:
        try:
            fetch_all(root, manifests, Path(folder))
            found = divide_run(Path(folder))
        except DataError as error:
            reason = str(error).removeprefix(f"{shown}: ").removeprefix(f"{folder}/")
            return Skipped(path=shown, reason=reason, broken=True)
    return replace(found, path=shown, parts=tuple(replace(part, path=root) for part in found.parts))


@contextmanager
def fetched_part(part: RunPart) -> Iterator[RunPart]:
    """The part with its files in a temporary folder; ``DataError`` if they cannot be had."""
    artifacts = part.artifacts()
    tops = sorted({artifact.partition("/")[0] for artifact in artifacts})
    with tempfile.TemporaryDirectory(prefix="perfscope-") as folder:
        names = [
            name
            for name in files_below(part.path, tops)
            if any(name == artifact or name.startswith(f"{artifact}/") for artifact in artifacts)
        ]
        fetch_all(part.path, names, Path(folder))
        yield replace(part, path=folder)
