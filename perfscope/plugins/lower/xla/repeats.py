"""Lines that run more than once: recomputed in the backward, or computed in several kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from perfscope.analyzers.hlo import HloModule, Instruction
from perfscope.plugins.lower.document import Fate
from perfscope.plugins.lower.program import Grouped, fate, place_of
from perfscope.plugins.lower.xla.duplicates import XLA_COPY, duplicates
from perfscope.plugins.lower.xla.lines import PLUMBING, Lines, Written, phase, work

_REPEATS = frozenset({"broadcast", "iota", "reshape"})
"""Opcodes that compute nothing: their values are views or copies of smaller ones."""


def recomputed(program: str, before: HloModule | None, lines: Lines) -> Iterator[Fate]:
    """Yield lines that run again, and those that XLA merged with their first run."""
    again: dict[str, Grouped] = defaultdict(Grouped)
    runs: dict[str, int] = defaultdict(int)
    first: dict[str, int] = defaultdict(int)
    by_xla: set[str] = set()
    chains: list[Instruction] = []
    for computation, row in lines.rows():
        item = row.instruction
        if item.opcode in _REPEATS:
            continue
        kernel = lines.kernel(computation, item)
        copied = XLA_COPY in item.name or XLA_COPY in kernel
        place = lines.shown(computation, item)
        if phase(item) == "recompute" or copied:
            chains.append(item)
            by_xla |= {place} if copied and phase(item) != "recompute" else set()
            again[place].add(
                item.name, bytes_=item.shape.bytes * row.runs, flops=work(row.once, row.runs),
                kernel=kernel, phase=phase(item),
            )  # fmt: skip
            runs[place] = max(runs[place], row.runs)
        elif phase(item) == "forward":
            first[place] = max(first[place], row.runs)
    asked = _checkpoints(chains)
    for place, group in again.items():
        if not place:
            continue
        at = asked.get(place, "")
        cause = f"jax.checkpoint called at {at}" if at else "jax.checkpoint"
        reason = f"{_runs(first[place])} forward, {runs[place]} again in the backward: {cause}"
        if not first[place]:
            reason = f"{_runs(runs[place])} in the backward, again: {cause}"
        if place in by_xla:
            reason = "XLA runs it again instead of keeping its result (rematerialization: memory was short)"
        yield fate("recomputed", program, place, group, reason, times=runs[place] + first[place])
    if before is not None:
        yield from _merged(program, before, {*first} - {*again})


def _runs(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}"


def _merged(program: str, before: HloModule, once: set[str]) -> Iterator[Fate]:
    """Yield lines that the backward repeats as written, of those that only the forward of the compiled program has."""
    for place, group, cause in _written(before):
        if place in once:
            reason = f"{cause} repeats it in the backward; XLA merged both, so it runs once and no memory is freed"
            yield fate("merged", program, place, group, reason, times=1)


def repeated(program: str, before: HloModule) -> Iterator[Fate]:
    """Yield lines that a program that is not compiled repeats in its backward."""
    for place, group, cause in _written(before):
        yield fate("recomputed", program, place, group, f"the backward repeats it as written: {cause}", times=2)


def _written(before: HloModule) -> Iterator[tuple[str, Grouped, str]]:
    written: dict[str, Grouped] = defaultdict(Grouped)
    chains = []
    named = Written(before)
    for holder, item in before.instructions():
        if item.opcode in PLUMBING | _REPEATS or item.file is None:
            continue
        if named.phase(holder.name, item) == "recompute":
            chains.append(item)
            bytes_ = item.shape.bytes * named.runs(holder.name)
            written[place_of(item.file, item.line)].add(item.name, bytes_=bytes_, phase="recompute")
    asked = _checkpoints(chains)
    for place, group in written.items():
        yield place, group, f"jax.checkpoint called at {asked[place]}" if asked.get(place) else "jax.checkpoint"


def _checkpoints(again: Sequence[Instruction]) -> dict[str, str]:
    """By line of recomputed code, the line that calls the checkpointed function: the innermost common caller."""
    groups: dict[str, list[Instruction]] = defaultdict(list)
    for item in again:
        if len(item.lines) > 1:
            groups[item.op_name.partition("rematted_computation")[0]].append(item)
    found = {}
    for items in groups.values():
        common = list(items[0].lines[:-1])
        for item in items[1:]:
            size = next((n for n, (a, b) in enumerate(zip(common, item.lines, strict=False)) if a != b), len(common))
            common = common[: min(size, len(item.lines) - 1)]
        for item in items:
            if common:
                found[place_of(item.file, item.line)] = place_of(*common[-1])
    return found


def duplicated(program: str, lines: Lines) -> Iterator[Fate]:
    """Yield lines that several kernels compute."""
    groups: dict[str, Grouped] = defaultdict(Grouped)
    for copy in duplicates(lines):
        item, more = copy.row.instruction, len(copy.kernels) - 1
        group = groups[lines.shown(copy.computation, item)]
        flops = work(copy.row.once, copy.row.runs) * more
        group.add(copy.copies[0], flops=flops, phase=phase(item))  # copies stay in registers: no bytes
        group.kernels |= dict.fromkeys(copy.kernels)
    for place, group in groups.items():
        if place:
            reason = f"XLA fused it into each of {len(group.kernels)} kernels that read it, instead of writing it once"
            yield fate("duplicated", program, place, group, reason, times=len(group.kernels))
