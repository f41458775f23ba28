"""Weights are computed again in each call from parameters alone.

Example:
    Before::

        for batch in loader:
            y = F.linear(batch, weight + scale * (b @ a))      # merges the adapter in each call

    After::

        merged = weight + scale * (b @ a)
        for batch in loader:
            y = F.linear(batch, merged)

Why it costs: what depends on parameters and on nothing of the input is the same in every call until the parameters
change. A LoRA adapter that is multiplied out (`weight + b @ a`) makes a matrix of the full size for each call and reads
it once; applied to the input it is two thin products. A weight that is kept in int8 and converted in each call, cast to
another dtype, normalised or rescaled costs more memory traffic than the product that reads it where the batch is small.

How it is found: from the op graph of a run. Ops of the forward pass are followed from parameters and buffers, and from
tensors that are made without an input (`arange`, `ones`): what reads nothing else is constant; random ops are not, and
a product with a tensor of ones or zeros is the model called with made-up data. In a step that updates parameters only
two kinds count: what follows from parameters that no op of the step writes, and products of parameters, with their
backward ops. Tensors that are only filled are left to `data_movement`. The time is that of these ops in the timed
steps, an upper bound: factors that are applied to the input cost a part of it.

In compiled XLA programs, by the arguments that a value follows from. A tree of arrays (`params['up']`) is trained if
the program differentiates and returns arrays with the shapes of all its leaves; of its products only those with fewer
elements in both factors than in the result count. In a program without a backward pass, the only tree that it does not
return is constant, if a leaf of it is multiplied with a value from another argument. Its arithmetic and the casts that
the program requests count, layouts that XLA chooses do not. Arguments that are single arrays are data.

Fix: merge an adapter once before the loop (`merge_and_unload()` in peft), or apply its factors to the input::

    y = F.linear(x, weight) + (x @ a.T) @ b.T * scale

Convert or normalise weights once (`model.bfloat16()`, `torch.nn.utils.parametrize.remove_parametrizations`), and keep
tables and masks as buffers. In JAX::

    y = x @ weight + scale * (x @ a) @ b                      # in place of x @ (weight + scale * a @ b)
    params = jax.tree.map(lambda w: w.astype(dtype), params)  # once, before the loop
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from perfscope.analyzers.examined import op_records
from perfscope.analyzers.graph import base_name, short_name
from perfscope.analyzers.ops.finding_spans import spans_of_ops
from perfscope.analyzers.ops.graph_time import graph_time, judged_ns, ops_time, removed_ops
from perfscope.analyzers.time import step_windows, timed_cost, whole_ns
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, Scope, Where
from perfscope.model.op_flops import PRODUCTS
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp, OpGraph

LEAST_SHARE = 0.1
"""Smallest share of the steps: teams schedule work for a tenth."""

_MADE = frozenset({"arange", "zeros", "ones", "full", "eye", "linspace", "logspace", "scalar_tensor", "tril_indices",
                   "triu_indices", "empty", "new_zeros", "new_ones", "new_full"})  # fmt: skip
"""Ops that make the same tensor in every call."""

_FILLS = frozenset({"zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "fill_", "zero_",
                    "zeros_like", "ones_like", "full_like", "empty_like", "lift_fresh", "scalar_tensor"})  # fmt: skip
_RANDOM = re.compile(r"rand|normal|uniform|bernoulli|dropout|multinomial|exponential|poisson|geometric|cauchy")
_EXCHANGES = ("c10d.", "_c10d_functional.", "_dtensor.")
"""How ops begin that read what other ranks send: it may differ in each call."""
_SMALL = frozenset({"int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"})

_WORDS: dict[str, tuple[str, str]] = {
    "product": (
        "factors of a weight are multiplied out in every call",
        "Apply the factors to the input (`F.linear(x, weight) + (x @ a.T) @ b.T`), or merge them once before the loop. "
        "In peft `merge_and_unload()` does so.",
    ),
    "dequantised": (
        "weights are converted from {dtype} in every call",
        "Convert them once before the loop, or use products that read them as they are. "
        "`torchao.quantization.quantize_(model, ...)` under `torch.compile` makes such.",
    ),
    "converted": (
        "weights are converted to another dtype in every call",
        "Convert the model once before the loop: `model.bfloat16()` or `model.to(dtype)`.",
    ),
    "other": (
        "tensors that depend on parameters alone are made in every call",
        "Make them once before the loop and keep them as buffers; "
        "for parametrised weights use `torch.nn.utils.parametrize.remove_parametrizations`.",
    ),
}  # fmt: skip


def examined(trace: Trace) -> Scope:
    """Count the ops."""
    return op_records(trace)


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per function (of a compiled program: per file) with a tenth of the steps in constant work."""
    if trace.hlo:
        from perfscope.analyzers.ops.rules.constant_work.programs import program_findings

        yield from program_findings(trace, LEAST_SHARE)
        return
    graph = trace.op_graph
    if graph is None or not graph.parameters:
        raise AbstainError("the op graph of the run names no parameters", ("op_graph",))
    if not trace.fact(graph_time).known:
        raise AbstainError("ops of the op graph were not found in the timed steps")
    by_function: dict[tuple[str | None, str | None], list[GraphOp]] = defaultdict(list)
    for op in trace.fact(constant_ops):
        by_function[op.file, op.function].append(op)
    for ops in by_function.values():
        yield from _judged(trace, graph, ops)


def constant_ops(trace: Trace) -> tuple[GraphOp, ...]:
    """Return ops of the graph whose result depends only on parameters, and backward ops of products among them."""
    graph = trace.op_graph
    if graph is None or not graph.parameters:
        return ()
    trained = {graph.tensors[index].storage for op in graph.ops for index in op.mutated if op.phase == "optimizer"}
    constant, multiplied, filled = set(graph.parameters), set[int](), set[int]()
    found: list[GraphOp] = []
    for op in graph.ops:
        inputs = {graph.tensors[index].storage for index in op.inputs}
        written = {graph.tensors[index].storage for index in (*op.outputs, *op.mutated)}
        made_up = short_name(op) in PRODUCTS and bool(inputs & filled)
        if made_up or not _follows(op, inputs, constant):
            constant -= {graph.tensors[index].storage for index in op.mutated} | (written - inputs)
            continue
        constant |= written
        if inputs <= filled and (inputs or short_name(op) in _FILLS):
            filled |= written
        if inputs & trained:
            trained |= written
        if short_name(op) in PRODUCTS or inputs & multiplied:
            multiplied |= written
        if not op.view and (not inputs & trained or written & multiplied):
            found.append(op)
    return (*found, *_backward(graph, found))


def _follows(op: GraphOp, inputs: set[int], constant: set[int]) -> bool:
    """Whether the result of an op follows from constant values."""
    if op.phase == "optimizer" or _RANDOM.search(op.name) or op.name.startswith(_EXCHANGES):
        return False
    if op.phase == "backward":  # a function that keeps less for its backward, and computes the rest again
        return bool(inputs) and inputs <= constant
    return inputs <= constant if inputs else short_name(op) in _MADE


def _backward(graph: OpGraph, found: list[GraphOp]) -> Iterator[GraphOp]:
    """Yield the gradients of the ops; ops in the backward of a function of one's own have a line of that function."""
    known = {op.index for op in found}
    lines: dict[int | None, tuple[str | None, int | None]] = {
        op.sequence: (op.file, op.line)
        for op in found
        if op.sequence is not None and op.outputs and "float" in graph.tensors[op.outputs[0]].dtype
    }
    for op in graph.ops:
        own = op.phase == "backward" and not op.view and op.index not in known
        if own and (op.file, op.line) == lines.get(op.sequence):
            yield op


def _judged(trace: Trace, graph: OpGraph, ops: list[GraphOp]) -> Iterator[Finding]:
    time = ops_time(trace, (op.index for op in ops))
    steps, whole = max(1, trace.fact(step_windows).count), whole_ns(trace)
    if time is None or time.exposed_ns * steps < LEAST_SHARE * judged_ns(trace):
        return
    if all(short_name(op) in _FILLS for op in ops):
        return
    kind, dtype = _kind(graph, ops)
    title, advice = _WORDS[kind]
    costs = {op.index: cost.exposed_ns for op in ops if (cost := ops_time(trace, (op.index,))) is not None}
    by_line: dict[tuple[int | None, str], list[GraphOp]] = defaultdict(list)
    for op in ops:
        by_line[op.line, base_name(op)].append(op)
    lines = sorted(by_line.values(), key=lambda group: -sum(costs.get(op.index, 0) for op in group))
    first = lines[0][0]
    forward = sum(op.phase != "backward" for op in ops)
    yield Finding(
        subject="work on parameters alone",
        title=f"{title.format(dtype=dtype)}: {forward:,} op{'s' if forward != 1 else ''}",
        detail="The result is the same in every call until the parameters change.",
        **timed_cost(trace, time.exposed_ns * steps, whole),
        covers_ns={"compute": time.exposed_ns * steps},
        advice=advice,
        where=Where(op=first.name, module=first.module or None, file=first.file, line=first.line),
        evidence=tuple(
            {
                "line": f"{group[0].file}:{group[0].line}",
                "op": base_name(group[0]),
                "phase": group[0].phase,
                "calls_per_step": len(group),
                "time_ns": sum(costs.get(op.index, 0) for op in group),
            }
            for group in lines[:MOST_ROWS]
        ),
        spans=spans_of_ops(trace, (op.index for op in ops)),
        removes=removed_ops(trace, (op.index for op in ops)),
    )


def _kind(graph: OpGraph, ops: list[GraphOp]) -> tuple[str, str]:
    """Return the kind of work, and the dtype that is converted."""
    small = [
        dtype
        for op in ops
        for index in op.inputs
        if (dtype := graph.tensors[index].dtype.removeprefix("torch.")) in _SMALL
    ]
    if small:
        return "dequantised", small[0]
    if any(short_name(op) in PRODUCTS for op in ops):
        return "product", ""
    if all(short_name(op) in ("_to_copy", "to", "copy_", "clone") for op in ops):
        return "converted", ""
    return "other", ""
