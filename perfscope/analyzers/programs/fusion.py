"""Values that one kernel of an XLA program writes to memory for other kernels to read back.

A round trip could be saved where the kernels that read a value could be one kernel with the one that
makes it. For a value of b bytes, made k times a run and read by m such kernels, fusing saves the write and
the m reads, ``k * b * (m + 1)``; where something else needs the value too, the write stays: ``k * b * m``.
Matrix products are not computed twice, so one whose result something else needs is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from perfscope.analyzers.hlo.cost.module import hlo_costs
from perfscope.analyzers.hlo.cost.products import PRODUCTS
from perfscope.analyzers.hlo.executions import measured_run_ns, module_index
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction, Shape
from perfscope.analyzers.hlo.program import CONTROL, Runs, control_runs, fused
from perfscope.analyzers.hlo.program_device import program_device
from perfscope.analyzers.hlo.roofline import compute_ns
from perfscope.analyzers.hlo.views import (
    MOVES_NOTHING,
    SAME_BUFFER,
    SAME_ORDER,
    UPDATES,
    Parts,
    Source,
    made_by,
    sources,
)
from perfscope.analyzers.programs.saving import Part, bytes_ns
from perfscope.model.trace import Trace

L2_BYTES = 50_000_000
"""An H100's level-2 cache (NVIDIA H100 white paper v1.04, table 3). The model of a program names no device."""

_SLICES = frozenset({"slice", "dynamic-slice", "gather"})
_UNFUSABLE = frozenset(
    {
        "custom-call", "sort", "fft", "cholesky", "triangular-solve", "rng-bit-generator", "infeed", "outfeed",
        "send", "recv", "topk", "copy-start", "copy-done",
    }
)  # fmt: skip
_FUSING_KINDS = frozenset({"kLoop", "kInput", "kOutput"})
_TRITON = "__triton"
"""``fusion_backend_config.kind`` of elementwise work and reductions; a product's is ``__triton_gemm`` or alike."""


class RoundTrip(Struct, frozen=True, kw_only=True):
    """A value through memory between kernels that could be one."""

    module: HloModule
    computation: str
    """The one that holds its kernels."""
    producer: Instruction
    consumers: tuple[Instruction, ...]
    """Those that could be fused with the producer, in schedule order."""
    bytes: int
    """Of the value."""
    needed_elsewhere: bool
    runs: Runs
    in_cache: bool
    """It fits in an H100's level-2 cache and the next kernel reads it: little of it reaches memory."""

    @property
    def saved_bytes(self) -> int:
        """Bytes in a run of the module that fusing would not move."""
        return self.runs.times * self.bytes * (len(self.consumers) + (not self.needed_elsewhere))

    @property
    def of_product(self) -> bool:
        """The producer is a matrix product: fusing makes the reader its epilogue, which XLA seldom does itself."""
        return any(instruction.opcode in PRODUCTS for instruction in fused(self.module, self.producer))


class _Value(Struct):
    shape: Shape
    users: list[Instruction] = field(default_factory=list)
    kept: bool = False
    """The computation returns it, or a loop or branch takes it."""


def round_trips(trace: Trace) -> tuple[RoundTrip, ...]:
    """Round trips of all GPU programs of the trace, most bytes first."""
    round_trips = [trip for module in trace.hlo if module.platform == "gpu" for trip in round_trips_of(module)]
    return tuple(sorted(round_trips, key=lambda trip: -trip.saved_bytes))


def round_trips_of(module: HloModule) -> Iterator[RoundTrip]:
    """Round trips between the kernels of every computation that runs."""
    for name, runs in control_runs(module).items():
        yield from _of_computation(module, module.computations[name], runs)


def _of_computation(module: HloModule, computation: Computation, runs: Runs) -> Iterator[RoundTrip]:
    order = [instruction for instruction in computation.instructions if instruction.opcode not in MOVES_NOTHING]
    position = {instruction.name: index for index, instruction in enumerate(order)}
    # nothing is fused across a barrier
    behind = sources(
        computation, lambda instruction: instruction.operands[0] if instruction.opcode == "bitcast" else None
    )
    for (name, part), value in _values(computation, behind).items():
        producer = computation.by_name[name]
        if not value.users or not _can_produce(module, producer) or value.shape.memory_space:
            continue
        able = tuple(user for user in value.users if _can_consume(module, user, _slots(behind, user, (name, part))))
        product = any(instruction.opcode in PRODUCTS for instruction in fused(module, producer))
        if product:
            able = tuple(
                instruction
                for instruction in able
                if not _reduces(module, instruction) or is_softmax(module, instruction)
            )
        elsewhere = value.kept or len(able) < len(value.users)
        if not able or (product and elsewhere):
            continue
        size = value.shape.bytes
        yield RoundTrip(
            module=module,
            computation=computation.name,
            producer=producer,
            consumers=able,
            bytes=size,
            needed_elsewhere=elsewhere,
            runs=runs,
            in_cache=size <= L2_BYTES and position[able[0].name] == position[name] + 1,
        )


def _values(computation: Computation, behind: Mapping[str, Parts]) -> dict[Source, _Value]:
    """Every value a launched instruction writes, with who uses it; ``behind``: the computation's `sources`."""
    values: dict[Source, _Value] = {}
    for instruction in computation.instructions:
        for part in behind[instruction.name]:
            for source in part:
                if source[0] == instruction.name:
                    values[source] = _Value(instruction.shape.parts[source[1][0]] if source[1] else instruction.shape)
        if instruction.opcode in ("bitcast", "get-tuple-element"):
            continue
        for source in (source for operand in instruction.operands for part in behind[operand] for source in part):
            value = values[source]
            if instruction.opcode in MOVES_NOTHING or instruction.opcode in CONTROL:
                value.kept = True
            elif not value.users or value.users[-1] is not instruction:
                value.users.append(instruction)
    for source in (source for part in behind[computation.root.name] for source in part):
        values[source].kept = True
    return values


def _can_produce(module: HloModule, instruction: Instruction) -> bool:
    """A kernel of XLA's own making that writes all of its result (an update in place does not)."""
    if not _is_own_kernel(instruction, products=True):
        return False
    roots = {inner.opcode for inner in _roots(module, instruction)}
    return not roots & (UPDATES | {"dynamic-slice", "slice", "parameter"})


def _can_consume(module: HloModule, instruction: Instruction, slots: Sequence[int]) -> bool:
    """An elementwise or reducing kernel that reads all of the value, which these operands are."""
    if not _is_own_kernel(instruction, products=False):
        return False
    inner = tuple(fused(module, instruction))
    if any(step.opcode in PRODUCTS for step in inner):
        return False
    if instruction.opcode != "fusion":
        return instruction.opcode not in _SLICES | UPDATES
    return all(not _only_sliced(module, instruction, slot) for slot in slots)


def _slots(behind: Mapping[str, Parts], instruction: Instruction, value: Source) -> list[int]:
    """Operand numbers of ``instruction`` that are the value or a view of it."""
    return [slot for slot, operand in enumerate(instruction.operands) if behind[operand] == ((value,),)]


def _reduces(module: HloModule, instruction: Instruction) -> bool:
    """A reduction needs results of several tiles of a product: only attention kernels fuse the two."""
    return any(inner.opcode == "reduce" for inner in fused(module, instruction))


def is_softmax(module: HloModule, instruction: Instruction) -> bool:
    """Whether a kernel takes maxima along an axis and exponentials: a softmax, or the backward of one."""
    inner = tuple(fused(module, instruction))
    largest = any(
        step.opcode == "reduce" and module.computations[step.called[0]].root.opcode == "maximum"
        for step in inner
        if step.called
    )
    return largest and any(step.opcode == "exponential" for step in inner)


def _is_own_kernel(instruction: Instruction, *, products: bool) -> bool:
    if instruction.opcode == "fusion":
        kind = _fusion_backend(instruction)
        return instruction.fusion_kind in _FUSING_KINDS or kind == _TRITON or (products and kind.startswith(_TRITON))
    name = instruction.opcode.removesuffix("-start").removesuffix("-done")
    collective = name.startswith(("all-", "collective-", "reduce-scatter", "ragged-all", "async"))
    return instruction.opcode not in MOVES_NOTHING | CONTROL | _UNFUSABLE and not collective


def _fusion_backend(instruction: Instruction) -> str:
    config = instruction.backend_config.get("fusion_backend_config")
    kind = config.get("kind") if isinstance(config, Mapping) else None
    return kind if isinstance(kind, str) else ""


def _roots(module: HloModule, instruction: Instruction) -> list[Instruction]:
    """What makes the results: of a fusion its root, or the parts of its tuple, behind bitcasts."""
    if instruction.opcode != "fusion" or not instruction.called:
        return [instruction]
    body = module.computations[instruction.called[0]]
    roots = [body.root]
    if body.root.opcode == "tuple":
        roots = [body.by_name[name] for name in body.root.operands]
    return [made_by(body, root.name, SAME_ORDER) for root in roots]


def _only_sliced(module: HloModule, instruction: Instruction, slot: int) -> bool:
    """Whether a fusion reads parts of an operand only, or updates it in place."""
    body = module.computations[instruction.called[0]]
    behind = sources(body)
    wanted = next((inner.name for inner in body.instructions if inner.parameter_number == slot), "")

    def reads(name: str) -> bool:
        return any(source[0] == wanted for part in behind[name] for source in part)

    readers = [
        inner
        for inner in body.instructions
        if (inner.opcode not in SAME_BUFFER or inner is body.root) and any(map(reads, inner.operands))
    ]
    return bool(readers) and all(
        inner.opcode in _SLICES or (inner.opcode in UPDATES and reads(inner.operands[0])) for inner in readers
    )


def touched_bytes(module: HloModule) -> int:
    """Bytes in a run of the module: results and operands of every kernel, slices counted as the slice."""
    total = 0
    for name, runs in control_runs(module).items():
        computation = module.computations[name]
        for instruction in computation.instructions:
            if (
                instruction.opcode in MOVES_NOTHING
                or instruction.opcode in CONTROL
                or instruction.opcode.endswith("-done")
            ):
                continue
            in_place = any(root.opcode in UPDATES for root in _roots(module, instruction))
            written = 0 if in_place else instruction.shape.bytes
            total += runs.times * (
                written + sum(_read(module, computation, instruction, s) for s in range(len(instruction.operands)))
            )
    return total


def _read(module: HloModule, computation: Computation, instruction: Instruction, slot: int) -> int:
    size = computation.by_name[instruction.operands[slot]].shape.bytes
    if instruction.opcode == "fusion":
        return (
            min(size, instruction.shape.bytes)
            if instruction.called and _only_sliced(module, instruction, slot)
            else size
        )
    return min(size, instruction.shape.bytes) if instruction.opcode in _SLICES and slot == 0 else size


# Time that fusing across a round trip would save: the memory traffic, less what is computed twice.
#
# ``waste = saved_bytes / bandwidth - k (m - 1) * flops(p) / peak``, for a producer p that runs k times and is read by
# m kernels: fused into each of them it is computed m times. Launches that go are a separate addend: XLA records its
# kernels into CUDA graphs by default, where one costs far less than outside, so they are shown and not counted.


LAUNCH_NS = 2_000
"""An assumption: from one kernel's end to the next one's start, outside a CUDA graph."""


class TripTime(Struct, frozen=True, kw_only=True):
    """Time of a round trip in one run of the program, in ns; None where no device is known."""

    memory_ns: float | None
    """Its bytes at the bandwidth of the device's memory, also where they stay in the cache."""
    again_ns: float | None
    """Arithmetic of the producer for every reader but one."""
    launches_ns: float
    """One launch fewer each time, at ``LAUNCH_NS``; not in ``saved_ns``."""
    measured_ns: float | None
    """What its kernels took, where that was recorded and nothing else ran beside them."""
    saved_ns: float | None
    """What fusing saves at most by the model; 0 where the value stays in the cache or costs more to compute again.
    Not limited by ``measured_ns`` yet: kernels of several round trips are not saved several times."""

    @property
    def is_worse_fused(self) -> bool:
        """Computing it again costs as much as moving it: rightly not fused."""
        return self.memory_ns is not None and self.again_ns is not None and self.again_ns >= self.memory_ns


def trip_time(trace: Trace, trip: RoundTrip) -> TripTime:
    """The parts of the formula for one round trip."""
    known = trace.fact(program_device)
    memory, again = bytes_ns(trace, trip.saved_bytes), None
    if known is not None:
        cost = trace.fact(hlo_costs)[module_index(trace, trip.module)]
        once = compute_ns(cost.by_name[trip.computation, trip.producer.name].once, known.device)
        again = None if once is None else trip.runs.times * (len(trip.consumers) - 1) * once
    saved = None
    if memory is not None and again is not None:
        saved = 0.0 if trip.in_cache else max(0.0, memory - again)
    return TripTime(
        memory_ns=memory,
        again_ns=again,
        launches_ns=LAUNCH_NS * trip.runs.times,
        measured_ns=measured_run_ns(trace, trip.module, instructions_of(trip)),
        saved_ns=saved,
    )


def part_of(trip: RoundTrip, time: TripTime) -> Part:
    """The round trip as something that ``price`` can add up."""
    return Part(module=trip.module, instructions=instructions_of(trip), modelled_ns=time.saved_ns)


def instructions_of(trip: RoundTrip) -> tuple[str, ...]:
    """The kernels between which the value goes."""
    return (trip.producer.name, *(consumer.name for consumer in trip.consumers))
