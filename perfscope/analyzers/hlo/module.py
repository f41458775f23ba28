"""The model of an optimized or unoptimized HLO module, independent of the file format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct, field

if TYPE_CHECKING:
    from perfscope.analyzers.hlo.parse.thunks import Thunks

Platform = Literal["cpu", "gpu", "tpu"]

ITEM_BITS: Mapping[str, int] = MappingProxyType(
    {
        "pred": 8, "s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16,
        "s32": 32, "u32": 32, "s64": 64, "u64": 64, "f4e2m1fn": 4, "f8e3m4": 8, "f8e4m3": 8, "f8e4m3b11fnuz": 8,
        "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0fnu": 8, "f6e2m3fn": 6, "f6e3m2fn": 6,
        "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128, "token": 0, "opaque": 0,
    }
)  # fmt: skip
"""Bits per element; element types in the notation of HLO text."""

MAX_TEXT_BYTES = 512 << 20
"""Decompressed bytes of a module's text, printed literals included: the largest dumps known are tens of MB."""

MAX_PROTO_BYTES = 128 << 20
"""Decompressed bytes of a module's proto. Parsing takes up to 30 times the size of a malicious one."""

MIN_INSTRUCTION_BYTES = 10
"""Minimum bytes of an instruction in the proto: name, opcode, shape and id take more."""

MAX_INSTRUCTIONS = 2_000_000
"""Instructions of a module: each takes about 2 kB in the model, and the largest programs known have 10^5."""

MAX_RANK = 64
"""Dimensions of an array; XLA's own kernels have far fewer."""

MAX_DIMENSION = 2**63 - 1
"""XLA keeps sizes in 64 signed bits."""

MAX_TUPLE_DEPTH = 64
"""Depth of nested tuples."""

MAX_GROUP_IDS = 1 << 22
"""Total device ids in a module's replica groups, counted once per notation: 4,096 notations with 1,024 devices."""

MAX_CALL_DEPTH = 200
"""Depth of nested calls; recursive code over a module stays far from the stack's limit."""

_TOKEN = re.compile(
    r"\s*+(?:/\*.*?\*/\s*+)?(?:([(),])|([a-z][a-z0-9]*+)\[([^\]]*+)\](?:\{((?:[^{}]++|\{[^{}]*+\})*+)\})?)"
)

_SPACE = re.compile(r"S\((\d{1,18})\)")

_LAYOUT = re.compile(r"\d{1,3}(?:,\d{1,3})*")


# ``backend_config``: a backend's notes about an instruction, as parsed JSON.


def json_object(text: str | bytes) -> Mapping[str, Any]:
    """Parse a backend's configuration as JSON; empty if it is not a JSON object (MLIR text, raw protos)."""
    if not text:
        return {}
    try:
        result = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return result if isinstance(result, dict) else {}


def trip_count(config: Mapping[str, Any]) -> int | None:
    """Return ``known_trip_count`` of a while's configuration; ``None`` if unknown."""
    known = config.get("known_trip_count")
    count = known.get("n") if isinstance(known, dict) else None
    if isinstance(count, str) and count.isdecimal() and len(count) < 20:
        return int(count)
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


class Shape(Struct, frozen=True, kw_only=True):
    """Shape of a value: an array, or a tuple of shapes (then ``dtype`` is ``'tuple'``)."""

    dtype: str
    dims: tuple[int, ...] = ()
    layout: tuple[int, ...] | None = None
    """Dimensions from minor to major, if written."""
    memory_space: int = 0
    """0 is HBM; others as the target numbers them (``S(1)`` on TPU is VMEM, ``S(5)`` host memory)."""
    parts: tuple[Shape, ...] = ()
    """Parts of a tuple."""

    @property
    def elements(self) -> int:
        """Elements of an array; for a tuple, the sum over its parts."""
        if self.dtype == "tuple":
            return sum(part.elements for part in self.parts)
        count = 1
        for size in self.dims:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """Bytes of the value, without padding; for a tuple, the sum over its parts."""
        if self.dtype == "tuple":
            return sum(part.bytes for part in self.parts)
        return -(-self.elements * ITEM_BITS[self.dtype] // 8)


class Instruction(Struct, frozen=True, kw_only=True):
    """One instruction. ``operands`` are names in the same computation, ``called`` names of computations."""

    name: str
    opcode: str
    """In the notation of HLO text: ``dot``, ``fusion``, ``all-gather-start``, ``custom-call`` and so on."""
    shape: Shape
    operands: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    """Fusion body, while condition and body, reduction, branches, async body, in written order."""
    is_root: bool = False
    op_name: str = ""
    """The framework's path, such as ``jit(step)/transpose(jvp(mlp))/dot_general``."""
    file: str | None = None
    line: int | None = None
    lines: tuple[tuple[str, int], ...] = ()
    """Files and lines of the user's calls, from the outermost one to this op's; empty if the file has no frames."""
    scheduling_name: str = ""
    """Name before rematerialization cloned it (GPU)."""
    wraps: str = ""
    """For an asynchronous start, the name of the operation it runs, which GPU profiles use. HLO text lacks it."""
    fusion_kind: str | None = None
    """``kLoop``, ``kInput``, ``kOutput``, ``kCustom``."""
    custom_call_target: str | None = None
    parameter_number: int | None = None
    value: int | None = None
    """For a constant that is a single 32-bit integer, as in loop counters. For others, see `literal`."""
    is_zero: bool = False
    """Whether it is a constant scalar 0 in floating point, as masks use."""
    literal: str = ""
    """For a constant: equal for equal values within one file; empty if the text omits the value."""
    replica_groups: tuple[tuple[int, ...], ...] | None = None
    """Groups of partition or replica ids, written out; None for all devices, or if it is not a collective."""
    channel_id: int | None = None
    trip_count: int | None = None
    """For a ``while``, if the trip count is written or follows from its counter."""
    backend_config: Mapping[str, Any] = field(default_factory=dict)
    """Parsed JSON; empty if it is missing or not a JSON object."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Every other attribute as text: ``lhs_contracting_dims`` -> ``{1}``, ``window``, ``dim_labels`` and so on."""


class Computation(Struct, frozen=True, kw_only=True):
    """A computation; its instructions are in schedule order if the module is scheduled."""

    name: str
    instructions: tuple[Instruction, ...]
    by_name: Mapping[str, Instruction]

    @property
    def root(self) -> Instruction:
        """The instruction whose value the computation returns."""
        return next((instruction for instruction in self.instructions if instruction.is_root), self.instructions[-1])


class LogicalBuffer(Struct, frozen=True, kw_only=True):
    """A value's buffer as XLA assigned it."""

    id: int
    instruction: str
    size: int
    allocation: int | None = None
    offset: int | None = None
    index: tuple[int, ...] = ()
    """Part of the tuple that the instruction makes."""


class HeapEvent(Struct, frozen=True, kw_only=True):
    """One event of the heap simulator's trace, in schedule order."""

    kind: Literal["alloc", "free", "share_with"]
    buffer: int
    instruction: str
    share_with: int | None = None


class BufferAllocation(Struct, frozen=True, kw_only=True):
    """A block of device memory that holds buffers."""

    index: int
    size: int
    is_parameter: bool = False
    is_constant: bool = False
    is_thread_local: bool = False
    maybe_live_out: bool = False
    memory_space: int = 0
    """0 is HBM (the host's memory on CPU); others as the target numbers them."""
    buffers: tuple[int, ...] = ()


class BufferAssignment(Struct, frozen=True, kw_only=True):
    """Location and lifetime of every buffer; only HloProto has it."""

    buffers: Mapping[int, LogicalBuffer]
    allocations: tuple[BufferAllocation, ...]
    heap_traces: tuple[tuple[HeapEvent, ...], ...] = ()


class Alias(Struct, frozen=True, kw_only=True):
    """An output in the memory of a parameter that the caller donated."""

    output: tuple[int, ...]
    """Part of the root's tuple; empty for all of it."""
    parameter: int
    part: tuple[int, ...] = ()
    """Part of the parameter, if that is a tuple."""


class HloModule(Struct, frozen=True, kw_only=True):
    """A module: computations by name, one of them the entry."""

    name: str
    entry: str
    computations: Mapping[str, Computation]
    is_scheduled: bool = False
    num_partitions: int = 1
    num_replicas: int = 1
    platform: Platform | None = None
    """Platform it was compiled for, from its instructions or from a profile; None if unknown (before optimization, and
    for many CPU programs).
    """
    architecture: str | None = None
    """For a GPU program, the target cores (``gfx950``, ``sm_90``), from the name of its dump."""
    buffer_assignment: BufferAssignment | None = None
    source: str = ""
    """File or plane that contained it."""
    program_id: int | None = None
    """Number of the program in its process, by which a profile refers to it (unsigned: two's complement)."""
    aliases: tuple[Alias, ...] = ()
    """Donated parameters with the outputs that use their memory."""
    donors: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Donated parameters, or parts of them, whose memory no output uses."""
    fusion_refusals: Mapping[str, str] = field(default_factory=dict)
    """XLA's reason for not fusing a kernel into its readers, by the kernel's name before fusions were renamed; empty
    without a dump of the priority-fusion pass next to the module.
    """
    thunks: Thunks | None = None
    """Launches by XLA's GPU runtime; None without a thunk sequence next to the module."""

    def entry_computation(self) -> Computation:
        """The computation that is run."""
        return self.computations[self.entry]

    def instructions(self) -> Iterator[tuple[Computation, Instruction]]:
        """Every instruction of every computation."""
        for computation in self.computations.values():
            for instruction in computation.instructions:
                yield computation, instruction

    def content(self) -> frozenset[tuple[object, ...]]:
        """Its instructions without its own name and formatting: equal for two copies of one program."""
        return frozenset(
            (
                computation.name,
                instruction.name,
                instruction.opcode,
                instruction.shape.dtype,
                instruction.shape.dims,
                instruction.operands,
            )
            for computation, instruction in self.instructions()
        )


# Limits that no real program reaches: sizes in a file are checked against them before anything is allocated.


# Shapes in the notation of HLO text: ``f32[8,128]{1,0:T(8,128)S(1)}``, ``(s32[], /*index=1*/bf16[4])``.


def checked_dims(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions; ``ValueError`` if there are too many, or if one is negative or exceeds 64 bits."""
    if len(dims) > MAX_RANK:
        raise ValueError(f"a shape of {len(dims):,} dimensions")
    if any(size < 0 or size > MAX_DIMENSION for size in dims):
        raise ValueError("a dimension that is negative or beyond 64 bits")
    return dims


class ShapeReader:
    """Parses shapes, each notation once. ``tiled``: whether a layout with tiles was found (TPU)."""

    def __init__(self) -> None:
        self.tiled = False
        self._known: dict[str, Shape] = {}

    def read(self, text: str) -> Shape:
        """Parse a shape; ``ValueError`` for invalid text."""
        shape = self._known.get(text)
        if shape is None:
            shape = self._known[text] = self._parse(text)
        return shape

    def _parse(self, text: str) -> Shape:
        open_tuples: list[list[Shape]] = [[]]
        position = 0
        while position < len(text):
            token = _TOKEN.match(text, position)
            if token is None:
                raise ValueError(f"not a shape: {text[position : position + 40]!r}")
            position = token.end()
            bracket = token[1]
            if bracket is None:
                open_tuples[-1].append(self._array(token[0].strip(), token[2], token[3], token[4]))
            elif bracket == "(":
                open_tuples.append([])
                if len(open_tuples) > MAX_TUPLE_DEPTH:
                    raise ValueError(f"tuples nested more than {MAX_TUPLE_DEPTH} deep")
            elif bracket == ")":
                if len(open_tuples) < 2:
                    raise ValueError("a bracket closes that was not opened")
                parts = tuple(open_tuples.pop())
                open_tuples[-1].append(Shape(dtype="tuple", parts=parts))
        if len(open_tuples) != 1 or len(open_tuples[0]) != 1:
            raise ValueError(f"not a shape: {text[:40]!r}")
        return open_tuples[0][0]

    def _array(self, spelling: str, dtype: str, sizes: str, layout: str | None) -> Shape:
        known = self._known.get(spelling)
        if known is not None:
            return known
        if dtype not in ITEM_BITS:
            raise ValueError(f"unknown element type {dtype[:20]!r}")
        # a dynamic dimension, "<=8", has the memory of its bound
        dims = checked_dims(tuple(int(size.strip().removeprefix("<=")) for size in sizes.split(",") if sizes.strip()))
        order: tuple[int, ...] | None = None if ITEM_BITS[dtype] == 0 or dims else ()
        space = 0
        if layout is not None:
            minor, _, rest = layout.partition(":")
            self.tiled |= "T(" in rest
            if _LAYOUT.fullmatch(minor):
                order = tuple(int(axis) for axis in minor.split(","))
            match = _SPACE.search(rest)
            space = int(match[1]) if match else 0
        shape = Shape(dtype=dtype, dims=dims, layout=order, memory_space=space)
        self._known[spelling] = shape
        return shape
