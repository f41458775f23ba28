"""Matching of equal work in two traces: keys of work, levels of matching, and the matches."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import takewhile
from pathlib import PurePath
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.compare.runs.window import Window
from perfscope.analyzers.hlo import hlo_time, scope_of
from perfscope.analyzers.ops import autograd_nodes, recomputed_ops
from perfscope.analyzers.spans import nearest_ancestor
from perfscope.analyzers.time import UNKNOWN_SITE, CallSite, call_site
from perfscope.model.documents.causes import Cause, cause_words
from perfscope.model.documents.comparison import KeyValues
from perfscope.model.frames import Owner, parse_frame
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, CopyKind, SliceKind, Trace

# Names of device work without the parts that change from build to build, and classes of work.
#
# A kernel with the same job changes its name: inductor numbers its kernels, Triton and XLA add counters, libraries pick
# another tile, template arguments move. Each level ignores one more of these.


_HASH = re.compile(r"(?<![0-9a-zA-Z])(?:(?=[0-9a-f]*\d)[0-9a-f]{8,}|(?=[a-z2-7]*\d)[a-z2-7]{40,})(?![0-9a-zA-Z])")
"""Content hash: hexadecimal, or base 32 as in inductor's cache. It has at least one digit, unlike a word."""
_COUNTER = re.compile(r"(?:\d+[._]|enolc\.|\d*tamer\.)++")
"""Counter in ``triton_poi_fused_add_7``, ``loop_fusion.3``, ``dot.4.remat2``, matched from the end in linear time."""
_TILE = re.compile(
    r"(?<!\d)\d++x\d++(?:x\d++)*+|(?:MT|MI|WG|SK|LBSPP[A-Z]|stages?|warps?|nt|align|splitK)_?\d+", re.IGNORECASE
)

_CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("collective", re.compile(r"nccl|rccl|oneShot|twoShot|allreduce|all-?reduce|all-?gather|reduce-?scatter", re.I)),
    ("attention", re.compile(r"flash|fmha|attention|sdpa|attn_fwd|attn_bwd|mha_", re.I)),
    ("convolution", re.compile(r"conv|dgrad|wgrad|fprop|winograd|miopenSp3|im2col", re.I)),
    ("matrix product", re.compile(r"gemm|gemv|^Cijk_|cutlass|xmma|nvjet|matmul|wgmma|^dot|addmm|splitKreduce", re.I)),
    ("embedding", re.compile(r"embedding|index_select|indexSelect|gather|scatter|index_", re.I)),
    ("normalisation", re.compile(r"norm|bn_fw|bn_bw|welford", re.I)),
    ("softmax", re.compile(r"softmax", re.I)),
    ("optimizer", re.compile(r"multi_tensor|adam|sgd|lamb|optimizer", re.I)),
    ("sort or scan", re.compile(r"sort|scan|radix|topk|cumsum", re.I)),
    ("fused", re.compile(r"fused|fusion|triton_", re.I)),
    ("reduction", re.compile(r"reduc|sum_|argmax", re.I)),
    ("copy", re.compile(r"copy|memcpy|memset|fill|transpose|CatArray", re.I)),
    ("elementwise", re.compile(r"elementwise|vectorized|pointwise|unrolled|add|mul|relu|gelu|silu|tanh|exp", re.I)),
)
"""Classes in order of precedence: ``fused_softmax_reduce`` is a softmax rather than a reduction."""

OTHER = "other"


@lru_cache(maxsize=65536)
def without_numbers(name: str) -> str:
    """Return a kernel's name without template arguments, hashes and counters: ``triton_poi_fused_add_relu``."""
    return without_counters(_without_arguments(name))


@lru_cache(maxsize=65536)
def without_counters(name: str) -> str:
    """Return a name without hashes and the counter at its end; arguments are kept."""
    plain = _HASH.sub("#", name).strip()
    return _without_end(plain, _COUNTER) or plain


def _without_end(name: str, backwards: re.Pattern[str]) -> str:
    """Return ``name`` without an end whose reverse matches ``backwards``."""
    found = backwards.match(name[::-1])
    return name if found is None else name[: len(name) - found.end()]


@lru_cache(maxsize=65536)
def without_tiles(name: str) -> str:
    """Apply ``without_numbers`` and remove tile sizes and stages that a library or an autotuner chooses."""
    return _TILE.sub("#", without_numbers(name))


@lru_cache(maxsize=65536)
def work_class(name: str) -> str:
    """Return the class of work in a kernel's name: ``matrix product``, ``attention`` ..., else ``other``."""
    plain = _without_arguments(name)
    for kind, pattern in _CLASSES:
        if pattern.search(plain):
            return kind
    return next((kind for kind, pattern in _CLASSES if pattern.search(name)), OTHER)


def _without_arguments(name: str) -> str:
    """Return a signature without template arguments, parameters and ``void``."""
    kept: list[str] = []
    depth = 0
    for char in name.removeprefix("void "):
        if char in "<(" and kept:
            depth += 1
        elif char in ">)" and depth:
            depth -= 1
        elif not depth:
            kept.append(char)
    return "".join(kept) or name


PartKind = Literal["compute", "communication", "copy", "idle", "host"]
"""Kind of a part of the step: the device computes, only communicates, only copies, or idles; or the host works."""


class Key(KeyValues, frozen=True, kw_only=True):
    """Identity and place of a piece of work."""

    kind: PartKind
    line: int = -1
    """Line number; -1 if unknown."""
    cause: Cause | Literal[""] = ""

    def place(self) -> str:
        """``train.py:88``, else the module; ``''`` if both are unknown."""
        if self.file:
            return f"{self.file}:{self.line}" if self.line >= 0 else self.file
        return self.module

    def name(self) -> str:
        """Short name: the op, with the work or the cause if that differs."""
        if self.kind in ("idle", "copy"):
            work = cause_words(self.cause, on_host=False) if self.kind == "idle" else self.work
            return f"{work} ({self.op})" if self.op else work
        if self.kind == "host":  # a range's arguments tell it from others: PjitFunction(step)
            name = without_counters(self.op or self.work)
            return name if self.cause in ("compute", "") else f"{cause_words(self.cause, on_host=True)} ({name})"
        return without_counters(self.op) or without_numbers(self.work) or self.kind


_BUSY: dict[PartKind, Cause | Literal[""]] = {
    "compute": "compute", "communication": "exposed_communication", "copy": "exposed_copy",
}  # fmt: skip
"""Cause of device work, by kind."""


class Level(IntEnum):
    """Degree of similarity of two matched keys; the first level that finds a partner is used."""

    SAME = 0
    RENAMED = 1
    MOVED = 2
    OTHER_KERNEL = 3
    OTHER_SHAPES = 4
    SAME_OP = 5
    FUSED = 6
    SAME_CLASS = 7


LEVEL_WORDS: dict[Level, str] = {
    Level.SAME: "same place, op, shapes and kernel",
    Level.RENAMED: "kernel renamed (numbers, hashes, template arguments)",
    Level.MOVED: "its line moved in the same function",
    Level.OTHER_KERNEL: "same place, op and shapes, other kernels",
    Level.OTHER_SHAPES: "same place and op, other shapes",
    Level.SAME_OP: "same op elsewhere",
    Level.FUSED: "same line or module, other ops: fused or taken apart",
    Level.SAME_CLASS: "same class of work elsewhere",
}

Signature = tuple[str | int, ...]


def signature(key: Key, level: Level) -> Signature | None:
    """Return the features that matched keys share at a level; ``None`` if the level does not apply to the key."""
    kind, phase, op = f"{key.kind} {key.cause}", key.phase, without_counters(key.op)
    if level is Level.SAME:
        return (kind, phase, key.module, key.op, key.shapes, key.file, key.line, key.function, key.work)
    if level is Level.RENAMED:
        return (kind, phase, key.module, op, key.shapes, key.file, key.line, key.function, _renamed(key))
    if level is Level.MOVED:
        return (kind, phase, key.module, op, key.shapes, key.file, key.function, _renamed(key))
    if key.kind == "idle":  # a wait for another reason, or in another op, is another wait
        return None
    if level is Level.OTHER_KERNEL:
        if not key.op:  # no host op known: the kernel is all there is
            return (kind, phase, key.module, without_tiles(key.work))
        return (kind, phase, key.module, op, key.shapes, key.file, key.function)
    if level is Level.OTHER_SHAPES:
        return (kind, phase, key.module, op, key.file, key.function) if op else None
    if level is Level.SAME_OP:
        return (kind, phase, op, work_class(key.work)) if op else None
    if level is Level.FUSED:
        place = key.file or key.module
        return (kind, phase, place, key.line) if place and key.kind == "compute" else None
    work_kind = work_class(key.work)
    return (kind, phase, work_kind) if key.kind in ("compute", "communication") and work_kind != "other" else None


def _renamed(key: Key) -> str:
    """Return the work without parts that change from build to build; ranges on the host keep their arguments."""
    return without_counters(key.work) if key.kind == "host" else without_numbers(key.work)


# Matching of the work of base and head: by the exact key first, then level by level with fewer features.
#
# A level pairs only the keys without a partner so far, so that work on both sides is never reported as new. From
# ``OTHER_KERNEL`` on, a match may have several keys per side: three kernels against one is a fusion.


MOST_PAIRS = 100_000
"""Maximum number of pairs of lines of one op in one function that are compared; more are paired in order."""


class Match(Struct, frozen=True, kw_only=True):
    """Keys of the same work. ``level`` is ``None`` if only one side has it: it is new or gone."""

    base: tuple[Key, ...]
    head: tuple[Key, ...]
    level: Level | None


def align(base: Iterable[Key], head: Iterable[Key]) -> tuple[Match, ...]:
    """Return every key of both sides in exactly one match. Equal keys of a side are merged."""
    left, right = dict.fromkeys(base), dict.fromkeys(head)
    files = same_files({key.file for key in left}, {key.file for key in right})
    shifts = _line_shifts(left, right, files)
    matches: list[Match] = []
    for level in Level:
        by_line = level <= Level.RENAMED
        mine = _buckets(left, level, files, shifts if by_line else None)
        theirs = _buckets(right, level, {})
        for shared in (sign for sign in mine if sign in theirs):
            pairs: Iterable[tuple[Sequence[Key], Sequence[Key]]] = [(mine[shared], theirs[shared])]
            if level is Level.MOVED:
                pairs = [((key,), (other,)) for key, other in _by_line(mine[shared], theirs[shared], shifts)]
            for ours, others in pairs:
                matches.append(Match(base=tuple(ours), head=tuple(others), level=level))
                for key in ours:
                    del left[key]
                for key in others:
                    del right[key]
    matches += [Match(base=(key,), head=(), level=None) for key in left]
    matches += [Match(base=(), head=(key,), level=None) for key in right]
    return tuple(matches)


_Shifts = Mapping[str, Sequence[tuple[int, int]]]
"""File -> (line in base, lines it moved by), in order of the lines."""


def _buckets(
    keys: Iterable[Key], level: Level, files: Mapping[str, str], shifts: _Shifts | None = None
) -> dict[Signature, list[Key]]:
    """Group keys by their features at a level; ``shifts`` moves lines with the code around them."""
    result: dict[Signature, list[Key]] = defaultdict(list)
    for key in keys:
        moved = _shift_at(shifts.get(key.file, ()), key.line) if shifts and key.line >= 0 else 0
        file = files.get(key.file, key.file)
        same = key if not moved and file == key.file else replace(key, line=key.line + moved, file=file)
        sign = signature(same, level)
        if sign is not None:
            result[sign].append(key)
    return result


def same_files(base: set[str], head: set[str]) -> dict[str, str]:
    """Map files of the base to those of the head with the longest common end of the path (another checkout).

    Files on both sides map to themselves; files without a unique best partner are left out.
    """
    result: dict[str, str] = {}
    lost = base - head
    by_name: dict[str, list[str]] = defaultdict(list)
    for file in head - base:
        by_name[PurePath(file).name].append(file)
    for file in sorted(lost):
        alike = sorted((_shared_tail(file, other), other) for other in by_name.get(PurePath(file).name, ()))
        if alike and (len(alike) == 1 or alike[-1][0] > alike[-2][0]) and alike[-1][1] not in result.values():
            result[file] = alike[-1][1]
    return result


def _shared_tail(file: str, other: str) -> int:
    """Return the number of equal parts of two paths, counted from their ends."""
    pairs = zip(reversed(PurePath(file).parts), reversed(PurePath(other).parts), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _line_shifts(base: Iterable[Key], head: Iterable[Key], files: Mapping[str, str]) -> _Shifts:
    """Return the movement of each file's lines, from keys with only one possible partner."""
    mine, theirs = _buckets(base, Level.MOVED, files), _buckets(head, Level.MOVED, {})
    result: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for shared in mine.keys() & theirs.keys():
        lines, others = {key.line for key in mine[shared]}, {key.line for key in theirs[shared]}
        if len(lines) == len(others) == 1:
            line = lines.pop()
            result[mine[shared][0].file].add((line, others.pop() - line))
    return {file: sorted(shifts) for file, shifts in result.items()}


def _by_line(base: Sequence[Key], head: Sequence[Key], shifts: _Shifts) -> list[tuple[Key, Key]]:
    """Pair keys that differ in their line, nearest to the line expected from ``shifts`` first."""
    if len(base) * len(head) > MOST_PAIRS:
        ordered = (sorted(keys, key=lambda key: key.line) for keys in (base, head))
        return list(zip(*ordered, strict=False))
    candidates = sorted(
        (
            (abs(key.line + _shift_at(shifts.get(key.file, ()), key.line) - other.line), index, number)
            for index, key in enumerate(base)
            for number, other in enumerate(head)
        ),
    )
    used_base: set[int] = set()
    used_head: set[int] = set()
    pairs = []
    for _, index, number in candidates:
        if index not in used_base and number not in used_head:
            used_base.add(index)
            used_head.add(number)
            pairs.append((base[index], head[number]))
    return pairs


def _shift_at(shifts: Sequence[tuple[int, int]], line: int) -> int:
    """Return the shift of the nearest line above, else of the nearest below, else 0."""
    above = [moved for index, moved in shifts if index <= line]
    if above:
        return above[-1]
    return shifts[0][1] if shifts else 0


# Keys of the rows of a trace: op, module and line of the user's code that called them.


MOST_SITES = 500_000
"""Maximum number of ops whose line is looked up, at 30 to 80 us and 200 bytes each: up to half a minute, about as long
as reading the trace. In larger traces only displayed rows have a line."""

_NAMING_COUNTER = re.compile(r"(?:\d+\.|enolc\.|\d*tamer\.)++")
"""``_COUNTER`` for HLO names, in which underscores are part of the name."""

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
    """Keys for rows of one trace; each call site is looked up once."""

    def __init__(self, trace: Trace, window: Window) -> None:
        self.trace = trace
        self._slices = trace.rows["slices"]
        self._sites: dict[int, CallSite] = {}
        self._texts: dict[int, str] = {}
        self._has_callers = _records_callers(trace)
        self.with_lines = self._few_spans(window)
        self.notes = () if self.with_lines else (_TOO_MANY,)
        self._phase = _phases(trace)
        self._is_op = self._slices["kind"] == SliceKind.OP
        self._instructions = _instruction_of_work(trace)

    def site(self, row: int) -> CallSite:
        """Return the call site of a row of ``slices``."""
        if not self._has_callers:
            return UNKNOWN_SITE
        if row not in self._sites:
            self._sites[row] = call_site(self.trace, row)
        return self._sites[row]

    def of_work(self, table: str, rows: Int64) -> list[Key]:
        """Return the keys of rows of ``kernels`` or ``copies``."""
        compiled = self._instructions.get(table, {})
        work = self.trace.rows[table]
        ops = nearest_ancestor(self.trace, work["op"][rows].astype(np.int64), self._is_op)
        keys = []
        for row, op in zip(rows.tolist(), ops.tolist(), strict=True):
            kind, name = self._work(table, row)
            if row in compiled:
                keys.append(_of_instruction(self.trace, compiled[row], kind, name))
            else:
                keys.append(self.of_op(kind, op, name))
        return keys

    def of_op(self, kind: PartKind, op: int, work: str) -> Key:
        """Return the key of work that an op (row of ``slices``, or ``MISSING``) called."""
        cause = _BUSY.get(kind, "")
        if op == MISSING:
            return Key(kind=kind, work=work, cause=cause)
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
            cause=cause,
        )

    def of_idle(self, cause: Cause, calls: Int64) -> list[tuple[Key, int]]:
        """Return per row of ``calls`` (``MISSING``: no call) the key of idle time and the calling row of ``slices``."""
        parents = calls  # of an empty table all are missing
        if len(self.trace.rows["calls"]):
            parents = np.where(calls == MISSING, MISSING, self.trace.rows["calls"]["parent"][np.maximum(calls, 0)])
        ops = nearest_ancestor(self.trace, parents, self._is_op)
        spans = np.where(ops == MISSING, parents, ops).tolist()
        return [
            (replace(self.of_op("idle", span, ""), cause=cause), parent)
            for span, parent in zip(spans, parents.tolist(), strict=True)
        ]

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
        launching = [self.trace.rows[table]["op"] for table in ("kernels", "copies")]
        ops = (
            np.unique(np.concatenate(launching))
            if any(map(len, launching))
            else np.flatnonzero(window.began_inside(self._slices["start_ns"]))
        )
        return len(ops) <= MOST_SITES


def _records_callers(trace: Trace) -> bool:
    """Return whether the trace has data about the callers of ops."""
    if trace.detail is not None or trace.op_graph is not None or trace.compile_log is not None:
        return True
    return bool((trace.rows["slices"]["kind"] == SliceKind.PYTHON).any())


_TOO_MANY = f"more than {MOST_SITES:,} ops asked for work: they are matched and shown without their lines"


def span_key(naming: Naming, row: int) -> Key:
    """Return the key of a host span: an op, a Python function, or a range."""
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
    """Return a span's name without counters of calls and steps: ``ProfilerStep#12`` is ``ProfilerStep#``."""
    return name if "::" in name and "#" not in name else re.sub(r"#\d+", "#", name)


def instruction_keys(trace: Trace, rows: Int64) -> list[Key]:
    """Return the keys of rows of ``hlo_ops``."""
    return [_of_instruction(trace, row, "host", "") for row in rows.tolist()]


def _of_instruction(trace: Trace, row: int, kind: PartKind, work: str) -> Key:
    keys = trace.fact(_keys_of_instructions)
    ops = trace.rows["hlo_ops"]
    made: Key = keys[int(ops["module"][row]), int(ops["program_id"][row]), int(ops["name"][row])]
    name = work if kind in ("communication", "copy") else made.work
    return Key(
        kind=kind, phase=made.phase, module=made.module, op=made.op, file=made.file, line=made.line, work=name,
        shapes=made.shapes, cause=_BUSY.get(kind, ""),
    )  # fmt: skip


def _keys_of_instructions(trace: Trace) -> dict[tuple[int, int, int], Key]:
    """Map (module, program, name), as coded in ``hlo_ops``, to the key of the instruction, of kind ``host``."""
    ops = trace.rows["hlo_ops"]
    places = {
        (instruction.module, instruction.program_id, instruction.instruction): instruction
        for instruction in trace.fact(hlo_time).instructions
    }
    triples = np.unique(
        np.stack([ops["module"].astype(np.int64), ops["program_id"], ops["name"].astype(np.int64)], 1), axis=0
    )
    keys = {}
    for module, program, name in triples.tolist():
        known = None if program == MISSING else program
        text = trace.text(name)
        place = places[trace.text(module), known, text]
        plain = _without_end(text, _NAMING_COUNTER)
        if place.module_index is None or place.computation is None:
            keys[module, program, name] = Key(kind="host", module=trace.text(module), op=plain, work=text)
            continue
        instruction = trace.hlo[place.module_index].computations[place.computation].by_name[text]
        scope = scope_of(instruction.op_name) if instruction.op_name else None
        keys[module, program, name] = Key(
            kind="host",
            phase="" if scope is None or scope.phase in (None, "forward") else scope.phase,
            module="" if scope is None else scope.label,
            op=instruction.opcode if instruction.opcode != "fusion" else plain,
            shapes=f"{instruction.shape.dtype}{list(instruction.shape.dims)}"
            if instruction.shape.dtype != "tuple"
            else "",
            file=instruction.file or "",
            line=instruction.line if instruction.line is not None else -1,
            work=text,
        )
    return keys


def _instruction_of_work(trace: Trace) -> dict[str, dict[int, int]]:
    """Map table -> row of ``kernels`` or ``copies`` -> row of ``hlo_ops``."""
    ops = trace.rows["hlo_ops"]
    result: dict[str, dict[int, int]] = {}
    for table, column in (("kernels", "kernel"), ("copies", "copy")):
        linked = np.flatnonzero(ops[column] != MISSING) if len(ops) else np.empty(0, np.int64)
        result[table] = dict(zip(ops[column][linked].tolist(), linked.tolist(), strict=True))
    return result


def _phases(trace: Trace) -> dict[int, str]:
    """Map the row of ``slices`` of an op to ``backward`` or ``recompute``; other ops are left out."""
    nodes = trace.fact(autograd_nodes)
    if not nodes.any():
        return {}
    slices = trace.rows["slices"]
    ops = np.flatnonzero(slices["kind"] == SliceKind.OP)
    again = np.zeros(len(slices), bool)
    again[trace.fact(recomputed_ops)] = True
    owner = nearest_ancestor(trace, ops, nodes | again)
    backward = owner != MISSING
    phases = dict.fromkeys(ops[backward].tolist(), "backward")
    phases.update(dict.fromkeys(ops[backward & again[owner]].tolist(), "recompute"))
    return phases
