"""Gradients of weights are computed, and the optimizer does not update these weights.

Example:
    Before::

        adapters = [p for name, p in model.named_parameters() if "lora" in name]
        optimizer = torch.optim.AdamW(adapters)

    After::

        model.requires_grad_(False)
        for adapter in adapters:
            adapter.requires_grad_(True)
        optimizer = torch.optim.AdamW(adapters)

Why it costs: the gradient of a weight is a product as large as the forward pass of its layer, a third of the compute of
a training step. Autograd computes it for every tensor with `requires_grad=True`, also if no optimizer has the tensor.
The gradient has the size of the weight and stays in memory, and it grows, because `optimizer.zero_grad()` resets only
tensors of the optimizer. Activations are kept for it, too.

How it is found: from the op graph of a step in which an optimizer updated weights. A backward op belongs to a weight if
its forward op read the weight, its result has the shape of the weight, and it does not read the weight itself. A weight
counts if no op of the step writes it. Weights that reach their layer as another tensor (FSDP, compiled functions) are
not judged. The time is that of these ops in the timed steps, with the sums into `.grad`.

Fix: freeze the weights with `requires_grad_(False)` before the optimizer is made; peft does so for all weights but the
adapters. If the weights should be trained, add them to the optimizer: they do not change now. In a GAN, freeze the
discriminator during the generator's step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.analyzers.graph import short_name
from perfscope.analyzers.ops.finding_spans import spans_of_ops
from perfscope.analyzers.ops.graph_time import graph_time, judged_ns, ops_time, removed_ops
from perfscope.analyzers.time import step_windows, timed_cost, whole_ns
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, Scope, Where
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp, GraphTensor, OpGraph

LEAST_SHARE = 0.05
"""Smallest share of the steps: gradients of a few small frozen layers take less, and the memory is worth more."""

_CASTS = frozenset({"_to_copy", "t", "transpose", "permute", "view", "detach", "alias"})
"""Ops whose result is the weight in another type or form."""


class Unused(Struct, frozen=True, kw_only=True):
    """Backward ops that compute gradients of weights which no op of the step writes."""

    ops: tuple[GraphOp, ...]
    """In the order of the graph, with the sums into ``.grad``."""
    weights: dict[int, GraphOp]
    """Storage of the weight: the forward op that reads it."""
    gradients: int
    """Number of gradients of weights in the step, used or not."""


def examined(trace: Trace) -> Scope:
    """Count the gradients of weights in the op graph."""
    found = trace.fact(unused_gradients)
    return Scope(0 if found is None else found.gradients, "gradients of weights in the op graph")


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding for all gradients that no optimizer uses."""
    graph, found = trace.op_graph, trace.fact(unused_gradients)
    if graph is None or found is None:
        raise AbstainError("no optimizer updated weights in the step of the op graph", ("op_graph",))
    if not trace.fact(graph_time).known:
        raise AbstainError("ops of the op graph were not found in the timed steps")
    time = ops_time(trace, (op.index for op in found.ops)) if found.ops else None
    steps, whole = max(1, trace.fact(step_windows).count), whole_ns(trace)
    if time is None or time.exposed_ns * steps < LEAST_SHARE * judged_ns(trace):
        return
    sizes = {graph.tensors[index].storage: graph.tensors[index].bytes for op in graph.ops for index in op.inputs}
    costs = {op.index: cost.exposed_ns for op in found.ops if (cost := ops_time(trace, (op.index,))) is not None}
    longest = max(found.ops, key=lambda op: costs.get(op.index, 0))
    reader = next((op for op in found.weights.values() if op.sequence == longest.sequence), longest)
    held = sum(sizes.get(weight, 0) for weight in found.weights)
    several = len(found.weights) != 1
    yield Finding(
        subject="gradients of weights without an optimizer",
        title=f"gradients of {len(found.weights):,} weight{'s' if several else ''} are computed, no optimizer updates "
        f"{'them' if several else 'it'}",
        detail=f"The gradients take {format_bytes(held)} of memory until something resets them.",
        **timed_cost(trace, time.exposed_ns * steps, whole),
        covers_ns={"compute": time.exposed_ns * steps},
        advice="Freeze these weights with `requires_grad_(False)` before the optimizer is made. If they should be "
        "trained, give them to the optimizer: they do not change now.",
        where=Where(op=longest.name, module=reader.module or None, file=reader.file, line=reader.line),
        evidence=tuple(_rows(graph, found, costs)),
        spans=spans_of_ops(trace, (op.index for op in found.ops)),
        removes=removed_ops(trace, (op.index for op in found.ops)),
    )


def _rows(graph: OpGraph, found: Unused, costs: dict[int, int]) -> Iterator[dict[str, str | int]]:
    products = sorted((op for op in found.ops if op.sequence is not None), key=lambda op: -costs.get(op.index, 0))
    for op in products[:MOST_ROWS]:
        yield {
            "module": op.module,
            "line": f"{op.file}:{op.line}",
            "op": op.name,
            "shape": str(list(graph.tensors[op.outputs[0]].shape)),
            "time_ns": costs.get(op.index, 0),
        }


def unused_gradients(trace: Trace) -> Unused | None:
    """Return the gradients that no optimizer uses; ``None`` if no op of an optimizer wrote a weight of a layer."""
    graph = trace.op_graph
    if graph is None:
        return None
    weight_of = _weights(graph)
    written = {graph.tensors[index].storage for op in graph.ops for index in op.mutated}
    trained = {graph.tensors[index].storage for op in graph.ops if op.phase == "optimizer" for index in op.mutated}
    readers: dict[int, dict[int, GraphOp]] = {}
    for op in graph.ops:
        if op.phase == "forward" and not op.view and op.sequence is not None and short_name(op) not in _CASTS:
            for weight in _read(graph, op, weight_of):
                readers.setdefault(op.sequence, {})[weight] = op
    if not trained & {weight for weights in readers.values() for weight in weights}:
        return None
    shapes = {graph.tensors[i].storage: graph.tensors[i] for op in graph.ops for i in op.inputs}
    unused: dict[int, GraphOp] = {}
    weights: dict[int, GraphOp] = {}
    gradients = 0
    for op in graph.ops:
        if op.phase != "backward" or op.view or op.recompute or len(op.outputs) != 1 or op.mutated:
            continue
        mine = readers.get(op.sequence, {}) if op.sequence is not None else {}
        read = _read(graph, op, weight_of)
        for weight, reader in mine.items():
            if weight not in read and _fits(graph.tensors[op.outputs[0]], shapes[weight]):
                gradients += 1
                if weight not in written:
                    unused[op.index], weights[weight] = op, reader
                break
    return Unused(ops=(*unused.values(), *_sums(graph, unused)), weights=weights, gradients=gradients)


def _weights(graph: OpGraph) -> dict[int, int]:
    """Map storages to the weight that they hold, also in another type."""
    result = {storage: storage for storage in graph.parameters}
    for op in graph.ops:
        if op.phase == "forward" and short_name(op) == "_to_copy" and op.inputs and op.outputs:
            source, copy = (graph.tensors[index] for index in (op.inputs[0], op.outputs[0]))
            if source.storage in graph.parameters and source.shape == copy.shape:
                result[copy.storage] = source.storage
    return result


def _read(graph: OpGraph, op: GraphOp, weight_of: dict[int, int]) -> set[int]:
    return {weight_of[s] for index in op.inputs if (s := graph.tensors[index].storage) in weight_of}


def _fits(result: GraphTensor, weight: GraphTensor) -> bool:
    """Whether a result has the shape of a weight, transposed or with axes of length 1."""
    ours, theirs = ([size for size in tensor.shape if size != 1] for tensor in (result, weight))
    return ours in (theirs, theirs[::-1])


def _sums(graph: OpGraph, unused: dict[int, GraphOp]) -> Iterator[GraphOp]:
    """Yield the ops of the backward pass that add these gradients to others or to ``.grad``."""
    made = {graph.tensors[index].storage for op in unused.values() for index in op.outputs}
    for op in graph.ops:
        if op.phase == "backward" and short_name(op) in ("add_", "add") and not op.view:
            added = {graph.tensors[index].storage for index in op.inputs[1:]}
            if added and added <= made:
                yield op
