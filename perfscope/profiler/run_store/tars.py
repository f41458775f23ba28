"""Reading tar files of strangers: plain files with names that lead nowhere else, and headers of bounded size."""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from perfscope.profiler.errors import DataError

MOST_READ = 1 << 20
"""Bytes of one read: contents are read in pieces, so a larger one is a header that claims to be huge."""

MOST_NAME = 4_096
"""Characters of a member's name: the longest path that Linux takes."""


class _Bounded(io.RawIOBase):
    """A stream that refuses to be read in one go beyond ``MOST_READ``."""

    def __init__(self, inner: IO[bytes] | gzip.GzipFile) -> None:
        self._inner = inner

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MOST_READ:
            raise tarfile.ReadError("a header larger than any of ours")
        return self._inner.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._inner.seek(offset, whence)

    def tell(self) -> int:
        return self._inner.tell()


@contextlib.contextmanager
def members(file: Path, origin: str, *, packed: bool) -> Iterator[Iterator[tuple[PurePosixPath, int, IO[bytes]]]]:
    """Name, size and content of every file in a tar, in order; each content is read before the next is asked for.

    ``packed``: by gzip. ``DataError``, ``origin`` first: damaged, or a member that is refused.
    """
    try:
        with contextlib.ExitStack() as held:
            raw: IO[bytes] | gzip.GzipFile = held.enter_context(file.open("rb"))
            if packed:
                raw = held.enter_context(gzip.GzipFile(fileobj=raw, mode="rb"))
            tar = held.enter_context(tarfile.open(fileobj=_Bounded(raw), mode="r:"))
            yield _each(tar, raw, origin)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, ValueError, OverflowError) as error:
        raise DataError(f"{origin}: damaged, or no archive of ours: {error}") from error
    except OSError as error:
        raise DataError(f"{origin}: {(error.strerror or str(error)).lower()}") from error


def _each(
    tar: tarfile.TarFile, raw: IO[bytes] | gzip.GzipFile, origin: str
) -> Iterator[tuple[PurePosixPath, int, IO[bytes]]]:
    while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
        name = _safe_name(member, origin)
        content = tar.extractfile(member)
        if content is None:
            raise DataError(f"{origin}: holds {member.name[:80]!r}, which is no plain file; refused")
        with content:
            yield name, member.size, content
    # To the very end, where a packed stream has its checksum; what stands behind the archive is padding.
    if raw.read(MOST_READ).strip(b"\0") or raw.read(1):
        raise DataError(f"{origin}: something stands behind its end; refused")


def _safe_name(member: tarfile.TarInfo, origin: str) -> PurePosixPath:
    """The path of a member that is a plain file inside; ``DataError`` for any other."""
    said = repr(member.name[:80])
    if not member.isreg() or member.issparse():
        raise DataError(f"{origin}: holds {said}, which is no plain file; refused")
    name = PurePosixPath(member.name)
    leads_out = name.is_absolute() or ".." in name.parts or "\\" in member.name or "\0" in member.name
    hidden = not name.parts or any(part.startswith(".") for part in name.parts)
    if leads_out or hidden or len(member.name) > MOST_NAME:
        raise DataError(f"{origin}: holds {said}, which leads out of it or hides; refused")
    return name
