"""Changes of the lines of a PyTorch program on its way through torch.compile, from the graphs of each stage."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Literal

from msgspec import Struct

from perfscope.analyzers.readers import LoggedGraph
from perfscope.analyzers.torch_compile import node_bytes, node_flops
from perfscope.model.compile_log import CompiledKernel, GraphNode
from perfscope.model.op_flops import FUSED_ATTENTION
from perfscope.plugins.lower.document import Fate, What
from perfscope.plugins.lower.program import FLOPS_PER_BYTE, Grouped, code_at, fate, listed, place_of
from perfscope.plugins.lower.splits import Computed, Where, split
from perfscope.plugins.lower.torch.dtypes import conversion_reasons, promotions

_FREE = re.compile(
    r"^(?:getitem|get_attr|operator|placeholder|aten\.(?:view|reshape|permute|expand|unsqueeze|squeeze|slice|select|t|transpose"
    r"|alias|detach|as_strided|split|full|empty|arange|_unsafe_view|scalar_tensor)\b)"
)
"""Views, constants and parts of results: nothing is computed."""
CONVERTS = ("prims.convert_element_type.default", "aten._to_copy.default")
_COPIES = ("aten.clone.default", "aten.copy.default", "aten.contiguous.default", "prims.clone.default")
_STRIDES = re.compile(r"\]\[([\d, ]*)\]")
_CALLED = re.compile(r"\.(contiguous|reshape|flatten|clone|to)\(")


class Passage(Struct, frozen=True, kw_only=True, dict=True):
    """The graphs of one compilation. Keys of mappings: whether it is the backward."""

    program: str
    dynamo: LoggedGraph | None
    joint: LoggedGraph | None
    written: Mapping[bool, LoggedGraph | None]
    after: Mapping[bool, LoggedGraph]
    kernels: tuple[CompiledKernel, ...]
    recomputed: frozenset[str]

    @cached_property
    def checkpoints(self) -> dict[str, str]:
        """By line of a checkpointed function, the line that calls the checkpoint."""
        found: dict[str, str] = {}
        modules = dict(self.dynamo.modules) if self.dynamo is not None else {}
        bodies: dict[str, str] = {}
        for nodes in modules.values():
            for node in nodes:
                if node.op == "get_attr" and node.name in modules:
                    bodies.setdefault(node.name, "")
                if "activation_checkpoint" in node.op:
                    for name in bodies:
                        if not bodies[name] and (name in node.inputs or not node.inputs):
                            bodies[name] = place(node)
        for name, where in bodies.items():
            found |= {place(node): where for node in modules[name] if place(node) and where}
        return found

    def graphs(self) -> Iterator[tuple[bool, LoggedGraph]]:
        """The last graph of each direction."""
        for backward in (False, True):
            graph = self.after.get(backward) or self.written.get(backward)
            if graph is not None:
                yield backward, graph


def place(node: GraphNode) -> str:
    """``file:line`` of a node."""
    return place_of(node.place.file, node.place.line) if node.place is not None else ""


def nodes_of(graph: LoggedGraph) -> tuple[GraphNode, ...]:
    """The nodes of a graph, without subgraphs."""
    return graph.modules[0][1] if graph.modules else ()


def weight_of(passage: Passage) -> float:
    """Bytes of all results, and FLOPs at the rate of `FLOPS_PER_BYTE`."""
    total = 0.0
    for _, graph in passage.graphs():
        known = _known(graph)
        kept = (node for node in nodes_of(graph) if not _FREE.match(node.op))
        total += sum(node_bytes(node) + work(node, known) / FLOPS_PER_BYTE for node in kept)
    return total


def fates_of(passage: Passage) -> Iterator[Fate]:
    """Yield the changes, unsorted."""
    yield from _recomputed(passage)
    yield from _duplicated(passage)
    yield from _converted(passage)
    yield from _transposed(passage)
    yield from _split(passage)
    yield from _materialised(passage)
    yield from _dropped(passage)


def work(node: GraphNode, known: Mapping[str, GraphNode]) -> int:
    """FLOPs of a node: by formula of products, convolutions and attention, else one per element of the result.

    0 of views, copies and conversions, of sizes that are symbols, and of attention without a formula.
    """
    name = node.op.removeprefix("aten.").partition(".")[0]
    sizes = [size for size in node.shape if isinstance(size, int)]
    if (by_formula := node_flops(node, known)) is not None:
        return by_formula
    no_arithmetic = _FREE.match(node.op) or node.op in (*_COPIES, *CONVERTS) or FUSED_ATTENTION.match(name)
    if no_arithmetic or len(sizes) < len(node.shape):
        return 0
    return math.prod(sizes)


def _known(graph: LoggedGraph) -> dict[str, GraphNode]:
    return {node.name: node for node in (*graph.inputs, *nodes_of(graph))}


def _recomputed(passage: Passage) -> Iterator[Fate]:
    graph = passage.after.get(True) or passage.written.get(True)
    if graph is None:
        return
    known, groups = _known(graph), dict[str, Grouped]()
    for node in nodes_of(graph):
        if node.name in passage.recomputed and not _FREE.match(node.op):
            group = groups.setdefault(place(node), Grouped())
            group.add(node.name, bytes_=node_bytes(node), flops=work(node, known), phase="recompute")
    for where, group in groups.items():
        at = passage.checkpoints.get(where, "")
        reason = "the backward computes it again: AOT autograd's partitioner found that cheaper than saving it"
        if at:
            reason = f"the backward computes it again: torch.utils.checkpoint called at {at}"
        if where:
            yield _of("recomputed", passage, where, group, reason, times=2, by="program" if at else "compiler")


def _holders(passage: Passage, known: Mapping[str, GraphNode], backward: bool) -> dict[str, list[str]]:
    """Kernels that compute a node, by its name; for a library call without its readers, which provenance also lists."""
    kernels = [one for one in passage.kernels if (one.direction == "backward") is backward]
    held: dict[str, list[CompiledKernel]] = defaultdict(list)
    for kernel in kernels:
        for name in kernel.nodes:
            held[name].append(kernel)
    found = {}
    for name, every in held.items():
        called = [kernel for kernel in every if kernel.backend == "extern"]
        is_call = bool(called) and name in known and node_flops(known[name], known) is not None
        found[name] = list(dict.fromkeys(one.handle or one.name for one in (called if is_call else every)))
    return found


def _duplicated(passage: Passage) -> Iterator[Fate]:
    for backward, graph in passage.graphs():
        known = _known(graph)
        groups: dict[str, Grouped] = defaultdict(Grouped)
        most: dict[str, int] = defaultdict(int)
        for name, kernels in _holders(passage, known, backward).items():
            node = known.get(name)
            if node is None or len(kernels) < 2 or node.op in CONVERTS or not work(node, known):
                continue
            more = len(kernels) - 1
            most[place(node)] = max(most[place(node)], len(kernels))
            group = groups[place(node)]
            group.add(name, flops=work(node, known) * more, phase=_phase(backward))
            group.kernels |= dict.fromkeys(kernels)
        for where, group in groups.items():
            reason = f"inductor inlined it into each of {most[where]} kernels that read it"
            if where:
                yield _of("duplicated", passage, where, group, reason, times=most[where], by="compiler")


def _converted(passage: Passage) -> Iterator[Fate]:
    seen = set()
    for found in _conversions(passage):
        seen.add((found.place, found.after) if found.phases == ("forward",) else ("", ""))
        yield found
    groups: dict[tuple[str, str, str, str], Grouped] = defaultdict(Grouped)
    for node, old, reason in promotions(passage.dynamo) if passage.dynamo is not None else ():
        if (place(node), node.dtype) not in seen:
            groups[place(node), old, node.dtype or "", reason].add(node.name, bytes_=node_bytes(node), phase="forward")
    for (where, old, new, reason), group in groups.items():
        yield _of("converted", passage, where, group, reason, before=old, after=new)


def _conversions(passage: Passage) -> Iterator[Fate]:
    for backward, graph in passage.graphs():
        known = _known(graph)
        gradients = {node.name for node in nodes_of(graph)} - passage.recomputed if backward else set()
        reasons = conversion_reasons(passage.dynamo, graph, gradients)
        groups: dict[tuple[str, str, str, str], Grouped] = defaultdict(Grouped)
        for node in nodes_of(graph):
            if node.op in CONVERTS and node.inputs and node.dtype:
                old = known[node.inputs[0]].dtype or "" if node.inputs[0] in known else ""
                if old and old != node.dtype and "float" in old and "float" in node.dtype:
                    group = groups[place(node), old, node.dtype, reasons[node.name]]
                    group.add(node.name, bytes_=node_bytes(node), phase=_phase_of(passage, node, backward))
                    kernels = (one.name for one in passage.kernels if node.name in one.nodes)
                    group.kernels |= dict.fromkeys(kernels)
        for (where, old, new, reason), group in groups.items():
            yield _of("converted", passage, where, group, reason, before=old, after=new)


def _transposed(passage: Passage) -> Iterator[Fate]:
    for backward, graph in passage.graphs():
        known = _known(graph)
        written = passage.written.get(backward)
        from_aot = {node.name for node in nodes_of(written)} if written is not None else set(known)
        groups: dict[tuple[str, str, bool, str], Grouped] = defaultdict(Grouped)
        for node in nodes_of(graph):
            if node.op not in _COPIES or not node.inputs:
                continue
            old, new = _strides(graph, node.inputs[0]), _strides(graph, node.name)
            if old and new and old != new:
                phase = _phase_of(passage, node, backward)
                group = groups[place(node), f"{old} -> {new}", node.name in from_aot, phase]
                group.add(node.name, bytes_=node_bytes(node), phase=phase)
                group.kernels |= dict.fromkeys(one.name for one in passage.kernels if node.name in one.nodes)
                if (view := _permuted(known, node)) is not None:
                    group.reasons[f"{view.op.split('.')[1]} at {place(view)}"] = None
        for (where, order, is_aot, phase), group in groups.items():
            called = _CALLED.search(code_at(where) or _dynamo_text(passage, where))
            own = called is not None and phase != "backward" and is_aot
            views = list(group.reasons)
            of = f"the view that {views[0]} makes" if views else "a view in another order"
            reason = f"the op needs its operand in order, and copies {of}"
            if not is_aot:
                reason = "added by inductor's passes, for an op that needs this order"
            elif phase == "backward":
                reason = f"the gradient of a permute: copied for the op that reads it, {of}"
            elif called is not None:
                reason = f"the program's own copy: .{called[1]}() of {of}"
            if phase == "recompute":
                reason = f"{reason}; the backward runs it again"
            old, _, new = order.partition(" -> ")
            yield _of(
                "transposed", passage, where, group, reason, before=old, after=new, by="program" if own else "compiler"
            )
    yield from _layouts(passage)


def _permuted(known: Mapping[str, GraphNode], node: GraphNode) -> GraphNode | None:
    """The permute or transpose that makes the view a copy reads; ``None`` without one."""
    for _ in range(16):
        if not node.inputs or node.inputs[0] not in known:
            return None
        node = known[node.inputs[0]]
        if node.op.startswith(("aten.permute", "aten.transpose", "aten.t.")):
            return node
        if not _FREE.match(node.op):
            return None
    return None


def _maker(known: Mapping[str, GraphNode], name: str) -> GraphNode | None:
    """The node that computes a value, through views; ``None`` for a constant."""
    node = known.get(name)
    while node is not None and _FREE.match(node.op) and node.op != "placeholder":
        node = known.get(node.inputs[0]) if node.inputs else None
    return node


def _layouts(passage: Passage) -> Iterator[Fate]:
    """Kernels of inductor that only copy an operand of a library call to the layout that it needs."""
    groups: dict[tuple[str, str], Grouped] = defaultdict(Grouped)
    for kernel in passage.kernels:
        ops = {op.removeprefix("aten.").partition(".")[0] for op in kernel.ops}
        if kernel.backend != "extern" and ops and ops <= {"convolution", "convolution_backward"}:
            for line in kernel.places:
                group = groups[place_of(line.file, line.line), kernel.direction]
                group.add(kernel.name, kernel=kernel.name, phase=kernel.direction)
    for (where, _), group in groups.items():
        reason = "added by inductor: a kernel that only copies operands of the convolution to its layout"
        yield _of("transposed", passage, where, group, reason, before="as written", after="channels last",
                    by="compiler")  # fmt: skip


def _split(passage: Passage) -> Iterator[Fate]:
    computed, between = list[Computed](), defaultdict[Where, int](int)
    for backward, graph in passage.graphs():
        known = _known(graph)
        holders = {name: set(held) for name, held in _holders(passage, known, backward).items()}
        own: list[Computed] = []
        for name, held in holders.items():
            node = known.get(name)
            if node is None or not work(node, known):
                continue
            where = place(node), _phase_of(passage, node, backward)
            shown = node.op.removeprefix("aten.").partition(".")[0]
            own += [Computed(where=where, op=name, shown=shown, kernel=kernel) for kernel in sorted(held)]
        computed += own
        lines = {item.op: item.where for item in own}
        kernels_of: dict[Where, set[str]] = defaultdict(set)
        for item in own:
            kernels_of[item.where].add(item.kernel)
        passed = {
            made.name for node in nodes_of(graph) for name in node.inputs
            if (made := _maker(known, name)) is not None and made.name in lines and node.name in holders
            and not holders[made.name] & holders[node.name] and holders[node.name] & kernels_of[lines[made.name]]
        }  # fmt: skip
        for name in passed:
            between[lines[name]] += 2 * node_bytes(known[name])
    yield from split(passage.program, computed, between)


def _materialised(passage: Passage) -> Iterator[Fate]:
    for backward, graph in passage.graphs():
        known = _known(graph)
        kernels = [one for one in passage.kernels if (one.direction == "backward") is backward]
        if not kernels or any(not one.nodes for one in kernels):
            continue
        holder = {name: held[-1] for name, held in _holders(passage, known, backward).items()}
        groups: dict[str, Grouped] = defaultdict(Grouped)
        read: dict[str, dict[str, None]] = defaultdict(dict)
        for node in nodes_of(graph):
            for name in node.inputs:
                made = _maker(known, name)
                if made is None or made.op == "placeholder" or made.name not in holder:
                    continue
                kernel = holder[made.name]
                if holder.get(node.name, "") not in ("", kernel) and made.name not in groups[place(made)].names:
                    group = groups[place(made)]
                    phase = _phase_of(passage, made, backward)
                    group.add(made.name, bytes_=2 * node_bytes(made), kernel=kernel, phase=phase)
                    read[place(made)][place(node)] = None
        for where, group in groups.items():
            if where and group.count:
                reason = f"read at {listed([*read[where]][:3])}"
                yield _of("materialised", passage, where, group, reason, by="compiler")


def _dropped(passage: Passage) -> Iterator[Fate]:
    if passage.dynamo is None or not any(passage.written.values()):
        return
    left = {place(node) for graph in passage.written.values() if graph is not None
            for _, nodes in graph.modules for node in nodes}  # fmt: skip
    groups: dict[str, Grouped] = defaultdict(Grouped)
    for _, nodes in passage.dynamo.modules:
        for node in nodes:
            free = node.op in ("get_attr", "getitem", "operator") or "activation_checkpoint" in node.op
            if place(node) and place(node) not in left and not free:
                groups[place(node)].add(node.op, bytes_=node_bytes(node))
    for where, group in groups.items():
        reason = f"{', '.join([*dict.fromkeys(group.names)][:3])}: folded, a view, or unused"
        yield _of("dropped", passage, where, group, reason, by="compiler")


def _dynamo_text(passage: Passage, where: str) -> str:
    """Methods that dynamo recorded at a line, as ``.name(``."""
    modules = passage.dynamo.modules if passage.dynamo is not None else ()
    return " ".join(f".{node.op.rpartition('.')[2]}(" for _, nodes in modules for node in nodes if place(node) == where)


def _strides(graph: LoggedGraph, name: str) -> str:
    match = _STRIDES.search(graph.types.get(name, ""))
    return f"({match[1]})" if match else ""


def _phase(backward: bool) -> str:
    return "backward" if backward else "forward"


def _phase_of(passage: Passage, node: GraphNode, backward: bool) -> str:
    return "recompute" if backward and node.name in passage.recomputed else _phase(backward)


def _of(
    what: What, passage: Passage, where: str, group: Grouped, reason: str, *, times: int = 0, before: str = "",
    after: str = "", by: Literal["program", "compiler"] = "program",
) -> Fate:  # fmt: skip
    return fate(what, passage.program, where, group, reason, times=times, before=before, after=after, by=by)
