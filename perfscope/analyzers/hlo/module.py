"""The model of an optimized (or not yet optimized) HLO module, whatever file it came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from perfscope.analyzers.hlo.parse.thunks import Thunks


# ``backend_config``: what a backend wrote about an instruction, as parsed JSON.


def json_object(text: str | bytes) -> Mapping[str, Any]:
    """A backend's configuration as parsed JSON; empty where it is none, or no object (MLIR text, raw protos)."""
    if not text:
        return {}
    try:
        result = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return result if isinstance(result, dict) else {}


def trip_count(config: Mapping[str, Any]) -> int | None:
    """``known_trip_count`` of a while's configuration; ``None`` where it is not known."""
    known = config.get("known_trip_count")
    count = known.get("n") if isinstance(known, dict) else None
    if isinstance(count, str) and count.isdecimal() and len(count) < 20:
        return int(count)
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None


Platform = Literal["cpu", "gpu", "tpu"]

ITEM_BITS: Mapping[str, int] = MappingProxyType(
    {
        "pred": 8, "s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16,
        "s32": 32, "u32": 32, "s64": 64, "u64": 64, "f4e2m1fn": 4, "f8e3m4": 8, "f8e4m3": 8, "f8e4m3b11fnuz": 8,
        "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0fnu": 8, "f6e2m3fn": 6, "f6e3m2fn": 6,
        "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128, "token": 0, "opaque": 0,
    }
)  # fmt: skip
"""Bits an element takes; element types as HLO text spells them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of a value: an array, or a tuple of shapes (then ``dtype`` is ``'tuple'``)."""

    dtype: str
    dims: tuple[int, ...] = ()
    layout: tuple[int, ...] | None = None
    """Minor to major, where it is written."""
    memory_space: int = 0
    """0 is HBM; others as the target numbers them (``S(1)`` on TPU is VMEM, ``S(5)`` host memory)."""
    parts: tuple[Shape, ...] = ()
    """Parts of a tuple."""

    @property
    def elements(self) -> int:
        """Elements of an array; of a tuple, those of its parts together."""
        if self.dtype == "tuple":
            return sum(part.elements for part in self.parts)
        count = 1
        for size in self.dims:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """Bytes the value takes, without padding; of a tuple, those of its parts together."""
        if self.dtype == "tuple":
            return sum(part.bytes for part in self.parts)
        return -(-self.elements * ITEM_BITS[self.dtype] // 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction. ``operands`` are names in the same computation, ``called`` names of computations."""

    name: str
    opcode: str
    """As HLO text spells it: ``dot``, ``fusion``, ``all-gather-start``, ``custom-call`` ..."""
    shape: Shape
    operands: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    """Fusion body, while condition and body, reduction, branches, async body, in written order."""
    is_root: bool = False
    op_name: str = ""
    """The framework's path, such as ``jit(step)/transpose(jvp(mlp))/dot_general``."""
    file: str | None = None
    line: int | None = None
    scheduling_name: str = ""
    """Name before rematerialization cloned it (GPU)."""
    wraps: str = field(default="", compare=False)
    """Of an asynchronous start, name of the operation it runs: what profiles of GPUs call it. Text does not say it."""
    fusion_kind: str | None = None
    """``kLoop``, ``kInput``, ``kOutput``, ``kCustom``."""
    custom_call_target: str | None = None
    parameter_number: int | None = None
    value: int | None = None
    """Of a constant that is a single 32-bit integer: what loops count with. Of others `literal` is kept."""
    is_zero: bool = False
    """A constant that is a single floating-point number, 0: what masks leave."""
    literal: str = field(default="", compare=False)
    """Of a constant: the same where its value is, within one file; empty where a text leaves the value out."""
    replica_groups: tuple[tuple[int, ...], ...] | None = None
    """Groups of partition or replica ids, written out whatever the spelling; None: all devices, or no collective."""
    channel_id: int | None = None
    trip_count: int | None = None
    """Of a ``while`` whose trip count is written, or plain from its counter."""
    backend_config: Mapping[str, Any] = field(default_factory=dict)
    """Parsed JSON; empty where there is none or it is no JSON object."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Every other attribute as text: ``lhs_contracting_dims`` -> ``{1}``, ``window``, ``dim_labels`` ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """A computation; its instructions stand in schedule order if the module is scheduled."""

    name: str
    instructions: tuple[Instruction, ...]
    by_name: Mapping[str, Instruction]

    @property
    def root(self) -> Instruction:
        """The instruction whose value the computation returns."""
        return next((instruction for instruction in self.instructions if instruction.is_root), self.instructions[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalBuffer:
    """A value's buffer as XLA assigned it."""

    id: int
    instruction: str
    size: int
    allocation: int | None = None
    offset: int | None = None
    index: tuple[int, ...] = ()
    """Which part of a tuple the instruction makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeapEvent:
    """One event of the heap simulator's trace, in schedule order."""

    kind: Literal["alloc", "free", "share_with"]
    buffer: int
    instruction: str
    share_with: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferAllocation:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferAssignment:
    """Where every buffer lies and when it lives; only HloProto carries it."""

    buffers: Mapping[int, LogicalBuffer]
    allocations: tuple[BufferAllocation, ...]
    heap_traces: tuple[tuple[HeapEvent, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """An output that lies in the memory of a parameter, which the caller gave away for it (donation)."""

    output: tuple[int, ...]
    """Which part of the root's tuple; empty: all of it."""
    parameter: int
    part: tuple[int, ...] = ()
    """Which part of the parameter, where that is a tuple."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HloModule:
    """A module: computations by name, one of them the entry."""

    name: str
    entry: str
    computations: Mapping[str, Computation]
    is_scheduled: bool = False
    num_partitions: int = 1
    num_replicas: int = 1
    platform: Platform | None = None
    """What it was compiled for, told from its instructions, or by a profile from where it ran; None if neither tells
    (before optimization, and many programs for the CPU)."""
    architecture: str | None = None
    """Of a program for GPUs the cores it was compiled for, ``gfx950`` or ``sm_90``, as its dump is named."""
    buffer_assignment: BufferAssignment | None = None
    source: str = ""
    """The file or plane it came from."""
    program_id: int | None = None
    """Number of the program in its process, as a profile joins it with what ran (unsigned: two's complement)."""
    aliases: tuple[Alias, ...] = ()
    """Donated parameters and the outputs that took their memory."""
    donors: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Parameters, and parts of them, that were donated and whose memory no output took."""
    fusion_refusals: Mapping[str, str] = field(default_factory=dict)
    """XLA's reason why a kernel was not fused into its readers, by the kernel's name before fusions were
    renamed; empty where no dump of the priority-fusion pass lay beside the module."""
    thunks: Thunks | None = field(default=None, repr=False)
    """What XLA's GPU runtime launches of it; None where no thunk sequence lay beside the module."""

    def entry_computation(self) -> Computation:
        """The computation that is run."""
        return self.computations[self.entry]

    def instructions(self) -> Iterator[tuple[Computation, Instruction]]:
        """Every instruction of every computation."""
        for computation in self.computations.values():
            for instruction in computation.instructions:
                yield computation, instruction


# What no real program reaches: sizes a file claims are held against these before anything is made of them.


MAX_TEXT_BYTES = 512 << 20
"""Decompressed bytes of a module's text, printed literals included: the largest dumps known are tens of MB."""
MAX_PROTO_BYTES = 128 << 20
"""Decompressed bytes of a module's proto. A hostile one takes up to 30 times its size when it is parsed."""
MIN_INSTRUCTION_BYTES = 10
"""Bytes of an instruction on the wire: name, opcode, shape and id take more."""
MAX_INSTRUCTIONS = 2_000_000
"""Instructions of a module: each takes about 2 kB in the model, and the largest programs known have 10^5."""
MAX_RANK = 64
"""Dimensions of an array; XLA's own kernels end well below."""
MAX_DIMENSION = 2**63 - 1
"""XLA keeps sizes in 64 signed bits."""
MAX_TUPLE_DEPTH = 64
"""Tuples in tuples."""
MAX_GROUP_IDS = 1 << 22
"""Device ids a module's replica groups hold together, counted once a spelling: 4,096 spellings on 1,024 devices."""
MAX_CALL_DEPTH = 200
"""Computations that call one another in a row: what walks a module recursively stays far from the stack's end."""


# Shapes as HLO text spells them: ``f32[8,128]{1,0:T(8,128)S(1)}``, ``(s32[], /*index=1*/bf16[4])``.


_TOKEN = re.compile(
    r"\s*+(?:/\*.*?\*/\s*+)?(?:([(),])|([a-z][a-z0-9]*+)\[([^\]]*+)\](?:\{((?:[^{}]++|\{[^{}]*+\})*+)\})?)"
)
_SPACE = re.compile(r"S\((\d{1,18})\)")
_LAYOUT = re.compile(r"\d{1,3}(?:,\d{1,3})*")


def checked_dims(dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions; ``ValueError`` if there are too many, or one is negative or beyond 64 bits."""
    if len(dims) > MAX_RANK:
        raise ValueError(f"a shape of {len(dims):,} dimensions")
    if any(size < 0 or size > MAX_DIMENSION for size in dims):
        raise ValueError("a dimension that is negative or beyond 64 bits")
    return dims


class ShapeReader:
    """Parses shapes, each spelling once. ``tiled`` tells whether a layout with tiles was seen (TPU)."""

    def __init__(self) -> None:
        self.tiled = False
        self._known: dict[str, Shape] = {}

    def read(self, text: str) -> Shape:
        """The shape of a spelling; ``ValueError`` if it is none."""
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
        # a dynamic dimension, "<=8", takes the memory of its bound
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
