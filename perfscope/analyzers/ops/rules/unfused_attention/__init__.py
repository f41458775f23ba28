"""Attention runs as separate matmul, softmax and matmul ops instead of one fused kernel.

Example:
    Before::

        weights = (q @ k.mT / math.sqrt(d) + mask).softmax(-1)
        y = weights @ v

    After::

        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

Why it costs:
    Separate ops store the scores of every query with every key, and scale, mask, softmax and dropout each read and
    write that whole tensor, also in the backward pass. A fused kernel (flash, memory-efficient, cuDNN) keeps a tile of
    the scores on chip and never stores them. Traffic and memory grow with the square of the sequence length.

How it is found:
    From the op graph of a run: a softmax whose input comes from a matmul through elementwise ops over the same number
    of elements, whose output reaches a matmul the same way, without a parameter among the operands (which would be a
    gate between two weight matrices). From a bare trace: the same by order and element counts, batched matmuls only.
    Also `scaled_dot_product_attention` with its math fallback. The cost is the time of the ops on the scores between
    the matmuls, forward and backward, without the parts that other device work hides. The matmuls do not count, because
    a fused kernel computes them too. It is a model and an upper bound: the fused kernel still computes the
    exponentials, and its backward computes the scores again. Without time the finding is structural and has bytes.

    In a compiled XLA program, by the flow of values through fusions, calls and loops, independent of op names: a
    product whose result goes through an exponential of the difference with its row's maximum, the sum of the row, and a
    product that sums over the row. Both products must be batched, or have no weight as a factor. Attention inside a
    loop over layers is found. Not reported are blocked attention, which carries a running maximum or rescales by the
    difference of two, separate kernels (cuDNN, Pallas), and sequences so short that the scores are smaller than
    queries, keys, values and outputs together. The cost is every write and read, between launches, of a value as large
    as the scores, also in the backward pass and in every iteration of loops. It is given in bytes, and in time at the
    device's bandwidth, at most the measured time of those kernels. It is a model: values that stay in a cache cost
    less. Programs for a CPU are reported without cost, for their effect on a GPU. If all scores of a program for a TPU
    fit in the chip's memory (VMEM), nothing passes through HBM: the finding has these bytes, low severity and no cost,
    because longer sequences would not fit. XLA's kernel of softmax and sum (`online-softmax`) reads stored scores, so
    it does not count as fused attention. One head of one sequence whose factors are inputs of the program looks like a
    gate between weights and is not reported.

    In a planned PyTorch program (`perfscope compile`): as from an op graph if it runs eagerly. If the program compiles
    itself, the cost is what the planned kernels with the softmax and its backward still read and write, divided by the
    number of its attentions. Time is those bytes at the target's bandwidth.

Fix:
    In PyTorch, replace the ops by the fused call::

        y_BHLE = torch.nn.functional.scaled_dot_product_attention(q_BHLE, k_BHLE, v_BHLE, is_causal=True)

    For score changes it cannot express (bias, soft cap, sliding window), use
    `torch.nn.attention.flex_attention` under `torch.compile`.

    In JAX, on NVIDIA GPUs (bfloat16 or float16; without `implementation` it is written out as well)::

        o_BLHK = jax.nn.dot_product_attention(q_BLHK, k_BMHK, v_BMHK, is_causal=True, implementation="cudnn")

    or a Pallas kernel: `jax.experimental.pallas.ops.gpu.attention.mha` (the same layout), on TPU
    `jax.experimental.pallas.ops.tpu.flash_attention.flash_attention` (heads before length).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.examined import op_records
from perfscope.analyzers.graph import short_name
from perfscope.analyzers.ops.achieved import longest_ns
from perfscope.analyzers.ops.attention import (
    GraphAttention,
    TraceAttention,
    find_attentions,
    graph_attentions,
    trace_attentions,
)
from perfscope.analyzers.ops.finding_spans import spans_of_ops, spans_of_slices
from perfscope.analyzers.ops.graph_time import removed_ops, spans_time
from perfscope.analyzers.ops.kernels import ITEM_SIZES
from perfscope.analyzers.spans import WorkTime, removed_inside
from perfscope.analyzers.time import call_site, planned_cost, timed_cost, whole_ns
from perfscope.model.finding import MOST_ROWS, AbstainError, Cell, Finding, Where
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes

if TYPE_CHECKING:
    from perfscope.analyzers.plans import Saving
    from perfscope.model.op_graph import OpGraph

MIN_SHARE = 0.01
"""Smallest share of the step's time, or of its bytes if no time is known. Below it, sequences are short and attention
is cheap in any form.
"""

SOFTMAX_OPS = frozenset({"aten._softmax", "aten._softmax_backward_data", "aten._safe_softmax"})

WIDEST_FLASH_HEAD = 256
"""Largest head dimension that torch's flash kernels support."""


ADVICE = (
    "Call torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=..., is_causal=...) instead. "
    "Use flex_attention under torch.compile for changes of the scores that it cannot express."
)
SDPA_ADVICE = (
    "Meet the requirements of a fused kernel of scaled_dot_product_attention: it used its math fallback. Wrap the call "
    "in torch.nn.attention.sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]) to get torch's "
    "own reason as a warning."
)


examined = op_records

MOST_PASSES = 3
"""Score-sized tensors that an op between the matmuls touches: the scores, a mask or gradient, its result."""


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per line with unfused attention that costs at least ``MIN_SHARE``."""
    if trace.op_graph is not None:
        yield from _from_graph(trace, trace.op_graph)
    elif trace.hlo:
        from perfscope.analyzers.ops.rules.unfused_attention.program import program_findings

        yield from program_findings(trace)
    elif {"host_ops", "shapes"} <= trace.recorded:
        yield from _from_trace(trace)
    else:
        raise AbstainError(
            "needs the op graph of a run (`perfscope run`), a trace with input shapes of ops, or a compiled XLA "
            "program",
            ("op_graph",),
        )


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Yield findings: for eager programs from the op graph, for compiled ones from the planned kernels."""
    yield from _from_planned_kernels(trace)
    if trace.op_graph is not None:
        yield from _from_graph(trace, trace.op_graph)


def _from_graph(trace: Trace, graph: OpGraph) -> Iterator[Finding]:
    from perfscope.analyzers.plans import saving

    places: dict[tuple[str | None, int | None, bool], list[GraphAttention]] = {}
    for attention in trace.fact(graph_attentions):
        op = graph.ops[attention.matmuls[0]]  # the line of the scores
        places.setdefault((op.file, op.line, attention.by_sdpa), []).append(attention)
    for (file, line, by_sdpa), members in places.items():
        ops = [index for attention in members for index in attention.ops]
        saved = saving(
            trace, ops, saved_bytes=sum(attention.bytes for attention in members), saved_part=1.0, fewer=len(ops)
        )
        if saved.share >= MIN_SHARE:
            module = re.sub(r"\d+", "*", graph.ops[members[0].softmax].module)
            where = Where(file=file, line=line, module=module or None)
            yield _graph_finding(trace, graph, members, saved, where, by_sdpa)


def _graph_finding(
    trace: Trace, graph: OpGraph, members: list[GraphAttention], saved: Saving, where: Where, by_sdpa: bool
) -> Finding:
    from perfscope.analyzers.plans import how_joined, steps_in

    first = members[0]
    moved = f": {format_bytes(saved.bytes)} per step ({100 * saved.share_of_bytes:.1f}% of its bytes)"
    detail = f"{format_bytes(saved.bytes)} of traffic on {_shape(first.score_shape)} scores."
    if by_sdpa:
        detail += f" Why: {_why_math(graph, first)}."
    rows: list[dict[str, Cell]] = [
        {
            "module": graph.ops[attention.softmax].module,
            "ops": " -> ".join(short_name(graph.ops[index]) for index in attention.ops),
            "score_shape": _shape(attention.score_shape),
            "score_dtype": attention.score_dtype,
            "traffic_bytes": attention.bytes,
            "time_known_by": how_joined(trace),
        }
        for attention in sorted(members, key=lambda member: -member.bytes)[:MOST_ROWS]
    ]
    return Finding(
        subject=_subject(by_sdpa),
        title=f"{_what(by_sdpa)} {_times(len(members))}{moved if saved.ns is None else ''}",
        detail=detail,
        severity=saved.severity,
        basis="structural" if saved.ns is None else "modelled",
        cost_ns=None if saved.ns is None else saved.ns * steps_in(trace),
        cost_ns_per_step=saved.ns,
        cost_bytes=saved.bytes,
        where=where,
        evidence=tuple(rows),
        spans=spans_of_ops(trace, (index for attention in members for index in attention.ops)),
        removes=removed_ops(trace, [index for attention in members for index in attention.ops]),
        advice=SDPA_ADVICE if by_sdpa else ADVICE,
    )


def _why_math(graph: OpGraph, attention: GraphAttention) -> str:
    """Return why the fused kernels were not used, as far as the graph shows it."""
    names = {short_name(graph.ops[index]) for index in attention.ops}
    left, right = (graph.ops[index] for index in attention.matmuls)
    head = graph.tensors[left.inputs[0]].shape[-1]
    value = graph.tensors[right.outputs[0]].shape[-1]
    device = graph.tensors[graph.ops[attention.softmax].outputs[0]].device
    if attention.score_dtype == "float64":
        return "float64 has no fused kernel: use float32, bfloat16 or float16"
    if head != value:
        return f"queries have {head} features per head and values {value}: the fused kernels need equal numbers"
    if head > WIDEST_FLASH_HEAD:
        return f"{head} features per head exceed the {WIDEST_FLASH_HEAD} of the flash kernels"
    if device == "cpu" and names & {"bernoulli_", "native_dropout"}:
        return "the fused kernel for CPU has no dropout: pass dropout_p=0.0"
    return "the op graph does not show why (possibly a mask that needs a gradient, or sdpa_kernel(MATH))"


def _from_trace(trace: Trace) -> Iterator[Finding]:
    places: dict[tuple[Where, bool], list[TraceAttention]] = {}
    for attention in trace.fact(trace_attentions):
        site = call_site(trace, attention.softmax)
        module = site.module.rstrip("0123456789").rstrip("_") if site.module else None
        where = Where(op="aten::softmax", module=module, file=site.file, line=site.line)
        places.setdefault((where, attention.by_sdpa), []).append(attention)
    whole = whole_ns(trace)
    for (where, by_sdpa), members in places.items():
        times = [_bounded(trace, attention) for attention in members]
        cost = sum(time.exposed_ns for time in times)
        if cost >= MIN_SHARE * whole and cost > 0:
            yield _trace_finding(trace, where, members, times, by_sdpa)


def _bounded(trace: Trace, attention: TraceAttention) -> WorkTime:
    """Return the time of the score ops; the exposed time is limited by their traffic and launches."""
    time = spans_time(trace, np.array(attention.ops))
    scores = attention.score.elements * ITEM_SIZES.get(attention.score.dtype, 0)
    count = len(attention.ops)
    bound = longest_ns(trace, moved=MOST_PASSES * count * scores, launches=max(count, time.kernels))
    return replace(time, exposed_ns=min(time.exposed_ns, bound)) if scores else time


def _trace_finding(
    trace: Trace, where: Where, members: list[TraceAttention], times: list[WorkTime], by_sdpa: bool
) -> Finding:
    cost, whole = sum(time.exposed_ns for time in times), whole_ns(trace)
    worst = sorted(zip(members, times, strict=True), key=lambda pair: -pair[1].exposed_ns)
    names = trace.rows["slices"]["name"]
    return Finding(
        subject=_subject(by_sdpa),
        title=f"{_what(by_sdpa)} {_times(len(members))}",
        detail=f"Modelled: the time between its matmuls, on {_shape(worst[0][0].score.shape)} scores.",
        **timed_cost(trace, cost, whole, "modelled"),
        where=where,
        evidence=tuple(
            {
                "ops": " -> ".join(trace.text(int(names[row])).rpartition(":")[2].strip() for row in attention.ops),
                "score_shape": _shape(attention.score.shape),
                "score_bytes": attention.score.elements * ITEM_SIZES.get(attention.score.dtype, 0),
                "kernels": time.kernels,
                "score_ops_ns": time.sum_ns,
                "exposed_ns": time.exposed_ns,
            }
            for attention, time in worst[:MOST_ROWS]
        ),
        spans=spans_of_slices(trace, (row for attention in members for row in attention.ops)),
        removes=removed_inside(trace, np.array([row for attention in members for row in attention.ops], np.int64)),
        advice=SDPA_ADVICE if by_sdpa else ADVICE,
    )


def _from_planned_kernels(trace: Trace) -> Iterator[Finding]:
    """Yield one finding per line with unfused attention in programs that compile themselves.

    Bytes are those of the planned kernels, divided among the lines by their number of scores.
    """
    from perfscope.analyzers.plans import bytes_ns, plan_works

    target = trace.target
    for work in trace.fact(plan_works):
        eager = work.held.eager
        if work.held.plan.compiled_by != "program" or eager is None or target is None:
            continue
        attentions = [attention for attention in find_attentions(eager) if not attention.by_sdpa]
        kernels = [
            (kernel.name, graph.graph.direction, graph.graph.calls * kernel.bytes)
            for graph in work.graphs
            for kernel in graph.graph.kernels
            if (kernel.kind in ("reduction", "pointwise") and bool(SOFTMAX_OPS & set(kernel.ops)))
        ]
        kernel_bytes = sum(size for _, _, size in kernels)
        whole = work.as_run.device.low
        score_bytes = sum(attention.bytes for attention in attentions)
        places: dict[tuple[str | None, int | None], list[GraphAttention]] = defaultdict(list)
        for attention in attentions:
            op = eager.ops[attention.matmuls[0]]
            places[op.file, op.line].append(attention)
        for (file, line), members in places.items():
            moved = round(kernel_bytes * sum(member.bytes for member in members) / score_bytes) if score_bytes else 0
            saved = bytes_ns(target, moved)
            if not moved or saved < MIN_SHARE * whole:
                continue
            yield Finding(
                subject=_subject(False),
                title=f"{_what(False)} {_times(len(members))}, compiled",
                detail=f"Compiled, {format_bytes(moved)} of {_shape(members[0].score_shape)} scores still go through "
                "memory.",
                **planned_cost(saved, whole),
                cost_bytes=moved,
                where=Where(file=file, line=line),
                evidence=tuple(
                    {"kernel": name, "direction": direction, "moved_bytes": size}
                    for name, direction, size in kernels[:MOST_ROWS]
                ),
                advice=ADVICE,
            )


def _subject(by_sdpa: bool) -> str:
    return "scaled_dot_product_attention in its math fallback" if by_sdpa else "attention written out"


def _what(by_sdpa: bool) -> str:
    return "scaled_dot_product_attention runs as plain ops" if by_sdpa else "attention is written out"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
