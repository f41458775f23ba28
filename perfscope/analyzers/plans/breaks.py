"""Graph breaks of a plan, by the user's line."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from perfscope.analyzers.torch_compile.frames import plain_function, user_place
from perfscope.model.compile_log import CodeLine, GraphBreak
from perfscope.model.torch_plan import LoadedPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBreak:
    """A line that ends graphs, and all that torch says of it."""

    place: CodeLine | None
    functions: tuple[str, ...]
    breaks: tuple[GraphBreak, ...]


def planned_breaks(held: LoadedPlan) -> tuple[PlannedBreak, ...]:
    """Lines that end graphs, in the order they were found."""
    lines: dict[tuple[str, int] | None, list[tuple[str | None, GraphBreak]]] = defaultdict(list)
    places: dict[tuple[str, int] | None, CodeLine | None] = {}
    for function, found in held.breaks:
        at = user_place(found.place, found.stack)
        key = None if at is None else (at.file, at.line)
        lines[key].append((function, found))
        places.setdefault(key, at)
    return tuple(
        PlannedBreak(
            place=places[key],
            functions=tuple(dict.fromkeys(plain_function(function) for function, _ in rows)),
            breaks=tuple(found for _, found in rows),
        )
        for key, rows in lines.items()
    )
