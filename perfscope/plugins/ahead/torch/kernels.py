"""From inductor's schedule to the kernels of a plan: members, ops, lines, bytes, FLOPs, refusals."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from perfscope.model.compile_log import ProgramLine
from perfscope.model.documents.torch_plan import (
    MAX_REFUSALS,
    MAX_ROWS,
    KernelKind,
    PlannedGraph,
    PlannedKernel,
    PlannedRefusal,
)
from perfscope.model.kernel_cost import Cost
from perfscope.model.op_flops import FUSED_ATTENTION, PRODUCTS, flops_of
from perfscope.plugins.ahead.torch import compat
from perfscope.plugins.ahead.torch.compiler import ScheduledGraph
from perfscope.profiler.torch.compile_log import kernels_apart
from perfscope.profiler.torch.op_graph.declared import declared_call
from perfscope.profiler.torch.op_graph.frames import Frames

# Pairs of kernels in a planned graph that inductor's scheduler did not fuse, each once with the reason.


NO_SHARED_DATA = "no shared data"
"""The scheduler's reason for unrelated pairs, the most frequent one. It is kept if the second kernel reads a result of
the first in another order."""

FLEX = re.compile(r"triton_tem_\w*flex_(attention|decoding)")
"""Inductor's templates for ``flex_attention``; their masks are unknown, and so are FLOPs."""

_FRAME = re.compile(r'^\s*File "(.+?)", line (\d+), in (.+?)\s*$', re.MULTILINE)
_EXTERN = re.compile(r"^(?:torch\.ops\.)?(?:at::|aten[.:]+|extern_kernels\.)?")


def refusals_of(scheduled: ScheduledGraph, chosen: Sequence[Any]) -> tuple[tuple[PlannedRefusal, ...], int]:
    """(refusals between the kernels ``chosen``, number of further ones)."""
    kernels = {kernel.get_name(): index for index, kernel in enumerate(chosen)}
    apart, _ = kernels_apart(scheduled.scheduler, scheduled.refusals)
    refusals: dict[tuple[int, int, str], PlannedRefusal] = {}
    for pair_apart in apart:
        first, second = kernels.get(pair_apart["first"]), kernels.get(pair_apart["second"])
        if first is None or second is None:
            continue
        if pair_apart["reason"].startswith(NO_SHARED_DATA) and not pair_apart["shared_bytes"]:
            continue
        pair = (min(first, second), max(first, second))
        reason = re.sub(r" at 0x[0-9a-f]+", "", pair_apart["reason"])  # addresses differ between builds
        before = refusals.get((*pair, reason))
        refusals[*pair, reason] = PlannedRefusal(
            first=pair[0],
            second=pair[1],
            reason=reason,
            times=pair_apart["times"] + (before.times if before else 0),
            shared_bytes=max(pair_apart["shared_bytes"] or 0, before.shared_bytes or 0 if before else 0),
            common_read_bytes=max(pair_apart["common_read_bytes"] or 0, before.common_read_bytes or 0 if before else 0),
            needed_elsewhere=_needed_elsewhere(chosen[first], chosen[second]),
        )
    rows = sorted(
        refusals.values(),
        key=lambda row: (-(row.shared_bytes or 0), -(row.common_read_bytes or 0), row.first, row.second, row.reason),
    )
    return tuple(rows[:MAX_REFUSALS]), len(rows[MAX_REFUSALS:]) + scheduled.overflow


def _needed_elsewhere(first: Any, second: Any) -> bool:
    """Whether another reader than the second kernel (or the graph's results) uses a value that it reads."""
    inside = {part.get_name() for kernel in (first, second) for part in kernel.get_nodes()}
    read = {dep.name for dep in second.read_writes.reads}
    for output in first.get_outputs():
        if output.get_name() not in read:
            continue
        users = {user.get_name() for user in output.users if not getattr(user, "is_weak", False)}
        if users - inside:
            return True
    return False


UNCERTAIN_OPS = {
    "convolution": "cuDNN chooses the algorithm of a convolution on the device; layouts may be changed for it",
    "convolution_backward": "cuDNN chooses the algorithm of a convolution on the device; layouts may be changed for it",
    "_scaled_mm": "scaled products were not tried without a device: what scales and layouts the target takes is open",
    "_scaled_grouped_mm": "scaled products were not tried without a device",
    "_grouped_mm": "on the target a grouped product may be a Triton template of inductor's",
    "lstm": "cuDNN runs a whole recurrent layer in its own kernels",
    "gru": "cuDNN runs a whole recurrent layer in its own kernels",
    "mkldnn_rnn_layer": "cuDNN runs a whole recurrent layer in its own kernels",
    "_cudnn_rnn": "cuDNN runs a whole recurrent layer in its own kernels",
}
"""Ops whose kernel torch chooses in C++ on the device, by name: the plan may differ there."""


class KernelReader:
    """Reads scheduled graphs. ``frames`` recognises the user's lines and gives display names of files."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._called_at: ProgramLine | None = None

    def graph(self, scheduled: ScheduledGraph) -> PlannedGraph:
        """A graph as scheduled; bytes by the sizes it was compiled with.

        Kernels of code that is entirely torch's (``nn.Sequential``) are placed at the line that called it.
        """
        site = self._frames.site(sys._getframe())
        self._called_at = None if site.file is None else ProgramLine(file=site.file, line=site.line or 0)
        chosen = [kernel for kernel in scheduled.scheduler.nodes if compat.is_launch(kernel)]
        kernels = tuple(self._kernel(scheduled, kernel) for kernel in chosen)
        refusals, left = refusals_of(scheduled, chosen)
        return PlannedGraph(
            compile_id=scheduled.compile_id,
            direction="backward" if scheduled.backward else "inference" if scheduled.inference else "forward",
            function=None,
            place=None,
            nodes=sum(len(kernel.get_nodes()) for kernel in scheduled.scheduler.nodes),
            kernels=kernels,
            refusals=refusals,
            refusals_left=left,
            dynamic=bool(getattr(scheduled.graph.sizevars, "shape_env", None) and _symbols(scheduled.graph)),
            saved_bytes=scheduled.saved,
            output_bytes=sum(compat.node_bytes(output) for output in scheduled.graph.graph_outputs or ()),
        )

    def _kernel(self, scheduled: ScheduledGraph, kernel: Any) -> PlannedKernel:
        parts = kernel.get_nodes()
        members = tuple(part.get_name() for part in parts)
        origins = _origins(parts)
        name = scheduled.kernel_names.get(members[0])
        if compat.is_collective(kernel):
            return self._collective(kernel, members, origins)
        read, written = int(kernel.get_read_buffer_sizes()), int(kernel.get_write_buffer_sizes())
        if name is not None:
            reduction = any(part.is_reduction() for part in parts)
            own: KernelKind = "foreach" if kernel.is_foreach() else "reduction" if reduction else "pointwise"
            return PlannedKernel(
                name=name,
                kind="attention" if FLEX.match(name) else own,
                members=members,
                ops=_ops(origins),
                places=self.places(origins),
                read_bytes=read,
                written_bytes=written,
                reread_bytes=_reread_bytes(parts) if name.startswith("triton_red") else 0,
                dtype=_dtype(parts),
            )
        return self._extern(kernel, members, origins, read, written)

    def _extern(
        self, kernel: Any, members: tuple[str, ...], origins: Sequence[Any], read: int, written: int
    ) -> PlannedKernel:
        node = kernel.get_nodes()[0].node
        name = str(
            getattr(node, "python_kernel_name", None) or getattr(node, "op_overload", None) or type(node).__name__
        )
        origin = node.get_origin_node() if hasattr(node, "get_origin_node") else None
        short = _EXTERN.sub("", name).split(".")[0]
        if origin is None:
            origin = next((origin for origin in origins if short in str(origin.target)), None)
        flops, dtype, shape = _node_work(origin)
        declared = _declared(origin)
        if declared is not None:
            flops, dtype, shape = declared.total_flops, declared.dtype or dtype, None
            read = read if declared.bytes is None else max(0, declared.bytes - written)
        kind: KernelKind = "product" if short in PRODUCTS else "attention" if FUSED_ATTENTION.search(name) else "extern"
        return PlannedKernel(
            name=name,
            kind=kind,
            members=members,
            ops=_ops([origin] if origin is not None else origins),
            places=self.places([origin] if origin is not None else origins),
            read_bytes=read,
            written_bytes=written,
            flops=flops,
            dtype="float32" if dtype == "tf32" and kind != "product" else dtype,
            shape=shape if kind == "product" else None,
            not_covered=UNCERTAIN_OPS.get(short),
        )

    def _collective(self, kernel: Any, members: tuple[str, ...], origins: Sequence[Any]) -> PlannedKernel:
        """Its bytes and group are with the plan's collectives: no memory traffic is counted here."""
        node = kernel.get_nodes()[0].node
        return PlannedKernel(
            name=str(getattr(node, "python_kernel_name", None) or node.op_overload),
            kind="collective",
            members=members,
            ops=_ops(origins),
            places=self.places(origins),
            read_bytes=0,
            written_bytes=0,
        )

    def places(self, origins: Iterable[Any]) -> tuple[ProgramLine, ...]:
        """The user's innermost line of each node, without duplicates, in the order of file and line."""
        every = (self.place(origin.meta.get("stack_trace")) for origin in origins)
        lines = {(line.file, line.line): line for line in every if line is not None}
        if not lines and self._called_at is not None:
            return (self._called_at,)
        return tuple(lines[line] for line in sorted(lines))[:MAX_ROWS]

    def place_of(self, origins: Iterable[Any]) -> ProgramLine | None:
        """The line of the first node that has one."""
        lines = (self.place(origin.meta.get("stack_trace")) for origin in origins)
        return next((line for line in lines if line is not None), self._called_at)

    def place(self, stack: str | None) -> ProgramLine | None:
        """The user's innermost line in a stack trace given as text."""
        for file, line, function in reversed(_FRAME.findall(stack or "")):
            if self._frames.is_user(file):
                return ProgramLine(file=self._frames.name(file), line=int(line), function=function)
        return None


def _origins(parts: Iterable[Any]) -> list[Any]:
    """Names of the FX graph nodes that a kernel computes."""
    origins = {origin.name: origin for part in parts if part.node is not None for origin in part.node.get_origins()}
    return [origins[name] for name in sorted(origins)]


def _ops(origins: Iterable[Any]) -> tuple[str, ...]:
    """ATen ops of the program: before inductor decomposed them, if known."""
    names = set()
    for origin in origins:
        target = origin.meta.get("original_aten") or origin.target
        name = str(target)
        if name.startswith(("aten.", "prims.")) or "." in name:
            names.add(".".join(name.split(".")[:2]))
    return tuple(sorted(names))


def _reread_bytes(parts: Sequence[Any]) -> int:
    """Upper bound of the bytes read again by passes of a reduction over rows that exceed the chip's memory.

    Each reduction of the program is a pass over the row, and elementwise work another; a buffer is read in every pass
    with a member that reads it.
    """
    outside = {name for part in parts for name in (dep.name for dep in part.read_writes.reads)}
    outside -= {name for part in parts for name in part.get_buffer_names()}
    passes: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for part in parts:
        own = tuple(sorted(origin.name for origin in part.node.get_origins())) if part.is_reduction() else ()
        for name in {dep.name for dep in part.read_writes.reads} & outside:
            passes[name].add(own)
    return sum(compat.read_bytes(name) * (len(reading) - 1) for name, reading in passes.items())


def _dtype(parts: Sequence[Any]) -> str | None:
    """Dtype of the largest result."""
    written = [part.node for part in parts if part.node is not None]
    largest = max(written, key=compat.node_bytes, default=None)
    try:
        return None if largest is None else str(largest.get_dtype()).removeprefix("torch.")
    except Exception:  # a mutation has no layout
        return None


def _node_work(origin: Any) -> tuple[int | None, str | None, str | None]:
    """FLOPs, operand dtype and shape of an FX node's op, if known."""
    schema = getattr(getattr(origin, "target", None), "_schema", None)
    if schema is None:
        return None, None, None
    given = dict(zip((one.name for one in schema.arguments), map(_value, origin.args), strict=False))
    given.update({name: _value(one) for name, one in origin.kwargs.items()})
    result = origin.meta.get("val")
    outputs = result if isinstance(result, (list, tuple)) else [result]
    tensors = [one for one in given.values() if isinstance(one, torch.Tensor)]
    # The last operand of a product is a matrix; of a scaled product the first two, followed by scales; the first of
    # attention is the queries or their gradient, the last may be sums.
    scaled = "_scaled_mm" in str(origin.target)
    decides = tensors[0 if scaled or FUSED_ATTENTION.search(str(origin.target)) else -1] if tensors else None
    dtype = None if decides is None else str(decides.dtype).removeprefix("torch.")
    if dtype == "float32" and torch.get_float32_matmul_precision() != "highest":
        dtype = "tf32"
    try:
        flops = flops_of(str(origin.target), given.get, outputs)
        matrices = tensors[:2] if scaled else [one for one in tensors if one.dim() >= 2][-2:]
        shape = None
        if len(matrices) == 2:
            left, right = ([int(size) for size in one.shape] for one in matrices)
            batch = f"{left[0]}x" if len(left) == 3 else ""
            shape = f"{batch}{left[-2]}x{left[-1]}x{right[-1]}"
        return (None if flops is None else int(flops)), dtype, shape
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # an op called in another form
        return None, dtype, None


def _declared(origin: Any) -> Cost | None:
    """The cost of an FX node's op as its author declared it."""
    if origin is None or not callable(origin.target):
        return None
    arguments, named = torch.fx.map_arg((origin.args, origin.kwargs), _value)
    return declared_call(origin.target, arguments, named, origin.meta.get("val"))


def _value(argument: Any) -> Any:
    return argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument


def _symbols(graph: Any) -> bool:
    """Whether any input has a symbolic size."""
    return any(isinstance(getattr(size, "free_symbols", None), set) and size.free_symbols for size in _inputs(graph))


def _inputs(graph: Any) -> Iterable[Any]:
    for graph_input in graph.graph_inputs.values():
        if type(graph_input).__name__ == "TorchBindObject":  # a process group: not a tensor
            continue
        sizes = graph_input.get_size() if hasattr(graph_input, "get_size") else (graph_input,)
        yield from sizes
