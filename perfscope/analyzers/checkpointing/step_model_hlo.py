"""The step of a compiled JAX program as values with a lifetime, and what each checkpoint policy makes of its layers.

The blocks are those of XLA's buffer assignment, so today's peak is XLA's own. What a policy changes is estimated from
the program (``jax_layers/estimate.py``) and not by the general rules of ``simulate.py``: a compiler fuses, and moves
what it can. The exact number is the compiler's (``verified.py``). How far estimates are from programs compiled with
the policy is in docs/memory.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from perfscope.analyzers.checkpointing.jax_layers.estimate import WORDS, Bound, bound_of, estimated_spans, notes_on
from perfscope.analyzers.checkpointing.jax_layers.layers import STACK_TRAFFIC, Kept, Layers, backward_body, reached
from perfscope.analyzers.checkpointing.jax_layers.recompute import (
    Keeps,
    again_of,
    nothing,
    read_again_bytes,
    runs_again,
    unbatched_products,
)
from perfscope.analyzers.checkpointing.jax_layers.unrolled import layers_of
from perfscope.analyzers.checkpointing.program_remat import timeline_of
from perfscope.analyzers.checkpointing.simulate import Simulator
from perfscope.analyzers.checkpointing.step_model import Change, Policy, Region, StepModel, Value
from perfscope.analyzers.hlo.buffers import arena_of
from perfscope.analyzers.hlo.cost.module import InstructionCost, ModuleCost, hlo_costs
from perfscope.analyzers.hlo.executions import executions
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.hlo.program import program_label
from perfscope.analyzers.hlo.program_device import device_memory_bytes, program_device
from perfscope.analyzers.hlo.scope import scope_of
from perfscope.analyzers.hlo.views import REPEATED, SAME_ORDER, fusions_of
from perfscope.analyzers.programs.saving import bytes_ns, once_ns
from perfscope.model.finding import AbstainError
from perfscope.model.memory import MemoryTimeline
from perfscope.model.trace import Trace
from perfscope.model.trace.tables import MemoryCategory


def hlo_step_models(trace: Trace) -> tuple[StepModel, ...]:
    """One model for each program with layers, in the order of ``trace.hlo``; ``AbstainError`` where there is none."""
    models = []
    for index, module in enumerate(trace.hlo):
        if not module.is_scheduled or arena_of(module) is None:
            continue
        program = _Program(trace, index)
        if program.layers:
            models.append(program.model())
    if not models:
        raise AbstainError(_why_none(trace))
    return tuple(models)


def _why_none(trace: Trace) -> str:
    if not trace.hlo:
        return "no compiled XLA program"
    if all(arena_of(module) is None for module in trace.hlo):
        return (
            "the compiled programs carry no buffer assignment (HLO text has none): record with perfscope run, or dump "
            "with --xla_dump_hlo_as_proto"
        )
    return (
        "no layers found in the compiled programs: neither a loop over layers whose backward is a loop as well "
        "(jax.lax.scan), nor numbered scopes (jax.named_scope) with a forward and a backward"
    )


class _Program:
    """One module of a trace, with what is asked of it more than once."""

    def __init__(self, trace: Trace, index: int) -> None:
        module = trace.hlo[index]
        self._trace = trace
        self._index = index
        self._module = module
        self._flow = Flow(module)
        self._schedule = Schedule(module)
        self._cost: ModuleCost = trace.fact(hlo_costs)[index]
        self._times = trace.fact(once_ns)
        self._fusions = fusions_of(module)
        self.layers = layers_of(self._flow, self._schedule)
        timeline = timeline_of(trace, module)
        assert timeline is not None  # it has a buffer assignment
        self._timeline = timeline

    def model(self) -> StepModel:
        """The step as it is, with what each policy would change."""
        timeline = self._timeline
        held_by_category = _held_bytes(timeline)
        device = self._trace.fact(program_device)
        regions = tuple(self._region(layers) for layers in self.layers)
        measured = self._index in self._trace.fact(executions)
        model = StepModel(
            label=program_label(self._module, self._trace),
            values=_values_of(timeline),
            regions=regions,
            length=timeline.last + 1,
            parameter_bytes=held_by_category[MemoryCategory.PARAMETER],
            gradient_bytes=0,
            optimizer_bytes=held_by_category[MemoryCategory.OPTIMIZER_STATE],
            other_bytes=held_by_category[MemoryCategory.UNKNOWN],
            gradients_in_values=True,
            step_ns=self._sum_ns(self._cost.launched),
            basis="measured" if measured else "modelled",
            capacity_bytes=device_memory_bytes(self._trace),
            framework="jax",
            device_name=None if device is None else device.device.name,
            on_host=self._module.platform == "cpu",
            measured_peak_bytes=timeline.peak()[1],
            world_size=self._module.num_partitions,
        )
        bound = bound_of(
            single=bool(self.layers[0].scope), checkpointed=any(region.today != "keep" for region in regions)
        )
        return replace(model, notes=self._notes(model, bound), peak_margin=bound.margin)

    def _notes(self, model: StepModel, bound: Bound) -> tuple[str, ...]:
        """How far to trust the peaks of each policy for all layers."""
        simulator = Simulator(model)
        others = [
            policy
            for policy in WORDS
            if all(region.offers(policy) and region.today != policy for region in model.regions)
        ]
        peaks = {policy: simulator.run([policy] * len(model.regions)).peak_bytes for policy in others}
        return notes_on(peaks, bound, checkpointed=any(region.today != "keep" for region in model.regions))

    def _region(self, layers: Layers) -> Region:
        today = self._today(layers)
        changes: list[tuple[Policy, Change]] = []
        if today == "keep":
            products = unbatched_products(self._flow)
            changes = [
                ("keep", Change(spans=(), recompute_ns=0, recomputed=0)),
                *self._less("selective", layers, products),
                *self._less("full", layers, nothing),
            ]
        else:
            changes = [
                ("keep", self._more(layers)),
                (today, Change(spans=(), recompute_ns=self._again_ns(layers), recomputed=len(self._again(layers)))),
            ]
        return Region(
            name=layers.name,
            group=layers.group,
            forward=layers.forward,
            backward=layers.backward,
            input_bytes=0,
            today=today,
            changes=tuple(changes),
        )

    def _less(self, policy: Policy, layers: Layers, keeps: Keeps) -> Iterator[tuple[Policy, Change]]:
        """Less kept, of layers that keep everything today; nothing where it cannot be estimated."""
        if keeps_in_loops(self._flow, self.layers, keeps):
            return
        again = again_of(self._flow, layers, keeps)
        size = sum(self._flow.values[number].instruction.shape.bytes for number in again.kept)
        more = layers.count * size - sum(kept_value.bytes for kept_value in layers.kept)
        yield (
            policy,
            Change(
                spans=estimated_spans(self._flow, layers, again.kept, self._schedule, self._timeline),
                recompute_ns=self._sum_ns(self._kernels(again.launched, layers)),
                recomputed=len(again.launched),
                stored_ns=self._stored_ns(layers, more),
            ),
        )

    def _stored_ns(self, layers: Layers, size: int) -> int:
        """Time that keeping ``size`` bytes more takes in the stacks of a loop; nothing without a loop."""
        return 0 if layers.scope else round(bytes_ns(self._trace, STACK_TRAFFIC * size) or 0.0)

    def _more(self, layers: Layers) -> Change:
        """Everything kept, of layers that are checkpointed today: what their backward reads of what it makes again."""
        size = self._read_again(layers)
        spans = ((layers.forward[0], layers.backward[1], size),)
        return Change(spans=spans, recompute_ns=0, recomputed=0, stored_ns=self._stored_ns(layers, size))

    def _read_again(self, layers: Layers) -> int:
        """Bytes that the backward reads of what it computes again."""
        body = backward_body(self._module, self._schedule, layers)
        size = layers.count * read_again_bytes(self._module, self._flow, body, layers.scope)
        if layers.scope:
            # jax.checkpoint keeps its inputs, parts of stacked weights among them, which need no copy without it
            return size - sum(kept_value.bytes for kept_value in layers.kept if self._is_slice(kept_value))
        # the backward needs what is computed from the kept products, and seldom the products themselves
        products = unbatched_products(self._flow)
        return size - sum(kept_value.bytes for kept_value in layers.kept if self._is_kept_product(kept_value, products))

    def _today(self, layers: Layers) -> Policy:
        if not self._again(layers):
            return "keep"
        products = unbatched_products(self._flow)
        return "selective" if any(self._is_kept_product(kept_value, products) for kept_value in layers.kept) else "full"

    def _is_kept_product(self, kept: Kept, products: Keeps) -> bool:
        """Whether what is kept is the result of a product, behind casts and other layouts."""
        waiting, seen = [kept.number], set[int]()
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            value = self._flow.values[number]
            if products(number):
                return True
            if not value.carried and (value.names or value.instruction.opcode in REPEATED | {"slice"}):
                waiting.extend(value.names or value.operands)
        return False

    def _is_slice(self, kept: Kept) -> bool:
        """Whether what is kept is a part of a larger array."""
        (number, *_) = self._flow.back([kept.number])
        while self._flow.opcode(number) in SAME_ORDER:
            (number, *_) = self._flow.back(self._flow.values[number].operands[:1])
        return self._flow.opcode(number) in ("slice", "dynamic-slice")

    def _again(self, layers: Layers) -> list[InstructionCost]:
        """Kernels of the layers' backward that run the layers' forward again."""
        inside = reached(self._module, backward_body(self._module, self._schedule, layers))
        return [
            row
            for row in self._cost.launched
            if row.computation in inside
            and runs_again(row.instruction.op_name, loops=not layers.scope)
            and scope_of(row.instruction.op_name).path[: len(layers.scope)] == layers.scope
        ]

    def _again_ns(self, layers: Layers) -> int:
        return self._sum_ns(self._again(layers)) or 0

    def _kernels(self, numbers: Iterable[int], layers: Layers) -> list[InstructionCost]:
        """The kernels that compute values, but for those that only keep them."""
        kernels: dict[tuple[str, str], InstructionCost] = {}
        for number in numbers:
            value = self._flow.values[number]
            computation, name = value.computation.name, value.instruction.name
            while computation in self._fusions:
                holder, fusion = self._fusions[computation]
                computation, name = holder.name, fusion.name
            row = self._cost.by_name.get((computation, name))
            if row is not None and row.place == "launched" and name not in layers.takers:
                kernels[computation, name] = row
        return list(kernels.values())

    def _sum_ns(self, rows: Iterable[InstructionCost]) -> int:
        total = 0.0
        for row in rows:
            total += self._times.get((self._index, row.computation, row.instruction.name), 0.0) * row.runs
        return round(total)


def keeps_in_loops(flow: Flow, layers: Sequence[Layers], keeps: Keeps) -> bool:
    """Whether a policy keeps something of loops within the layers: a turn at a time, which is not estimated."""
    nested = frozenset().union(*(layer.nested for layer in layers))
    return any(keeps(number) for number, value in enumerate(flow.values) if value.computation.name in nested)


def _held_bytes(timeline: MemoryTimeline) -> dict[MemoryCategory, int]:
    """Bytes held from the first position to the last: parameters, optimizer state, and all else as ``UNKNOWN``."""
    sizes = {MemoryCategory.PARAMETER: 0, MemoryCategory.OPTIMIZER_STATE: 0, MemoryCategory.UNKNOWN: 0}
    blocks = timeline.blocks
    for row in range(len(blocks["bytes"])):
        if _lasts(timeline, row):
            category = MemoryCategory(int(blocks["category"][row]))
            sizes[category if category in sizes else MemoryCategory.UNKNOWN] += int(blocks["bytes"][row])
    return sizes


def _lasts(timeline: MemoryTimeline, row: int) -> bool:
    blocks = timeline.blocks
    return bool(blocks["start"][row] <= timeline.first and blocks["end"][row] > timeline.last)


def _values_of(timeline: MemoryTimeline) -> tuple[Value, ...]:
    """Blocks that do not last, none of which any layer makes again by general rules."""
    blocks = timeline.blocks
    return tuple(
        Value(
            bytes=int(blocks["bytes"][row]),
            birth=int(blocks["start"][row]),
            death=int(blocks["end"][row]),
            last_forward_use=int(blocks["start"][row]),
            kind="other",
            region=None,
            needed_by=frozenset(),
            cost_ns=0,
            gradient=blocks["category"][row] == MemoryCategory.GRADIENT,
        )
        for row in range(len(blocks["bytes"]))
        if not _lasts(timeline, row)
    )
