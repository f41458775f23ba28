"""Graph breaks of a plan, by the user's line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from perfscope.analyzers.torch_compile.frames import (
    doc_link,
    first_hint,
    one_line,
    plain_function,
    user_place,
    where_of,
)
from perfscope.model.compile_log import CodeLine, GraphBreak
from perfscope.model.finding import Finding
from perfscope.model.torch_plan import LoadedPlan
from perfscope.model.trace import Trace

MAX_ROWS = 20


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


def break_findings(trace: Trace, *, fixes: dict[str, str], other: str) -> Iterator[Finding]:
    """One finding for each line that ends a graph, or would if the program's model were compiled."""
    for held in trace.torch_plans:
        hypothetical = held.plan.compiled_by == "perfscope"
        for line in planned_breaks(held):
            first = line.breaks[0]
            skipped = all(one.skipped_frame for one in line.breaks)
            function = line.functions[-1]
            verb = "would end a graph" if hypothetical else "ends a graph"
            what = f"{first.reason} {verb} in {function}"
            if skipped:
                what += ", and all of it runs in eager mode" if not hypothetical else ", which would stay eager whole"
            hint = first_hint(first)
            fix = fixes.get(first.doc_id or "", other)
            yield Finding(
                subject=f"graph break in {function}",
                title=what + ("; the program is not compiled: planned as if its model were" if hypothetical else ""),
                severity="low" if hypothetical else "medium",
                basis="structural",
                where=where_of(line.place),
                evidence=tuple(
                    {
                        "compile_id": one.compile_id,
                        "reason": one.reason,
                        "explanation": one_line(one.explanation),
                        "frame_stays_eager": "yes" if one.skipped_frame else "no",
                        "doc": doc_link(one.doc_id),
                    }
                    for one in line.breaks[:MAX_ROWS]
                ),
                advice=fix if hint is None else f"{fix} torch says: {hint}",
            )
