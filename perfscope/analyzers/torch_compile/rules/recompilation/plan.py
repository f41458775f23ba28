"""Frames of a planned program that are compiled again and again while its few steps are walked through."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from perfscope.analyzers.torch_compile.frames import one_line, plain_function
from perfscope.analyzers.torch_compile.guards import MIN_RECOMPILATIONS, MIN_SIZES, Guard, parse_guard
from perfscope.analyzers.torch_compile.rules.recompilation.compiled import FIXES, OTHER_FIX
from perfscope.model.finding import AbstainError, Finding, Where
from perfscope.model.trace import Trace

MAX_ROWS = 20

_OF_WHICH = re.compile(r"^\d+/\d+: ")
"""Before a reason: the compilation whose guard failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAgain:
    """A frame that was compiled again for one and the same kind of guard."""

    function: str
    where: Where
    recompilations: int
    guards: tuple[Guard, ...]
    """Those that are about the same as the most frequent one, in order."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Where they are about a dimension: its sizes, sorted."""
        said = (value for guard in self.guards for value in (guard.expected, guard.actual) if guard.kind == "size")
        return tuple(sorted({int(value) for value in said if value is not None and value.isdecimal()}))


def planned_again(trace: Trace) -> tuple[PlannedAgain, ...]:
    """Frames that a program itself compiles, with at least ``MIN_RECOMPILATIONS`` after their first compilation.

    One is how dynamo learns that a size or number is dynamic. ``AbstainError`` where it compiles nothing itself.
    """
    plans = [held.plan for held in trace.torch_plans if held.plan.compiled_by == "program"]
    if not plans:
        raise AbstainError("the program compiles nothing itself")
    found = []
    for plan in plans:
        frames = defaultdict(list)
        for one in plan.recompiles:
            frames[one.compile_id.partition("/")[0]].append(one)
        for rows in frames.values():
            if len(rows) < MIN_RECOMPILATIONS:
                continue
            guards = [parse_guard(_OF_WHICH.sub("", row.reasons[0])) for row in rows if row.reasons]
            most = Counter(guard.key for guard in guards).most_common(1)
            place = rows[0].place
            found.append(
                PlannedAgain(
                    function=plain_function(rows[0].function),
                    where=Where() if place is None else Where(file=place.file, line=place.line),
                    recompilations=len(rows),
                    guards=tuple(guard for guard in guards if guard.key == most[0][0]),
                )
            )
    return tuple(found)


def planned_again_findings(trace: Trace, *, churn: bool) -> Iterator[Finding]:
    """One finding for each frame: with ``churn`` those that see ever new sizes of a dimension, else the others."""
    for again in planned_again(trace):
        if (len(again.sizes) >= MIN_SIZES) == churn:
            yield _finding(again)


def _finding(again: PlannedAgain) -> Finding:
    guard = again.guards[0] if again.guards else None
    title = f"{again.function} is compiled {again.recompilations:,} more times in the steps that were walked through"
    if guard is None:
        title += "; torch does not say why"
    elif again.sizes:
        title += f": {guard.in_words()} changes ({', '.join(map(str, again.sizes))})"
    else:
        title += f": {guard.in_words()} changes, guard {one_line(guard.text)}"
    fix = OTHER_FIX if guard is None else FIXES.get(guard.kind, OTHER_FIX)
    return Finding(
        subject=f"recompilation of {again.function}",
        title=title,
        severity="medium",
        basis="structural",
        where=again.where,
        evidence=tuple({"guard": one_line(one.text), "is_about": one.in_words()} for one in again.guards[:MAX_ROWS]),
        advice=fix if guard is None else fix.format(source=guard.source, dimension=guard.dimension),
    )
