"""Graph breaks, recompiles and kernels of a log of torch.compile as rows: each record is in exactly one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.facts.compile_frames import plain_function, user_place
from perfscope.analyzers.facts.compile_guards import parse_guard
from perfscope.model.compile_log import CodeLine, Compile, CompiledKernel, CompileLog, GraphBreak, KernelBackend

MOST_VALUES = 12
"""Values of a guard that are kept: what they do (grow, repeat) shows in a dozen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakSummary:
    """Graph breaks of one reason at one line."""

    place: CodeLine | None
    reason: str
    doc_id: str | None
    count: int
    """Records of the log: a function that was inlined is said for each frame it is in."""
    whole_frame: bool
    """It left the whole frame to eager mode."""
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecompileSummary:
    """Recompilations of one frame for guards on one thing."""

    function: str
    place: CodeLine | None
    guard: str
    """The guard that failed first, in torch's words."""
    guard_place: CodeLine | None
    """The line that made it necessary."""
    values: tuple[str, ...]
    """What the guard compared with, in order, without repeats; bounded."""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSummary:
    """Kernels or library calls of one name."""

    name: str
    backend: KernelBackend
    calls: int
    """In the output code of all graphs."""
    ops: tuple[str, ...]
    places: tuple[CodeLine, ...]
    time_ns: int | None = None
    """Measured in the whole recording; ``None``: it did not run in it, or nothing tells."""


Holders = Mapping[str, Sequence[Compile]]
"""By id the compilations that had it, in turn: ``torch._dynamo.reset()`` numbers frames anew."""


def holders_of(log: CompileLog) -> Holders:
    """By id the compilations that had it."""
    found: dict[str, list[Compile]] = defaultdict(list)
    for one in log.compiles:
        found[one.compile_id].append(one)
    return found


def holder_of(holders: Holders, found: GraphBreak) -> Compile | None:
    """The compilation that a break was met in."""
    same = holders.get(found.compile_id, ())
    begun = [one for one in same if found.time_ns is None or (one.start_ns or 0) <= found.time_ns]
    return (begun or same)[-1] if same else None


def leaves_frame(holders: Holders, found: GraphBreak) -> bool:
    """Whether a break left all of its frame to eager mode; older versions of torch tell it of the compilation alone."""
    holder = holder_of(holders, found)
    return found.skipped_frame or (holder is not None and holder.has_code is False)


def break_rows(log: CompileLog, holders: Holders) -> tuple[BreakSummary, ...]:
    """By line and reason; those that left a whole frame to eager mode first, then the most frequent."""
    groups: dict[tuple[object, ...], list[tuple[GraphBreak, CodeLine | None]]] = defaultdict(list)
    for found in log.breaks:
        place = user_place(found.place, found.stack)
        key = (place and (place.file, place.line), found.reason, found.doc_id, leaves_frame(holders, found))
        groups[key].append((found, place))
    rows = [
        BreakSummary(
            place=held[0][1],
            reason=held[0][0].reason,
            doc_id=held[0][0].doc_id,
            count=len(held),
            whole_frame=bool(key[-1]),
            hint=next((one.hints[0] for one, _ in held if one.hints), None),
        )
        for key, held in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (not row.whole_frame, -row.count)))


def recompile_rows(log: CompileLog) -> tuple[RecompileSummary, ...]:
    """By frame and by what the guard is about; its values stand behind one another."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    guards = [parse_guard(one.reasons[0]) if one.reasons else None for one in log.recompiles]
    stacks = {one.compile_id: one.stack for one in log.compiles}
    for index, (one, guard) in enumerate(zip(log.recompiles, guards, strict=True)):
        about = None if guard is None else guard.text if guard.source is None else guard.key
        groups[one.function, one.place and (one.place.file, one.place.line), about].append(index)
    rows = []
    for members in groups.values():
        first = log.recompiles[members[0]]
        said = [guard for index in members if (guard := guards[index]) is not None]
        values = [value for guard in said for value in (guard.expected, guard.actual) if value is not None]
        rows.append(
            RecompileSummary(
                function=plain_function(first.function),
                place=user_place(first.place, stacks.get(first.compile_id, ())),
                guard=said[0].text if said else "the log names no guard",
                guard_place=next(
                    (log.recompiles[i].guard_place for i in members if log.recompiles[i].guard_place), None
                ),
                values=tuple(dict.fromkeys(values))[:MOST_VALUES],
                count=len(members),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.count))


def kernel_rows(kernels: Sequence[CompiledKernel], times_ns: Mapping[int, int]) -> tuple[KernelSummary, ...]:
    """By name; those with most measured time first, then generated ones, of those the ones that hold most ops.

    ``times_ns``: by index in ``kernels``.
    """
    groups: dict[tuple[str, KernelBackend], list[int]] = defaultdict(list)
    for index, one in enumerate(kernels):
        groups[one.name, one.backend].append(index)
    rows = []
    for (name, backend), members in groups.items():
        held = [kernels[index] for index in members]
        rows.append(
            KernelSummary(
                name=name,
                backend=backend,
                calls=sum(one.calls for one in held),
                ops=tuple(dict.fromkeys(op for one in held for op in one.ops)),
                places=tuple(dict.fromkeys(place for one in held for place in one.places)),
                time_ns=sum(times_ns.get(index, 0) for index in members)
                if any(index in times_ns for index in members)
                else None,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-(row.time_ns or 0), row.backend == "extern", -len(row.ops), row.name)))
