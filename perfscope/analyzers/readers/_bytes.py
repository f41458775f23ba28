"""A file's bytes, decompressed and mapped: bounded memory, whatever the size."""

from __future__ import annotations

import contextlib
import mmap
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from perfscope.profiler.errors import DataError

GZIP_MAGIC = b"\x1f\x8b"
IN_MEMORY = 64 << 20
"""Decompressed bytes kept in memory; larger ones go to an unlinked temporary file that is mapped."""
LARGEST = 64 << 30
"""Decompressed bytes accepted: beyond it a gzip is a bomb, or must be split."""
_PIECE = 4 << 20


def open_gzip(path: Path) -> IO[bytes]:
    """A gzip file for reading; isal where it is installed (three times faster), zlib otherwise."""
    try:
        from isal import igzip

        opened: IO[bytes] = igzip.open(path, "rb")
        return opened
    except ImportError:
        import gzip

        plain: IO[bytes] = gzip.open(path, "rb")  # type: ignore[assignment]  # noqa: SIM115 (the caller closes it)
        return plain


@contextlib.contextmanager
def open_bytes(path: Path) -> Iterator[bytes | mmap.mmap]:
    """The content of ``path``, gunzipped if it is gzip. ``DataError`` if it cannot be read or is cut off."""
    try:
        with path.open("rb") as file:
            if file.read(2) == GZIP_MAGIC:
                with _gunzipped(path) as data:
                    yield data
                return
            if not path.stat().st_size:
                yield b""
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


@contextlib.contextmanager
def _gunzipped(path: Path) -> Iterator[bytes | mmap.mmap]:
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as held:
        _decompress(path, held)
        size = held.tell()
        if size <= IN_MEMORY:
            held.seek(0)
            yield held.read()
            return
        held.flush()
        with mmap.mmap(held.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _decompress(path: Path, into: IO[bytes]) -> None:
    import zlib

    total = 0
    try:
        with open_gzip(path) as file:
            while piece := file.read(_PIECE):
                total += len(piece)
                if total > LARGEST or total > shutil.disk_usage(tempfile.gettempdir()).free + IN_MEMORY:
                    raise DataError(f"{path}: decompresses to more than {total >> 30} GiB: refused")
                into.write(piece)
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: gzip is cut off or corrupt after {total:,} bytes") from error
    except OSError as error:
        raise DataError(f"{path}: gzip is corrupt after {total:,} bytes ({error})") from error
    except Exception as error:  # isal's own error type derives from OSError only in some versions
        if type(error).__module__.startswith("isal"):
            raise DataError(f"{path}: gzip is corrupt after {total:,} bytes") from error
        raise
