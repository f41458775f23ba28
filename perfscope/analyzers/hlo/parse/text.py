"""HLO text, line by line, into the model: modules as XLA dumps them or as ``compiled.as_text()`` prints them.

```
HloModule jit_step, is_scheduled=true, entry_computation_layout={...}, num_partitions=8
FileNames                          (newer jaxlib: tables that stack_frame_id points into)
1 "/home/me/train.py"
%body (p: f32[8]) -> f32[8] {
  ROOT %add = f32[8]{0} add(%p, %p), metadata={...}
}
ENTRY %main ... { ... }
```

Literals are skipped, whatever their length. A file that is cut off is refused: without its entry, or
with half of it, every total would be wrong.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from perfscope.analyzers.hlo.collective import GroupReader
from perfscope.analyzers.hlo.module import (
    MAX_INSTRUCTIONS,
    Alias,
    Computation,
    HloModule,
    Instruction,
    Shape,
    ShapeReader,
    json_object,
    trip_count,
)
from perfscope.analyzers.hlo.platform import platform_of
from perfscope.analyzers.hlo.scope import FrameTable
from perfscope.analyzers.hlo.structure import computation_of, linked
from perfscope.model.errors import DataError

_INDEX = r"\{([\d, ]{0,200})\}"
_PARAMETER = rf"\((\d{{1,9}}), {_INDEX}"
_ALIAS = re.compile(rf"{_INDEX}: {_PARAMETER}(?:, (?:may|must)-alias)?\)")
_DONOR = re.compile(rf"{_PARAMETER}\)")

_STEP = re.compile(r'"(?:[^"\\]++|\\.)*+"|["()\[\]{},]', re.DOTALL)
"""A whole quoted string (or a quote that is not closed), a bracket, or a comma."""

_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)

_NAMED_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}

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
"""Opcodes whose brackets do not contain operands."""

_MOST_LITERAL = 40
"""Maximum number of characters of a constant that are kept unchanged."""

_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})

_HEADER = re.compile(r"\s*+(ENTRY\s++)?%?([^\s(={%]++)\s*+(?:\(.*)?\{\s*+$", re.DOTALL)

_TABLES = frozenset({"FileNames", "FunctionNames", "FileLocations", "StackFrames"})

_ROW = re.compile(r"(\d{1,9})\s++(.+)")

_FIELD = re.compile(r"\b(\w++)=(\d{1,9})")


# Donation in the header of HLO text.
# ```
# input_output_alias={ {0}: (1, {}, may-alias), {1}: (2, {0}, must-alias) }
# buffer_donor={ (3, {}), (4, {1}) }
# ```


def aliases_of(text: str) -> tuple[Alias, ...]:
    """Parse the entries of ``input_output_alias``; ``ValueError`` for invalid text."""
    return tuple(
        Alias(output=_index(entry[1]), parameter=int(entry[2]), part=_index(entry[3]))
        for entry in _entries(_ALIAS, text)
    )


def donors_of(text: str) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Parse the entries of ``buffer_donor``: parameter, part of it. ``ValueError`` as in ``aliases_of``."""
    return tuple((int(entry[1]), _index(entry[2])) for entry in _entries(_DONOR, text))


def _entries(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    inner = text.strip().removeprefix("{").removesuffix("}").strip()
    result, index = [], 0
    while index < len(inner):
        match = pattern.match(inner, index)
        if match is None:
            raise ValueError(f"invalid donated parameters: {inner[index : index + 40]!r}")
        result.append(match)
        index = match.end()
        while index < len(inner) and inner[index] in ", ":
            index += 1
    return result


def _index(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())


# Scanner for a line of HLO text: matching brackets, pieces between commas, quoted strings.
# Every function passes over its text once and keeps a depth instead of recursing: malicious nesting costs time in
# proportion to its length, and no stack.


class OpenBracketError(ValueError):
    """A bracket or quote is open at the end of the text."""


def closing(text: str, opening: int) -> int:
    """Return the index of the bracket that closes the one at ``opening``; ``OpenBracketError`` without one."""
    depth = 0
    for step in _STEP.finditer(text, opening):
        mark = step[0]
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
            if not depth:
                return step.start()
        elif mark == '"':
            break
    raise OpenBracketError("a bracket is not closed")


def open_brackets(text: str, depth: int = 0) -> int:
    """Return the number of brackets open at the end of ``text``, given ``depth`` before it.

    Text after an open quote is ignored.
    """
    for step in _STEP.finditer(text):
        if step[0] == '"':
            break
        depth += (step[0] in "([{") - (step[0] in ")]}")
    return depth


def pieces(text: str, start: int = 0, end: int | None = None) -> list[str]:
    """Split ``text[start:end]`` at its outermost commas, stripped; empty for blank text."""
    end = len(text) if end is None else end
    result = []
    depth, begin = 0, start
    for step in _STEP.finditer(text, start, end):
        mark = step[0]
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
            if depth < 0:
                raise ValueError("a bracket closes that was not opened")
        elif mark == '"':
            raise OpenBracketError("a quote is not closed")
        elif mark == "," and not depth:
            result.append(text[begin : step.start()].strip())
            begin = step.end()
    if depth:
        raise OpenBracketError("a bracket is not closed")
    last = text[begin:end].strip()
    if last or result:
        result.append(last)
    return result


def unquoted(text: str) -> str:
    """Return the meaning of a quoted string (C escapes, bytes as octal); text without quotes is returned unchanged."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    inner = text[1:-1]
    if "\\" not in inner:
        return inner
    return _ESCAPE.sub(_unescaped, inner.encode()).decode("utf-8", "replace")


def _unescaped(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    if code[:1].isdigit() and code < b"8":
        return bytes([int(code, 8) & 0xFF])
    if len(code) > 1:
        return bytes([int(code[1:], 16)])
    return _NAMED_ESCAPES.get(code, code)


# One instruction of HLO text.
#
# ```
# ROOT %name = f32[8,128]{1,0} fusion(%a, %b), kind=kLoop, calls=%body, metadata={op_name="jit(f)/add" ...}
# ```


class InstructionReader(Struct, kw_only=True):
    """Parses the instructions of one module; equal notations are parsed once."""

    frames: FrameTable
    shapes: ShapeReader = field(default_factory=ShapeReader)
    groups: GroupReader = field(default_factory=GroupReader)
    _configs: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def read(self, line: str) -> Instruction:
        """Parse the instruction of a (logical) line.

        ``OpenBracketError`` if it continues, ``ValueError`` if it is invalid.
        """
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
            lines=self._lines(metadata),
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

    def _lines(self, metadata: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
        frame = metadata.get("stack_frame_id", "")
        return self.frames.user_lines(int(frame)) if frame.isdecimal() else ()

    def _config(self, text: str) -> Mapping[str, Any]:
        if text not in self._configs:
            self._configs[text] = json_object(unquoted(text))
        return self._configs[text]


def _integer(literal: str) -> int | None:
    return int(literal) if _INTEGER.fullmatch(literal) else None


def _literal(written: str) -> str:
    """Return a constant's text, or a digest of it if it is long, as the identity of its value.

    Empty if the text omits it.
    """
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
    result: dict[str, str] = {}
    written = pieces(line, begin)
    if written and written[0]:
        raise ValueError(f"text after the operands: {written[0][:40]!r}")
    for piece in written[1:]:
        key = _ATTRIBUTE.match(piece)
        if key is None:
            raise ValueError(f"an attribute without a value: {piece[:40]!r}")
        if key[1] == "device_ids" and "replica_groups" in result:  # the second half of a mesh's notation
            result["replica_groups"] += f", {piece}"
        else:
            result[key[1]] = piece[key.end() :]
    return result


def _names(text: str) -> list[str]:
    inner = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    return [name.removeprefix("%") for name in pieces(inner)]


def _metadata(text: str) -> dict[str, str]:
    return {key: unquoted(quoted) if quoted else plain for key, quoted, plain in _METADATA.findall(text)}


def module_of(lines: Iterable[str], source: str) -> HloModule:
    """Return the module that the lines contain.

    ``DataError``, one line that begins with ``source``, for invalid text.
    """
    reading = _Reading(source)
    try:
        for line in lines:
            reading.take(line)
        return reading.module()
    except (ValueError, OverflowError) as error:
        raise DataError(f"{source}: line {reading.number:,}: {error}") from error


class _Reading:
    """State of reading one text."""

    def __init__(self, source: str) -> None:
        self.number = 0
        self._source = source
        self._name = ""
        self._header: dict[str, str] = {}
        self._table = ""
        self._files: dict[int, str] = {}
        self._locations: dict[int, tuple[int, int]] = {}
        self._frames: dict[int, tuple[int, int]] = {}
        self._reader: InstructionReader | None = None
        self._entry = ""
        self._computations: list[Computation] = []
        self._open = ""
        """Name of the current computation."""
        self._instructions: list[Instruction] = []
        self._count_read = 0
        self._pending: list[str] = []
        """Lines of an instruction or header with open brackets (printed literals)."""
        self._depth = 0

    def take(self, line: str) -> None:
        """Process the next line."""
        self.number += 1
        if self._pending:
            self._continue(line)
            return
        stripped = line.strip().removeprefix("\ufeff")
        if not stripped or stripped.startswith("//"):
            return
        if self._open:
            if stripped.startswith("}"):
                self._close()
            else:
                self._instruction(line)
        elif not self._name:
            self._module_line(stripped)
        elif stripped in _TABLES:
            self._table = stripped
        elif self._table and stripped[0].isdecimal():
            self._row(stripped)
        else:
            self._computation_line(stripped)

    def module(self) -> HloModule:
        """Return the module. ``DataError`` if the text is truncated."""
        read = f"{self._count_read:,} instructions were read"
        if not self._name:
            raise DataError(f"{self._source}: not HLO text, or cut off in its first line")
        if self._open or self._pending:
            where = f"in computation {self._open[:80]!r}" if self._open else "before a computation"
            raise DataError(f"{self._source}: cut off {where}: the last line is {self.number:,}, {read}")
        if not self._entry:
            raise DataError(f"{self._source}: cut off: no ENTRY computation in {self.number:,} lines, {read}")
        scheduled = self._header.get("is_scheduled") == "true"
        tiled = self._reader is not None and self._reader.shapes.tiled
        notes = [note.partition("=")[0] for note in pieces(self._header.get("frontend_attributes", "")[1:-1])]
        return HloModule(
            name=self._name,
            entry=self._entry,
            computations=linked(self._computations),
            is_scheduled=scheduled,
            num_partitions=self._count("num_partitions"),
            num_replicas=self._count("replica_count"),
            platform=platform_of(self._computations, tiled=tiled, scheduled=scheduled, notes=notes),
            source=self._source,
            aliases=aliases_of(self._header.get("input_output_alias", "{}")),
            donors=donors_of(self._header.get("buffer_donor", "{}")),
        )

    def _count(self, key: str) -> int:
        text = self._header.get(key, "1")
        return int(text) if text.isdecimal() and len(text) < 10 else 1

    def _continue(self, line: str) -> None:
        self._pending.append(line)
        self._depth = open_brackets(line, self._depth)
        if self._depth <= 0:
            whole = " ".join(self._pending)
            self._pending = []
            if self._name:
                self._instruction(whole)
            else:
                self._module_line(whole.strip())

    def _wait(self, line: str) -> None:
        self._depth = open_brackets(line)
        if self._depth <= 0:
            raise ValueError("a quote is not closed")
        self._pending = [line]

    def _module_line(self, line: str) -> None:
        if not line.startswith("HloModule"):
            raise ValueError("HLO text begins with 'HloModule'")
        try:
            written = pieces(line.removeprefix("HloModule"))
        except OpenBracketError:
            self._wait(line)
            return
        self._name = written[0] if written else ""
        if not self._name:
            raise ValueError("a module without a name")
        self._header = {key.strip(): value.strip() for key, _, value in (piece.partition("=") for piece in written[1:])}

    def _row(self, line: str) -> None:
        row = _ROW.match(line)
        if row is None:
            raise ValueError(f"not a row of {self._table}: {line[:40]!r}")
        key = int(row[1])
        if self._table == "FileNames":
            self._files[key] = unquoted(row[2].strip())
            return
        fields = dict(_FIELD.findall(row[2]))
        if self._table == "FileLocations":
            self._locations[key] = (int(fields.get("file_name_id", 0)), int(fields.get("line", 0)))
        elif self._table == "StackFrames":
            self._frames[key] = (int(fields.get("file_location_id", 0)), int(fields.get("parent_frame_id", 0)))

    def _computation_line(self, line: str) -> None:
        if line.startswith("HloModule"):
            raise ValueError("a second module begins; split the file into one module each")
        header = _HEADER.match(line)
        if header is None:
            raise ValueError(f"neither a computation nor a table: {line[:60]!r}")
        if self._reader is None:
            self._reader = InstructionReader(frames=self._frame_table())
        self._open = header[2]
        if header[1]:
            if self._entry:
                raise ValueError("a second ENTRY computation")
            self._entry = self._open

    def _frame_table(self) -> FrameTable:
        """Return the tables. jaxlib prints a parent's id plus one: a root has 1, and 0 never occurs."""
        shift = int(all(parent for _, parent in self._frames.values()))
        frames = {key: (location, parent - shift) for key, (location, parent) in self._frames.items()}
        return FrameTable(files=self._files, locations=self._locations, frames=frames)

    def _instruction(self, line: str) -> None:
        assert self._reader is not None
        try:
            self._instructions.append(self._reader.read(line))
            self._count_read += 1
            if self._count_read > MAX_INSTRUCTIONS:
                raise ValueError(f"more than {MAX_INSTRUCTIONS:,} instructions")
        except OpenBracketError:
            self._wait(line)

    def _close(self) -> None:
        self._computations.append(computation_of(self._open, self._instructions))
        self._open, self._instructions = "", []
