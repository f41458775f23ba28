"""A loop of many tiny steps waits for launches, though it could be computed in parallel.

Example:
    Before::

        _, h = jax.lax.scan(lambda h, ab: (ab[0] * h + ab[1],) * 2, jnp.zeros(width), (a, b))

    After::

        _, h = jax.lax.associative_scan(lambda f, s: (f[0] * s[0], s[0] * f[1] + s[1]), (a, b))

Why it costs:
    `jax.lax.scan` becomes a loop: every iteration launches its kernels one after another, and the next begins when they
    are done. If an iteration works on a few kilobytes, a kernel takes about as long as its launch, and the device is
    nearly idle: 256 steps of ten kernels are 2,560 launches in a row, whatever the hardware. A recurrence that is
    linear in its carry (state space models, linear attention, moving averages, discounted returns) can be computed as a
    parallel prefix in log(n) rounds.

How it is found:
    Loops of a compiled program with a known trip count of at least `MIN_TRIPS`, whose kernels, at the device's
    bandwidth and float32 rate, would take less than the launches alone. The carry must have an associative form: every
    floating-point element that feeds back is a linear function of the previous elements, followed through all fusions
    of the body; elements that only collect one slice per iteration do not feed back. A recurrence through `tanh`, a
    division by the carry or a matrix is not reported. For nested loops only the inner one is judged. The number of
    launches is exact. The cost is the loop's time, measured from its first kernel to its last if recorded, less that of
    a parallel prefix (twice the work in 2 log2(n) rounds). For a program alone both are modelled in one run, with 2 us
    per launch (an assumption: less inside a CUDA graph), on `--device` or an H100 (assumed). In a program compiled for
    a CPU, which starts a step in well under a microsecond, the loop is reported for its effect on a GPU, without a cost
    and with low severity. A TPU needs no launches, but still runs its ops one after another: the loop is reported if a
    step's work is below 250 ns per op, the shortest time that the estimate assumes. (Bytes in VMEM count at HBM's
    bandwidth, so the work is never underestimated.) This limit was not measured, so there is no cost and the severity
    is low.

    In a planned PyTorch program (`perfscope compile`): ops of one line that feed one another for at least `MIN_TRIPS`
    turns, each through one operand and by ops that are linear in it, with less work per turn than its launches take.
    The cost is launches at 2 us (those of the planned kernels if the program is compiled) less a parallel prefix.

Fix:
    ::

        def combine(first, second):
            a1, b1 = first
            a2, b2 = second
            return a1 * a2, a2 * b1 + b2

        _, h_LBD = jax.lax.associative_scan(combine, (a_LBD, b_LBD))

    or a scan over chunks, with the parallel form inside each chunk where the whole does not fit into
    memory. `jax.lax.scan(..., unroll=8)` fuses eight steps into one iteration and keeps the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from perfscope.analyzers.examined import op_records
from perfscope.analyzers.hlo import where_of
from perfscope.analyzers.ops import spans_of_parts
from perfscope.analyzers.programs.rules.sequential_scan.plan import scan_findings
from perfscope.analyzers.programs.saving import Part, Price, is_alone, price, priced
from perfscope.analyzers.programs.scan import (
    Loop,
    launching_ns,
    least_ns,
    loops,
    measured_loop_ns,
    parallel_ns,
    part_of,
)
from perfscope.analyzers.time import is_interpreted
from perfscope.model.finding import AbstainError, Finding, Span, Where
from perfscope.model.severity import Severity
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns

MIN_TRIPS = 32
"""Minimum number of iterations. A parallel prefix does about twice the work in log2(n) rounds, so shorter loops gain
little.
"""

MEDIUM_LAUNCHES = 1_000
"""Launches per run of the program from which severity is medium: two milliseconds, as long as a small training step.
Without a recording the launch time is an assumption, so severity is never high.
"""

MAX_ROWS = 20

_JUDGED = frozenset({"gpu", "cpu", "tpu"})


examined = op_records

PLAN_ADVICE = (
    "Compute the recurrence h = a * h + b over the whole sequence at once, or in chunks as matrix products. By "
    "doubling "
    "it takes log2 of the length steps over all of it; torch._higher_order_ops.associative_scan under torch.compile "
    "does so."
)


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per line whose loops are launch-bound and have an associative form."""
    platforms = {module.platform for module in trace.hlo if module.is_scheduled}
    if not platforms & _JUDGED:
        raise AbstainError("no compiled program among the XLA programs")
    places: dict[Where, list[Loop]] = defaultdict(list)
    for loop in trace.fact(loops):
        if loop.cost.module.platform in _JUDGED and _is_tiny(loop) and loop.is_linear:
            if is_interpreted(trace, loop.instruction):
                continue  # the loop over the grid of a Pallas kernel: debug_mode
            where = where_of(loop.instruction)
            place = Where(file=where.file, line=where.line) if where.file is not None else Where(module=where.module)
            places[place].append(loop)
    for place, members in places.items():
        saved = price(trace, (part_of(trace, loop) for loop in members))
        if saved is None or saved.cost["cost_ns"]:  # the measured loop may already be as fast as a parallel prefix
            yield _finding(trace, place, sorted(members, key=lambda loop: -loop.launches), saved)


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per line of a PyTorch program whose loop over time is launch-bound and linear in its carry."""
    return scan_findings(trace, least_turns=MIN_TRIPS, advice=PLAN_ADVICE)


def _is_tiny(loop: Loop) -> bool:
    return loop.trips >= MIN_TRIPS and not loop.encloses and loop.work_ns < least_ns(loop)


def _spans(trace: Trace, members: list[Loop]) -> tuple[Span, ...]:
    """Return the loops, if the recording has rows of them; else their kernels."""
    whole = spans_of_parts(trace, [_part(loop, (loop.instruction.name,)) for loop in members])
    return whole or spans_of_parts(
        trace, [_part(loop, tuple(row.instruction.name for row in loop.kernels)) for loop in members]
    )


def _part(loop: Loop, names: tuple[str, ...]) -> Part:
    return Part(module=loop.cost.module, instructions=names, modelled_ns=None)


def _finding(trace: Trace, where: Where, members: list[Loop], saved: Price | None) -> Finding:
    launches = sum(loop.launches for loop in members)
    worst = members[0]
    on_cpu = all(loop.cost.module.platform == "cpu" for loop in members)
    on_tpu = all(loop.cost.module.platform == "tpu" for loop in members)
    ops, kernels = ("ops", "ops") if on_tpu else ("launches", "kernels")
    count = f"{len(members):,} loops take" if len(members) > 1 else "a loop takes"
    severity: Severity = "medium" if launches >= MEDIUM_LAUNCHES and not on_cpu and not on_tpu else "low"
    if saved is not None and not is_alone(trace):
        severity = saved.cost["severity"]
    finding = Finding(
        subject="sequential scan",
        title=f"{count} {launches:,} {ops} one after another",
        detail=f"{worst.trips:,} steps of {len(worst.kernels):,} {kernels}, with {format_ns(worst.work_ns)} of work a "
        f"step on {worst.device}. The carry is linear, so a parallel prefix computes the same"
        + ("." if saved is None else f", up to {saved.text} less time.")
        + (" Compiled for a CPU here, where it may be no slower: on a GPU it would be." if on_cpu else "")
        + (" The shortest an op takes on a TPU was not measured, so no time is given." if on_tpu else ""),
        severity=severity,
        basis="structural",
        where=where,
        evidence=tuple(
            {
                "loop": loop.instruction.name,
                "program": loop.cost.module.name,
                "phase": "backward" if "transpose(" in loop.instruction.op_name else "forward",
                "steps": loop.trips,
                "entered": loop.entered,
                "kernels_a_step": len(loop.kernels),
                "launches": loop.launches,
                "moved_a_step_bytes": sum(row.once.bytes for row in loop.kernels),
                "modelled_work_a_step_ns": loop.work_ns,
                "launches_ns_at_2_us": None if on_tpu else launching_ns(loop),
                "parallel_ns": None if on_tpu else parallel_ns(loop),
                "measured_ns": measured_loop_ns(trace, loop),
            }
            for loop in members[:MAX_ROWS]
        ),
        spans=_spans(trace, members),
        advice="Write h = a * h + b as jax.lax.associative_scan(lambda f, s: (f[0] * s[0], s[0] * f[1] + s[1]), (a, "
        "b)). "
        "It runs over the whole sequence, or over chunks of it. Or fuse steps: jax.lax.scan(..., unroll=8). "
        f"A step moves {format_bytes(sum(row.once.bytes for row in worst.kernels))}.",
    )
    return priced(finding, saved, finding.severity)
