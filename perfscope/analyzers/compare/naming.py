"""Keys of the rows of a trace: which op asked for them, in which module and on which line of the user's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from perfscope.analyzers.compare.keys import Key, PartKind
from perfscope.analyzers.compare.window import Window
from perfscope.analyzers.facts.call_sites import UNKNOWN_SITE, CallSite, call_site
from perfscope.analyzers.facts.gaps import GapCause, Gaps
from perfscope.analyzers.facts.hlo_time import hlo_time
from perfscope.analyzers.facts.nesting import nearest_ancestor
from perfscope.analyzers.facts.recompute import autograd_nodes, recomputed_ops
from perfscope.analyzers.hlo.scope import scope_of
from perfscope.model.frames import Owner, parse_frame
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, CopyKind, SliceKind, Trace

MOST_SITES = 500_000
"""Ops whose line is looked up, 30 to 80 us each and some 200 bytes: about as long as reading the trace took, up to half
a minute. Beyond it only the rows that are shown have one."""

_COUNTER = re.compile(r"(\.\d+|\.clone|\.remat\d*)+$")

_COPIES: dict[int, str] = {
    CopyKind.HOST_TO_DEVICE: "copy host to device",
    CopyKind.DEVICE_TO_HOST: "copy device to host",
    CopyKind.DEVICE_TO_DEVICE: "copy on the device",
    CopyKind.PEER_TO_PEER: "copy to another device",
    CopyKind.HOST_TO_HOST: "copy on the host",
    CopyKind.MEMSET: "memset",
    CopyKind.UNKNOWN: "copy",
}


class Naming:
    """Makes keys for rows of one trace; call sites are looked up once each."""

    def __init__(self, trace: Trace, window: Window) -> None:
        self.trace = trace
        self._slices = trace.rows["slices"]
        self._sites: dict[int, CallSite] = {}
        self._texts: dict[int, str] = {}
        self._told = _tells_sites(trace)
        self.with_lines = self._few_spans(window)
        self.notes = () if self.with_lines else (_TOO_MANY,)
        self._phase = _phases(trace)
        self._is_op = self._slices["kind"] == SliceKind.OP
        self._instructions = _instruction_of_work(trace)

    def site(self, row: int) -> CallSite:
        """The call site of a row of ``slices``."""
        if not self._told:
            return UNKNOWN_SITE
        if row not in self._sites:
            self._sites[row] = call_site(self.trace, row)
        return self._sites[row]

    def of_work(self, table: str, rows: Int64) -> list[Key]:
        """Keys of rows of ``kernels`` or ``copies``."""
        compiled = self._instructions.get(table, {})
        work = self.trace.rows[table]
        ops = nearest_ancestor(self.trace, work["op"][rows].astype(np.int64), self._is_op)
        found = []
        for row, op in zip(rows.tolist(), ops.tolist(), strict=True):
            kind, name = self._work(table, row)
            if row in compiled:
                found.append(_of_instruction(self.trace, compiled[row], kind, name))
            else:
                found.append(self.of_op(kind, op, name))
        return found

    def of_op(self, kind: PartKind, op: int, work: str) -> Key:
        """The key of some work that an op (row of ``slices``, or ``MISSING``) asked for."""
        if op == MISSING:
            return Key(kind=kind, work=work)
        site = self.site(op) if self.with_lines else UNKNOWN_SITE
        return Key(
            kind=kind,
            phase=self._phase.get(op, "") if self._phase else "",
            module=site.module or "",
            op=self._plain(int(self._slices["name"][op])),
            shapes=self.trace.text(int(self._slices["shapes"][op])),
            file=site.file or "",
            line=site.line if site.line is not None else -1,
            function=site.function or "",
            work=work,
        )

    def of_gaps(self, found: Gaps, rows: Int64, words: Mapping[GapCause, str]) -> list[tuple[Key, int]]:
        """Per gap its key, and the row of ``slices`` it is charged to."""
        calls = self.trace.rows["calls"]
        keys = []
        for row in rows.tolist():
            cause = GapCause(int(found.cause[row]))
            call = {GapCause.HOST_SYNC: found.sync, GapCause.LAUNCH: found.launch}.get(cause)
            at = MISSING if call is None else int(calls["parent"][call[row]])
            op = int(nearest_ancestor(self.trace, [at], self._is_op)[0])
            keys.append((self.of_op("idle", op if op != MISSING else at, words[cause]), at))
        return keys

    def _work(self, table: str, row: int) -> tuple[PartKind, str]:
        work = self.trace.rows[table]
        if table == "copies":
            return "copy", _COPIES[int(work["kind"][row])]
        return "communication" if work["communication"][row] else "compute", self.trace.text(int(work["name"][row]))

    def _plain(self, code: int) -> str:
        if code not in self._texts:
            self._texts[code] = plain_span(self.trace.text(code))
        return self._texts[code]

    def _few_spans(self, window: Window) -> bool:
        asked = [self.trace.rows[table]["op"] for table in ("kernels", "copies")]
        ops = (
            np.unique(np.concatenate(asked))
            if any(map(len, asked))
            else np.flatnonzero(window.began_inside(self._slices["start_ns"]))
        )
        return len(ops) <= MOST_SITES


def _tells_sites(trace: Trace) -> bool:
    """Whether anything of the trace could say from where an op was called: without it nothing is looked up."""
    if trace.detail is not None or trace.op_graph is not None or trace.compile_log is not None:
        return True
    return bool((trace.rows["slices"]["kind"] == SliceKind.PYTHON).any())


_TOO_MANY = f"more than {MOST_SITES:,} ops asked for work: they are matched and shown without their lines"


def span_key(naming: Naming, row: int) -> Key:
    """The key of a host span by itself: an op, a Python function, or a range."""
    slices = naming.trace.rows["slices"]
    kind = int(slices["kind"][row])
    if kind == SliceKind.OP:
        return naming.of_op("host", row, "")
    name = naming.trace.text(int(slices["name"][row]))
    frame = parse_frame(name) if kind == SliceKind.PYTHON else None
    if frame is None:
        return Key(kind="host", work=plain_span(name))
    if frame.owner is Owner.USER:
        return Key(kind="host", work=f"Python in {frame.function}", file=frame.file, line=frame.line)
    return Key(kind="host", work=f"Python: {frame.file}: {frame.function}")


@lru_cache(maxsize=65536)
def plain_span(name: str) -> str:
    """A span's name without what counts calls and steps: ``ProfilerStep#12`` is ``ProfilerStep#``."""
    return name if "::" in name and "#" not in name else re.sub(r"#\d+", "#", name)


def instruction_keys(trace: Trace, rows: Int64) -> list[Key]:
    """Keys of rows of ``hlo_ops``."""
    return [_of_instruction(trace, row, "host", "") for row in rows.tolist()]


def _of_instruction(trace: Trace, row: int, kind: PartKind, work: str) -> Key:
    keys = trace.fact(_keys_of_instructions)
    ops = trace.rows["hlo_ops"]
    made: Key = keys[int(ops["module"][row]), int(ops["program_id"][row]), int(ops["name"][row])]
    name = work if kind in ("communication", "copy") else made.work
    return Key(
        kind=kind, phase=made.phase, module=made.module, op=made.op, file=made.file, line=made.line, work=name,
        shapes=made.shapes,
    )  # fmt: skip


def _keys_of_instructions(trace: Trace) -> dict[tuple[int, int, int], Key]:
    """By (module, program, name) as coded in ``hlo_ops``: the key of the instruction, of kind ``host``."""
    ops = trace.rows["hlo_ops"]
    places = {(one.module, one.program_id, one.instruction): one for one in trace.fact(hlo_time).instructions}
    triples = np.unique(
        np.stack([ops["module"].astype(np.int64), ops["program_id"], ops["name"].astype(np.int64)], 1), axis=0
    )
    found = {}
    for module, program, name in triples.tolist():
        known = None if program == MISSING else program
        text = trace.text(name)
        place = places[trace.text(module), known, text]
        plain = _COUNTER.sub("", text)
        if place.module_index is None or place.computation is None:
            found[module, program, name] = Key(kind="host", module=trace.text(module), op=plain, work=text)
            continue
        one = trace.hlo[place.module_index].computations[place.computation].by_name[text]
        scope = scope_of(one.op_name) if one.op_name else None
        found[module, program, name] = Key(
            kind="host",
            phase="" if scope is None or scope.phase in (None, "forward") else scope.phase,
            module="" if scope is None else scope.label,
            op=one.opcode if one.opcode != "fusion" else plain,
            shapes=f"{one.shape.dtype}{list(one.shape.dims)}" if one.shape.dtype != "tuple" else "",
            file=one.file or "",
            line=one.line if one.line is not None else -1,
            work=text,
        )
    return found


def _instruction_of_work(trace: Trace) -> dict[str, dict[int, int]]:
    """By table: row of ``kernels`` or ``copies`` -> row of ``hlo_ops``."""
    ops = trace.rows["hlo_ops"]
    found: dict[str, dict[int, int]] = {}
    for table, column in (("kernels", "kernel"), ("copies", "copy")):
        linked = np.flatnonzero(ops[column] != MISSING) if len(ops) else np.empty(0, np.int64)
        found[table] = dict(zip(ops[column][linked].tolist(), linked.tolist(), strict=True))
    return found


def _phases(trace: Trace) -> dict[int, str]:
    """Row of ``slices`` of an op -> ``backward`` or ``recompute``; ops of neither are left out."""
    nodes = trace.fact(autograd_nodes)
    if not nodes.any():
        return {}
    slices = trace.rows["slices"]
    ops = np.flatnonzero(slices["kind"] == SliceKind.OP)
    again = np.zeros(len(slices), bool)
    again[trace.fact(recomputed_ops)] = True
    owner = nearest_ancestor(trace, ops, nodes | again)
    backward = owner != MISSING
    found = dict.fromkeys(ops[backward].tolist(), "backward")
    found.update(dict.fromkeys(ops[backward & again[owner]].tolist(), "recompute"))
    return found
