"""One name for each file of a JAX program: jax has absolute paths, the other recordings of a run the user's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from perfscope.analyzers.hlo import HloModule
from perfscope.model.trace import Trace


class FileNames(Struct, frozen=True, kw_only=True):
    """How jax spells the program's files, as the run wrote it."""

    folders: tuple[str, ...] = ()
    """Beginnings of absolute paths."""
    cells: Mapping[str, str] = field(default_factory=dict)
    """Names of a notebook's cells (``In[3]``) by their files."""

    def name(self, path: str) -> str:
        """Return the user's name of a file; ``path`` itself if it is not the program's."""
        if path in self.cells:
            return self.cells[path]
        below = (path[len(folder) :] for folder in self.folders if folder != "/" and path.startswith(folder))
        return next(below, path)

    def in_trace(self, trace: Trace) -> Trace:
        """Return the trace with these names, also in its programs, which are changed in place."""
        self.in_programs(trace.hlo)
        before = None if trace.held_before is None else self.in_trace(trace.held_before)
        return replace(trace, strings=tuple(self.name(text) for text in trace.strings), held_before=before)

    def in_programs(self, programs: Iterable[HloModule]) -> None:
        """Name the files of compiled programs, which no other code has yet."""
        for program in programs:
            for _, instruction in program.instructions():
                if instruction.file is not None:
                    force_setattr(instruction, "file", self.name(instruction.file))
                    lines = tuple((self.name(file), line) for file, line in instruction.lines)
                    force_setattr(instruction, "lines", lines)
