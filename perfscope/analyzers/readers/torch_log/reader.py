"""torch.compile's structured log, as ``TORCH_TRACE=DIR`` writes it: one file a process, plain, gzip or xz.

A log alone is a trace without rows: what was compiled and why, and how long compiling took, but not how long
anything ran. Configurations, environments, runnable graphs and values that guards compare with are not read.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.torch_log import records
from perfscope.analyzers.readers.torch_log.collect import read_records as read_records
from perfscope.model.compile_log import CompileLog
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace, TraceBuilder

FORMAT = "torch_trace"

MAX_LOG_BYTES = 16 << 30
"""Of a log: 30 kB a graph and 300 kB a compilation make 50,000 compilations of it."""

_RANK = re.compile(r"_rank_?(\d{1,6})(?=[._]|$)")


def sniff(path: Path, head: bytes) -> bool:
    """True for text whose first lines are records of the log (``head``: first bytes, decompressed)."""
    return records.sniff(head)


def read(path: Path) -> Trace:
    """The log in ``path``, as a trace with nothing but ``compile_log``. ``DataError`` as in ``read_log``.

    ``compile_log`` counts as recorded where there is a compilation in it.
    """
    log = read_log(path)
    builder = TraceBuilder(str(path), FORMAT)
    builder.rank, builder.events, builder.unplaced["damaged"] = log.rank, log.records, log.corrupt
    builder.note("this is a log of compiling, not a recording of a run: it holds no time of any op or kernel")
    if log.corrupt:
        builder.note(f"{log.corrupt:,} of {log.corrupt + log.records:,} records of the log are corrupt and left out")
    if log.compiles:
        builder.record("compile_log")
    else:  # a rule that has nothing to look at says so
        builder.note("no compilation in it: torch.export and AOTInductor log without ids of compilations")
    builder.note(*(f"{count:,} {what} are left out" for what, count in sorted(log.left_out.items())))
    return builder.build(compile_log=log)


def read_log(path: Path) -> CompileLog:
    """The log in ``path``; the rank is the records', else the file name's (``..._rank_3_...``).

    ``DataError``, one line, for a file that is no such log, empty, too large, or compressed and cut off. Damaged
    records are counted in ``corrupt`` and left out.
    """
    with open_bytes(path, MAX_LOG_BYTES) as data:
        log = read_records(data, str(path))
    if not log.records:
        raise DataError(f"{path}: no intact record of a torch.compile log in it")
    named = _RANK.search(path.name)
    return replace(log, rank=int(named[1])) if log.rank is None and named else log
