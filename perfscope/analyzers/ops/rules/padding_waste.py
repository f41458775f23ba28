"""The model computes padding: most of the batch is not data.

Example:
    Before::

        batch = tokenizer(texts, padding="max_length", max_length=512, return_tensors="pt")

    After::

        batch = tokenizer(texts, padding="longest", truncation=True, max_length=512, return_tensors="pt")

Why it costs: each padded position passes through every layer as a real one does, and attention pairs it with all
others. The loss ignores it, so the work is lost. Rows that are padded to the longest text of the data set have more of
it than rows that are padded to the longest text of their batch, and batches of similar lengths have least.

How it is found: `perfscope run` counts the padding of the token ids that an embedding looks up, in the one step that it
records without timing. The padding is the `padding_idx` of the embedding; without one it is a run of one value at the
end or begin of the rows that differs in length and whose value is rare elsewhere. The id before it may be the end of
the text and counts as data. A row of one value is an empty text, as guidance of diffusion models needs it. The cost is
modelled: the time of the model's forward and backward ops in the timed steps times the share of padding, an upper
bound. Programs that remove the padding after the embedding are left out: most of their products have fewer rows than
the batch has tokens.

Fix: pad to the longest text of each batch (`padding="longest"`, `DataCollatorWithPadding`), put texts of similar length
into one batch (`group_by_length=True`, a `batch_sampler`), or join texts into rows of one length and let attention take
their borders (`torch.nn.attention.varlen`, `flash_attn_varlen_func`, `DataCollatorWithFlattening`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.analyzers.graph import short_name
from perfscope.analyzers.ops.graph_time import graph_time, judged_ns, ops_time
from perfscope.analyzers.time import step_windows, timed_cost, whole_ns
from perfscope.model.finding import AbstainError, Finding, Scope, Where
from perfscope.model.op_flops import PRODUCTS
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp, OpGraph, TokenBatch

LEAST_PADDING = 0.2
"""Smallest share of padding: batches of similar lengths have about a tenth."""

LEAST_SHARE = 0.1
"""Smallest share of the steps: teams schedule work for a tenth."""


class Padding(Struct, frozen=True, kw_only=True):
    """Batches of one embedding in the step of the op graph."""

    op: GraphOp
    batches: tuple[TokenBatch, ...]

    @property
    def tokens(self) -> int:
        """Positions of all batches."""
        return sum(batch.rows * batch.length for batch in self.batches)

    @property
    def share(self) -> float:
        """Share of padding."""
        return 1 - sum(batch.filled for batch in self.batches) / self.tokens

    @property
    def beyond_longest(self) -> float:
        """Share of positions after the longest row of their batch: a fix of the padding alone removes them."""
        return 1 - sum(batch.rows * batch.longest for batch in self.batches) / self.tokens


def examined(trace: Trace) -> Scope:
    """Count the batches of tokens."""
    return Scope(0 if trace.op_graph is None else len(trace.op_graph.batches), "batches of token ids in the op graph")


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding for the embedding with most padding."""
    graph = trace.op_graph
    if graph is None or not graph.batches:
        raise AbstainError("no embedding of rows of token ids in the op graph", ("op_graph",))
    if not trace.fact(graph_time).known:
        raise AbstainError("ops of the op graph were not found in the timed steps")
    worst = max(_by_embedding(graph), key=lambda padding: padding.tokens * padding.share)
    if worst.share < LEAST_PADDING or _removed_later(graph, worst):
        return
    root = _root(worst.op)
    computing = (op for op in graph.ops if op.phase in ("forward", "backward") and not op.view)
    time = ops_time(trace, (op.index for op in computing if _root(op) in ("", root)))
    steps, whole = max(1, trace.fact(step_windows).count), whole_ns(trace)
    cost = 0 if time is None else round(time.exposed_ns * steps * worst.share)
    if cost < LEAST_SHARE * judged_ns(trace):
        return
    cut = worst.beyond_longest
    yield Finding(
        subject="padding of batches",
        title=f"{worst.share:.0%} of the tokens of a batch are padding",
        detail=f"{worst.share:.0%} of {worst.tokens:,} positions of the recorded step. "
        + (
            f"Rows as long as the longest text of their batch would remove {cut:.0%} of the positions."
            if cut >= LEAST_PADDING
            else "Rows are as long as the longest text of their batch, and the other texts are much shorter."
        ),
        **timed_cost(trace, cost, whole, "modelled"),
        advice=(
            'Pad to the longest text of each batch (`padding="longest"`, `DataCollatorWithPadding`), and put texts of '
            "similar length together (`group_by_length=True`)."
            if cut >= LEAST_PADDING
            else "Put texts of similar length into one batch: `group_by_length=True`, or a `batch_sampler`. Or join "
            "texts into rows without padding: `DataCollatorWithFlattening`, `torch.nn.attention.varlen`."
        ),
        where=Where(op=worst.op.name, module=worst.op.module or None, file=worst.op.file, line=worst.op.line),
        evidence=tuple(
            {
                "rows": batch.rows,
                "length": batch.length,
                "longest_row": batch.longest,
                "padding": 1 - batch.filled / (batch.rows * batch.length),
            }
            for batch in worst.batches
        ),
    )


def _root(op: GraphOp) -> str:
    """Return the name of the model of an op; ``""``: outside of all."""
    return op.module.partition(".")[0]


def _by_embedding(graph: OpGraph) -> Iterator[Padding]:
    """Yield the batches by embedding of the program."""
    groups: dict[tuple[str, str | None, int | None], list[TokenBatch]] = defaultdict(list)
    for batch in graph.batches:
        op = graph.ops[batch.op]
        groups[op.module, op.file, op.line].append(batch)
    for batches in groups.values():
        yield Padding(op=graph.ops[batches[0].op], batches=tuple(batches))


def _removed_later(graph: OpGraph, padding: Padding) -> bool:
    """Whether most products of the forward pass have fewer rows than the batch has tokens."""
    least = min(batch.rows * batch.length for batch in padding.batches)
    rows = [
        math.prod(graph.tensors[op.outputs[0]].shape[:-1])
        for op in graph.ops
        if op.phase == "forward" and op.outputs and short_name(op) in PRODUCTS and op.index > padding.op.index
    ]
    return 2 * sum(count >= least for count in rows) < len(rows)
