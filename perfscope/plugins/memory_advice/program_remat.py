"""Work that compiled XLA programs repeat to save memory.

Two kinds. ``jax.checkpoint`` runs forward work again in the backward pass: only those ops have ``rematted_computation``
in their path. XLA's own rematerialization clones instructions: the metadata keep the earlier name of each
(``scheduling_name``), so that all of one name but one are recomputation. Names that end in ``.remat`` are unreliable:
often the original was removed and only its clone remains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.devices import find_device, roofline
from perfscope.analyzers.hlo import (
    ASSUMED,
    HloModule,
    InstructionCost,
    ModuleCost,
    ProgramDevice,
    Schedule,
    Shape,
    arena_of,
    compute_ns,
    costs,
    device_memory_bytes,
    phase_of,
    program_device,
    result_of,
    roof_of,
)
from perfscope.analyzers.programs import Part, bytes_ns, price, program_timelines
from perfscope.model.finding import Cell
from perfscope.model.memory import MemoryTimeline
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes
from perfscope.plugins.memory_advice.jax_layers import STACK_TRAFFIC, layer_loops

USABLE_SHARE = {"gpu": 0.75, "tpu": 0.9}
"""Share of the device's memory that JAX takes on a GPU by default (``XLA_PYTHON_CLIENT_MEM_FRACTION``); a TPU reserves
some for the system."""

SAME_ASSIGNED, SAME_MODELLED = 0.01, 0.05
"""Relative differences of peaks that count as equal: alignment, if XLA assigned them; else the model's error."""


class Recomputed(Struct, frozen=True, kw_only=True):
    """A matrix product that ``jax.checkpoint`` runs again."""

    cost: ModuleCost
    row: InstructionCost

    @property
    def flops(self) -> int:
        """FLOPs in one run of the module."""
        return self.row.total.flops

    @property
    def result(self) -> Shape:
        """Bytes of the product's result without the scratch memory that library calls append."""
        return result_of(self.row.instruction)

    @property
    def kept_bytes(self) -> int:
        """Bytes needed to keep the results for the backward pass."""
        return self.result.bytes * self.row.runs

    @property
    def region(self) -> str:
        """Path of its ``jax.checkpoint``, shared by everything that one call recomputes."""
        return self.row.instruction.op_name.partition("rematted_computation")[0]

    @property
    def is_cheap(self) -> bool:
        """Whether computing it again costs less than keeping its result.

        On an accelerator: it takes less time than writing the result to memory and reading it back. This holds for
        products with a short inner dimension, such as scores of attention, which blocked attention recomputes. On a
        CPU, whose caches hold much of it, JAX's policy decides (``dots_with_no_batch_dims_saveable``): products with
        batch dimensions are recomputed, the others kept.
        """
        if self.cost.module.platform == "cpu":
            return self.row.instruction.attributes.get("lhs_batch_dims", "{}") != "{}"
        device = find_device(ASSUMED["gpu"])  # its ratio of arithmetic to bandwidth represents other devices
        assert device is not None
        (kind, *_) = self.row.once.products
        arithmetic = roofline.flops_ns(device, self.row.once.flops, kind.dtype)
        if arithmetic is None:
            arithmetic = roofline.vector_ns(device, self.row.once.flops)
        return arithmetic < roofline.bytes_ns(device, 2 * self.result.bytes)


class Cloned(Struct, frozen=True, kw_only=True):
    """Launches added by XLA's own rematerialization: clones of one instruction, without the first."""

    cost: ModuleCost
    original: str
    rows: tuple[InstructionCost, ...]

    @property
    def flops(self) -> int:
        """FLOPs in one run of the module."""
        return sum(row.total.flops for row in self.rows)

    @property
    def bytes(self) -> int:
        """Bytes in one run of the module."""
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
    """Instructions that XLA launches repeatedly to free memory in between, most expensive first."""
    clones = []
    for cost in trace.fact(costs):
        named: dict[tuple[str, str], list[InstructionCost]] = defaultdict(list)
        for row in cost.launched:
            if row.instruction.scheduling_name:
                named[row.computation, row.instruction.scheduling_name].append(row)
        clones += [
            Cloned(cost=cost, original=name, rows=tuple(rows[1:])) for (_, name), rows in named.items() if len(rows) > 1
        ]
    return tuple(sorted(clones, key=lambda cloned: (-cloned.flops, -cloned.bytes, cloned.original)))


# Benefit of recomputation in a compiled program: how much higher the peak would be without it, and whether that fits.
#
# Recomputed values are added back, alive from the forward op that makes them to the backward op that needs them, onto
# the program's memory curve (assigned by XLA, else modelled). The difference of the peaks is the benefit; the peak
# relative to the device's memory decides whether it was needed.


class Bought(Struct, frozen=True, kw_only=True):
    """The benefit of recomputation, in bytes."""

    peak: int
    """Peak of the program as it is."""
    without: int
    """Peak if all of the considered values were kept."""
    assigned: bool
    """``peak`` was assigned by XLA, else modelled."""
    usable: int | None
    """Bytes of the device that a program may use; ``None`` if the device or its size is unknown."""
    device: str
    """Display name: ``'H100 SXM (assumed)'``; empty if unknown."""
    limit_known: bool = False
    """``usable`` is the limit of the program's own allocator."""

    @property
    def lowers_the_peak(self) -> bool:
        """Whether the peak would be higher without recomputation."""
        same = SAME_ASSIGNED if self.assigned else SAME_MODELLED
        return self.without > (1 + same) * self.peak

    @property
    def is_needed(self) -> bool:
        """Whether the program would not fit without recomputation."""
        return self.usable is not None and self.without > self.usable

    @property
    def reason(self) -> str | None:
        """Why it is excessive: ``peak elsewhere`` or ``room``; ``None`` if it is not known to be."""
        if self.is_needed:
            return None
        if not self.lowers_the_peak:
            return "peak elsewhere"
        return None if self.usable is None else "room"

    def text(self) -> str:
        """One or two sentences of advice."""
        assigned = "is assigned" if self.assigned else "is modelled to need"
        start = f"The program {assigned} {format_bytes(self.peak)} at its peak"
        if not self.lowers_the_peak and not self.is_needed:
            return f"{start}, and keeping the results leaves it there: the peak is elsewhere."
        with_all = f"{start}, and {format_bytes(self.without)} with the results kept"
        if self.usable is None:
            return f"{with_all}; the memory of the device is not known."
        of_device = f" of {self.device}" if self.device else ""
        room = f"{format_bytes(self.usable)} that " + (
            f"the run's allocator may take{of_device}"
            if self.limit_known
            else f"a JAX program gets{of_device} unless told otherwise"
        )
        fits = "more than" if self.is_needed else "within"
        return f"{with_all}: {fits} the {room}."

    def cells(self) -> dict[str, Cell]:
        """Cells of a row of evidence."""
        return {
            "reason": self.reason,
            "peak_bytes": self.peak,
            "peak_without_bytes": self.without,
            "usable_bytes": self.usable,
        }


def bought_by_checkpoint(trace: Trace, cost: ModuleCost, products: Sequence[Recomputed]) -> Bought | None:
    """Benefit of the products that ``jax.checkpoint`` repeats in one program; ``None`` if it is not scheduled."""
    schedule = Schedule(cost.module)
    spans = []
    for product in products:
        span = _position(schedule, cost, product.row.computation, product.row.instruction.name)
        if span is not None:
            spans.append((_forward(schedule, cost, product, span), span[1], product.kept_bytes))
    return _bought(trace, cost, spans)


def _bought(trace: Trace, cost: ModuleCost, spans: Sequence[tuple[int, int, int]]) -> Bought | None:
    timeline = timeline_of(trace, cost.module)
    if timeline is None:
        return None
    starts, ends, sizes = np.array([span for span in spans if span[1] > span[0]], np.int64).reshape(-1, 3).T
    known = trace.fact(program_device)
    return Bought(
        peak=timeline.peak()[1],
        without=timeline.live().plus(starts, ends, sizes).peak()[1],
        assigned=cost.module.buffer_assignment is not None,
        usable=usable_bytes(trace, cost.module),
        device="" if known is None else known.label(),
        limit_known=_limit(trace) is not None,
    )


def usable_bytes(trace: Trace, module: HloModule) -> int | None:
    """Bytes of the device's memory that a program may use.

    The limit of the run's allocator, else a share of the device's memory as recorded, requested or in the catalogue.
    """
    share = USABLE_SHARE.get(module.platform or "")
    if share is None:
        return None
    limit = _limit(trace)
    if limit is not None:
        return limit
    known: ProgramDevice | None = trace.fact(program_device)
    size = device_memory_bytes(trace) or (None if known is None else known.device.memory_bytes)
    return int(share * size) if size else None


def _limit(trace: Trace) -> int | None:
    """The limit of a run's allocator on its device (`bytes_limit`)."""
    return None if trace.allocator_counters is None else trace.allocator_counters.limit_bytes or None


def timeline_of(trace: Trace, module: HloModule) -> MemoryTimeline | None:
    """The memory of one program; ``None`` if it is not scheduled."""
    with_timeline = [scheduled for scheduled in trace.hlo if scheduled.is_scheduled or arena_of(scheduled) is not None]
    pairs = zip(with_timeline, trace.fact(program_timelines), strict=False)
    return next((timeline for scheduled, timeline in pairs if scheduled is module), None)


def _position(schedule: Schedule, cost: ModuleCost, computation: str, name: str) -> tuple[int, int] | None:
    """First and last position in the entry of an instruction, of its kernel, or of the loop around it."""
    while computation not in schedule.computations:
        holder = next((row for row in cost.rows if computation in row.instruction.called), None)
        if holder is None:
            return None
        computation, name = holder.computation, holder.instruction.name
    position = schedule.positions[name]
    for instruction in cost.module.entry_computation().instructions:
        if schedule.begins[instruction.name] <= position <= schedule.positions[instruction.name]:
            return schedule.begins[instruction.name], schedule.positions[instruction.name] + 1
    return position, position + 1


def _forward(schedule: Schedule, cost: ModuleCost, again: Recomputed, span: tuple[int, int]) -> int:
    """Where the forward computes a recomputed value: the first earlier product with the same result and primitive."""
    shape, primitive = _type(again.result), again.row.instruction.op_name.rpartition("/")[2]
    positions = [
        span_before[0]
        for row in cost.rows
        if row.once.products
        and row.instruction.op_name.rpartition("/")[2] == primitive
        and _type(row.instruction.shape) == shape
        and phase_of(row.instruction.op_name) == "forward"
        for span_before in (_position(schedule, cost, row.computation, row.instruction.name),)
        if span_before is not None and span_before[0] <= span[0]
    ]
    return min(positions, default=span[0])


def _type(shape: Shape) -> tuple[str, tuple[int, ...]]:
    return shape.dtype, tuple(size for size in sorted(shape.dims) if size > 1)


# Time of recomputation: measured if the instructions were recorded, else their roof on the device.


def recomputed_parts(trace: Trace, products: Iterable[Recomputed]) -> list[Part]:
    """Products that ``jax.checkpoint`` runs again, for ``price``; each kernel once, whatever it contains.

    A kernel whose name marks it as recomputation counts entirely. For a kernel with other work, the product's
    arithmetic at the device's peak counts, but no more than the kernel's time.
    """
    holders, parts = trace.fact(_holders), {}
    known = trace.fact(program_device)
    for product in products:
        kernel = product.row
        if kernel.place == "inside":
            kernel = holders[id(product.cost)].get(kernel.computation, kernel)
        whole = kernel is product.row or phase_of(kernel.instruction.op_name) == "recompute"
        if whole:
            parts[id(kernel)] = _whole(trace, product.cost, kernel)
        else:
            once = None if known is None else compute_ns(product.row.once, known.device)
            modelled = None if once is None else once * product.row.runs
            parts[id(product)] = Part(
                module=product.cost.module, instructions=(kernel.instruction.name,), modelled_ns=modelled
            )
    return list(parts.values())


def cloned_parts(trace: Trace, clones: Iterable[Cloned]) -> list[Part]:
    """Kernels added by XLA's own rematerialization, for ``price``."""
    return [_whole(trace, clone.cost, row) for clone in clones for row in clone.rows]


def part_ns(trace: Trace, parts: Iterable[Part]) -> float | None:
    """Time of the parts in one run of the program, measured or modelled; None if neither is known."""
    cost = price(trace, parts)
    return None if cost is None else cost.run_ns


def ns_a_mib(spent_ns: float | None, kept_bytes: int) -> float | None:
    """Time lost per MiB that keeping the values would take; None if no time is known or nothing is kept."""
    return None if spent_ns is None or not kept_bytes else spent_ns / (kept_bytes / (1 << 20))


def _whole(trace: Trace, cost: ModuleCost, row: InstructionCost) -> Part:
    known = trace.fact(program_device)
    modelled = None if known is None else roof_of(row, known.device).roof_ns * row.runs
    return Part(module=cost.module, instructions=(row.instruction.name,), modelled_ns=modelled, whole=True)


def _holders(trace: Trace) -> Mapping[int, Mapping[str, InstructionCost]]:
    """By ``id`` of a program's cost: the launched instruction that contains each computation inside fusions."""
    return {
        id(cost): {
            name: row for row in cost.rows if row.place == "launched" for name in _inside(cost, row.instruction.called)
        }
        for cost in trace.fact(costs)
    }


def _inside(cost: ModuleCost, called: Iterable[str]) -> Iterator[str]:
    for name in called:
        yield name
        body = cost.module.computations.get(name)
        for inner in body.instructions if body is not None else ():
            if inner.called and inner.opcode in ("fusion", "async-start", "call"):
                yield from _inside(cost, inner.called)


# Cost of keeping a result that a loop over layers recomputes: room in a stack, and writing and reading it.


def storing_part(trace: Trace, products: Sequence[Recomputed]) -> Part | None:
    """Cost of keeping the results of one program's products, for ``price``: its time is negative.

    ``None`` if they are not in a loop over layers, or no time is known.
    """
    loops = trace.fact(_backward_loops).get(id(products[0].cost), frozenset()) if products else ()
    size = sum(product.kept_bytes for product in products if product.row.computation in loops)
    taken = bytes_ns(trace, STACK_TRAFFIC * size)
    return Part(module=products[0].cost.module, instructions=(), modelled_ns=-taken) if taken else None


def _backward_loops(trace: Trace) -> Mapping[int, frozenset[str]]:
    """By ``id`` of a program's cost: the computations of the backward of loops over layers."""
    loops = {}
    for cost in trace.fact(costs):
        if cost.module.is_scheduled:
            layers = layer_loops(cost.module, Schedule(cost.module))
            loops[id(cost)] = frozenset[str]().union(*(loop.backward_in for loop in layers))
    return loops
