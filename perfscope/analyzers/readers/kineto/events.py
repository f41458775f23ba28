"""Events as msgspec decodes them: known fields by allow-list; everything else is skipped unread."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, TypeVar

import msgspec

Id = int | str | None


class Args(msgspec.Struct, gc=False, omit_defaults=True):
    """Arguments that are read, without environment dumps.

    Concrete inputs may hold values of the program: only those of ``categories.NUMBERS`` are kept.
    """

    external_id: int = msgspec.field(default=-1, name="External id")
    old_external_id: int = msgspec.field(default=-1, name="external id")
    correlation: int = -1
    device: Id = None
    stream: Id = None
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    forward_thread: int = msgspec.field(default=-1, name="Fwd thread id")
    shapes: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    dtypes: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")
    strides: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Strides")
    concrete: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Concrete Inputs")
    size: int | str = msgspec.field(default=-1, name="bytes")  # HIP calls write it as text.
    grid: list[int] | None = None
    block: list[int] | None = None
    occupancy: float | None = msgspec.field(default=None, name="est. achieved occupancy %")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    elements_in: int = msgspec.field(default=-1, name="In msg nelems")
    elements_out: int = msgspec.field(default=-1, name="Out msg nelems")
    group_size: int = msgspec.field(default=-1, name="Group size")
    group: Id = msgspec.field(default=None, name="Process Group Name")
    description: str | None = msgspec.field(default=None, name="Process Group Description")
    ranks: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Process Group Ranks")
    dtype: str | None = None
    group_sequence: int = msgspec.field(default=-1, name="Seq")
    task_type: str | None = msgspec.field(default=None, name="Task Type")  # Ascend, as the next fields.
    physical_stream: Id = msgspec.field(default=None, name="Physic Stream Id")
    connection: int = msgspec.field(default=-1, name="connection_id")
    level: str | None = None
    data_type: str | None = None
    source_rank: int = msgspec.field(default=-1, name="Src Rank")
    destination_rank: int = msgspec.field(default=-1, name="Dst Rank")
    direction: Id = None  # MTIA: direction of a DMA request, which has bytes.
    dma_bytes: Id = msgspec.field(default=None, name="size")


NO_ARGS = Args()


class MemoryArgs(msgspec.Struct, gc=False):
    """Arguments of a ``[memory]`` instant."""

    address: int = msgspec.field(default=0, name="Addr")
    size: int | None = msgspec.field(default=None, name="Bytes")
    allocated: int = msgspec.field(default=-1, name="Total Allocated")
    reserved: int = msgspec.field(default=-1, name="Total Reserved")
    device_type: int = msgspec.field(default=0, name="Device Type")
    device: int = msgspec.field(default=-1, name="Device Id")


class Span(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event. ``ts`` and ``dur`` in us; without ``dur`` it is not placed."""

    ts: float
    name: str = ""
    cat: str | None = None
    dur: float = -1.0
    pid: Id = None
    tid: Id = None
    args: Args | None = None


class ExactSpan(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event with its times as text, for epoch microseconds."""

    ts: msgspec.Raw
    name: str = ""
    cat: str | None = None
    dur: msgspec.Raw = msgspec.Raw(b"-1")
    pid: Id = None
    tid: Id = None
    args: Args | None = None


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """An instant; only ``[memory]`` instants carry data."""

    name: str = ""
    ts: msgspec.Raw = msgspec.Raw(b"0")
    pid: Id = None
    tid: Id = None
    args: MemoryArgs | None = None


class Counter(msgspec.Struct, gc=False, tag_field="ph", tag="C"):
    """A counter sample: one value per series."""

    name: str = ""
    ts: msgspec.Raw = msgspec.Raw(b"0")
    args: dict[str, Any] | None = None


class Metadata(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """Names of processes and threads. They are skipped, because they may hold host names."""


class FlowStart(msgspec.Struct, gc=False, tag_field="ph", tag="s"):
    """Start of an arrow; correlation and sequence ids carry the same link."""


class FlowEnd(msgspec.Struct, gc=False, tag_field="ph", tag="f"):
    """End of an arrow."""


class FlowStep(msgspec.Struct, gc=False, tag_field="ph", tag="t"):
    """Middle of an arrow."""


Event = Span | Instant | Counter | Metadata | FlowStart | FlowEnd | FlowStep
ExactEvent = ExactSpan | Instant | Counter | Metadata | FlowStart | FlowEnd | FlowStep

ArgsT = TypeVar("ArgsT", Args, MemoryArgs)

FAST = msgspec.json.Decoder(list[Event])
EXACT = msgspec.json.Decoder(list[ExactEvent])
EXACT_ONE = msgspec.json.Decoder(ExactEvent)
RAW = msgspec.json.Decoder(list[msgspec.Raw])


class _WrittenArgs(msgspec.Struct, gc=False):
    """The arguments of an event as they are written."""

    args: dict[str, msgspec.Raw] = {}


_WRITTEN = msgspec.json.Decoder(_WrittenArgs)


def lenient(text: bytes) -> ExactSpan | Instant | Counter | Metadata | str:
    """Convert one event of unusual types, field by field; a string is the reason that it cannot be placed.

    ``ValueError`` if ``text`` is not JSON.
    """
    event = json.loads(text, parse_float=str)  # Fractions stay text.
    if not isinstance(event, dict):
        return "not an object"
    phase = event.get("ph")
    if phase in ("M", "s", "f", "t") or not event:  # XLA closes its list of events with an empty object.
        return Metadata()
    name, args = str(event.get("name", "")), event.get("args")
    time = msgspec.Raw(str(event.get("ts", "")).encode())
    pid, tid = (_identity(event.get(key)) for key in ("pid", "tid"))
    if phase == "X":
        duration = msgspec.Raw(str(event.get("dur", -1)).encode())
        category = event.get("cat")
        return ExactSpan(
            ts=time,
            name=name,
            cat=None if category is None else str(category),
            dur=duration,
            pid=pid,
            tid=tid,
            args=_arguments(args, Args, text) if isinstance(args, dict) else None,
        )
    if phase in ("i", "I"):
        return Instant(name, time, pid, tid, _arguments(args, MemoryArgs, text) if isinstance(args, dict) else None)
    if phase == "C":
        return Counter(name, time, args if isinstance(args, dict) else None)
    return f"phase {str(phase)[:12]}"


def _identity(value: Any) -> Id:
    return value if value is None or isinstance(value, int | str) else str(value)


def _arguments(args: dict[str, Any], kind: type[ArgsT], text: bytes) -> ArgsT:
    kept = kind()
    written = _WRITTEN.decode(text).args
    for field in _fields(kind):
        if field.encode_name not in args:
            continue
        value = args[field.encode_name]
        if field.type is msgspec.Raw:
            setattr(kept, field.name, written[field.encode_name])
            continue
        try:
            setattr(kept, field.name, msgspec.convert(value, field.type, strict=False))
        except msgspec.ValidationError:
            continue  # One odd argument does not lose the event.
    return kept


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Cached, because evaluating the annotations costs more than the event."""
    return msgspec.structs.fields(kind)
