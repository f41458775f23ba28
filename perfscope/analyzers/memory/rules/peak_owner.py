"""The peak of memory includes data that could be smaller or is not needed.

Example:
    Before::

        optimizer.zero_grad(set_to_none=False)

    After::

        optimizer.zero_grad(set_to_none=True)   # gradients are not held during the forward pass

Why it costs: the peak limits the size of batch, sequence and model, and decides whether activations must be
recomputed. Unnecessary data at the peak reduces all of these.

How it is found: from the blocks that are allocated at the peak. Parameters are necessary. The rule looks for: logits
and their copies in a loss over a large vocabulary; stored attention scores; temporary values that a ``foreach``
optimizer makes for all parameters at once; gradients that outlive the optimizer's step; values that no op reads again
before they are freed (from the op graph of a step of ``perfscope run``, which does not show reads by kernels launched
outside torch's dispatcher); values of the previous step that are kept into the next forward pass. The peak is then
computed again without them. The finding reports how far the peak would fall, rather than their size, because memory at
another moment may be nearly as high. Data that replaces them is not included, so the saving is an upper bound, and
savings of several findings do not add up. Activations that the backward pass reads are judged by `missing_remat`, which
compares their memory with the time to recompute them.

Fix: as in each finding. ``perfscope analyze RUN`` lists all data at the peak, by category, module and line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.memory.avoidable import (
    OLD_GRADIENTS,
    UNREAD,
    Avoidable,
    Replayed,
    attention_scores,
    block_rows,
    held_unread,
    kept_into_next_step,
    lasting_gradients,
    loss_copies,
    optimizer_temporaries,
    replayed,
)
from perfscope.analyzers.memory.growth import growth_of
from perfscope.analyzers.memory.holders import (
    OF_XLA,
    judged_timelines,
    line_of,
    memory_records,
    severity_of_bytes,
    short_line,
    where_of,
    worst_of_devices,
)
from perfscope.analyzers.memory.phases import allocating_op
from perfscope.analyzers.ops import spans_of_peak
from perfscope.model.finding import AbstainError, Finding
from perfscope.model.memory import MemoryTimeline
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_bytes

MINIMUM_SHARE = 0.02
"""Smallest saving as a share of the peak: one more example in a batch of 50."""

MINIMUM_BYTES = 1 << 20
"""Smallest saving in bytes. Smaller programs fit into any memory."""

COVERED = 0.9
"""Share of a kind's bytes at the peak that earlier kinds may also cover; beyond it, the rest is not reported."""

Finder = Callable[[Trace, MemoryTimeline], Avoidable | None]

FINDERS: tuple[Finder, ...] = (
    lasting_gradients,
    kept_into_next_step,
    held_unread,
    optimizer_temporaries,
    loss_copies,
    attention_scores,
)
"""Cheapest fix first: a block that two of them find is reported once."""

BY_LIFETIME = frozenset({kept_into_next_step, held_unread})
"""Finders of values that are held longer than they are read. If a program keeps the values of all steps, `memory_leak`
names the cause.
"""


examined = memory_records


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Abstain for a plan: it has the holders of the peak, but not the readers of their blocks."""
    raise AbstainError(
        "a plan has the holders of the peak (see its section), but not the blocks that are never read again: record"
    )


def check_rest(trace: Trace, found: Sequence[tuple[str, Finding]]) -> Iterable[Finding]:
    """Yield the findings that are not consequences of `memory_leak`, `needless_grad` or `frozen_gradients`."""
    leaks = {(leak.where.file, leak.where.line) for rule, leak in found if rule == "memory_leak"}
    graphs = {graph.where.module for rule, graph in found if rule == "needless_grad"}
    frozen = any(rule == "frozen_gradients" for rule, _ in found)
    finders = [finder for finder in FINDERS if not leaks or finder not in BY_LIFETIME]
    return (
        finding
        for finding in _checked(trace, finders)
        if (finding.where.line is None or (finding.where.file, finding.where.line) not in leaks)
        and not (frozen and finding.subject.startswith(OLD_GRADIENTS))
        and not (finding.subject.startswith(UNREAD) and (finding.where.module or "").partition(".")[0] in graphs)
    )


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per kind of holder without which the peak would be lower."""
    return _checked(trace, FINDERS)


def _checked(trace: Trace, finders: Sequence[Finder]) -> Iterator[Finding]:
    of_programs = (
        "XLA allocates the memory of whole programs; donation_missed and unfused_attention analyze their contents"
    )
    recorded = [timeline for timeline in judged_timelines(trace) if not timeline.known_from.startswith(OF_XLA)]
    timelines = [timeline for timeline in recorded if timeline.first != timeline.last]
    if not recorded or (not timelines and trace.hlo):
        raise AbstainError(of_programs)
    if not timelines:
        raise AbstainError("a single moment was recorded, but unneeded blocks require a history of allocations")
    known = [
        timeline
        for timeline in timelines
        if (timeline.blocks["op"] != MISSING).any() or (timeline.blocks["frame"] != MISSING).any()
    ]
    if not known:
        raise AbstainError("neither ops nor stacks are recorded with the allocations: the purpose of blocks is unknown")
    yield from worst_of_devices(finding for timeline in known for finding in _of(trace, timeline, finders))


def _of(trace: Trace, timeline: MemoryTimeline, finders: Sequence[Finder]) -> Iterator[Finding]:
    """Yield what one memory need not hold at its peak."""
    named = np.zeros(len(timeline.blocks), bool)
    for finder in finders:
        avoidable = finder(trace, timeline)
        if avoidable is None:
            continue
        judged = replayed(timeline, _without_leaks(trace, timeline, avoidable))
        if judged.saved_bytes < max(MINIMUM_BYTES, MINIMUM_SHARE * judged.peak_bytes):
            continue
        known_before = int(timeline.blocks["bytes"][judged.blocks[named[judged.blocks]]].sum())
        if known_before < COVERED * judged.held_bytes:
            named[judged.blocks] = True
            yield _finding(trace, timeline, judged)


def _without_leaks(trace: Trace, timeline: MemoryTimeline, avoidable: Avoidable) -> Avoidable:
    """Remove the blocks of lines that `memory_leak` reports, because they are never freed."""
    growth = growth_of(trace, timeline)
    if growth is None or not growth.growing:
        return avoidable
    lines = {growing_place.line for growing_place in growth.places}
    leaking = [index for index, line in enumerate(timeline.lines) if line in lines]
    stays = ~(np.isin(timeline.blocks["line"][avoidable.rows], leaking) & timeline.blocks["after"][avoidable.rows])
    return replace(
        avoidable,
        rows=avoidable.rows[stays],
        until=None if avoidable.until is None else avoidable.until[stays],
        since=None if avoidable.since is None else avoidable.since[stays],
    )


def _finding(trace: Trace, timeline: MemoryTimeline, judged: Replayed) -> Finding:
    recorded = timeline.of(trace)
    first = next((row for row in judged.blocks.tolist() if line_of(timeline, row) is not None), int(judged.blocks[0]))
    line = line_of(timeline, first)
    line_text = f" (made at {short_line(line)})" if line is not None else ""
    least = judged.peak_bytes - judged.saved_bytes
    return Finding(
        subject=f"{judged.avoidable.kind} at the peak of the {timeline.space}",
        title=f"{judged.avoidable.title} at the {timeline.label} peak",
        detail=f"{judged.avoidable.description[0].upper()}{judged.avoidable.description[1:]}{line_text} hold "
        f"{format_bytes(judged.held_bytes)} of "
        f"the peak of {format_bytes(judged.peak_bytes)}; without them it falls to {format_bytes(least)} at best.",
        severity=severity_of_bytes(judged.saved_bytes, judged.peak_bytes, timeline),
        basis="measured",
        cost_bytes=judged.saved_bytes,
        bytes_are="freed",
        memory_bytes=judged.peak_bytes,
        where=where_of(
            line,
            op=allocating_op(recorded, int(timeline.blocks["op"][first])),
            module=timeline.text(int(timeline.blocks["module"][first])) or None,
        ),
        evidence=block_rows(recorded, timeline, judged.blocks),
        spans=spans_of_peak(timeline, judged.blocks),
        advice=f"{judged.avoidable.advice}.",
    )
