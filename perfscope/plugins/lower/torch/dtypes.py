"""Why a graph of AOT autograd converts: written in the program, autocast, promotion, or inside an op's decomposition.

Dynamo's graph has the ops as they were written, with the dtypes that they return: an op that returns a narrower dtype
than it gets ran under autocast, and an op with equal dtypes whose decomposition converts does so inside.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from perfscope.analyzers.readers import LoggedGraph
from perfscope.model.compile_log import GraphNode
from perfscope.plugins.lower.program import listed, place_of

_WRITTEN = re.compile(r"(?:^|\.)(?:to|float|double|half|bfloat16|type|type_as)$")
_PRODUCTS = re.compile(
    r"(?:^|\.)(?:aten\.)?(?:mm|addmm|bmm|baddbmm|convolution|conv\dd|_?scaled_dot_product\w*|linear|matmul)\b"
)
_VIEW = re.compile(
    r"(?:^|\.)(?:permute|view|reshape|transpose|contiguous|unsqueeze|squeeze|expand|flatten|unflatten|chunk|split|t|mT|getitem)$"
)
_BITS = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}
_PLAIN = re.compile(r"^(?:torch\.(?:nn\.functional\.)?|torch\._C\._nn\.)")


def conversion_reasons(dynamo: LoggedGraph | None, graph: LoggedGraph, gradients: Collection[str]) -> Mapping[str, str]:
    """By name of a node, the reason of a conversion; ``gradients``: nodes of the backward that the forward lacks."""
    reasons: dict[str, str] = defaultdict(lambda: "the graph converts it there")
    at_line: dict[tuple[str, int], list[GraphNode]] = defaultdict(list)
    known: dict[str, GraphNode] = {}
    for _, nodes in dynamo.modules if dynamo is not None else ():
        known |= _typed(dynamo, nodes) if dynamo is not None else {}
        for node in nodes:
            if node.place is not None:
                at_line[node.place.file, node.place.line].append(node)
    users: dict[str, list[GraphNode]] = defaultdict(list)
    inside = graph.modules[0][1] if graph.modules else ()
    for node in inside:
        for name in node.inputs:
            users[name].append(node)
    for node in inside:
        written = at_line.get((node.place.file, node.place.line), []) if node.place is not None else []
        reasons[node.name] = _reason(node, written, known, users, node.name in gradients)
    return reasons


def _reason(
    node: GraphNode, written: Sequence[GraphNode], known: Mapping[str, GraphNode],
    users: Mapping[str, Sequence[GraphNode]], backward: bool,
) -> str:  # fmt: skip
    asked = next((item.op for item in written if _WRITTEN.search(item.op) and item.dtype == node.dtype), None)
    if asked is not None and not backward:
        return f"written at this line: .{asked.rpartition('.')[2]}()"
    bits = _BITS.get(node.dtype or "", 0)
    for item in written:
        taken = [known[name].dtype for name in item.inputs if name in known and known[name].dtype in _BITS]
        if not taken or item.dtype not in _BITS:
            continue
        op = _PLAIN.sub("", item.op)
        widest = max(_BITS[dtype or ""] for dtype in taken)
        narrowest = min(_BITS[dtype or ""] for dtype in taken)
        if _BITS[item.dtype] < widest and bits == _BITS[item.dtype] and _reads_product(node, users):
            return f"autocast: {_name(op)} runs in {item.dtype}"
        if narrowest < _BITS[item.dtype] == bits and widest == narrowest:
            return f"autocast: {_name(op)} runs in {item.dtype}"
        if narrowest < widest == bits == _BITS[item.dtype]:
            wide = next(name for name in item.inputs if name in known and _BITS.get(known[name].dtype or "") == widest)
            return f"promoted: {_variable(wide)} is {node.dtype}"
    if backward:
        return "the backward of a conversion in the forward"
    others = [item for item in written if item.dtype in _BITS and not (_is_product(item.op) or _VIEW.search(item.op))]
    inside = next((item for item in others if bits > _BITS[item.dtype or ""]), None)
    if inside is not None:
        return f"{_name(_PLAIN.sub('', inside.op))} computes in {node.dtype} inside and returns {inside.dtype}"
    returned = next((item for item in others if item.dtype == node.dtype), None)
    if returned is not None:
        return f"the result of {_name(_PLAIN.sub('', returned.op))} goes back to {node.dtype}"
    return "the graph converts it there"


def _is_product(op: str) -> bool:
    """Whether dynamo's op is a product; ``@`` is printed as an expression."""
    return op == "operator" or _PRODUCTS.search(_PLAIN.sub("", op)) is not None


def _reads_product(node: GraphNode, users: Mapping[str, Sequence[GraphNode]]) -> bool:
    """Whether a product reads a value, through views."""
    queue, seen = [node.name], {node.name}
    while queue and len(seen) < 50:
        for user in users.get(queue.pop(), ()):
            if _PRODUCTS.search(user.op):
                return True
            passes_on = re.search(r"view|permute|expand|reshape|unsqueeze|clone|transpose|aten\.t\.", user.op)
            if passes_on is not None and user.name not in seen:
                seen.add(user.name)
                queue.append(user.name)
    return False


def _name(op: str) -> str:
    return op.rpartition(".")[2] or op if op != "operator" else "this expression"


def _variable(name: str) -> str:
    """An input as the program names it: dynamo writes ``l_self_modules_norm_parameters_weight_``."""
    text = re.sub(r"^[lL]_", "", name).strip("_")
    return re.sub(r"_(?:modules|parameters|buffers)_", ".", text)


def promotions(dynamo: LoggedGraph) -> Iterator[tuple[GraphNode, str, str]]:
    """Yield ops whose result is wider than one of their operands: node, the narrow dtype, and the reason.

    AOT autograd keeps most of them without a conversion: the op takes both dtypes.
    """
    for _, nodes in dynamo.modules:
        known = _typed(dynamo, nodes)
        users: dict[str, list[GraphNode]] = defaultdict(list)
        for node in nodes:
            for name in node.inputs:
                users[name].append(node)
        for node in nodes:
            taken = [known[name] for name in node.inputs if name in known and known[name].dtype in _BITS]
            bits = _BITS.get(node.dtype or "", 0)
            narrow = next((item for item in taken if _BITS[item.dtype or ""] < bits), None)
            if narrow is None or _WRITTEN.search(node.op):
                continue
            wide = next((item for item in taken if item.dtype == node.dtype), None)
            stays = _reach(node, users)
            kept = f"; keeps {listed(stays[:3])} in {node.dtype}" if stays else ""
            op = _name(_PLAIN.sub("", node.op))
            reason = f"autocast: {op} runs in {node.dtype}" if wide is None else (
                f"promoted: {_variable(wide.name)} is {node.dtype}"
            )  # fmt: skip
            yield node, narrow.dtype or "", f"{reason}{kept}"


def _typed(dynamo: LoggedGraph, nodes: Sequence[GraphNode]) -> dict[str, GraphNode]:
    """Values of a graph of dynamo by name, with its inputs, also under the second name that dynamo gives these."""
    known = {item.name: item for item in dynamo.inputs if item.dtype is not None}
    for node in nodes:
        if node.dtype is not None:
            known[node.name] = node
        elif len(node.inputs) == 1 and node.inputs[0] in known and node.op == "operator":
            known[node.name] = known[node.inputs[0]]
    return known


def _reach(node: GraphNode, users: Mapping[str, Sequence[GraphNode]]) -> list[str]:
    """Other lines whose values have the dtype of a node, and are computed from it."""
    found: dict[str, None] = {}
    queue, seen = [node.name], {node.name}
    while queue:
        for user in users.get(queue.pop(), ()):
            if user.dtype == node.dtype and user.name not in seen:
                seen.add(user.name)
                queue.append(user.name)
                if user.place is not None and user.place != node.place:
                    found[place_of(user.place.file, user.place.line)] = None
    return [*found]
