"""What a run of a JAX program held before and behind its traced steps: ``rank00000/memory/{before,after}.prof``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from perfscope.analyzers.readers import jax_memory
from perfscope.analyzers.trace import MISSING, Rows, Trace
from perfscope.profiler.errors import DataError

MOMENTS, SUFFIX = ("before", "after"), ".prof"
"""As `profiler/captures/jax_memory.py` names them, which imports jax."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """The profiles as traces of their own; ``None``: there is none, or it is damaged, as ``notes`` say."""

    before: Trace | None
    after: Trace | None
    notes: tuple[str, ...] = field(default_factory=tuple)

    def attach(self, recording: Trace) -> None:
        """Give a recording the tables ``held`` and ``frames`` of the profile behind its steps, and what was before."""
        recording.held_before = self.before
        if self.after is None:
            return
        known = len(recording.strings)
        recording.strings.extend(self.after.strings)
        for name in ("held", "frames"):
            table = self.after.rows[name]
            recording.rows[name] = Rows(
                table.table,
                {
                    column.name: np.where(table[column.name] == MISSING, MISSING, table[column.name] + known)
                    if column.text
                    else table[column.name]
                    for column in table.table.columns
                },
            )
        recording.recorded |= {"memory_state"}


def read_moments(folder: Path) -> Moments:
    """The profiles of a process; never raises for damaged ones."""
    found: dict[str, Trace | None] = {}
    notes = []
    for moment in MOMENTS:
        path = folder / f"{moment}{SUFFIX}"
        found[moment] = None
        if path.is_file():
            try:
                found[moment] = jax_memory.read(path)
            except DataError as error:
                notes.append(f"a device memory profile is damaged: {error}")
    return Moments(before=found["before"], after=found["after"], notes=tuple(notes))
