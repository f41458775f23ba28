"""What ``unfused_ops`` says of compiled XLA programs."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.facts.hlo_fusion import PRODUCTS, RoundTrip, is_softmax, round_trips, touched_bytes
from perfscope.analyzers.facts.hlo_program import NO_WORK, fused, where_of
from perfscope.analyzers.finding import AbstainError, Cell, Finding, Where
from perfscope.analyzers.hlo.module import Platform
from perfscope.analyzers.trace import Trace
from perfscope.analyzers.units import format_bytes, format_share

MIN_SHARE = 0.02
"""Of the bytes the program's kernels read and write. No time is known, and half of it may stay in caches."""

MIN_BYTES = 1 << 20
"""In one run of the program. An H100 moves 1 MiB in 0.3 us, a tenth of a launch."""

MEDIUM_SHARE = 0.1
"""Of the program's bytes that really reach memory. No time is known, so nothing is called high."""

MAX_ROWS = 20

ATTENTION = "attention scores"
EPILOGUE = "matrix product and its epilogue"
ELEMENTWISE = "elementwise kernels"


def program_findings(trace: Trace) -> Iterator[Finding]:
    """One finding for each line of the program whose values pass through memory between kernels."""
    platforms = {module.platform for module in trace.hlo if module.is_scheduled}
    if "gpu" not in platforms:
        raise AbstainError(_why_not(platforms))
    whole = sum(touched_bytes(module) for module in trace.hlo if module.platform == "gpu")
    places: dict[tuple[Where, str], list[RoundTrip]] = {}
    for trip in trace.fact(round_trips):
        if trip.module.is_scheduled:
            places.setdefault((_where(trip), _what(trip)), []).append(trip)
    for (where, what), trips in places.items():
        # scores grow with the square of the sequence: said even while they fit in the cache
        counted = trips if what == ATTENTION else [trip for trip in trips if not trip.in_cache]
        if sum(trip.saved_bytes for trip in counted) >= max(MIN_BYTES, MIN_SHARE * whole):
            yield _finding(where, what, trips, whole)


def _why_not(platforms: set[Platform | None]) -> str:
    if "cpu" in platforms:
        return "compiled for the CPU: values between its kernels stay in its caches, no bytes can be named"
    if "tpu" in platforms:
        return "compiled for a TPU: values between its kernels may stay in vector memory; judged for GPUs only"
    return "no program compiled for a GPU among the XLA programs"


def _where(trip: RoundTrip) -> Where:
    where = where_of(trip.producer)
    if where.file is None and trip.consumers:
        where = where_of(trip.consumers[0])
    return (
        Where(file=where.file, line=where.line) if where.file is not None else Where(op=where.op, module=where.module)
    )


def _what(trip: RoundTrip) -> str:
    """The kind of border that was not fused across."""
    if not trip.of_product:
        return ELEMENTWISE
    batched = any(one.attributes.get("lhs_batch_dims", "{}") != "{}" for one in fused(trip.module, trip.producer))
    if batched and any(is_softmax(trip.module, consumer) for consumer in trip.consumers):
        return ATTENTION
    return EPILOGUE


def _finding(where: Where, what: str, trips: list[RoundTrip], whole: int) -> Finding:
    moved = sum(trip.saved_bytes for trip in trips)
    reached = sum(trip.saved_bytes for trip in trips if not trip.in_cache)
    kernels = len({trip.producer.name for trip in trips})
    title = (
        f"{what}: {format_bytes(moved)} a run go from {kernels:,} {'kernel' if kernels == 1 else 'kernels'} through "
        f"memory to the next ({format_share(moved, whole)} of the program's bytes)"
    )
    if reached < moved:
        cached = "all of it" if not reached else format_bytes(moved - reached)
        title += f"; {cached} fits in an H100's level-2 cache when it is read"
    return Finding(
        subject=what,
        title=title,
        severity="medium" if reached >= MEDIUM_SHARE * whole and what != EPILOGUE else "low",
        basis="structural",
        cost_bytes=moved,
        where=where,
        evidence=tuple(_row(trip) for trip in trips[:MAX_ROWS]),
        advice=_advice(what),
    )


def _row(trip: RoundTrip) -> dict[str, Cell]:
    return {
        "writes": trip.producer.name,
        "reads": ", ".join(one.name for one in trip.consumers[:4]),
        "from": trip.producer.op_name[-100:] or None,
        "value_bytes": trip.bytes,
        "times": trip.runs.times,
        "saved_bytes": trip.saved_bytes,
        "also_needed_elsewhere": "yes" if trip.needed_elsewhere else "no",
        "in_l2_cache": "likely" if trip.in_cache else "no",
        "makes": "matrix product" if trip.of_product else _main_opcode(trip),
        "xla_says": _reason(trip),
    }


def _main_opcode(trip: RoundTrip) -> str:
    ops = [one.opcode for one in fused(trip.module, trip.producer) if one.opcode not in NO_WORK]
    return next(
        (op for op in ops if op in (*PRODUCTS, "reduce", "sort", "scatter", "transpose")), ops[-1] if ops else "copy"
    )


def _reason(trip: RoundTrip) -> str | None:
    return trip.module.fusion_refusals.get(trip.producer.name)


def _advice(what: str) -> str:
    if what == ATTENTION:
        return (
            "Keep the scores on the chip: jax.nn.dot_product_attention(q, k, v, is_causal=..., "
            'implementation="cudnn"), or a Pallas flash attention kernel.'
        )
    if what == ELEMENTWISE:
        return (
            "See why XLA stopped there: XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_pass_re=priority-fusion' writes "
            "its reasons. Scatters, sorts, transpositions and reductions over different axes end a fusion: move them "
            "to the border of the expression, or write it as one Pallas kernel."
        )
    return (
        "XLA fuses an epilogue where the product's backend can (cuBLASLt: bias, relu, gelu; Triton: more) and "
        "finds out by autotuning: leave --xla_gpu_autotune_level at its default, and keep the activation in the dtype "
        "of the product."
    )
