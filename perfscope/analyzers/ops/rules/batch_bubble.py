"""Rows of a batch have no work: their text has ended, and the batch waits for its longest text.

Example:
    Before::

        for prompts in batches_of(requests, 8):
            while not ended.all():
                token = torch.where(ended, PAD, pick(model(token, cache)))

    After::

        while queue or rows.busy():
            rows.admit(queue)                  # a row whose text has ended takes the next prompt
            token = pick(model(token, cache, rows.positions))

Why it costs: a call of the model takes as long for a row of padding as for a row of text. In a batch that ends with its
longest text, the other rows compute padding from their end on: with lengths that differ much, half of the batch or
more. Requests that wait for the next batch could have used these rows.

How it is found: `perfscope run` keeps the ids of the model's calls with one token per row and counts, at the end of the
program, the rows whose id is the padding: the value that most often follows itself. Only programs that replace the
tokens of ended rows (`torch.where(ended, pad, token)`, as `generate` of transformers does) are judged: the op graph has
the op that writes the ids. Only rows before the last prompts were read count, because later rows had no request that
waited. The cost is modelled, an upper bound: the time of these calls times their share of idle rows, as if the requests
of later batches had filled the rows.

JAX programs are not judged. A jitted decode step has its ids in device buffers that the next call may take over
(donation), and a decode under `lax.while_loop` or `lax.scan` has no call per token: its ids and masks are values inside
of the compiled program. To count ended rows, perfscope would have to keep the buffers alive or add a result to the
program, and both change what is measured. Compare the length of each text with that of the batch in the result.

Fix: give the row of a text that has ended to the next request (continuous batching): a server (vLLM, SGLang), or
`generate_batch` of transformers. Where the lengths are known before, as in an evaluation, sort the requests by length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median
from typing import TYPE_CHECKING

from perfscope.analyzers.graph import short_name
from perfscope.analyzers.time import step_windows, whole_ns
from perfscope.model.finding import AbstainError, Finding, Scope, Where
from perfscope.model.severity import severity_of
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp, OpGraph

LEAST_SHARE = 0.1
"""Smallest share of the steps: teams schedule work for a tenth."""

_CHOOSE = frozenset({"where", "masked_fill", "masked_fill_", "mul", "mul_", "index_put_", "index_fill_"})
"""Ops that put the padding in place of a token."""


def examined(trace: Trace) -> Scope:
    """Count the calls with one token per row whose rows are known."""
    return Scope(sum(idle is not None for idle in trace.step_idle_rows), "calls of the model with known rows")


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding if idle rows take a tenth of the steps."""
    idle, tokens, times = trace.step_idle_rows, trace.step_tokens, trace.step_times_ns
    if not idle or len(idle) != len(times) or len(tokens) != len(times):
        raise AbstainError("no calls of the model with one token id per row, outside of the traced steps")
    op = None if trace.op_graph is None else written_by(trace.op_graph)
    if op is None:
        raise AbstainError("the op graph has no op that replaces the tokens of ended rows", ("op_graph",))
    last = max((index for index, call in enumerate(tokens) if call is not None and call[1] > 1), default=0)
    if all(rows is None for rows in idle[:last]):
        raise AbstainError("no prompts were read after the first tokens: no request waited for a row")
    lost = slots = empty = 0.0
    for rows, call, time in zip(idle[:last], tokens, times, strict=False):
        if rows is not None and call is not None:
            lost, slots, empty = lost + time * rows / call[0], slots + call[0], empty + rows
    share = lost / sum(times)
    if share >= LEAST_SHARE:
        yield _finding(trace, op, share, empty / slots, max(call[0] for call in tokens if call is not None))


def _finding(trace: Trace, op: GraphOp, share: float, empty: float, rows: int) -> Finding:
    steps, whole = max(1, trace.fact(step_windows).count), whole_ns(trace)
    return Finding(
        subject="idle rows of a batch",
        title=f"{empty:.0%} of the rows of a batch are idle: their text has ended",
        detail=f"Mean of the calls that write a token, before the last prompts were read: {empty * rows:.1f} of {rows} "
        "rows. Requests of later batches could have used them.",
        severity=severity_of(share * whole, whole),
        basis="modelled",
        cost_ns=round(share * whole),
        cost_ns_per_step=round(share * whole / steps),
        untraced_ns_per_step=round(share * median(trace.step_times_ns)),
        advice="Give the row of a text that has ended to the next request (continuous batching): vLLM, SGLang, or "
        "`model.generate_batch(...)` of transformers. If the lengths are known before, sort the requests by length.",
        where=Where(op=op.name, module=op.module or None, file=op.file, line=op.line),
        evidence=({"rows": rows, "idle_rows": round(empty * rows, 2), "calls": len(trace.step_times_ns)},),
    )


def written_by(graph: OpGraph) -> GraphOp | None:
    """Return the op outside of the model that replaces token ids before the first embedding reads them."""
    lookups = (op for op in graph.ops if short_name(op) == "embedding" and len(op.inputs) > 1)
    return next((op for lookup in lookups if (op := _replacing(graph, lookup)) is not None), None)


def _replacing(graph: OpGraph, lookup: GraphOp) -> GraphOp | None:
    wanted = {graph.tensors[lookup.inputs[1]].storage}
    for op in reversed(graph.ops[: lookup.index]):
        if op.view or not wanted & set(_written(graph, op)):
            continue
        if short_name(op) in _CHOOSE:
            return op
        wanted |= {graph.tensors[index].storage for index in op.inputs if "int" in graph.tensors[index].dtype}
    return None


def _written(graph: OpGraph, op: GraphOp) -> Iterator[int]:
    return (graph.tensors[index].storage for index in (*op.outputs, *op.mutated))
