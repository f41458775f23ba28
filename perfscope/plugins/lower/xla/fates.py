"""Changes of the lines of a JAX program: the compiled program compared with the program that XLA received."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from perfscope.analyzers.hlo import COLLECTIVES, HloModule, primitive, scope_of
from perfscope.plugins.lower.document import Fate
from perfscope.plugins.lower.program import Grouped, fate, listed, place_of
from perfscope.plugins.lower.splits import Computed, Where, split
from perfscope.plugins.lower.xla.dtypes import conversions, converted
from perfscope.plugins.lower.xla.lines import PLUMBING, Lines, Written, phase, shown_shape, work
from perfscope.plugins.lower.xla.orders import transposed, transposes
from perfscope.plugins.lower.xla.passes import Passes
from perfscope.plugins.lower.xla.repeats import duplicated, recomputed, repeated

_FOR_DEVICES = frozenset({
    "psum", "psum2", "psum_invariant", "all_gather", "all_to_all", "reduce_scatter", "ppermute", "pmax", "pmin",
    "pbroadcast",
})  # fmt: skip
"""Primitives of collectives that a program calls itself."""
_VIEWS = frozenset({"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "transpose"})


def fates_as_written(program: str, before: HloModule) -> Iterator[Fate]:
    """Yield repeats, conversions and transposes of a program that is not compiled; XLA may remove them."""
    yield from repeated(program, before)
    yield from conversions(program, before)
    yield from transposes(program, before)


def fates_of(program: str, before: HloModule | None, lines: Lines, passes: Passes) -> Iterator[Fate]:
    """Yield what happened, unsorted."""
    kept = set()
    for found in _kept(program, before, lines, passes):
        kept.add(found.place)
        yield found
    if before is not None:
        yield from _dropped(program, before, lines, kept, passes)


def _kept(program: str, before: HloModule | None, lines: Lines, passes: Passes) -> Iterator[Fate]:
    yield from recomputed(program, before, lines)
    yield from duplicated(program, lines)
    yield from converted(program, before, lines, passes)
    yield from transposed(program, before, lines, passes)
    yield from _resharded(program, lines, passes)
    yield from split(program, *_parts(lines))
    yield from _materialised(program, lines)


def _parts(lines: Lines) -> tuple[list[Computed], dict[Where, int]]:
    """Ops of lines with their kernels, and the bytes that kernels of one line pass to each other."""
    computed, kernels = [], defaultdict[Where, set[str]](set)
    for computation, row in lines.rows():
        item = row.instruction
        arithmetic = work(row.once, 1) > 0 and item.opcode not in ("convert", "compare", "select")
        if arithmetic or row.place != "inside":
            name = primitive(item.op_name) or item.opcode
            part = Computed(
                where=(lines.shown(computation, item), phase(item)), shown=name,
                op=f"{item.op_name or item.name} {item.opcode} {shown_shape(item).partition('{')[0]}",
                kernel=lines.kernel(computation, item),
            )  # fmt: skip
            computed.append(part)
            kernels[part.where].add(part.kernel)
    between: dict[Where, int] = defaultdict(int)
    for computation, row in lines.launches():
        where = lines.shown(computation, row.instruction), phase(row.instruction)
        readers = {reader.name for reader in lines.users(computation).get(row.instruction.name, ())}
        if readers & kernels.get(where, set()):
            between[where] += 2 * row.once.bytes_written * row.runs
    return computed, between


def _resharded(program: str, lines: Lines, passes: Passes) -> Iterator[Fate]:
    groups: dict[tuple[str, str, str], Grouped] = defaultdict(Grouped)
    for computation, row in lines.launches():
        item = row.instruction
        opcode = item.opcode.removesuffix("-start")
        if opcode not in COLLECTIVES or primitive(item.op_name) in _FOR_DEVICES:
            continue
        adder = passes.adder(opcode, item.shape.dtype, item.shape.elements)
        group = groups[lines.shown(computation, item), opcode, adder]
        group.add(item.name, bytes_=row.once.wire_bytes * row.runs, phase=phase(item))
    for (place, opcode, adder), group in groups.items():
        told = f" ({adder})" if "partition" in adder or "shard" in adder else ""  # later passes change only its dtype
        reason = f"{opcode} added by the partitioner{told}: the program calls none there"
        if not lines.has_names:
            reason = f"{opcode} of the program or of the partitioner: unknown without names of ops"
        yield fate("resharded", program, place, group, reason, by="compiler")


def _materialised(program: str, lines: Lines) -> Iterator[Fate]:
    groups: dict[str, Grouped] = defaultdict(Grouped)
    read: dict[str, dict[str, None]] = defaultdict(dict)
    refusals = lines.module.fusion_refusals
    for computation, row in lines.launches():
        item = row.instruction
        readers = [
            reader for reader in lines.users(computation).get(item.name, ()) if reader.opcode not in ("tuple", "while")
        ]
        if not readers or not row.once.bytes_written or item.opcode in COLLECTIVES:
            continue
        group = groups[lines.shown(computation, item)]
        written = row.once.bytes_written * row.runs
        group.add(item.name, bytes_=2 * written, kernel=item.name, phase=phase(item))
        why = refusals.get(item.scheduling_name or item.name) or refusals.get(item.name)
        if why:
            group.reasons[f"XLA: {why}"] = None
        where = [place_of(reader.file, reader.line) for reader in readers if reader.file is not None]
        read[lines.shown(computation, item)] |= dict.fromkeys(where)
    for place, group in groups.items():
        if place:
            told = [f"read at {listed([*read[place]][:3])}" if read[place] else "read by another kernel"]
            reason = "; ".join([*told, *list(group.reasons)[:1]])
            yield fate("materialised", program, place, group, reason, times=group.count)


def _dropped(program: str, before: HloModule, lines: Lines, kept: set[str], passes: Passes) -> Iterator[Fate]:
    left = {
        (file, line) for _, item in lines.module.instructions() for file, line in (*item.lines, (item.file, item.line))
    }
    groups: dict[str, Grouped] = defaultdict(Grouped)
    named = Written(before)
    for holder, item in before.instructions():
        if item.file is not None and (item.file, item.line) not in left and item.opcode not in PLUMBING:
            bytes_ = item.shape.bytes * named.runs(holder.name)
            groups[place_of(item.file, item.line)].add(item.name, bytes_=bytes_, phase=phase(item))
            groups[place_of(item.file, item.line)].reasons[scope_of(item.op_name).primitive or item.opcode] = None
    for place, group in groups.items():
        if place in kept:
            continue
        ops = ", ".join(list(group.reasons)[:3])
        free = {*group.reasons} <= _VIEWS
        gone = "" if free else passes.remover(group.names)
        reason = "only another view of the same bytes" if free else "folded, simplified or unused"
        if gone:
            reason = f"folded into a constant ({gone})" if "constant" in gone else f"gone after {gone}"
        yield fate("dropped", program, place, group, f"{ops}: {reason}")
