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

import re
from collections.abc import Iterable

from perfscope.analyzers.hlo.limits import MAX_INSTRUCTIONS
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction
from perfscope.analyzers.hlo.platform import platform_of
from perfscope.analyzers.hlo.source_frames import FrameTable
from perfscope.analyzers.hlo.structure import computation_of, linked
from perfscope.analyzers.hlo.text_aliases import aliases_of, donors_of
from perfscope.analyzers.hlo.text_instruction import InstructionReader
from perfscope.analyzers.hlo.text_scan import OpenBracketError, open_brackets, pieces, unquoted
from perfscope.model.errors import DataError

_HEADER = re.compile(r"\s*+(ENTRY\s++)?%?([^\s(={%]++)\s*+(?:\(.*)?\{\s*+$", re.DOTALL)
_TABLES = frozenset({"FileNames", "FunctionNames", "FileLocations", "StackFrames"})
_ROW = re.compile(r"(\d{1,9})\s++(.+)")
_FIELD = re.compile(r"\b(\w++)=(\d{1,9})")


def module_of(lines: Iterable[str], source: str) -> HloModule:
    """The module that the lines spell; ``DataError``, one line that begins with ``source``, if they spell none."""
    reading = _Reading(source)
    try:
        for line in lines:
            reading.take(line)
        return reading.module()
    except (ValueError, OverflowError) as error:
        raise DataError(f"{source}: line {reading.number:,}: {error}") from error


class _Reading:
    """Where the reading of one text stands."""

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
        """Name of the computation being read."""
        self._instructions: list[Instruction] = []
        self._count_read = 0
        self._pending: list[str] = []
        """Lines of an instruction or header whose brackets are not closed yet (printed literals)."""
        self._depth = 0

    def take(self, line: str) -> None:
        """The next line."""
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
        """What was read. ``DataError`` where the text ends too early."""
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
        """The tables as read. jaxlib prints a parent's id plus one: a root's is 1, and no 0 occurs."""
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
