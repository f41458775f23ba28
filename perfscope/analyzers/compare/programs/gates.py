"""Gates on compiled programs that fail a build. They are exact: one compilation of each side is enough."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from perfscope.analyzers.compare.programs.row import NEW_BREAK, ProgramChange, ProgramRow, some_of
from perfscope.analyzers.compare.programs.units import (
    BYTES,
    FLOPS,
    LAUNCHES,
    PEAK,
    PLAN_BREAKS,
    PLAN_BYTES,
    PLAN_COLLECTIVES,
    PLAN_LAUNCHES,
    PLAN_PEAK,
    PLAN_WIRE,
    RECOMPUTED,
    UNITS,
    WIRE,
)
from perfscope.model.errors import UsageError
from perfscope.model.units import format_bytes, format_count, format_ns

LOST_FUSIONS, BLOCKING, MODELLED = "lost-fusions", "blocking-collectives", "modelled-time"
BREAKS = "graph-breaks"

LEAST: dict[str, float] = {"hbm-bytes": 0.5, "peak": 0.1, "launches": 1.0, "recompute": 0.1, "collective-bytes": 0.1}
"""Default percentage that a gate tolerates. A step that only moves bytes is 0.5% slower with 0.5% more bytes, a quarter
of the change that launches can detect. XLA's choices elsewhere move less than that for an unrelated edit. A peak has no
such noise, so anything above rounding counts, because memory runs out without warning.
"""

MODELLED_LEAST = 2.0
"""Percentage for modelled times, equal to the least change of a measured step."""

LOST_LEAST = 0.001
"""Smallest share of the program's bytes for a lost fusion; writing a scalar or mask is not a loss."""

_METRICS = {
    "hbm-bytes": (BYTES, PLAN_BYTES), "peak": (PEAK, PLAN_PEAK),
    "launches": (LAUNCHES, PLAN_LAUNCHES, PLAN_COLLECTIVES), "recompute": (RECOMPUTED,),
    "collective-bytes": (WIRE, PLAN_WIRE),
}  # fmt: skip
"""Metrics of each gate, for compiled programs and plans; a program is checked by those that it has."""

DEFAULT = (LOST_FUSIONS, "hbm-bytes", "peak", "collective-bytes", BLOCKING, BREAKS)
"""Gates that ``programs`` selects."""

PROGRAM_GATES = ("programs", *sorted((LOST_FUSIONS, BLOCKING, BREAKS, MODELLED, *LEAST)))

_GATE = re.compile(r"([a-z-]+?)(?::(\d{1,6}(?:\.\d{1,6})?)%?)?")

MOST_NAMED = 3


class ProgramGate(Struct, frozen=True, kw_only=True):
    """A gate on compiled programs. ``percent``: growth that it tolerates."""

    name: str
    percent: float = 0.0


def program_gate(text: str) -> tuple[ProgramGate, ...]:
    """Return the gates of ``programs``, ``peak`` or ``hbm-bytes:2%``; empty if the text is not a gate on programs.

    ``UsageError`` if this gate takes no percentage.
    """
    match = _GATE.fullmatch(text)
    if match is None or match[1] not in PROGRAM_GATES:
        return ()
    name, percent = match[1], None if match[2] is None else float(match[2])
    if name == "programs":
        if percent is not None:
            raise UsageError(f"--fail-on {text}: programs takes no percentage; use it with {', '.join(LEAST)}")
        return tuple(gate for part in DEFAULT for gate in program_gate(part))
    least = MODELLED_LEAST if name == MODELLED else LEAST.get(name)
    if least is None:
        if percent is not None:
            raise UsageError(f"--fail-on {text}: {name} takes no percentage, because one is too many")
        return (ProgramGate(name=name),)
    return (ProgramGate(name=name, percent=least if percent is None else percent),)


def gates_not_met(changes: Sequence[ProgramChange], gates: Iterable[ProgramGate]) -> Iterator[str]:
    """Yield a line for each gate that a program fails, with the source lines that cause it."""
    several = len(changes) > 1
    wanted = list(dict.fromkeys(gates))
    for change in changes if wanted else ():
        if change.failed == "head":
            lead = f"{change.name}: " if several else ""
            yield f"{lead}programs: planning of head failed, planning of base did not: the program was not judged"
    for gate in wanted:
        for change in changes:
            lead = f"{change.name}: " if several else ""
            if gate.name == LOST_FUSIONS:
                text = _lost(change)
            elif gate.name == BLOCKING:
                text = _blocking(change)
            elif gate.name == BREAKS:
                text = _breaks(change)
            elif gate.name == MODELLED:
                text = _modelled(change, gate)
            else:
                text = "; ".join(filter(None, (_grown(change, gate, name) for name in _METRICS[gate.name])))
            if text:
                yield f"{lead}{gate.name}: {text}"


def lost_fusions(change: ProgramChange) -> tuple[ProgramRow, ...]:
    """Return rows of launches that are split now and move more bytes, most bytes first."""
    least = LOST_LEAST * change.totals.get(_metric(change, "hbm-bytes"), (0, 0))[0]
    rows = (row for row in change.rows if row.lost and row.moved >= max(least, 1))
    return tuple(sorted(rows, key=lambda row: -row.moved))


def _lost(change: ProgramChange) -> str:
    rows = lost_fusions(change)
    if not rows:
        return ""
    many = sum(row.lost for row in rows)
    more = sum(row.moved for row in rows)
    return (
        f"{many} {'launch was' if many == 1 else 'launches were'} part of a fusion, +{format_bytes(more)} per run: "
        f"{_places(rows)}"
    )


def _blocking(change: ProgramChange) -> str:
    rows = [row for row in change.rows if row.blocking]
    if not rows:
        return ""
    many = sum(row.blocking for row in rows)
    return f"{many} {'collective blocks' if many == 1 else 'collectives block'} now: {_places(rows)}"


def _breaks(change: ProgramChange) -> str:
    base, head = change.totals.get(PLAN_BREAKS, (0, 0))
    rows = [row for row in change.rows if row.change == NEW_BREAK]
    return f"{base} → {head}: {_places(rows)}" if head > base else ""


def _metric(change: ProgramChange, gate: str) -> str:
    """Return the metric of a gate that this program has."""
    names = _METRICS[gate]
    return next((name for name in names if name in change.totals), names[0])


def _grown(change: ProgramChange, gate: ProgramGate, name: str) -> str:
    base, head = change.totals.get(name, (0, 0))
    whole = change.totals.get(FLOPS, (0, 0))[0] if name == RECOMPUTED else base
    if head <= base or (head - base) * 100 <= gate.percent * whole:
        return ""
    rows = sorted((row for row in change.rows if row.delta(name) > 0), key=lambda row: -row.delta(name))
    sides = [_amount(name, amount) for amount in (base, head)]
    sides[1] += " collectives" if name == PLAN_COLLECTIVES else ""
    share = f", +{100 * (head - base) / whole:.3g}%" if whole else ""
    of = " of all FLOPs" if name == RECOMPUTED and share else ""
    return f"{sides[0]} → {sides[1]}{share}{of} (more than {gate.percent:g}%): {_places(rows)}"


def _modelled(change: ProgramChange, gate: ProgramGate) -> str:
    """Compare the geometric means of the modelled ranges, which have the same model error on both sides."""
    if change.modelled_ns is None:
        return "it cannot be modelled: a side has no target (`perfscope compile` records it)"
    base, head = (math.sqrt(span.low) * math.sqrt(span.high) for span in change.modelled_ns)
    if (head - base) * 100 <= gate.percent * base:
        return ""
    return f"{format_ns(base)} → {format_ns(head)} by the model (more than {gate.percent:g}%); nothing was measured"


def _amount(name: str, amount: int) -> str:
    if UNITS[name] == "bytes":
        return format_bytes(amount)
    return format_count(amount) if UNITS[name] == "FLOP" else f"{amount:,}"


def _places(rows: Sequence[ProgramRow]) -> str:
    return some_of((row.where() or row.what for row in rows), MOST_NAMED)
