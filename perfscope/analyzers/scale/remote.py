"""Files that lie elsewhere (``s3://``, ``gs://``, whatever fsspec opens): listed, and fetched one at a time to be read.

A reader maps its file, so the bytes go into a temporary file for as long as the trace is judged: at most one a process.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from perfscope.analyzers.load import MOST_FILES
from perfscope.profiler.errors import AskedWronglyError, DataError

MOST_BYTES = 16 << 30
"""Of one file: more than any profiler's own limit, less than the disk of a machine that reads traces."""

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://")


def is_remote(path: str | Path) -> bool:
    """Whether a path begins with a scheme (``s3://bucket/traces``)."""
    return _SCHEME.match(str(path)) is not None


def remote_files(url: str) -> tuple[tuple[str, ...], bool]:
    """(files at or below ``url``, sorted; whether it is a folder). ``DataError`` if there are none, or too many."""
    system, path = _opened(url)
    try:
        if system.isfile(path):
            return (url,), False
        found = sorted(system.find(path))
    except Exception as error:  # each storage has its own errors (credentials, network); all mean: not reachable
        raise DataError(f"{url}: {_said(error)}") from error
    files = [
        file for file in found if not any(part.startswith(".") for part in PurePosixPath(_below(file, path)).parts)
    ]
    if not files:
        raise DataError(f"{url}: no such file or folder, or nothing in it")
    if len(files) > MOST_FILES:
        raise DataError(f"{url}: more than {MOST_FILES:,} files below it; name a narrower folder")
    return tuple(system.unstrip_protocol(file) for file in files), True


@contextmanager
def fetched(url: str) -> Iterator[Path]:
    """A temporary copy of a file under its own name. ``DataError`` if it cannot be had, or is too large."""
    system, path = _opened(url)
    with tempfile.TemporaryDirectory(prefix="perfscope-") as folder:
        copy = Path(folder, PurePosixPath(path).name)
        try:
            size = system.size(path)
            if size is not None and size > MOST_BYTES:
                raise DataError(f"{url}: {size:,} bytes, of which {MOST_BYTES:,} are fetched at most")
            system.get_file(path, str(copy))
        except DataError:
            raise
        except Exception as error:  # as above
            raise DataError(f"{url}: {_said(error)}") from error
        yield copy


def _opened(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as missing:
        raise AskedWronglyError(f"{url}: fsspec is not installed; pip install 'perfscope[cluster]'") from missing
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as missing:  # it names the package of that storage
        raise AskedWronglyError(f"{url}: {missing}") from missing
    except ValueError as error:
        raise AskedWronglyError(f"{url}: {error}") from error
    return system, str(path)


def _below(file: str, folder: str) -> str:
    return file.removeprefix(folder).lstrip("/")


def _said(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
