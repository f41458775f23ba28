"""Reads a recording of fingerprints step by step, as far as it is whole: never more than one step is in memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec

from perfscope.model.documents.bounded_json import MESSAGE_LIMIT
from perfscope.model.errors import DataError
from perfscope.plugins.fingerprint.document import BUCKETS, CALL, FINGERPRINT_SCHEMA, MOST_OPS, combined

MOST_LINE = 16 << 20
"""Largest line: an op of a foreach optimizer lists the values of all parameters."""
MOST_VALUES = 40 * MOST_OPS
"""Most values of a step."""

_Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Sketch = Annotated[tuple[float, ...], msgspec.Meta(min_length=2 + BUCKETS, max_length=2 + BUCKETS)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]


class StepLine(msgspec.Struct, array_like=True, tag="s", frozen=True):
    """The head of a step."""

    number: _Number
    sampled: bool


class ValueLine(msgspec.Struct, array_like=True, tag="v", frozen=True):
    """A value."""

    number: _Number
    base: _Number | None
    dtype: _Text
    shape: tuple[int, ...]
    hash: _Hash | None
    row: _Hash | None
    sketch: _Sketch | None


class OpLine(msgspec.Struct, array_like=True, tag="o", frozen=True):
    """An op."""

    name: _Text
    line: _Text
    module: _Text
    phase: _Text
    arguments: _Text
    reads: tuple[_Number, ...]
    makes: tuple[_Number, ...]
    names: tuple[_Text, ...]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Name, line, module and phase."""
        return self.name, self.line, self.module, self.phase


class NoteLine(msgspec.Struct, array_like=True, tag="n", frozen=True):
    """A note."""

    text: _Text


class Head(msgspec.Struct, frozen=True):
    """The first line."""

    schema: str
    framework: _Text
    settings: dict[str, str] = {}


_LINE = msgspec.json.Decoder(StepLine | ValueLine | OpLine | NoteLine)
_HEAD = msgspec.json.Decoder(Head)


class Step(msgspec.Struct, kw_only=True):
    """A step of a recording."""

    number: int
    sampled: bool
    ops: list[OpLine] = []
    values: dict[int, ValueLine] = {}

    def moment(self, name: str) -> tuple[int, OpLine] | None:
        """The first moment of a name that has values, and its place among the ops."""
        return next(((number, op) for number, op in enumerate(self.ops) if op.name == name and op.names), None)

    def hash_of(self, op: OpLine, kind: str) -> str | None:
        """One hash of the inputs of a moment that are of one kind; ``None`` without any."""
        numbers = [number for number, name in zip(op.reads, op.names, strict=False) if _is_of(name, kind)]
        values = [self.values[number] for number in numbers]
        if not values:
            return None
        if len(values) == 1 and values[0].dtype in ("several", "generator"):
            return values[0].hash
        return f"{combined(None if value.hash is None else int(value.hash, 16) for value in values):016x}"

    def kinds(self, name: str) -> dict[str, str | None]:
        """The kinds of values of the first moment of a name, with one hash each."""
        found = self.moment(name)
        if found is None:
            return {}
        op = found[1]
        kinds = dict.fromkeys(kind_of(one) for one in op.names)
        return {kind: self.hash_of(op, kind) for kind in kinds}


class StepHead(msgspec.Struct, frozen=True, kw_only=True):
    """A step without its ops."""

    number: int
    sampled: bool
    states: dict[str, str | None]
    """One hash of all values of a kind (``parameter``, ``input``, ``generator cpu``) at the first call of a model."""


def kind_of(name: str) -> str:
    """The first word, as in `parameter blocks.0.weight`; each generator is one kind."""
    return name if name.startswith("generator ") else name.partition(" ")[0]


def _is_of(name: str, kind: str) -> bool:
    return kind_of(name) == kind


class Recording:
    """A file of fingerprints. ``DataError`` if it has not even a head."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self.cut = False
        """Whether the file ends within a step; known after its steps were read."""
        try:
            with gzip.open(path) as stream:
                line = stream.readline(MOST_LINE)
            self.head = _HEAD.decode(line)
        except FileNotFoundError as error:
            raise DataError(f"{path}: no such file") from error
        except OSError as error:
            raise DataError(f"{path}: not fingerprints: {(error.strerror or 'not gzip').lower()}") from error
        except (EOFError, zlib.error) as error:
            raise DataError(f"{path}: cut off or corrupt before its first step") from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"{path}: not fingerprints: {' '.join(str(error).split())[:MESSAGE_LIMIT]}") from error
        if self.head.schema != FINGERPRINT_SCHEMA:
            raise DataError(
                f"{path}: its schema is {self.head.schema!r:.60}; this perfscope reads {FINGERPRINT_SCHEMA!r}"
            )

    def steps(self) -> Iterator[Step]:
        """The steps in order; parts of one number are joined. A part that is damaged ends the recording."""
        step: Step | None = None
        for part in self._parts():
            if step is not None and step.number == part.number:
                _join(step, part)
                continue
            if step is not None:
                yield step
            step = part
        if step is not None:
            yield step

    def _parts(self) -> Iterator[Step]:
        step: Step | None = None
        for line in self._lines():
            if isinstance(line, NoteLine):
                if line.text not in self.notes:
                    self.notes.append(line.text)
            elif isinstance(line, StepLine):
                if step is not None:
                    yield step
                step = Step(number=line.number, sampled=line.sampled, ops=[], values={})
            elif step is None or not _fits(step, line):
                self.cut = True
                break
        if step is not None and (step.ops or not self.cut):
            yield step

    def _lines(self) -> Iterator[Any]:
        try:
            with gzip.open(self.path) as stream:
                stream.readline(MOST_LINE)
                while line := stream.readline(MOST_LINE):
                    yield _LINE.decode(line)
        except (EOFError, OSError, zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.cut = True

    @cached_property
    def contents(self) -> list[StepHead]:
        """All steps without their ops: numbers, and the states with which they begin."""
        return [StepHead(number=step.number, sampled=step.sampled, states=step.kinds(CALL)) for step in self.steps()]


def _fits(step: Step, line: ValueLine | OpLine) -> bool:
    """Add a line to the step; False if it refers to what is not there, or the step is too large."""
    if isinstance(line, ValueLine):
        step.values[line.number] = line
        return len(step.values) <= MOST_VALUES
    if any(number not in step.values for number in (*line.reads, *line.makes)):
        return False
    step.ops.append(line)
    return len(step.ops) <= MOST_OPS + 1


def _join(step: Step, part: Step) -> None:
    """Add the ops of a further part of the same step, whose values have other numbers."""
    shift = 1 + max(step.values, default=-1)
    step.sampled = step.sampled and part.sampled
    for number, value in part.values.items():
        base = None if value.base is None else value.base + shift
        step.values[number + shift] = msgspec.structs.replace(value, number=number + shift, base=base)
    for op in part.ops:
        reads = tuple(number + shift for number in op.reads)
        makes = tuple(number + shift for number in op.makes)
        step.ops.append(msgspec.structs.replace(op, reads=reads, makes=makes))


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a recording."""

    framework: str
    ops: int
    steps: int
    sampled: tuple[int, ...]
    notes: tuple[str, ...]


def load_fingerprint(path: Path) -> Fingerprint:
    """Count what a recording holds; ``DataError`` if it has no head."""
    recording = Recording(path)
    ops, numbers, sampled = 0, 0, []
    for step in recording.steps():
        ops += len(step.ops)
        numbers += 1
        if step.sampled:
            sampled.append(step.number)
    notes = [*recording.notes, *(["the recording of fingerprints ends within a step"] if recording.cut else [])]
    return Fingerprint(
        framework=recording.head.framework, ops=ops, steps=numbers, sampled=tuple(sampled), notes=tuple(notes)
    )
