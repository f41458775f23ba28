"""Files that lie elsewhere (``s3://``, ``gs://``, whatever fsspec opens): listed, and fetched one at a time to be read.

A reader maps its file, so the bytes go into a temporary file for as long as the trace is judged: at most one a process.
Of a file that is no trace only the beginning is fetched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from perfscope.analyzers.load import MOST_FILES, reader_of
from perfscope.analyzers.looks import HEAD_BYTES
from perfscope.analyzers.scale.urls import shown_url, without_secrets
from perfscope.profiler.errors import AskedWronglyError, DataError

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
        raise AskedWronglyError(f"{shown}: fsspec is not installed; pip install 'perfscope[cluster]'") from missing
    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:  # an import error names the package of that storage
        raise AskedWronglyError(f"{shown}: {without_secrets(str(error), url)}") from error
    return system, str(path)


@contextmanager
def _one_line(url: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each storage has its own errors (credentials, network); all mean: not to be had
        raise DataError(f"{shown_url(url)}: {_said(error, url)}") from error


def _protocols(system: Any) -> tuple[str, ...]:
    return (system.protocol,) if isinstance(system.protocol, str) else tuple(system.protocol)


def _below(file: str, folder: str) -> str:
    return file.removeprefix(folder).lstrip("/")


def _said(error: Exception, url: str) -> str:
    """What kind of failure it is, and the first line of what the storage says."""
    lines = without_secrets(str(error), url).splitlines()
    kind = next((said for one, said in _REASONS if isinstance(error, one)), type(error).__name__)
    return f"{kind} ({lines[0]})" if lines and kind != type(error).__name__ else ": ".join([kind, *lines[:1]])
