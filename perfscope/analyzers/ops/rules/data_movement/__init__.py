"""Ops that only join, copy, fill or pick data take a large part of the step.

Example:
    Before::

        cache = torch.cat([cache, new], dim=1)        # copies all earlier tokens in each step

    After::

        cache = torch.empty(batch, longest, width)    # once, before the loop
        cache[:, n : n + 1] = new

Why it costs: such an op computes nothing, and reads and writes every byte of its operands. A cache of keys and values
that is grown by `torch.cat` is copied as a whole for each token; `torch.where` with a mask, `index_copy` without the
underscore, or `clone` before a write make a new cache for one new part of it; `repeat_interleave` writes the keys once
for each query head; the gradient of `x[i]` is a tensor of the size of `x` filled with zeros, once for each `i`;
`one_hot` writes a row of zeros for each index; a weight that is kept in int8 and converted in each call is written
again as float before the product reads it.

How it is found: time by op in the steps (of the kernels that it launched, or of the op itself without an
accelerator), grouped by cause and by function of the program. The ops around one tell its cause: `aten::fill_` in
`SelectBackward0` belongs to an index of the forward pass, whose line is given. The gradient of an embedding whose
table has ten times as many rows as the batch has indices includes the optimizer's ops on that table, by the op graph.
Whether a join is of what the step before left comes from the op graph of a run, or from recorded shapes: most of what
it reads was there before the step, and its result outlives the step. A cache is copied if it is older than the step,
attention reads it or its copy, the copy has the same size and outlives the step, and no later op reads the old one. A
copy that reads a dimension of stride 0 repeats data. The cost is the time of these ops, an upper bound: the fix may
leave a part of it. Work of data loaders is left out, and so is the joining of gradients of `unbind` and `split`,
which is the cheap way. In compiled XLA programs: instructions and fusions without arithmetic on half as many elements
as their result has, by opcode and by whether they read an argument of the program; and arrays that a loop
(`jax.lax.scan`) takes apart and puts together again while it changes a part of each slice. The time is measured, or
modelled where the program did not run.

Fix: it depends on the cause. Allocate a cache once at its full length and write each step's part into it
(`StaticCache` in transformers); pass grouped heads as they are
(`scaled_dot_product_attention(..., enable_gqa=True)`); take parts of a tensor outside the loop with `unbind` or
`split`, whose gradient is one join; look rows up with `F.embedding` in place of `one_hot`; convert once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.examined import op_records
from perfscope.analyzers.ops.finding_spans import spans_of_slices
from perfscope.analyzers.ops.graph_time import spans_time
from perfscope.analyzers.ops.movement import LEAST_PART, Movement, movements
from perfscope.analyzers.ops.rules.data_movement.tables import table_updates
from perfscope.analyzers.spans import removed_inside, time_of, work_inside
from perfscope.analyzers.time import StepGrowth, account_windows, framework, step_growth, timed_cost, whole_ns
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, Scope, fit_title
from perfscope.model.intervals import Int64
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns

LEAST_SHARE = 0.1
"""Smallest share of the steps for avoidable causes: teams schedule work for a tenth."""

LEAST_SHARE_OF_NEEDED = 0.2
"""Smallest share of the steps for causes that a program may need: a fifth of the step requires a finding."""

FEWEST_PICKS = 8
"""Minimum number of calls per step: fewer are batches that are picked once, not an index in a loop."""

CAUSE_LENGTH = 30
"""Maximum number of characters of an op's name in a title."""

_STAYS = "Keep the position in place of moving the data: a ring buffer (`buffer[n % size] = new`)."

_KEPT = (
    "Allocate a tensor of the full size once and write each new part into it (`kept[n:n + 1] = new`). Or collect the "
    "parts in a list and join them once, where they are read."
)

_GROWING = ("kept_join", "cache_join")
"""Causes that take longer in each step."""


class _Words(Struct, frozen=True):
    title: str
    """Format with ``{op}`` and ``{cause}``."""
    detail: str
    advice: str
    needed: bool = False
    """Whether the program may need it."""


_WORDS: dict[str, _Words] = {
    "index_gradient": _Words(
        "{cause} fills a whole tensor for each index",
        "The gradient of one index is a tensor of the full size, filled with zeros and added to the others.",
        "Take the parts once, before the loop: `parts = x.unbind(dim)` or `x.split(...)`, then `parts[i]`. The "
        "backward pass then joins them once.",
    ),
    "pick_gradient": _Words(
        "the gradient of `x[index]` is added row by row",
        "It is written into a tensor of the full size, filled with zeros.",
        "Pick with `x.index_select(dim, index)` or `F.embedding(index, x)`, whose gradients take a faster way, and all "
        "rows in one call.",
        needed=True,
    ),
    "embedding_gradient": _Words(
        "the gradient of an embedding is written for every row of its table",
        "Only the rows of the batch are not zero; the optimizer updates all of them.",
        "Use sparse gradients: `nn.Embedding(..., sparse=True)`, with `torch.optim.SparseAdam` or `SGD` for them.",
        needed=True,
    ),
    "one_hot": _Words(
        "`one_hot` writes a row of all classes for each index",
        "All but one number of a row are zeros.",
        "Look rows up by their index: `F.embedding(ids, weight)`; to count or add by class use `torch.bincount` or "
        "`index_add_`.",
    ),
    "cache_join": _Words(
        "the cache of keys and values is copied by {op} for each new part",
        "Each step reads and writes all that earlier steps left.",
        "Allocate the cache once at its full length and write each step's keys and values into it "
        "(`cache[:, :, n:n + 1] = k`); in transformers `cache_implementation=\"static\"`.",
    ),
    "cache_copy": _Words(
        "the whole cache of keys and values is written again by {cause}",
        "Each step reads and writes all that earlier steps left, to add one part to it.",
        "Write each step's keys and values into the cache in place: `cache[:, :, n:n + 1] = k`, or `index_copy_` and "
        "`scatter_` with their underscore.",
    ),
    "row_pick": _Words(
        "the whole cache of keys and values is copied by {cause} to pick its rows",
        "Each step reads and writes all that earlier steps left.",
        "Leave the cache where it is: keep the row of each sequence in an index and copy only rows that changed, or "
        "share the blocks of a paged cache (`block_table`). Rows that stay in order need no copy.",
    ),
    "page_gather": _Words(
        "the pages of the cache are joined by {cause} before attention reads them",
        "Each step reads and writes all that earlier steps left.",
        "Let attention read the pages where they are: use a kernel for paged caches. There are "
        "`flash_attn_with_kvcache(..., block_table=table)`, FlashInfer and vLLM's, or `flex_attention` with a block "
        "mask of the pages.",
    ),
    "kept_join": _Words(
        "{op} copies all that was kept before, in each step",
        "Each step reads and writes all that earlier steps left.",
        _KEPT,
    ),
    "join": _Words(
        "{op} copies its parts into one tensor",
        "",
        "Allocate the result once and write each part into its slice (`out[:, a:b] = part`). Where a linear layer "
        "reads it, apply the weight to the parts and add the results.",
        needed=True,
    ),
    "head_repeat": _Words(
        "keys and values are copied for each query head ({cause})",
        "Attention takes fewer heads of keys and values than of queries.",
        "Pass the heads as they are: `F.scaled_dot_product_attention(q, k, v, enable_gqa=True)`.",
    ),
    "repeat": _Words(
        "{cause} writes the same data several times",
        "",
        "Use `expand` or broadcasting, which copy nothing, up to the op that reads it; grouped heads of attention: "
        "`F.scaled_dot_product_attention(q, k, v, enable_gqa=True)`.",
    ),
    "dequantise": _Words(
        "weights are converted from a small dtype in every call",
        "The converted copy is written, read once and dropped.",
        "Convert them once before the loop where memory allows. Or use products that read them as they are: "
        "`torchao.quantization.quantize_(model, ...)` under `torch.compile`.",
    ),
    "convert": _Words(
        "{cause} converts between dtypes or devices in each step",
        "",
        "Convert once, before the loop, or keep the data in the dtype that the step computes in.",
        needed=True,
    ),
    "layout": _Words(
        "{cause} copies a tensor to change its layout",
        "",
        "Make the data in the order that the next op reads (`channels_last`, another order of axes where it is made). "
        "Or leave `contiguous()` out where the next op takes strides.",
        needed=True,
    ),
    "clone": _Words(
        "`clone` copies a whole tensor",
        "",
        "Leave the copy out where nothing writes to the original (`detach()` alone shares it), or copy once before "
        "the loop.",
        needed=True,
    ),
    "assign": _Words(
        "{op} writes one tensor into another",
        "",
        "Let the op that makes the data write it there (`out=`), or read it where it is made.",
        needed=True,
    ),
    "clear": _Words(
        "{op} fills memory with one value",
        "",
        "Allocate with `torch.empty` where every element is written anyway, and make what does not change once before "
        "the loop. Reset gradients with `zero_grad(set_to_none=True)`.",
        needed=True,
    ),
    "search": _Words(
        "{op} searches for elements whose number depends on the data",
        "",
        "Multiply by the mask or use `torch.where`, which keep the shape; with a bound on the number "
        "`torch.nonzero_static(x, size=n)`.",
        needed=True,
    ),
    "scatter": _Words(
        "{op} adds or writes rows one index at a time",
        "",
        "Sum by group with a product: `torch.sparse.mm(adjacency, x)` with a CSR matrix that is made once; or sort the "
        "indices once before the loop and use `torch.segment_reduce`.",
        needed=True,
    ),
    "gather": _Words(
        "{op} picks data in many calls",
        "",
        "Pick all at once with one index tensor (`x.index_select(dim, index)`), or take the parts before the loop with "
        "`unbind` or `split`.",
        needed=True,
    ),
    "shift": _Words(
        "{op} copies a tensor to move its elements",
        "",
        "Keep the position in place of moving the data: a ring buffer (`buffer[n % size] = new`).",
        needed=True,
    ),
}  # fmt: skip


def examined(trace: Trace) -> Scope:
    """Count the ops."""
    return op_records(trace)


def check(trace: Trace) -> Iterable[Finding]:
    """Yield a finding per cause; used if no other rule has findings."""
    return check_rest(trace, ())


def check_rest(trace: Trace, found: Sequence[tuple[str, Finding]]) -> Iterable[Finding]:
    """Yield a finding per cause in a function of the program with a large part of the steps.

    Findings of `constant_work` at the same line take precedence, and memory filled by deterministic mode is a finding
    of `debug_mode`.
    """
    named = {finding.where.label() for rule, finding in found if rule == "constant_work"}
    if trace.hlo:
        from perfscope.analyzers.ops.rules.data_movement.programs import program_findings

        for finding in program_findings(trace):
            if finding.subject not in ("convert", "dequantise") or finding.where.label() not in named:
                yield finding
        return
    if "host_ops" not in trace.recorded or framework(trace) != "torch":
        raise AbstainError("neither ops of PyTorch nor compiled programs in the recording", ("host_ops",))
    whole = whole_ns(trace)
    filled = any(rule == "debug_mode" and finding.where.op == "aten::fill_" for rule, finding in found)
    for movement in trace.fact(movements):
        if filled and movement.kind == "clear" and (movement.cause or "").startswith("aten::empty"):
            continue
        words = _WORDS[movement.kind]
        least = LEAST_SHARE_OF_NEEDED if words.needed else LEAST_SHARE
        grown = trace.fact(step_growth) if movement.kind in _GROWING else None
        if grown is not None:  # early steps are not representative of later ones
            least = LEAST_PART
        again = movement.kind in ("dequantise", "convert") and movement.site.where().label() in named
        if _time(trace, movement) >= least * whole and _avoidable(trace, movement) and not again:
            yield _finding(trace, movement, words, whole, grown)


def _avoidable(trace: Trace, movement: Movement) -> bool:
    """Whether the movement is avoidable; parts picked in a few calls per step are required by the program."""
    return movement.kind not in ("gather", "index_gradient") or _calls(trace, movement) >= FEWEST_PICKS


def _calls(trace: Trace, movement: Movement) -> float:
    return movement.calls / max(1, len(trace.fact(account_windows).numbers))


def _finding(trace: Trace, movement: Movement, words: _Words, whole: int, grown: StepGrowth | None) -> Finding:
    cost, rows = _time(trace, movement), _rows(trace, movement)
    if len(trace.rows["kernels"]):
        cost = sum(time_of(trace, table, work_inside(trace, table, rows)).exposed_ns for table in ("kernels", "copies"))
    op, cause = _quoted(movement.op), _quoted(movement.cause or movement.op)
    calls = _calls(trace, movement)
    count = f"{calls:,.0f} calls" if round(calls) > 1 else "one call"
    often = f"{count} per step" if trace.fact(account_windows).numbers else f"{movement.calls:,} calls"
    title = words.title.format(op=op, cause=cause)
    lines = [line for line, _, _ in movement.lines if line]
    return Finding(
        subject=movement.kind.replace("_", " "),
        title=fit_title(f"{title}: {often}", op, cause),
        detail=words.detail
        if grown is None
        else f"{words.detail} Steps grow from {format_ns(round(grown.first_ns))} to {format_ns(round(grown.last_ns))} "
        "over the run; the saving is that of the recorded steps.",
        **timed_cost(trace, cost, whole),
        covers_ns={"compute": cost},
        advice=_STAYS if movement.kind == "kept_join" and movement.onto == "stays" else words.advice,
        where=movement.site.where(op=movement.op),
        evidence=tuple(
            {"line": line, "op": movement.op, "in": movement.cause, "calls": count, "time_ns": time}
            for line, count, time in movement.lines[:MOST_ROWS]
            if line or not lines
        ),
        spans=spans_of_slices(trace, rows.tolist()),
        removes=removed_inside(trace, rows),
    )


def _rows(trace: Trace, movement: Movement) -> Int64:
    """Return the rows of ``slices`` that the fix removes: of a table's gradient, also the update of its other rows."""
    if movement.kind != "embedding_gradient":
        return movement.rows
    return np.union1d(movement.rows, trace.fact(table_updates))


def _time(trace: Trace, movement: Movement) -> int:
    """Return their time in all steps, ns."""
    more = np.setdiff1d(_rows(trace, movement), movement.rows)
    return movement.time_ns + (spans_time(trace, more).sum_ns if len(more) else 0)


def _quoted(name: str) -> str:
    """Return `` `repeat_interleave` `` for ``aten::repeat_interleave``."""
    plain = name.removeprefix("aten::")
    return f"`{plain if len(plain) <= CAUSE_LENGTH else plain[: CAUSE_LENGTH - 3] + '...'}`"
