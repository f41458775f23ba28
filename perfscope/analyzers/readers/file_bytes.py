"""The bytes of a file, decompressed and mapped: bounded memory for any size."""

from __future__ import annotations

import contextlib
import ctypes
import lzma
import mmap
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from perfscope.model.errors import DataError
from perfscope.model.untrusted_text import sanitize

GZIP_MAGIC = b"\x1f\x8b"
XZ_MAGIC = b"\xfd7zXZ\x00"
IN_MEMORY = 64 << 20
"""Decompressed bytes kept in memory; larger content goes to an unlinked temporary file that is mapped."""
READ_WHOLE = 8 << 20
"""Size of a plain file that is read, so that a truncation meanwhile is an error of that file only. A larger file is
mapped, and its truncation ends the process (`_bus_errors_reported`).
"""
LARGEST = 64 << 30
"""Maximum number of decompressed bytes; a larger gzip is a bomb, or must be split."""
_PIECE = 4 << 20
XZ_MEMORY = 256 << 20
"""Bytes that the xz decoder may take; ``xz -9`` needs 65 MiB, and a file may declare a dictionary of 4 GiB."""

_mapped: list[Path] = []
"""Files that are mapped now, the latest last."""

HEAD_BYTES = 65_536
"""Bytes of (decompressed) content for ``sniff``; a Kineto header with device properties fits."""

_MAGIC_NAMES = (
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"PK\x03\x04", "a zip archive (unpack it first)"),
    (b"\x1f\x8b", "gzip data that cannot be decompressed"),
    (b"\x28\xb5\x2f\xfd", "zstandard data (decompress it first)"),
    (b"BZh", "bzip2 data (decompress it first)"),
    (b"\xfd7zXZ\x00", "xz data that cannot be decompressed"),
    (b"\x7fELF", "a program"),
    (b"\x80\x02", "a pickle"),
    (b"\x80\x03", "a pickle"),
    (b"\x80\x04", "a pickle"),
    (b"\x80\x05", "a pickle"),
    (b"version https://git-lfs", "a git-lfs pointer, not the file itself"),
    (b"<", "HTML or XML"),
    (b"{", "JSON, but of no trace format"),
    (b"[", "JSON, but of no trace format"),
)
"""First bytes -> description of the file; the first match is used."""

_OTHER_TOOLS = (
    (
        re.compile(rb"NVR\x00"),
        "a report of Nsight Compute; `ncu --import FILE --page raw --csv > ncu.csv` writes what perfscope reads, alone "
        "or with a trace: `perfscope analyze TRACE ncu.csv`",
    ),
    (
        re.compile(rb'\s*\{\s*"schema":\s*"\d[^"]*",\s*"pid"[^\[]{0,400}"nodes":'),
        "an execution trace of PyTorch (Chakra): ops without times; give the trace of torch.profiler from the same run",
    ),
    (
        re.compile(rb'\s*(?:\[\s*)?\{\s*"cols":\s*\['),
        "the output of a tool of XProf, a table; give the *.xplane.pb that it was made from",
    ),
)
"""First bytes of other tools' files -> description, and the file to give instead."""

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_ .]?(\d{1,6})(?:\D|$)", re.IGNORECASE)

_NUMBER_AT_END = re.compile(r"[_-](\d{1,6})(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?$", re.IGNORECASE)

_RANK_FOLDER = re.compile(r"rank[-_ .]?(\d{1,6})", re.IGNORECASE)

FILE_NAME, FOLDER_NAME = "file name", "folder name"
"""``Source.rank_source`` of a rank that is not recorded in the file."""


def open_gzip(path: Path) -> IO[bytes]:
    """Open a gzip file for reading, with isal if installed (three times faster), else zlib."""
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
    """Yield the content of ``path``, decompressed if it is gzip or xz. ``DataError`` if it is unreadable or truncated.

    Content of more than ``largest`` bytes is refused (``None``: more than ``LARGEST`` decompressed bytes).
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
            if size <= READ_WHOLE:
                file.seek(0)
                yield file.read()
                return
            with _bus_errors_reported(path), mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def _leave_on_bus_error(_: int) -> None:
    """End the process with the error of a truncated file: the access cannot be repeated or skipped."""
    if multiprocessing.parent_process() is None:  # The parent of a reading process reports its end.
        name = sanitize(str(_mapped[-1])) if _mapped else "a mapped file"
        os.write(2, f"perfscope: {name}: cut short while it was read\n".encode(errors="replace"))
    os._exit(DataError.exit_code)


_ON_BUS_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_int)(_leave_on_bus_error)


@contextlib.contextmanager
def _bus_errors_reported(path: Path) -> Iterator[None]:
    """While a mapped file is read, turn the SIGBUS of a truncation into one line and an exit code."""
    try:
        set_handler = ctypes.CDLL(None).signal
    except (AttributeError, OSError, TypeError):  # There is no C library to call.
        yield
        return
    set_handler.restype, set_handler.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    before = set_handler(signal.SIGBUS, ctypes.cast(_ON_BUS_ERROR, ctypes.c_void_p))
    _mapped.append(path)
    try:
        yield
    finally:
        _mapped.remove(path)
        if not _mapped:
            set_handler(signal.SIGBUS, before)


@contextlib.contextmanager
def _unpacked(path: Path, packing: str, largest: int) -> Iterator[bytes | mmap.mmap]:
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as file:
        pieces = _Pieces(file)
        _decompress(path, pieces, packing, largest)
        if pieces.only is not None:
            yield pieces.only
            return
        size = file.tell()
        if size <= IN_MEMORY:
            file.seek(0)
            yield file.read()
            return
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


class _Pieces:
    """Writes pieces to a file, but a single one: it is the whole content."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.only: bytes | None = b""

    def write(self, piece: bytes) -> None:
        if self.only == b"":
            self.only = piece
            return
        if self.only is not None:
            self._file.write(self.only)
            self.only = None
        self._file.write(piece)


@contextlib.contextmanager
def unpacked_path(path: Path, suffix: str) -> Iterator[Path]:
    """Yield a file with the content of ``path`` for libraries that open by name: itself, or a decompressed copy.

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


def _decompress(path: Path, into: IO[bytes] | _Pieces, packing: str, largest: int) -> None:
    total = 0
    try:
        for piece in _gzip_pieces(path) if packing == "gzip" else _xz_pieces(path):
            total += len(piece)
            if total > largest:
                raise DataError(f"{path}: decompresses to more than {largest:,} bytes: refused")
            if total > shutil.disk_usage(tempfile.gettempdir()).free + IN_MEMORY:
                raise _no_room(path)
            try:
                into.write(piece)
            except OSError as error:
                raise _no_room(path) from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: {_corruption_text(packing, total, cut=isinstance(error, EOFError))}") from error
    except OSError as error:
        raise DataError(f"{path}: {_corruption_text(packing, total)} ({error})") from error
    except Exception as error:  # The error type of isal derives from OSError only in some versions.
        if type(error).__name__ == "IsalError":
            raise DataError(f"{path}: {_corruption_text(packing, total)}") from error
        raise


def _no_room(path: Path) -> DataError:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    return DataError(f"{path}: cannot be unpacked: {free:,} bytes are free in {folder}; TMPDIR names another folder")


def _corruption_text(packing: str, total: int, *, cut: bool = False) -> str:
    """Return the error of packed data after ``total`` unpacked bytes; 0 if the first piece failed."""
    where = f"after {total:,} bytes of its content" if total else f"within the first {_PIECE >> 20} MiB of its content"
    return f"{packing} is {'cut off' if cut else 'corrupt'} {where}"


def _gzip_pieces(path: Path) -> Iterator[bytes]:
    with open_gzip(path) as file:
        while piece := file.read(_PIECE):
            yield piece


def _xz_pieces(path: Path) -> Iterator[bytes]:
    decoder = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
    with path.open("rb") as file:
        while not decoder.eof:
            packed = file.read(_PIECE) if decoder.needs_input else b""
            if decoder.needs_input and not packed:
                raise EOFError("xz ends too early")
            yield decoder.decompress(packed, _PIECE)


# First bytes of file formats, and descriptions of files without a reader.


def read_head(file: Path) -> bytes:
    """Return the first bytes of a file, decompressed if it is gzip or xz (as far as it is intact)."""
    with file.open("rb") as stream:
        raw = stream.read(HEAD_BYTES)
    try:
        if raw.startswith(GZIP_MAGIC):
            return zlib.decompressobj(wbits=31).decompress(raw, HEAD_BYTES)
        if raw.startswith(XZ_MAGIC):
            return lzma.LZMADecompressor(memlimit=XZ_MEMORY).decompress(raw, HEAD_BYTES)
    except (zlib.error, lzma.LZMAError):
        return raw
    return raw


def _describe_empty_archive(file: Path) -> str:
    """Describe a packed file whose first bytes unpack to nothing: it is empty, or truncated."""
    with file.open("rb") as stream:
        raw = stream.read(HEAD_BYTES)
    gzip = raw.startswith(GZIP_MAGIC)
    packed = zlib.decompressobj(wbits=31) if gzip else lzma.LZMADecompressor(memlimit=XZ_MEMORY)
    packed.decompress(raw)
    name = "gzip" if gzip else "xz"
    return f"an empty {name} file" if packed.eof else f"{name} data that is cut off before its content"


def describe_file(file: Path) -> str:
    """Describe a file without a reader, for example ``'an SQLite database'``."""
    if not file.is_file():
        return "not a file"
    if file.stat().st_size == 0:
        return "an empty file"
    head = read_head(file)
    if not head:
        return _describe_empty_archive(file)
    for begin, sentence in _OTHER_TOOLS:
        if begin.match(head):
            return sentence
    for magic, name in _MAGIC_NAMES:
        if head.lstrip(b" \t\r\n\xef\xbb\xbf").startswith(magic):
            return name
    try:
        head[:1024].decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < min(len(head), 1024) - 4:
            return "binary data of an unknown format"
    return "text" if b"\x00" not in head else "binary data of an unknown format"


def named_rank(file: Path, *, of_several: bool = False) -> tuple[int | None, str | None]:
    """Return the rank in a file's name, else its folder's, and which: 3 for ``job_rank3.json.gz``, ``rank_3/t.json``.

    ``of_several``: the program has several ranks, so a number at the end is a rank too: 3 for ``trace_3.json``. In
    other programs it may be a step.
    """
    for match, origin in (
        (_RANK_IN_NAME.search(file.name), FILE_NAME),
        (_RANK_FOLDER.fullmatch(file.parent.name), FOLDER_NAME),
        (_NUMBER_AT_END.search(file.name) if of_several else None, FILE_NAME),
    ):
        if match is not None:
            return int(match[1]), origin
    return None, None
