"""How long XLA thinks that the kernels and collectives of a GPU program take, for its latency-hiding scheduler.

XLA models kernels by the bytes they move and their arithmetic, and looks products and collectives up in tables that
were measured on H100s. What is here was read off what it logs for programs of our own: kernels within a few percent
where their bytes decide, products within a sixth, collectives as its table has them (``hlo_latency_links.py``). A file
does not tell the device, so all times are those of an H100.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.analyzers.advice.hlo_graph import VIEWS, Graph, Node
from perfscope.analyzers.advice.hlo_latency_links import collective_microseconds
from perfscope.analyzers.hardware import named_device
from perfscope.analyzers.hlo.cost import InstructionCost, ModuleCost
from perfscope.analyzers.hlo.module import HloModule, Instruction

_DEVICE = "H100 SXM"
_US = 1e6
_PRODUCT = 5.0
"""Microseconds of a product beside its bytes and its arithmetic at the peak: so 18 products with sides of 256 to 8,192,
bfloat16 throughout, have the times of XLA's table within 15%, and small batched ones are thought twice as long."""
_WIDENED = 50.0
_WIDER = 64 / 0.6
"""Products of bfloat16 that are written in float32 (parts of a long sum) are not in the table. XLA takes others then,
by bytes of the result, and so counts arithmetic 64 times: as if they took 50 microseconds and that at 60% of the peak.
(Five products within 8%.)"""
_ARITHMETIC = 0.25
"""Share of the float32 peak that other arithmetic reaches."""
_HALF = ("bf16", "f16")
_SMALL = 0.01
"""Microseconds of what XLA does not model: loops, kernels of Triton without a product."""
_CALL = 10.0
"""Microseconds of a library call."""


class Clock:
    """Times of one program's instructions, and of what a plan adds to it."""

    def __init__(self, module: HloModule, cost: ModuleCost) -> None:
        self._module = module
        device = named_device(_DEVICE)
        assert device is not None
        self._bandwidth = float(device.memory_bandwidth)
        self._peaks = device.peak_flops
        self._rows = {row.instruction.name: row for row in cost.rows}
        """Names are unique in a module."""

    def times(self, graph: Graph) -> Mapping[tuple[str, str], float]:
        """Microseconds by computation and name; of the end of a collective, those of the collective."""
        return {
            (body.name, node.name): self._time(node, [body.nodes[name] for name in node.operands])
            for body in graph.bodies.values()
            for node in body.nodes.values()
        }

    def _time(self, node: Node, operands: list[Node]) -> float:
        row = self._rows.get(node.like or node.name)
        if node.opcode.endswith("-done"):
            return _SMALL if row is None else self._collective(node, row.instruction)
        if node.opcode in VIEWS or node.opcode.endswith("-start"):
            return 0.0
        if row is not None and not node.like:
            return self._kernel(row)
        moved = self._moved(node, operands)
        return moved if row is None or not row.once.products else moved + self._products(row)

    def _kernel(self, row: InstructionCost) -> float:
        one, cost = row.instruction, row.once
        moved = (cost.bytes_read + cost.bytes_written) / self._bandwidth * _US
        if cost.products and one.opcode != "while":
            return moved + self._products(row)
        if one.opcode == "custom-call":
            return _CALL
        if one.opcode != "fusion" or self._is_opaque(one):
            return _SMALL
        if any(part.opcode == "scatter" for part in self._module.computations[one.called[0]].instructions):
            moved = max(moved, 2 * one.shape.bytes / self._bandwidth * _US)  # XLA counts all of what it updates
        return max(moved, cost.flops / (_ARITHMETIC * self._peaks["float32"]) * _US)

    def _is_opaque(self, one: Instruction) -> bool:
        """A kernel that XLA gives no time: Triton's, without a product."""
        return one.fusion_kind not in ("kLoop", "kInput") and not self._rows[one.name].once.products

    def _products(self, row: InstructionCost) -> float:
        widened = self._is_widened(row.instruction)
        microseconds = _WIDENED if widened else _PRODUCT
        for product, flops in row.once.products.items():
            peak = self._peaks["bfloat16" if product.dtype in _HALF else "tf32"]
            microseconds += flops / peak * _US * (_WIDER if widened else 1.0)
        return microseconds

    def _is_widened(self, one: Instruction) -> bool:
        """Whether a product, or the one in a kernel, reads half precision and writes float32."""
        inside = self._module.computations[one.called[0]].instructions if one.opcode == "fusion" else (one,)
        return any(
            part.opcode == "dot" and part.shape.dtype == "f32" and product.dtype in _HALF
            for part in inside
            for product in self._rows[part.name].once.products
        )

    def _moved(self, node: Node, operands: list[Node]) -> float:
        """Of a kernel that a plan adds: it reads its operands and writes its result, or a part of a stack."""
        updated = {slot for _, slot in node.updates}
        read = [one.bytes for at, one in enumerate(operands) if at not in updated]
        if node.updates:
            moved = 2 * sum(read)
        elif any(one.is_scalar for one in operands):
            moved = 2 * node.bytes  # a layer's part, by the loop's counter
        else:
            moved = sum(read) + node.bytes
        return moved / self._bandwidth * _US

    def _collective(self, node: Node, one: Instruction) -> float:
        """``one``: the end of the collective, or of the one that it is like."""
        begin = self._rows[one.operands[0]].instruction
        kind = begin.opcode.removesuffix("-start")
        if begin.opcode == "async-start" and begin.called:
            begin = self._module.computations[begin.called[0]].root
            kind = begin.opcode
        groups = begin.replica_groups
        devices = max(map(len, groups)) if groups else self._module.num_partitions * self._module.num_replicas
        whole = node.bytes * (devices if kind == "reduce-scatter" else 1)
        return collective_microseconds(kind, whole, devices)
