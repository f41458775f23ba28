"""Graph breaks of a planned program, by the user's line."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.plans.breaks import planned_breaks
from perfscope.analyzers.torch_compile.frames import doc_link, first_hint, one_line, where_of
from perfscope.model.finding import Finding
from perfscope.model.trace import Trace

MAX_ROWS = 20
"""Evidence rows of one finding."""


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
