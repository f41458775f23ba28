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
XZ_MAGIC = b"\xfd7zXZ\x00"
IN_MEMORY = 64 << 20
"""Decompressed bytes kept in memory; larger ones go to an unlinked temporary file that is mapped."""
LARGEST = 64 << 30
"""Decompressed bytes accepted: beyond it a gzip is a bomb, or must be split."""
_PIECE = 4 << 20
XZ_MEMORY = 256 << 20
"""Bytes the xz decoder may take; ``xz -9`` needs 65 MiB, and a file may claim a dictionary of 4 GiB."""


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
def open_bytes(path: Path, largest: int | None = None) -> Iterator[bytes | mmap.mmap]:
    """The content of ``path``, unpacked if it is gzip or xz. ``DataError`` if it cannot be read or is cut off.

    More than ``largest`` bytes of content are refused (``None``: more than ``LARGEST`` unpacked ones).
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(XZ_MAGIC))
            if magic.startswith(GZIP_MAGIC) or magic == XZ_MAGIC:
                with _unpacked(path, "gzip" if magic.startswith(GZIP_MAGIC) else "xz", largest or LARGEST) as data:
                    yield data
                return
            size = path.stat().st_size
            if largest is not None and size > largest:
                raise DataError(f"{path}: {size:,} bytes: larger than any file of its kind, refused")
            if not size:
                yield b""
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


@contextlib.contextmanager
def _unpacked(path: Path, packing: str, largest: int) -> Iterator[bytes | mmap.mmap]:
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as held:
        _decompress(path, held, packing, largest)
        size = held.tell()
        if size <= IN_MEMORY:
            held.seek(0)
            yield held.read()
            return
        held.flush()
        with mmap.mmap(held.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


@contextlib.contextmanager
def unpacked_path(path: Path, suffix: str) -> Iterator[Path]:
    """A file with the content of ``path`` for libraries that open by name: itself, or unpacked into a temporary one.

    ``DataError`` as in ``open_bytes``.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(XZ_MAGIC))
        if not magic.startswith(GZIP_MAGIC) and magic != XZ_MAGIC:
            yield path
            return
        with tempfile.NamedTemporaryFile(prefix="perfscope-", suffix=suffix) as held:
            _decompress(path, held, "gzip" if magic.startswith(GZIP_MAGIC) else "xz", LARGEST)
            held.flush()
            yield Path(held.name)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def _decompress(path: Path, into: IO[bytes], packing: str, largest: int) -> None:
    import lzma
    import zlib

    total = 0
    try:
        for piece in _gzip_pieces(path) if packing == "gzip" else _xz_pieces(path):
            total += len(piece)
            if total > largest or total > shutil.disk_usage(tempfile.gettempdir()).free + IN_MEMORY:
                raise DataError(f"{path}: decompresses to more than {total:,} bytes: refused")
            into.write(piece)
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: {_damage(packing, total, cut=isinstance(error, EOFError))}") from error
    except OSError as error:
        raise DataError(f"{path}: {_damage(packing, total)} ({error})") from error
    except Exception as error:  # isal's own error type derives from OSError only in some versions
        if type(error).__module__.startswith("isal"):
            raise DataError(f"{path}: {_damage(packing, total)}") from error
        raise


def _damage(packing: str, total: int, *, cut: bool = False) -> str:
    """What is wrong with packed data of which ``total`` bytes were unpacked; of the first piece none count."""
    where = f"after {total:,} bytes of its content" if total else f"within the first {_PIECE >> 20} MiB of its content"
    return f"{packing} is {'cut off' if cut else 'corrupt'} {where}"


def _gzip_pieces(path: Path) -> Iterator[bytes]:
    with open_gzip(path) as file:
        while piece := file.read(_PIECE):
            yield piece


def _xz_pieces(path: Path) -> Iterator[bytes]:
    import lzma

    decoder = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
    with path.open("rb") as file:
        while not decoder.eof:
            packed = file.read(_PIECE) if decoder.needs_input else b""
            if decoder.needs_input and not packed:
                raise EOFError("xz ends too early")
            yield decoder.decompress(packed, _PIECE)
