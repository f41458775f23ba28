"""Native stacks: of CPU samples (``nsys profile --sample=process-tree``), and of calls recorded with a stack.

Nsight Systems samples a thread only while it runs on a processor. A pause between samples is therefore not work of the
previous function: a sample represents ``PAUSE`` usual intervals at most.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from perfscope.analyzers.readers.columns import Columns
from perfscope.analyzers.readers.nsys.database import NULL, Session
from perfscope.model.intervals import Int64, distinct_rows
from perfscope.model.trace import TABLES, Rows
from perfscope.model.trace.columns import MISSING, Array

PAUSE = 4
"""Number of usual intervals between samples from which the thread did not run."""

_SYSTEM = re.compile(
    r"\[.*\]|(ld|ld-linux[-\w]*|libc|libpthread|libm|librt|libdl|libstdc\+\+|libgcc_s|libgomp|libiomp5"
    r"|libcuda|libcudart|libcupti|libnvidia-\w+|libToolsInjection\w*|libnvToolsExt)([-.]\S*)?"
)
"""Files of the operating system, the C and C++ runtimes and the CUDA driver. Their callers are named instead."""
_CUT = "[Max depth]"
"""Caller of the outermost recorded frame in an export."""


class NativeSamples(Struct, frozen=True, kw_only=True):
    """Samples of all processes of an export, in order of time, and the frames they share."""

    columns: Columns
    """``start_ns``, ``process``, ``globalTid``, ``lasts_ns`` and ``frame`` of each sample."""
    frames: Rows


def read_samples(session: Session) -> NativeSamples:
    """Return the samples of an export and their stacks; without rows if none were recorded."""
    columns = session.database.integers("COMPOSITE_EVENTS", "id", "start", "end", "globalPid", "globalTid")
    columns["end"] = columns["start"]
    columns = session.timed(columns, "COMPOSITE_EVENTS")
    order = np.lexsort((columns["globalTid"], columns["start_ns"]))
    columns = {name: values[order] for name, values in columns.items()}
    innermost, frames = _stacks(session, columns.pop("id"))
    return NativeSamples(
        columns={
            "start_ns": columns["start_ns"],
            "process": columns["process"],
            "globalTid": columns["globalTid"],
            "lasts_ns": _lasts_ns(columns["start_ns"], columns["globalTid"]),
            "frame": innermost,
        },
        frames=Rows(TABLES["frames"], frames),
    )


def _lasts_ns(times: Int64, threads: Int64) -> Int64:
    """Return the time of each sample: since its thread's previous sample, or the longest possible pause."""
    order = np.lexsort((times, threads))
    since = np.diff(times[order], prepend=0)
    first = np.diff(threads[order], prepend=NULL) != 0
    first[:1] = True
    usual = int(np.median(since[~first])) if (~first).any() else 0
    since[first] = usual
    lasts = np.empty(len(times), np.int64)
    lasts[order] = np.minimum(since, PAUSE * usual)
    return lasts


def _stacks(session: Session, ids: Int64) -> tuple[Array, Columns]:
    """Return the row of the innermost kept frame of each sample, shape (n,), and the columns of ``frames``."""
    sample, name, system = _frames(session, "SAMPLING_CALLCHAINS")
    kept = _down_to_the_program(sample, system)
    sample, name = sample[kept], name[kept]
    repeated = np.zeros(len(name), bool)
    repeated[1:] = (sample[1:] == sample[:-1]) & (name[1:] == name[:-1])
    sample, name = sample[~repeated], name[~repeated]
    parents, names, innermost_of = _tree(sample, name)
    frame = np.full(len(ids), MISSING, np.int32)
    stacked = np.unique(sample)
    if len(stacked):
        place = np.minimum(np.searchsorted(stacked, ids), len(stacked) - 1)
        frame = np.where(stacked[place] == ids, innermost_of[place], MISSING).astype(np.int32)
    nothing = np.full(len(names), MISSING, np.int32)
    return frame, {"file": nothing, "line": nothing, "name": names.astype(np.int32), "parent": parents.astype(np.int32)}


def callers(session: Session, table: str, chains: Int64) -> Array:
    """Return the code of the innermost non-system function of each call chain, shape (n,).

    ``table``: of the call chains; ``chains``: ids in it. ``MISSING`` without a chain, or if every frame is of the
    system.
    """
    result = np.full(len(chains), MISSING, np.int32)
    ids, name, system = _frames(session, table)
    ids, name = ids[~system], name[~system]
    if len(ids):
        last = np.minimum(np.searchsorted(ids, chains, side="right") - 1, len(ids) - 1)
        result = np.where((last >= 0) & (ids[last] == chains), name[last], MISSING).astype(np.int32)
    return result


def _frames(session: Session, table: str) -> tuple[Int64, Array, Array]:
    """Return the frames of call chains, outermost first: chain, code of the name, and whether of the system."""
    chain = session.database.integers(table, "id", "stackDepth", "symbol", "module", "unresolved")
    name, system = _names(session, chain)
    order = np.lexsort((-chain["stackDepth"], chain["id"]))
    order = order[name[order] != MISSING]
    return chain["id"][order], name[order], system[order]


def _names(session: Session, chain: Columns) -> tuple[Array, Array]:
    """Return the code of each frame's name, ``function (file)`` or the file, and whether it is of the system.

    ``MISSING`` for a missing frame. Only the last part of a file's path is kept.
    """
    columns = (chain["symbol"], chain["module"], (chain["unresolved"] == 1).astype(np.int64))
    first, inverse = distinct_rows(*columns)
    distinct = np.stack([column[first] for column in columns], axis=1)
    texts = session.database.texts({code for code in distinct[:, :2].ravel().tolist() if code != NULL})
    codes, system = np.full(len(distinct), MISSING, np.int64), np.zeros(len(distinct), bool)
    for row, (symbol, module, unresolved) in enumerate(distinct.tolist()):
        function, file = texts.get(symbol, ""), texts.get(module, "").rpartition("/")[2]
        if function == _CUT or not (function or file):
            continue
        known = function and not unresolved
        text = f"{function} ({file})" if known and file else function if known else file
        codes[row] = session.pool.code(text or "unresolved")
        system[row] = _SYSTEM.fullmatch(file) is not None
    return codes[inverse], system[inverse]


def _down_to_the_program(sample: Int64, system: Array) -> Array:
    """Flag the frames to keep: down to the innermost non-system frame, or all if every frame is of the system."""
    rows = np.arange(len(sample))
    first = np.searchsorted(sample, sample, side="left")
    last_own = np.maximum.reduceat(np.where(system, -1, rows), np.unique(first)) if len(rows) else rows
    number = np.cumsum(rows == first) - 1
    last = last_own[number] if len(rows) else rows
    return np.asarray((last == -1) | (rows <= last), bool)


def _tree(sample: Int64, name: Array) -> tuple[Int64, Int64, Int64]:
    """Return stacks as a tree: parent and name of each frame, and the innermost frame of each distinct sample.

    ``sample``: sorted; the frames of a sample are consecutive, outermost first. The tree is built level by level,
    callers first.
    """
    starts = np.flatnonzero(np.diff(sample, prepend=NULL) != 0) if len(sample) else np.empty(0, np.int64)
    depths = np.diff(starts, append=len(sample))
    parents: list[Int64] = []
    names: list[Int64] = []
    innermost = np.full(len(starts), MISSING, np.int64)
    count, level = 0, 0
    while len(deeper := np.flatnonzero(depths > level)):
        callers, called = innermost[deeper], name[starts[deeper] + level]
        first, inverse = distinct_rows(callers, called)
        innermost[deeper] = count + inverse
        parents.append(callers[first])
        names.append(called[first])
        count, level = count + len(first), level + 1
    nothing = np.empty(0, np.int64)
    return np.concatenate([nothing, *parents]), np.concatenate([nothing, *names]), innermost
