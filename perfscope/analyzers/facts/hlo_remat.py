"""Work that compiled XLA programs do a second time to need less memory.

Two kinds. ``jax.checkpoint`` runs forward again in the backward pass: ``rematted_computation`` stands in the
path of those ops, and of no others. XLA's own rematerialization clones instructions: the metadata keep the
name each had before (``scheduling_name``), so all of a name but one are the recomputation. Names that end in
``.remat`` say little: the original is often gone and its clone is all there is.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from perfscope.analyzers.facts.hlo_program import costs
from perfscope.analyzers.hardware import find_device
from perfscope.analyzers.hlo.cost import InstructionCost, ModuleCost
from perfscope.analyzers.hlo.cost_custom_calls import result_of
from perfscope.analyzers.hlo.cost_phase import phase_of
from perfscope.analyzers.hlo.module import Shape
from perfscope.model.trace import Trace

TYPICAL_DEVICE = "NVIDIA H100 80GB HBM3"
"""Programs name no device; its ratio of arithmetic to bandwidth stands for a training accelerator's."""

_MATRIX_DTYPES = {"f32": "tf32", "bf16": "bfloat16", "f16": "float16", "f8e4m3fn": "fp8", "f8e5m2": "fp8"}
"""XLA's element types as the hardware tables call them; XLA multiplies float32 as TF32 unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """A matrix product that ``jax.checkpoint`` runs again."""

    cost: ModuleCost
    row: InstructionCost

    @property
    def flops(self) -> int:
        """In one run of the module."""
        return self.row.total.flops

    @property
    def result(self) -> Shape:
        """Of the product alone: library calls append scratch memory."""
        return result_of(self.row.instruction)

    @property
    def kept_bytes(self) -> int:
        """Bytes that keeping the results for the backward pass would take."""
        return self.result.bytes * self.row.runs

    @property
    def region(self) -> str:
        """Path of the ``jax.checkpoint`` it is in: all that one call recomputes shares it."""
        return self.row.instruction.op_name.partition("rematted_computation")[0]

    @property
    def is_cheap(self) -> bool:
        """Computing it again costs less than keeping its result.

        On an accelerator: it takes less time than writing the result to memory and reading it back would.
        Products with a short inner dimension are: scores of attention, which blocked attention recomputes.
        On a CPU, whose caches hold much of it, JAX's own policy decides (``dots_with_no_batch_dims_saveable``):
        products with batch dimensions are recomputed, the others kept.
        """
        if self.cost.module.platform == "cpu":
            return self.row.instruction.attributes.get("lhs_batch_dims", "{}") != "{}"
        device = find_device(TYPICAL_DEVICE)
        assert device is not None
        (kind, *_) = self.row.once.products
        peak = device.peak_flops.get(_MATRIX_DTYPES.get(kind.dtype, "float32"), device.peak_flops["float32"])
        seconds = self.row.once.flops / peak
        return seconds < 2 * self.result.bytes / device.memory_bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloned:
    """Launches XLA's own rematerialization added: clones of one instruction, the first left out."""

    cost: ModuleCost
    original: str
    rows: tuple[InstructionCost, ...]

    @property
    def flops(self) -> int:
        """In one run of the module."""
        return sum(row.total.flops for row in self.rows)

    @property
    def bytes(self) -> int:
        """In one run of the module."""
        return sum(row.total.bytes for row in self.rows)


def recomputed_products(trace: Trace) -> tuple[Recomputed, ...]:
    """Matrix products of all programs that run again for the backward pass, in program order."""
    return tuple(
        Recomputed(cost=cost, row=row)
        for cost in trace.fact(costs)
        for row in cost.rows
        if row.instruction.opcode not in ("fusion", "async-start")
        and row.place != "control"
        and row.runs
        and row.once.products
        and phase_of(row.instruction.op_name) == "recompute"
    )


def cloned_instructions(trace: Trace) -> tuple[Cloned, ...]:
    """Instructions that XLA launches more than once to free memory in between, the dearest first."""
    found = []
    for cost in trace.fact(costs):
        named: dict[tuple[str, str], list[InstructionCost]] = defaultdict(list)
        for row in cost.launched:
            if row.instruction.scheduling_name:
                named[row.computation, row.instruction.scheduling_name].append(row)
        found += [
            Cloned(cost=cost, original=name, rows=tuple(rows[1:])) for (_, name), rows in named.items() if len(rows) > 1
        ]
    return tuple(sorted(found, key=lambda one: (-one.flops, -one.bytes, one.original)))
