"""Mutated inputs for the scanners of the native library: ``python -m tests.native.fuzz LIBRARY --inputs N``.

``LIBRARY`` is built with AddressSanitizer and ends the process at a panic (``make fuzz-native``). One input in twenty
is one of ``tests.fuzz``, whose structure is changed; the others are this one with some bytes changed, which takes less
time. Each scanner gets them in an allocation of exactly their size, through the border that the readers use.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from random import Random

import numpy as np

from perfscope import native

if __name__ == "__main__":
    native.library.cache_clear()
    _BUILT = ctypes.CDLL(str(Path(sys.argv[1]).resolve()))
    _BUILT.perfscope_version.restype = ctypes.c_int64
    native.library = lambda: _BUILT  # type: ignore[assignment]  # Before a module that calls it takes the function.

from perfscope.analyzers.readers.kineto.native_decode import _CATEGORY_GROUPS
from perfscope.model.wire import BYTES, WireError, fields
from perfscope.native import kineto, snapshot, xspace
from tests.fuzz.mutate import raw
from tests.fuzz.seeds import seeds
from tests.fuzz.worker import make

_PLANE, _LINE = 1, 3
_NUMBERS, _TEXTS = range(1, 21), range(21, 41)
"""Metadata ids that are read; half of the stats of small files."""
_MOST_BAD = 1_000
"""Places of an input at which the scanner of Kineto is started again."""
_VARIANTS = 20
_PIECE = 20_000
"""Inputs of one process."""


def _exact(data: bytes) -> memoryview:
    """A copy without the byte that Python keeps behind ``bytes``."""
    return memoryview(np.frombuffer(data, np.uint8).copy())


def scan_kineto(data: bytes, number: int) -> bool:
    """Scan the list of events, again from the next object where it stops; whether anything became a row."""
    end, position, bad = len(data), data.find(b"[", max(data.find(b'"traceEvents"'), 0)) + 1, 0
    with kineto.Scan(_exact(data), _CATEGORY_GROUPS) as scan:  # type: ignore[arg-type]
        while 0 <= position < end and bad < _MOST_BAD:
            before = position
            position, is_bad = scan.read(position, min(position + 1 + number % 5_000, end), end)
            if is_bad or position <= before:
                bad += 1
                position = data.find(b"{", max(position, before) + 1)
        scan.rest()
        for dictionary in (kineto.STRINGS, kineto.THREADS, kineto.CATEGORIES):
            scan.texts(dictionary)
        return any(bool(scan.take(table)) for table in kineto.TABLES)


def scan_xspace(data: bytes, number: int) -> bool:
    """Scan a line; whether its events were read."""
    content = _exact(data)
    frame = xspace.frame(content, 0, len(data))
    if frame is None:
        return False
    columns = xspace.room(frame.events, exact=number % 2 == 0)
    return xspace.read_events(content, 0, len(data), frame, 1 << number % 62, _NUMBERS, _TEXTS, columns) is not None


def _lines(data: bytes) -> Iterator[bytes]:
    """Yield the lines of an XSpace up to where it is damaged, then all of it."""
    try:
        for plane in fields(data, 0, len(data)):
            if plane.number == _PLANE and plane.kind == BYTES:
                for field in fields(data, plane.start, plane.end):
                    if field.number == _LINE and field.kind == BYTES:
                        yield data[field.start : field.end]
    except WireError:
        pass
    yield data


def scan_snapshot(data: bytes, number: int) -> bool:
    """Whether the snapshot was read."""
    return snapshot.read_snapshot(_exact(data)) is not None  # type: ignore[arg-type]


SCANNERS: dict[str, Callable[[bytes, int], bool]] = {
    "kineto": scan_kineto,
    "xplane": scan_xspace,
    "torch_memory": scan_snapshot,
}
"""By reader."""


@lru_cache(1)
def _bases(reader: str, number: int) -> list[bytes]:
    content = make(reader, number)
    return list(_lines(content)) if reader == "xplane" else [content]


def input_of(reader: str, number: int) -> bytes:
    """The input of a number: the same on every machine with the same seeds. Of an XSpace one line, in turn."""
    bases = _bases(reader, number // _VARIANTS)
    base = bases[number % len(bases)]
    return raw(base, Random(f"{reader} {number}")) if number % _VARIANTS else base


def scan(reader: str, first: int, count: int, begun: Callable[[int], None] = lambda number: None) -> int:
    """Scan the inputs of these numbers; how many the library read at least in part. ``begun(number)`` before each."""
    read = 0
    for number in range(first, first + count):
        begun(number)
        read += SCANNERS[reader](input_of(reader, number), number)
    return read


def _piece(reader: str, first: int, count: int, held: mmap.mmap) -> tuple[int, int | None]:
    """Scan in a child; return how many were read, and the number of the input that ended it."""
    child = os.fork()
    if child == 0:
        read = scan(reader, first, count, lambda number: held.__setitem__(slice(0, 8), number.to_bytes(8, "little")))
        held[8:16] = read.to_bytes(8, "little")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        return 0, int.from_bytes(held[:8], "little")
    return int.from_bytes(held[8:16], "little"), None


def main() -> int:
    """Exit code 1 if any input ended its process; it is kept in ``fuzz-failures/native``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="the built library")
    parser.add_argument("--inputs", type=int, default=2_000, help="of each scanner")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    options = parser.parse_args()
    scanned, read, failed = Counter[str](), Counter[str](), 0
    for reader in SCANNERS:
        seeds(reader)  # Once, not in every child.
    held, start, last = mmap.mmap(-1, 16), time.process_time(), options.first + options.inputs
    for piece in range(options.first, last, _PIECE):
        for reader in SCANNERS:
            first, end = piece, min(piece + _PIECE, last)
            while first < end:
                found, ended = _piece(reader, first, end - first, held)
                read[reader] += found
                scanned[reader] += (end if ended is None else ended + 1) - first
                first = end if ended is None else ended + 1
                if ended is not None:
                    failed += 1
                    kept = Path("fuzz-failures", "native", f"{reader}-{ended}")
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    kept.write_bytes(input_of(reader, ended))
                    print(f"{reader} {ended}: kept as {kept}", flush=True)
        print({name: f"{read[name]:,} of {scanned[name]:,} read" for name in SCANNERS}, f"{failed} failed", flush=True)
    print(f"{sum(scanned.values()):,} inputs, {time.process_time() - start + os.times().children_user:.0f} s")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
