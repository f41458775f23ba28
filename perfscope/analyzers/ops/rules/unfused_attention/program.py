"""Findings of ``unfused_attention`` about compiled XLA programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from perfscope.analyzers.hlo import costs, line_of
from perfscope.analyzers.ops.finding_spans import spans_of_parts
from perfscope.analyzers.programs import Part, WrittenAttention, bytes_ns, price, priced, written_attention
from perfscope.model.finding import MOST_ROWS, AbstainError, Cell, Finding, Where
from perfscope.model.severity import Severity
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_share

MIN_SCORES = 1.0
"""Ratio of the bytes of the scores to those of queries, keys, values and outputs, which any attention moves. Below it
the sequence is short for the size of the heads (128 positions for heads of 64 in bfloat16), and a fused kernel gains
little: without it, scores pass through memory some four times.
"""

MIN_SHARE = 0.01
"""Smallest share of the bytes that the program moves, as for other attention."""

MEDIUM_SHARE = 0.1
"""Share of the program's bytes from which severity is medium if no time is known; it is never high then."""


SUBJECT = "attention written out"

GPU_ADVICE = (
    "Call jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation='cudnn') with bfloat16 or float16. Its "
    "arrays are [batch, length, heads, features] (from [batch, heads, length, features]: jnp.swapaxes(x, 1, 2)); "
    "without implementation='cudnn' it is unfused as well. Off NVIDIA devices, or for other changes of the "
    "scores: jax.experimental.pallas.ops.gpu.attention.mha(q, k, v, segment_ids=None, sm_scale=features**-0.5, "
    "causal=True)."
)
TPU_ADVICE = (
    "Call jax.experimental.pallas.ops.tpu.flash_attention.flash_attention(q, k, v, causal=True, "
    "sm_scale=features**-0.5). Its arrays are [batch, heads, length, features]; sm_scale is 1 unless given."
)


def program_findings(trace: Trace) -> Iterator[Finding]:
    """Yield one finding per line whose scores pass through memory, if a fused kernel is worthwhile."""
    judged = trace.fact(costs)
    if not judged:
        raise AbstainError("no compiled program among the XLA programs: before compilation nothing is fused yet")
    rows = [row for cost in judged for row in cost.rows if row.runs and row.place != "control"]
    if not any(row.once.products for row in rows) and any(row.once.unknown for row in rows):
        raise AbstainError("the programs call unknown kernels and have no known matrix product")
    places = _places(trace.fact(written_attention))
    for where, members in places.items():
        whole = sum({id(member.cost): member.cost.total.bytes for member in members}.values())
        moved = sum(member.bytes + member.chip_bytes for member in members)
        share = moved / whole if whole else float(moved > 0)
        if any(_is_long(member) for member in members) and share >= MIN_SHARE:
            yield _finding(trace, where, sorted(members, key=lambda attention: -attention.bytes), whole)


def _places(found: Iterable[WrittenAttention]) -> dict[Where, list[WrittenAttention]]:
    """Group by line. Recomputed attention may have the line of `jax.checkpoint`: it is added to its forward."""
    places: dict[Where, list[WrittenAttention]] = {}
    again: list[WrittenAttention] = []
    for attention in found:
        (again if attention.phase == "recompute" else places.setdefault(line_of(attention.place), [])).append(attention)
    for attention in again:
        where = line_of(attention.place)
        if where not in places:
            alike = [
                where for where, members in places.items() if any(_is_alike(attention, other) for other in members)
            ]
            where = alike[0] if len(alike) == 1 else where
        places.setdefault(where, []).append(attention)
    return places


def _is_alike(attention: WrittenAttention, other: WrittenAttention) -> bool:
    """Scores of the same size, from heads of the same size, in the same program."""
    mine, theirs = attention.score.product, other.score.product
    same_head = mine is not None and theirs is not None and mine.summed == theirs.summed
    return same_head and attention.cost is other.cost and attention.group.size == other.group.size


def _is_long(attention: WrittenAttention) -> bool:
    needed = attention.group.fused_bytes
    return needed is not None and attention.shape.bytes >= MIN_SCORES * needed


def _finding(trace: Trace, where: Where, members: list[WrittenAttention], whole: int) -> Finding:
    moved = sum(member.bytes for member in members)
    worst = next(member for member in members if _is_long(member))
    on_cpu = all(member.cost.module.platform == "cpu" for member in members)
    inside = sum(member.chip_bytes for member in members)
    on_chip = not moved and inside > 0
    saving = None if on_cpu or on_chip else price(trace, _parts(trace, members))
    title = f"attention is written out {_times(members)} per run"
    scores = f"{_shape(worst)} scores ({format_bytes(worst.shape.bytes)})"
    if on_cpu:
        title += f": {format_bytes(worst.shape.bytes)} of scores from kernel to kernel"
        detail = (
            f"The {scores} go from kernel to kernel. Compiled for a CPU here, where they may stay in its caches: on a "
            "GPU they would pass through memory each time."
        )
    elif on_chip:
        title += f": {format_bytes(worst.shape.bytes)} of scores from kernel to kernel"
        detail = (
            f"The {scores} stay within the chip's own memory (VMEM, {format_bytes(inside)}). With longer sequences "
            "they pass through HBM each time."
        )
    else:
        title += f": {format_bytes(moved)} of traffic" if saving is None else ""
        detail = (
            f"{format_bytes(moved)} of traffic of its {_shape(worst)} scores "
            f"({format_share(moved, whole)} of the program's bytes)"
        )
        detail += "; no time is known." if saving is None else f": {saving.text}."
    structural: Severity = "medium" if moved >= MEDIUM_SHARE * whole and moved and not on_cpu else "low"
    finding = Finding(
        subject=SUBJECT,
        title=title,
        detail=detail,
        severity=structural,
        basis="structural",
        cost_bytes=None if on_cpu or on_chip else moved,
        where=where,
        evidence=tuple(_row(member) for member in members[:MOST_ROWS]),
        spans=spans_of_parts(trace, _parts(trace, members)),
        advice=TPU_ADVICE if worst.cost.module.platform == "tpu" else GPU_ADVICE,
    )
    return priced(finding, saving)


def _parts(trace: Trace, members: Iterable[WrittenAttention]) -> list[Part]:
    return [
        Part(
            module=member.cost.module,
            instructions=tuple(use.instruction.name for use in member.uses),
            modelled_ns=bytes_ns(trace, member.bytes),
        )
        for member in members
    ]


def _row(attention: WrittenAttention) -> dict[str, Cell]:
    uses = sorted(attention.uses, key=lambda use: -use.runs * use.bytes)
    return {
        "scores": attention.score.instruction.name,
        "program": attention.cost.module.name,
        "phase": attention.phase,
        "score_shape": _shape(attention),
        "score_dtype": attention.shape.dtype,
        "score_bytes": attention.shape.bytes,
        "times": attention.times,
        "launches": sum(use.runs for use in uses),
        "between_kernels_bytes": attention.bytes,
        "vmem_bytes": attention.chip_bytes or None,
        "worst_kernels": ", ".join(use.instruction.name for use in uses[:4]),
        "q_k_v_o_bytes": attention.group.fused_bytes,
    }


def _times(members: list[WrittenAttention]) -> str:
    """Return how often attention is computed, without recomputation in the backward pass."""
    own = [member for member in members if member.group.fused_bytes is not None]
    forward = [attention for attention in own if attention.phase == "forward"] or own
    count = sum(attention.times for attention in forward)
    return "once" if count == 1 else f"{count:,} times"


def _shape(attention: WrittenAttention) -> str:
    return "x".join(map(str, attention.shape.dims)) or "scalar"
