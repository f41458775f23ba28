"""Decodes a file's events in several processes: the parent takes the first part, children the rest.

A child writes its columns into anonymous memory shared with the parent, so nothing of it is
pickled but names and offsets. A child that fails costs nothing: the parent decodes its part.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from perfscope.analyzers.readers.kineto.decode import decode_range
from perfscope.analyzers.readers.kineto.document import CUT, Buffer
from perfscope.analyzers.readers.kineto.shard import Shard
from perfscope.model.errors import DataError

SHARE = 24 << 20
"""Bytes of events a process must have to be worth starting (about 0.1 s of decoding)."""

MOST = 8
"""Processes at most: beyond it memory bandwidth and the merge dominate."""

_SEARCH = 4 << 20
"""Bytes after a wished boundary in which the next end of an event is looked for."""

_ALIGN = 64


def decode_all(
    data: Buffer, start: int, end: int, path: str, progress: Callable[[float], None] | None = None
) -> list[Shard]:
    """All events of ``data[start:end]`` as shards in file order. ``DataError`` as ``decode_range``."""
    ranges = _ranges(data, start, end, processes(end - start))
    first, *others = ranges
    helpers = [_Helper(data, low, high, path) for low, high in others]

    def report(position: int) -> None:
        if progress is not None:
            progress((position - first[0]) / max(first[1] - first[0], 1))

    try:
        shards = [decode_range(data, *first, path, report)]
    except DataError:
        for helper in helpers:
            helper.stop()
        if not helpers:
            raise
        return [decode_range(data, start, end, path)]  # a cut may have fallen into a string
    return shards + [helper.shard() or decode_range(data, helper.low, helper.high, path) for helper in helpers]


def processes(size: int) -> int:
    """How many processes to use for ``size`` bytes here; forking is left out beside other threads."""
    alone = threading.active_count() == 1 and not multiprocessing.current_process().daemon
    if not hasattr(os, "fork") or not alone or "jax" in sys.modules:  # jax runs threads that must not be forked over
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, MOST, size // SHARE))


def _ranges(data: Buffer, start: int, end: int, parts: int) -> list[tuple[int, int]]:
    """About equal byte ranges, each from an event's ``{`` to just after an event's ``}``."""
    ranges = []
    for part in range(1, parts):
        wanted = max(start, end * part // parts)
        cut = CUT.search(data, wanted, min(wanted + _SEARCH, end))
        if cut is not None:
            ranges.append((start, cut.start() + 1))
            start = cut.end() - 1
    return [*ranges, (start, end)]


class _Helper:
    """A child process that decodes one range into shared memory."""

    def __init__(self, data: Buffer, low: int, high: int, path: str) -> None:
        self.low, self.high = low, high
        # columns are smaller than the JSON they come from (a 150-byte event makes a 61-byte row)
        self._memory = mmap.mmap(-1, high - low + (1 << 20))
        context = multiprocessing.get_context("fork")
        self._inbox, outbox = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_serve, args=(outbox, self._memory, data, low, high, path), daemon=True, name="perfscope-reader"
        )
        self._process.start()
        outbox.close()

    def shard(self) -> Shard | None:
        """The child's shard; None if it could not decode its range or died."""
        try:
            sent = self._inbox.recv()
        except EOFError:
            sent = None
        self._process.join()
        return None if sent is None else _unpack(sent, self._memory)

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()


def _serve(outbox: Connection, memory: mmap.mmap, data: Buffer, low: int, high: int, path: str) -> None:
    try:
        shard = decode_range(data, low, high, path)
        sent: Any = _pack(shard, memory)
    except (DataError, MemoryError, ValueError):
        sent = None  # the parent repeats the range and reports what is wrong with it
    outbox.send(sent)
    outbox.close()


def _pack(shard: Shard, memory: mmap.mmap) -> dict[str, Any]:
    """Concatenate the shard's parts into ``memory``; the layout to find them again."""
    offset = 0
    layout: dict[str, dict[str, tuple[str, int, int]]] = {}
    for table, grown in shard.tables.items():
        layout[table] = {}
        for name, values in grown.take().items():
            if offset + values.nbytes > len(memory):
                raise ValueError("shared memory is too small")
            target = np.frombuffer(memory, values.dtype, len(values), offset)
            target[:] = values
            layout[table][name] = (values.dtype.str, len(values), offset)
            offset += -(-values.nbytes // _ALIGN) * _ALIGN
    return {
        "layout": layout,
        "strings": list(shard.strings),
        "threads": list(shard.threads),
        "events": shard.events,
        "unplaced": shard.unplaced,
        "repairs": shard.repairs,
    }


def _unpack(sent: dict[str, Any], memory: mmap.mmap) -> Shard:
    shard = Shard()
    shard.strings.update((text, code) for code, text in enumerate(sent["strings"]))
    shard.threads.update((thread, code) for code, thread in enumerate(sent["threads"]))
    shard.events, shard.unplaced, shard.repairs = sent["events"], sent["unplaced"], sent["repairs"]
    for table, columns in sent["layout"].items():
        shard.received[table] = {
            name: np.frombuffer(memory, np.dtype(dtype), size, offset)
            for name, (dtype, size, offset) in columns.items()
        }
    return shard
