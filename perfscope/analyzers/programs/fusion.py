"""Values that one kernel of an XLA program writes to memory and other kernels read back.

A round trip could be avoided if the kernels that read a value could be fused with the one that makes it. For a value of
b bytes, made k times per run and read by m such kernels, fusing saves the write and the m reads, ``k * b * (m + 1)``;
if something else needs the value too, the write stays: ``k * b * m``. Matrix products are not computed twice, so a
product whose result something else needs is excluded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from perfscope.analyzers.hlo import (
    CONTROL,
    MOVES_NOTHING,
    PRODUCTS,
    SAME_BUFFER,
    SAME_ORDER,
    UPDATES,
    Computation,
    HloModule,
    Instruction,
    Parts,
    Runs,
    Shape,
    Source,
    compute_ns,
    control_runs,
    fused,
    hlo_costs,
    made_by,
    measured_run_ns,
    module_index,
    program_device,
    sources,
)
from perfscope.analyzers.programs.saving import Part, bytes_ns
from perfscope.model.trace import Trace

L2_BYTES = 50_000_000
"""Level-2 cache of an H100 (NVIDIA H100 white paper v1.04, table 3), because a program's model has no device."""

_SLICES = frozenset({"slice", "dynamic-slice", "gather"})
_UNFUSABLE = frozenset(
    {
        "custom-call", "sort", "fft", "cholesky", "triangular-solve", "rng-bit-generator", "infeed", "outfeed",
        "send", "recv", "topk", "copy-start", "copy-done",
    }
)  # fmt: skip
_FUSING_KINDS = frozenset({"kLoop", "kInput", "kOutput"})
_TRITON = "__triton"
"""``fusion_backend_config.kind`` of elementwise work and reductions; products have ``__triton_gemm`` or similar."""

LAUNCH_NS = 2_000
"""Assumed time from one kernel's end to the next one's start, outside of a CUDA graph."""


class RoundTrip(Struct, frozen=True, kw_only=True):
    """A value that passes through memory between kernels that could be fused."""

    module: HloModule
    computation: str
    """Computation that contains its kernels."""
    producer: Instruction
    consumers: tuple[Instruction, ...]
    """Kernels that could be fused with the producer, in schedule order."""
    bytes: int
    """Bytes of the value."""
    needed_elsewhere: bool
    runs: Runs
    in_cache: bool
    """Whether it fits in an H100's level-2 cache and the next kernel reads it, so that little of it reaches memory."""

    @property
    def saved_bytes(self) -> int:
        """Bytes per run of the module that fusing would save."""
        return self.runs.times * self.bytes * (len(self.consumers) + (not self.needed_elsewhere))

    @property
    def of_product(self) -> bool:
        """Whether the producer is a matrix product: the reader would become its epilogue, which XLA seldom does."""
        return any(instruction.opcode in PRODUCTS for instruction in fused(self.module, self.producer))


class _Value(Struct):
    shape: Shape
    users: list[Instruction] = field(default_factory=list)
    kept: bool = False
    """Whether the computation returns it, or a loop or branch uses it."""


def round_trips(trace: Trace) -> tuple[RoundTrip, ...]:
    """Return the round trips of all GPU programs of the trace, most bytes first."""
    round_trips = [trip for module in trace.hlo if module.platform == "gpu" for trip in round_trips_of(module)]
    return tuple(sorted(round_trips, key=lambda trip: -trip.saved_bytes))


def round_trips_of(module: HloModule) -> Iterator[RoundTrip]:
    """Yield the round trips between the kernels of every computation that runs."""
    for name, runs in control_runs(module).items():
        yield from _of_computation(module, module.computations[name], runs)


def _of_computation(module: HloModule, computation: Computation, runs: Runs) -> Iterator[RoundTrip]:
    order = [instruction for instruction in computation.instructions if instruction.opcode not in MOVES_NOTHING]
    position = {instruction.name: index for index, instruction in enumerate(order)}
    # no fusion crosses a barrier
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
    """Return every value that a launched instruction writes, with its users.

    ``behind``: the computation's `sources`.
    """
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
    """Whether it is a kernel generated by XLA that writes all of its result (unlike an update in place)."""
    if not _is_own_kernel(instruction, products=True):
        return False
    roots = {inner.opcode for inner in _roots(module, instruction)}
    return not roots & (UPDATES | {"dynamic-slice", "slice", "parameter"})


def _can_consume(module: HloModule, instruction: Instruction, slots: Sequence[int]) -> bool:
    """Whether it is an elementwise or reducing kernel that reads all of the value through these operands."""
    if not _is_own_kernel(instruction, products=False):
        return False
    inner = tuple(fused(module, instruction))
    if any(step.opcode in PRODUCTS for step in inner):
        return False
    if instruction.opcode != "fusion":
        return instruction.opcode not in _SLICES | UPDATES
    return all(not _only_sliced(module, instruction, slot) for slot in slots)


def _slots(behind: Mapping[str, Parts], instruction: Instruction, value: Source) -> list[int]:
    """Return the operand numbers of ``instruction`` that are the value or a view of it."""
    return [slot for slot, operand in enumerate(instruction.operands) if behind[operand] == ((value,),)]


def _reduces(module: HloModule, instruction: Instruction) -> bool:
    """Whether a kernel reduces, which needs several tiles of a product: only attention kernels fuse the two."""
    return any(inner.opcode == "reduce" for inner in fused(module, instruction))


def is_softmax(module: HloModule, instruction: Instruction) -> bool:
    """Whether a kernel computes maxima along an axis and exponentials: a softmax, or the backward of one."""
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
    """Return the instructions that make the results: a fusion's root, or the parts of its tuple, through bitcasts."""
    if instruction.opcode != "fusion" or not instruction.called:
        return [instruction]
    body = module.computations[instruction.called[0]]
    roots = [body.root]
    if body.root.opcode == "tuple":
        roots = [body.by_name[name] for name in body.root.operands]
    return [made_by(body, root.name, SAME_ORDER) for root in roots]


def _only_sliced(module: HloModule, instruction: Instruction, slot: int) -> bool:
    """Whether a fusion reads only parts of an operand, or updates it in place."""
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
    """Return the bytes per run of the module: results and operands of every kernel, slices counted as the slice."""
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


# Time that fusing a round trip would save: the memory traffic minus repeated computation.
#
# ``waste = saved_bytes / bandwidth - k (m - 1) * flops(p) / peak``, for a producer p that runs k times and is read by m
# kernels: fused into each of them it is computed m times. Saved launches are shown separately and not counted, because
# XLA records its kernels into CUDA graphs by default, in which a launch is far cheaper.


class TripTime(Struct, frozen=True, kw_only=True):
    """Time of a round trip in one run of the program, in ns; None without a known device."""

    memory_ns: float | None
    """Its bytes at the bandwidth of the device's memory, also if they stay in the cache."""
    again_ns: float | None
    """Arithmetic of the producer for all readers but one."""
    launches_ns: float
    """One launch fewer per run, at ``LAUNCH_NS``; not part of ``saved_ns``."""
    measured_ns: float | None
    """Time of its kernels, if recorded and if nothing else ran at the same time."""
    saved_ns: float | None
    """Modelled upper bound of the saving; 0 if the value stays in the cache or is more expensive to recompute. Not
    limited by ``measured_ns`` yet: `price` prevents saving kernels of several round trips more than once.
    """

    @property
    def is_worse_fused(self) -> bool:
        """Whether recomputing costs at least as much as moving, so that not fusing is right."""
        return self.memory_ns is not None and self.again_ns is not None and self.again_ns >= self.memory_ns


def trip_time(trace: Trace, trip: RoundTrip) -> TripTime:
    """Return the parts of the formula for one round trip."""
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
    """Return the round trip as a part for ``price``."""
    return Part(module=trip.module, instructions=instructions_of(trip), modelled_ns=time.saved_ns)


def instructions_of(trip: RoundTrip) -> tuple[str, ...]:
    """Return the kernels of the round trip."""
    return (trip.producer.name, *(consumer.name for consumer in trip.consumers))
