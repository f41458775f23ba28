"""One instruction of HLO text.

```
  ROOT %name = f32[8,128]{1,0} fusion(%a, %b), kind=kLoop, calls=%body, metadata={op_name="jit(f)/add" ...}
```
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfscope.analyzers.hlo.backend_config import json_object, trip_count
from perfscope.analyzers.hlo.module import Instruction, Shape
from perfscope.analyzers.hlo.replica_groups import GroupReader
from perfscope.analyzers.hlo.shape_text import ShapeReader
from perfscope.analyzers.hlo.source_frames import FrameTable
from perfscope.analyzers.hlo.text_scan import closing, pieces, unquoted

_START = re.compile(r"\s*+(ROOT\s++)?%?([^\s=%]++)\s*+=\s*+")
_ARRAY = re.compile(r"[^\s({]+(?:\{(?:[^{}]++|\{[^{}]*+\})*+\})?")
_OPCODE = re.compile(r"\s*+([a-zA-Z][\w\-]*+)\(")
_COMMENT = re.compile(r"/\*[^*]*+\*/")
_ATTRIBUTE = re.compile(r"([\w\-]+)\s*=\s*", re.ASCII)
_METADATA = re.compile(r'\b(\w++)=(?:("(?:[^"\\]++|\\.)*+")|([^\s}"]++))')

_INTEGER = re.compile(r"-?[0-9]{1,10}")

_CALLS = (
    "condition", "body", "calls", "to_apply", "select", "scatter", "true_computation", "false_computation",
    "branch_computations", "called_computations",
)  # fmt: skip
"""Attributes that name computations."""
_LITERAL = frozenset({"constant", "parameter"})
"""Opcodes whose brackets hold no operands."""


@dataclass(slots=True, kw_only=True)
class InstructionReader:
    """Reads the instructions of one module; what is spelt alike is parsed once."""

    frames: FrameTable
    shapes: ShapeReader = field(default_factory=ShapeReader)
    groups: GroupReader = field(default_factory=GroupReader)
    _configs: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def read(self, line: str) -> Instruction:
        """The instruction of a (logical) line; ``OpenBracketError`` if it goes on, ``ValueError`` if it is none."""
        start = _START.match(line)
        if start is None:
            raise ValueError("neither an instruction nor the end of a computation")
        shape, position = self._shape(line, start.end())
        opcode = _OPCODE.match(line, position)
        if opcode is None:
            raise ValueError("no opcode after the shape")
        end = closing(line, opcode.end() - 1)
        inside = "" if opcode[1] == "constant" else line[opcode.end() : end]
        written = _attributes(line, end + 1)
        metadata = _metadata(written.pop("metadata", ""))
        file, place = self._place(metadata)
        config = self._config(written.pop("backend_config", ""))
        groups = written.pop("replica_groups", None)
        channel = written.pop("channel_id", None)
        target = written.pop("custom_call_target", None)
        called = tuple(name for key in _CALLS if key in written for name in _names(written.pop(key)))
        counter = opcode[1] == "constant" and shape.dtype in ("s32", "u32") and not shape.dims
        return Instruction(
            name=start[2],
            opcode=opcode[1],
            shape=shape,
            operands=() if opcode[1] in _LITERAL else _operands(inside),
            called=called,
            is_root=start[1] is not None,
            op_name=metadata.get("op_name", ""),
            file=file,
            line=place,
            scheduling_name=metadata.get("scheduling_name", ""),
            fusion_kind=written.pop("kind", None),
            custom_call_target=None if target is None else unquoted(target),
            parameter_number=int(inside) if opcode[1] == "parameter" else None,
            value=_integer(line[opcode.end() : end]) if counter else None,
            is_zero=opcode[1] == "constant" and _is_zero(shape, line[opcode.end() : end]),
            literal=_literal(line[opcode.end() : end]) if opcode[1] == "constant" else "",
            replica_groups=None if groups is None else self.groups.text(groups),
            channel_id=None if channel is None else int(channel),
            trip_count=trip_count(config) if opcode[1] == "while" else None,
            backend_config=config,
            attributes=written,
        )

    def _shape(self, line: str, begin: int) -> tuple[Shape, int]:
        if line[begin : begin + 1] == "(":
            end = closing(line, begin) + 1
        else:
            array = _ARRAY.match(line, begin)
            if array is None:
                raise ValueError("no shape after the equals sign")
            end = array.end()
        return self.shapes.read(line[begin:end]), end

    def _place(self, metadata: Mapping[str, str]) -> tuple[str | None, int | None]:
        if "source_file" in metadata:
            line = metadata.get("source_line", "")
            return metadata["source_file"], int(line) if line.isdecimal() else None
        frame = metadata.get("stack_frame_id", "")
        found = self.frames.user_line(int(frame)) if frame.isdecimal() else None
        return (None, None) if found is None else found

    def _config(self, text: str) -> Mapping[str, Any]:
        if text not in self._configs:
            self._configs[text] = json_object(unquoted(text))
        return self._configs[text]


_MOST_LITERAL = 40
"""Characters of a constant that are kept as they are."""
_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})


def _integer(literal: str) -> int | None:
    return int(literal) if _INTEGER.fullmatch(literal) else None


def _literal(written: str) -> str:
    """What tells a constant's value from others: as it is written, or a digest of that; empty where it is left out."""
    if "..." in written:
        return ""
    short = len(written) <= _MOST_LITERAL
    return written if short else hashlib.blake2b(written.encode(), digest_size=16).hexdigest()


def _is_zero(shape: Shape, literal: str) -> bool:
    return shape.dtype in _FLOATS and not shape.dims and literal in ("0", "-0")


def _operands(inside: str) -> tuple[str, ...]:
    if "/*" in inside:
        inside = _COMMENT.sub("", inside)
    # a typed operand, "f32[8]{0} %x", ends with its name
    return tuple(piece.rpartition(" ")[2].removeprefix("%") for piece in pieces(inside))


def _attributes(line: str, begin: int) -> dict[str, str]:
    found: dict[str, str] = {}
    written = pieces(line, begin)
    if written and written[0]:
        raise ValueError(f"text after the operands: {written[0][:40]!r}")
    for piece in written[1:]:
        key = _ATTRIBUTE.match(piece)
        if key is None:
            raise ValueError(f"an attribute without a value: {piece[:40]!r}")
        if key[1] == "device_ids" and "replica_groups" in found:  # the second half of a mesh's spelling
            found["replica_groups"] += f", {piece}"
        else:
            found[key[1]] = piece[key.end() :]
    return found


def _names(text: str) -> list[str]:
    inner = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    return [name.removeprefix("%") for name in pieces(inner)]


def _metadata(text: str) -> dict[str, str]:
    return {key: unquoted(quoted) if quoted else plain for key, quoted, plain in _METADATA.findall(text)}
