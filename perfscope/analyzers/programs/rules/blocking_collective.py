"""A compiled XLA program waits for a collective instead of computing at the same time.

Example:
    Before::

        step = jax.jit(train_step)

    After::

        os.environ["XLA_FLAGS"] = "--xla_gpu_enable_latency_hiding_scheduler=true"  # before jax is imported
        step = jax.jit(train_step)

Why it costs:
    A collective that is split into a start and a done moves data while other instructions run. One that blocks adds its
    whole time to the step, on every device of the group.

How it is found:
    In the schedule of the compiled program. A collective blocks if it was never split, if the backend marked it
    synchronous (`collective_backend_config.is_sync`: start and done run as one), or if no computation is scheduled
    between its start and its done. The rule then looks for work in the same computation that neither feeds the
    collective nor needs its result, and so could overlap with it. The cause follows from the platform: XLA:GPU splits
    every kind of any size, and runs a collective in line if it found nothing to overlap, or if a flag requires it.
    libtpu leaves all-reduce and all-to-all one op without special flags, overlaps all-gathers (by default on v5e only)
    and all-reduces with matrix products only, and divides no reduce-scatter, at any size that was tried
    (`programs/collectives.py`). Bytes are the larger of operands and result, times the trip counts of the loops around
    it. Collectives inside a TPU's fusions overlap by construction and are not counted.

    The cost is the measured time of the collective while nothing else ran on the device. For a program alone it is the
    time of its bytes over all links of the device, a lower bound (between nodes it takes longer); for a TPU slice, over
    the links of the torus that its devices share. The saving is at most the shorter of that and of the independent
    work, by its measured time or roofline; work that several collectives of a finding could overlap with counts once.
    Without independent work there is no saving. A program alone gives the time of one run, on `--device` or an H100 or
    TPU v5e (assumed). `exposed_communication` has the cost of all waiting. Programs compiled for the CPU, where every
    collective is synchronous, and programs without a schedule are not judged.

Fix:
    By the cause in each finding. Independent work exists: on GPUs, allow the scheduler to move it::

        XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true"

    A kind was turned off: take it out of `--xla_gpu_disable_async_collectives`. On TPUs, where no
    all-reduce or all-to-all is divided by default (the last flag: v5e)::

        jax.jit(step, compiler_options={
            "xla_enable_async_all_reduce": "true",
            "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
            "xla_tpu_enable_async_all_to_all": "true",
        })

    Nothing is independent (on TPUs: no matrix product): a loop over layers can only overlap with the same layer.
    Unroll it (`jax.lax.scan(..., unroll=2)`) so that the next layer's all-gather overlaps with this layer's matmuls.
    If the very next op needs the result, split the collective by hand: `jax.shard_map` over half of the batch at a
    time, or `collective_permute` rings that multiply while they pass blocks on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perfscope.analyzers.hlo import (
    MOST_SEARCHED,
    Collective,
    Instruction,
    by_size,
    collectives,
    independent_work,
    where_of,
)
from perfscope.analyzers.ops import spans_of_parts
from perfscope.analyzers.programs.collectives import cause_of, collective_time, overlap_parts, remedy, waiting_part
from perfscope.analyzers.programs.gathered_and_cut import gathered_and_cut
from perfscope.analyzers.programs.saving import Price, price, priced
from perfscope.model.finding import AbstainError, Cell, Finding, Scope, Where
from perfscope.model.severity import Severity
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns, format_share

MIN_BYTES = 1 << 20
"""Smallest number of bytes per run of the program and line. 1 MiB passes one direction of an H100's NVLink (450 GB/s)
in 2.3 us, less than the launch of the collective, so overlapping it gains little.
"""

MEDIUM_BYTES_SHARE = 0.25
"""Share of the collectives' bytes from which severity is medium if no time is known; it is never high then."""

MAX_ROWS = 20


def examined(trace: Trace) -> Scope:
    """Count the collectives of the programs."""
    return Scope(len(trace.fact(collectives)), "collectives in the compiled programs")


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per line and kind of collective that blocks."""
    if not any(module.is_scheduled for module in trace.hlo):
        raise AbstainError("no compiled program among the XLA programs: they have no schedule yet")
    every = [collective for collective in trace.fact(collectives) if collective.module.is_scheduled]
    judged = [collective for collective in every if collective.module.platform in ("gpu", "tpu")]
    if every and not judged:
        on_cpu = any(module.platform == "cpu" for module in trace.hlo)
        raise AbstainError(
            "compiled for the CPU, where every collective is synchronous"
            if on_cpu
            else "the platform that the programs were compiled for is unknown"
        )
    whole = sum(collective.bytes_a_run for collective in judged)
    places: dict[tuple[Where, str], list[Collective]] = {}
    needless = {id(one.start) for found in trace.fact(gathered_and_cut) for one in found.gathers}
    for collective in judged:
        if collective.blocks is not None and id(collective.start) not in needless:
            places.setdefault((_where(collective), collective.kind), []).append(collective)
    for (where, kind), members in places.items():
        if sum(member.bytes_a_run for member in members) >= MIN_BYTES:
            yield _finding(trace, where, kind, by_size(members), whole)


def _where(collective: Collective) -> Where:
    """Return the line without the primitive: one line of the program makes several of them, forward and backward."""
    where = where_of(collective.op if collective.op.op_name else collective.start)
    if where.file is not None:
        return Where(file=where.file, line=where.line)
    return Where(op=where.op, module=where.module)


def _finding(trace: Trace, where: Where, kind: str, members: list[Collective], whole: int) -> Finding:
    moved = sum(member.bytes_a_run for member in members)
    free = {id(member): independent_work(member) for member in members[:MOST_SEARCHED]}
    could = sum(1 for member in members if free.get(id(member)))
    times = sum(member.runs.times for member in members)
    least = "" if all(member.runs.exact for member in members) else "at least "
    count, several = len(members), len(members) > 1
    waits = price(trace, (waiting_part(trace, member) for member in members))
    saved = price(trace, overlap_parts(trace, members, free))
    if saved is not None and not saved.cost["cost_ns"]:
        saved = None
    finding = Finding(
        subject=f"blocking {kind}",
        title=f"{count:,} {kind}{'s' if several else ''} overlap{'' if several else 's'} with no work"
        + (f": {least}{format_bytes(moved)} per device" if saved is None else ""),
        detail=f"{least}{times:,} per run move {least}{format_bytes(moved)} per device while nothing computes, "
        f"{format_share(moved, whole)} of what the collectives move; {_nearby(could, count)}{_times(waits, saved)}.",
        severity=_severity(waits, moved, whole),
        basis="structural",
        cost_bytes=moved,
        where=where,
        evidence=tuple(_rows(trace, members, free)),
        spans=spans_of_parts(trace, [waiting_part(trace, member) for member in members]),
        advice=_advice(trace, kind, members, free),
    )
    return priced(finding, saved)


def _times(waits: Price | None, saved: Price | None) -> str:
    """Return the known times, as the end of the title."""
    if waits is None:
        return ""
    took = format_ns(waits.run_ns)
    text = (
        f"; the device waited {took} per run"
        if waits.cost["basis"] == "measured"
        else f"; sending takes {took} per run or more"
    )
    return text if saved is None else f"{text}, of which {saved.text}, could overlap with that work"


def _severity(waits: Price | None, moved: int, whole: int) -> Severity:
    """Return the severity if nothing can hide it: by the waiting, or by bytes if no time is known."""
    if waits is not None:
        return "low" if waits.cost["severity"] == "low" else "medium"
    return "medium" if moved >= MEDIUM_BYTES_SHARE * whole else "low"


def _nearby(could: int, count: int) -> str:
    if not could:
        return "nothing near it is independent of it" if count == 1 else "none has independent work near it"
    if could == count:
        return "independent work is there" if count == 1 else "all have independent work near them"
    return f"{could:,} have independent work near them"


def _rows(
    trace: Trace, members: list[Collective], free: dict[int, tuple[Instruction, ...]]
) -> Iterator[dict[str, Cell]]:
    for member in members[:MAX_ROWS]:
        independent = free.get(id(member), ())
        time, work = collective_time(trace, member), overlap_parts(trace, [member], free)
        yield {
            "collective": member.start.name,
            "program": member.module.name,
            "because": member.blocks,
            "cause": cause_of(trace, member, independent) if id(member) in free else None,
            "from": member.op.op_name[-120:] or member.start.op_name[-120:] or None,
            "moved_bytes": member.bytes,
            "times": member.runs.times,
            "group_size": member.group_size,
            "groups": len(member.op.replica_groups) if member.op.replica_groups else None,
            "transfer_ns": time.transfer_ns,
            "measured_ns": time.measured_ns,
            "could_hide_ns": work[0].modelled_ns if work else None,
            "independent": len(independent),
            "could_overlap": ", ".join(work.name for work in independent[:3]) or None,
        }


def _advice(trace: Trace, kind: str, members: list[Collective], free: dict[int, tuple[Instruction, ...]]) -> str:
    """Return the remedy for each cause, that of the largest first."""
    causes = dict.fromkeys(cause_of(trace, member, free[id(member)]) for member in members if id(member) in free)
    texts = [remedy(members[0], cause) for cause in causes]
    if kind in ("all-to-all", "collective-permute"):
        texts.append("If no line requests this exchange, see resharding_collective.")
    return " ".join(texts)
