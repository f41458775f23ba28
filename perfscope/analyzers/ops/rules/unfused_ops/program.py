"""Findings of ``unfused_ops`` about compiled XLA programs."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.hlo import MOVES_NOTHING, PRODUCTS, Platform, fused, line_of, refusal_of
from perfscope.analyzers.ops.finding_spans import spans_of_parts
from perfscope.analyzers.programs import (
    Price,
    RoundTrip,
    TripTime,
    is_softmax,
    part_of,
    price,
    priced,
    round_trips,
    touched_bytes,
    trip_time,
    written_attention,
)
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, Where
from perfscope.model.severity import Severity
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_share

MIN_SHARE = 0.02
"""Smallest share of the bytes that the program's kernels read and write. The saving is modelled: even half of it would
exceed the 1 % by which a step varies.
"""

MIN_BYTES = 1 << 20
"""Smallest number of bytes per run of the program. An H100 moves 1 MiB in 0.3 us, a tenth of a launch."""

MEDIUM_SHARE = 0.1
"""Share of the program's bytes that reach memory from which severity is medium if no time is known; it is never high
then.
"""


_Timed = tuple[RoundTrip, TripTime]

ATTENTION = "attention scores"
EPILOGUE = "matrix product and its epilogue"
ELEMENTWISE = "elementwise kernels"


def program_findings(trace: Trace) -> Iterator[Finding]:
    """Yield one finding per line of the program whose values pass through memory between kernels."""
    platforms = {module.platform for module in trace.hlo if module.is_scheduled}
    if "gpu" not in platforms:
        raise AbstainError(_why_not(platforms))
    whole = sum(touched_bytes(module) for module in trace.hlo if module.platform == "gpu")
    places: dict[tuple[Where, str], list[_Timed]] = {}
    scores = frozenset(
        (id(found.cost.module), use.instruction.name) for found in trace.fact(written_attention) for use in found.uses
    )
    for trip in trace.fact(round_trips):
        if all((id(trip.module), one.name) in scores for one in (trip.producer, *trip.consumers)):
            continue  # `unfused_attention` counts these bytes
        time = trip_time(trace, trip)
        if trip.module.is_scheduled and not time.is_worse_fused:
            places.setdefault((_where(trip), _what(trip)), []).append((trip, time))
    for (where, what), trips in places.items():
        # scores grow with the square of the sequence: reported even if they fit in the cache
        counted = trips if what == ATTENTION else [(trip, time) for trip, time in trips if not trip.in_cache]
        # values in the cache save no time; a finding with only these has no saving
        saved = price(trace, (part_of(trip, time) for trip, time in trips if not trip.in_cache))
        if saved is not None and saved.cost["severity"] == "low":
            continue  # many bytes, but under 1% of the time: the program has another bottleneck
        if sum(trip.saved_bytes for trip, _ in counted) >= max(MIN_BYTES, MIN_SHARE * whole):
            yield _finding(trace, where, what, trips, saved, whole)


def _why_not(platforms: set[Platform | None]) -> str:
    if "cpu" in platforms:
        return "compiled for the CPU: values between its kernels stay in its caches, so their bytes are unknown"
    if "tpu" in platforms:
        return "compiled for a TPU: values between kernels may stay in vector memory; only GPU programs are analyzed"
    return "no program compiled for a GPU among the XLA programs"


def _where(trip: RoundTrip) -> Where:
    where = line_of(trip.producer)
    return line_of(trip.consumers[0]) if where.file is None and trip.consumers else where


def _what(trip: RoundTrip) -> str:
    """Return the kind of border that was not fused."""
    if not trip.of_product:
        return ELEMENTWISE
    batched = any(one.attributes.get("lhs_batch_dims", "{}") != "{}" for one in fused(trip.module, trip.producer))
    if batched and any(is_softmax(trip.module, consumer) for consumer in trip.consumers):
        return ATTENTION
    return EPILOGUE


def _finding(trace: Trace, where: Where, what: str, timed: list[_Timed], saved: Price | None, whole: int) -> Finding:
    trips = [trip for trip, _ in timed]
    moved = sum(trip.saved_bytes for trip in trips)
    reached = sum(trip.saved_bytes for trip in trips if not trip.in_cache)
    kernels = len({trip.producer.name for trip in trips})
    count = f"{kernels:,} {'kernel' if kernels == 1 else 'kernels'}"
    share = format_share(moved, whole)
    cost = f"{format_bytes(moved)} per run ({share} of the bytes), " if saved is None else ""
    detail = f"{format_bytes(moved)} per run ({share} of the program's bytes) go through memory to the next kernel."
    if reached < moved:
        cached = "All of it" if not reached else format_bytes(moved - reached)
        detail += f" {cached} fits in an H100's level-2 cache when it is read."
    if saved is not None:
        detail += f" Fusing saves up to {saved.text}."
    finding = Finding(
        subject=what,
        title=f"{what} are not fused: {cost}{count}",
        detail=detail,
        severity=_severity(what, saved, reached, whole),
        basis="structural",
        cost_bytes=moved,
        where=where,
        evidence=tuple(
            {
                "writes": trip.producer.name,
                "reads": ", ".join(one.name for one in trip.consumers[:4]),
                "program": trip.module.name,
                "from": trip.producer.op_name[-100:] or None,
                "value_bytes": trip.bytes,
                "times": trip.runs.times,
                "saved_bytes": trip.saved_bytes,
                "memory_ns": time.memory_ns,
                "computed_again_ns": time.again_ns,
                "saved_ns": time.saved_ns,
                "launches_ns_at_2_us": time.launches_ns,
                "measured_ns": time.measured_ns,
                "also_needed_elsewhere": "yes" if trip.needed_elsewhere else "no",
                "in_l2_cache": "likely" if trip.in_cache else "no",
                "makes": "matrix product" if trip.of_product else _main_opcode(trip),
                "xla_says": refusal_of(trip.module, trip.producer),
            }
            for trip, time in timed[:MOST_ROWS]
        ),
        spans=spans_of_parts(trace, [part_of(trip, time) for trip, time in timed]),
        advice=_advice(what),
    )
    return priced(finding, saved, finding.severity)


def _severity(what: str, saved: Price | None, reached: int, whole: int) -> Severity:
    """Return the severity by time if known. An epilogue depends on the library, so its severity is at most low."""
    if what == EPILOGUE:
        return "low"
    if saved is not None:
        return saved.cost["severity"]
    return "medium" if reached >= MEDIUM_SHARE * whole else "low"


def _main_opcode(trip: RoundTrip) -> str:
    ops = [one.opcode for one in fused(trip.module, trip.producer) if one.opcode not in MOVES_NOTHING]
    return next(
        (op for op in ops if op in (*PRODUCTS, "reduce", "sort", "scatter", "transpose")), ops[-1] if ops else "copy"
    )


def _advice(what: str) -> str:
    if what == ATTENTION:
        return (
            "Keep the scores on the chip: jax.nn.dot_product_attention(q, k, v, is_causal=..., "
            'implementation="cudnn"), or a Pallas flash attention kernel.'
        )
    if what == ELEMENTWISE:
        return (
            "Move scatters, sorts and transpositions to the border of the expression, or write one Pallas kernel. "
            "They end a fusion, like reductions over different axes. "
            "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_pass_re=priority-fusion' writes XLA's own reasons."
        )
    return (
        "Keep the activation in the dtype of the product, and --xla_gpu_autotune_level at its default. XLA fuses an "
        "epilogue where the product's backend can (cuBLASLt: bias, relu, gelu; Triton: more) and finds out by "
        "autotuning."
    )
