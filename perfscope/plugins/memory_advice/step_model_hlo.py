"""The step of a compiled JAX program as values with a lifetime, and the effect of each checkpoint policy on its layers.

The blocks are those of XLA's buffer assignment, so today's peak is XLA's own. The effect of a policy is estimated from
the program: activations that wait for their backward are dropped or kept, kernels of the layers' forward run again. XLA
schedules and fuses the changed program anew, which is not modelled; the exact number comes from the compiler
(``verified.py``). docs/memory.md compares estimates with programs compiled with the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.hlo import (
    InstructionCost,
    ModuleCost,
    Schedule,
    arena_of,
    device_memory_bytes,
    executions,
    hlo_costs,
    program_device,
    program_label,
)
from perfscope.analyzers.programs import bytes_ns, once_ns
from perfscope.model.finding import AbstainError
from perfscope.model.memory import MemoryTimeline
from perfscope.model.trace import Trace
from perfscope.model.trace.tables import MemoryCategory
from perfscope.model.units import format_bytes
from perfscope.plugins.memory_advice.jax_layers import (
    STACK_TRAFFIC,
    Layers,
    forward_work,
    holds_product,
    layers_of,
    runs_again,
    takes_a_kernel,
)
from perfscope.plugins.memory_advice.program_remat import timeline_of
from perfscope.plugins.memory_advice.simulate import Simulator
from perfscope.plugins.memory_advice.step_model import Change, Policy, Region, StepModel, Value

# Errors of estimated peaks relative to programs that XLA compiled with the policy, by kind.
#
# The numbers come from the table in docs/memory.md, which ``benchmarks/memory_plans_jax.py`` prints.

WORDS: dict[Policy, str] = {
    "keep": "keeping everything",
    "selective": "checkpointing selectively",
    "full": "checkpointing",
}
NOT_ESTIMATED = "no other checkpoint policy of the program can be estimated"
NO_NAMES = (
    "policies by name (save_only_these_names) are not estimated: checkpoint_name leaves no trace in a compiled program"
)
FROM_KEPT = (
    "layers are checkpointed today: the memory for keeping everything is estimated from the backward's reads of "
    "values it computes again; other policies than keeping everything are not estimated from such a program"
)
EXACT = (
    "compiling a policy gives its exact number: perfscope compile --target NAME --sweep checkpoint=none,dots,full "
    "PROGRAM (docs/compile-sweeps.md)"
)

COMPILED = (
    "the peak of each policy for all layers is that of the program compiled with it; for some of the layers it is "
    "interpolated evenly"
)


class Bound(Struct, frozen=True, kw_only=True):
    """Errors of the estimates of one kind: estimated over compiled, less 1. Not every error is within the bounds."""

    kind: str
    """Description of the kind."""
    programs: int
    """Estimates that were compared with a compiled program."""
    low: float
    high: float

    @property
    def margin(self) -> float:
        """Share of an estimate by which the compiled program may exceed it, at worst."""
        return max(0.0, 1 / (1 + self.low) - 1)

    def between(self, estimated: int) -> tuple[int, int]:
        """Range of the compiled program's peak, from the worst of these errors. Bytes."""
        return round(estimated / (1 + self.high)), round(estimated / (1 + self.low))

    def sentence(self, estimated: Mapping[str, int]) -> str:
        """The expected error in words; ``estimated``: peaks in bytes, by policy in words."""
        ranges = ", ".join(
            f"{policy} {format_bytes(low)} to {format_bytes(high)}"
            for policy, size in estimated.items()
            for low, high in (self.between(size),)
        )
        return (
            f"the peak of another policy is estimated from this program: {self.programs} such estimates ({self.kind}) "
            f"were between {self.low:+.0%} and {self.high:+.0%} of what XLA compiled with the policy; that makes "
            f"{ranges} (docs/memory.md)"
        )


LOOP_LESS = Bound(kind="less kept for the layers of a loop", programs=24, low=-0.116, high=0.925)
LOOP_ALL = Bound(kind="everything kept for the layers of a loop", programs=27, low=-0.293, high=0.799)
SINGLE_LESS = Bound(kind="less kept for layers with a scope each", programs=14, low=-0.017, high=1.116)
SINGLE_ALL = Bound(kind="everything kept for layers with a scope each", programs=15, low=-0.062, high=0.672)


def exact_notes(notes: tuple[str, ...], *, complete: bool) -> tuple[str, ...]:
    """Notes on estimates (`notes_on`) after policies were compiled; ``complete``: all estimated ones were."""
    kept = notes[1:] if complete else notes
    return (COMPILED, *(note for note in kept if note != EXACT))


def bound_of(*, single: bool, checkpointed: bool) -> Bound:
    """The bound of a program: by whether each layer has a scope, and whether it is checkpointed today."""
    if single:
        return SINGLE_ALL if checkpointed else SINGLE_LESS
    return LOOP_ALL if checkpointed else LOOP_LESS


def notes_on(peaks: Mapping[Policy, int], bound: Bound, *, checkpointed: bool) -> tuple[str, ...]:
    """Reliability of the estimates, starting with the peaks.

    ``peaks``: bytes of each policy other than today's, for all layers.
    """
    words = {WORDS[policy]: size for policy, size in peaks.items()}
    notes = [bound.sentence(words) if words else NOT_ESTIMATED, NO_NAMES]
    if checkpointed:
        notes.append(FROM_KEPT)
    return (*notes, EXACT)


def hlo_step_models(trace: Trace) -> tuple[StepModel, ...]:
    """One model per program with layers, in the order of ``trace.hlo``; ``AbstainError`` without such a program."""
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
    """One module of a trace, with cached properties."""

    def __init__(self, trace: Trace, index: int) -> None:
        module = trace.hlo[index]
        self._trace = trace
        self._index = index
        self._module = module
        self._cost: ModuleCost = trace.fact(hlo_costs)[index]
        self._times = trace.fact(once_ns)
        self.layers = layers_of(module, Schedule(module))
        timeline = timeline_of(trace, module)
        assert timeline is not None  # it has a buffer assignment
        self._timeline = timeline

    def model(self) -> StepModel:
        """The current step, with the changes of each policy."""
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
            single=not self.layers[0].is_loop, checkpointed=any(region.today != "keep" for region in regions)
        )
        return replace(model, notes=self._notes(model, bound), peak_margin=bound.margin)

    def _notes(self, model: StepModel, bound: Bound) -> tuple[str, ...]:
        """Reliability of the peaks of each policy for all layers."""
        simulator = Simulator(model)
        others = [
            policy
            for policy in WORDS
            if all(region.offers(policy) and region.today != policy for region in model.regions)
        ]
        peaks = {policy: simulator.run([policy] * len(model.regions)).peak_bytes for policy in others}
        return notes_on(peaks, bound, checkpointed=any(region.today != "keep" for region in model.regions))

    def _region(self, layers: Layers) -> Region:
        again = layers.kernels_again(self._cost)
        today: Policy = "keep"
        if again:
            today = "full" if any(holds_product(self._module, row) for row in again) else "selective"
        changes: list[tuple[Policy, Change]] = [(today, self._change(again))]
        if again:
            changes.append(("keep", self._more(layers, again)))
        else:
            changes += [("selective", self._less(layers, products=True)), ("full", self._less(layers, products=False))]
        return Region(
            name=layers.name,
            group=layers.group,
            forward=layers.forward,
            backward=layers.backward,
            input_bytes=0,
            today=today,
            changes=tuple(changes),
        )

    def _change(
        self, again: Iterable[InstructionCost], spans: Iterable[tuple[int, int, int]] = (), stored: int = 0
    ) -> Change:
        """``again``: kernels that run again. ``stored``: additional bytes that go through a loop's stacks."""
        rows = list(again)
        return Change(
            spans=tuple(span for span in spans if span[1] > span[0] and span[2]),
            recompute_ns=self._sum_ns(rows),
            recomputed=len(rows),
            stored_ns=round(bytes_ns(self._trace, STACK_TRAFFIC * stored) or 0.0),
        )

    def _less(self, layers: Layers, *, products: bool) -> Change:
        """Keep only the layers' inputs, and with ``products`` the results of products with weights.

        Activations that wait for the layers' backward are dropped; during a layer's backward its own exist again.
        """
        work = forward_work(layers, self._cost)
        kept = layers.count * layers.input_bytes + (_result_bytes(work.summed) if products else 0)
        blocks = list(self._waiting(layers))
        first, last = layers.backward
        spans = [(layers.forward[0] if layers.is_loop else layers.forward[1], last, kept)]
        for start, end, size in blocks:
            if layers.is_loop:
                spans += [(start, end, -size), (first, end, size // layers.count)]
            else:
                spans += [(layers.forward[1], first, -size), (last, end, -size)]
        more = kept - sum(size for _, _, size in blocks) if layers.is_loop else 0
        others = [row for row in work.others if takes_a_kernel(self._module, row)]
        return self._change(others if products else (*others, *work.products), spans, more)

    def _more(self, layers: Layers, again: Iterable[InstructionCost]) -> Change:
        """Keep everything in layers that are checkpointed today: the results of the currently repeated work."""
        size = _result_bytes(again)
        return self._change((), [(layers.forward[0], layers.backward[1], size)], size if layers.is_loop else 0)

    def _waiting(self, layers: Layers) -> Iterator[tuple[int, int, int]]:
        """Start, end and bytes of the blocks that the forward of the layers makes for their backward."""
        blocks = self._timeline.blocks
        start, end = blocks["start"], blocks["end"]
        chosen = (blocks["category"] == MemoryCategory.ACTIVATION) & (start < layers.forward[1])
        chosen &= end > layers.backward[0]
        chosen &= end <= layers.backward[1] if layers.is_loop else start >= layers.forward[0]
        for row in np.flatnonzero(chosen).tolist():
            yield int(start[row]), int(end[row]), int(blocks["bytes"][row])

    def _sum_ns(self, rows: Iterable[InstructionCost]) -> int:
        keys = ((self._index, row.computation, row.instruction.name) for row in rows)
        return round(sum(self._times.get(key, 0.0) * self._cost.by_name[key[1:]].runs for key in keys))


def _result_bytes(rows: Iterable[InstructionCost]) -> int:
    """Bytes that kernels write over all their runs."""
    return sum(row.once.bytes_written * row.runs for row in rows)


# Repeated arithmetic of a compiled program, today and with another checkpoint policy.


def recomputed_flops(trace: Trace, index: int) -> int:
    """FLOPs per run that a program computes again for its backward."""
    phases = trace.fact(hlo_costs)[index].phases
    return phases["recompute"].flops if "recompute" in phases else 0


def predicted_recompute(trace: Trace, index: int, policy: Policy) -> int | None:
    """Predicted `recomputed_flops` with ``policy`` for all layers; ``None`` if no prediction is made for the policy.

    If fewer values are kept than now, the additional repetition counts; if everything is kept, only the repetition that
    layers do by themselves, in inner loops.
    """
    module, cost = trace.hlo[index], trace.fact(hlo_costs)[index]
    layers = layers_of(module, Schedule(module))
    if not layers or policy == "offload":
        return None
    if policy == "keep":
        return sum(
            row.total.flops
            for row in cost.rows
            if "rematted_computation" in row.instruction.op_name
            and not runs_again(row.instruction.op_name, loops=layers[0].is_loop)
            and row.instruction.opcode not in ("fusion", "while", "call", "get-tuple-element")
        )
    works = [forward_work(layer, cost) for layer in layers]
    again = [row for work in works for row in (*work.others, *(work.products if policy == "full" else ()))]
    return recomputed_flops(trace, index) + sum(row.total.flops for row in again)


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
    """Blocks that do not last, none of which the general rules recompute."""
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
