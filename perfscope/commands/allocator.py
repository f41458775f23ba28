"""The C library's allocator in a command that reads large files.

glibc returns freed arrays above 32 MiB to the system, which clears their pages when the next array takes them. A third
of the processor time of a command on 1 GB was spent there. A command that ends soon keeps the memory instead; a server
must not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path

LARGE = 512 << 20
"""Bytes of files from which keeping is worth its memory: at 1 GB a quarter of the time, at 256 MB nothing."""

_PACKED = 16
"""Bytes of a trace per byte of its packed file, about."""

_MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -4, -1, -2
"""Numbers of options, from glibc's ``malloc.h``."""


def keep_freed_memory(files: Iterable[Path]) -> bool:
    """Keep freed memory in this process and its later children if ``files`` are large; return whether it does."""
    if sum(_size(file) for file in files) < LARGE:
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 (another C library has other numbers)
        options = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 << 20))
        return all(library.mallopt(option, value) for option, value in options)
    except (AttributeError, OSError, TypeError):
        return False


def _size(file: Path) -> int:
    try:
        size = file.stat().st_size if file.is_file() else 0
    except OSError:
        return 0
    return size * _PACKED if file.suffix in (".gz", ".xz") else size
