"""What a file begins with, and what a person would call one that no reader knows."""

from __future__ import annotations

import lzma
import zlib
from pathlib import Path

from perfscope.analyzers.readers._bytes import GZIP_MAGIC, XZ_MAGIC, XZ_MEMORY

HEAD_BYTES = 65_536
"""Bytes of (decompressed) content a reader may sniff: a Kineto header with device properties fits."""

_LOOKS = (
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
"""First bytes -> what a person would call the file; the first that fits is said."""


def head_of(file: Path) -> bytes:
    """The first bytes of a file, decompressed if it is gzip or xz (as far as it is intact)."""
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


def _without_content(file: Path) -> str:
    """A packed file whose first bytes unpack to nothing: packed nothing, or cut off."""
    with file.open("rb") as stream:
        raw = stream.read(HEAD_BYTES)
    gzip = raw.startswith(GZIP_MAGIC)
    packed = zlib.decompressobj(wbits=31) if gzip else lzma.LZMADecompressor(memlimit=XZ_MEMORY)
    packed.decompress(raw)
    name = "gzip" if gzip else "xz"
    return f"an empty {name} file" if packed.eof else f"{name} data that is cut off before its content"


def what_it_is(file: Path) -> str:
    """``'an SQLite database'``: what a file looks like that no reader knows."""
    if not file.is_file():
        return "not a file"
    if file.stat().st_size == 0:
        return "an empty file"
    head = head_of(file)
    if not head:
        return _without_content(file)
    for magic, name in _LOOKS:
        if head.lstrip(b" \t\r\n\xef\xbb\xbf").startswith(magic):
            return name
    try:
        head[:1024].decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < min(len(head), 1024) - 4:
            return "binary data of an unknown format"
    return "text" if b"\x00" not in head else "binary data of an unknown format"
