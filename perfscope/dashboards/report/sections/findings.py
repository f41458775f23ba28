"""Findings: the saving of a fix, its share, and the evidence as a table of values with units."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from perfscope.analyzers.consequences import causes_first
from perfscope.analyzers.coverage import programs_alone
from perfscope.analyzers.savings import Wholes
from perfscope.dashboards.report.blocks import Amount, FindingBlock, Head, Listing, Section, Table
from perfscope.model.finding import ONCE, PLACE_KEYS, source_label
from perfscope.model.untrusted_text import NAME_LIMIT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perfscope.analyzers.engine import Analysis
    from perfscope.dashboards.report.blocks import Value
    from perfscope.model.finding import Cell, Finding
    from perfscope.model.results import Unit

FIRST_ROWS = 6
"""Rows of evidence that are shown unfolded."""

MOST_EVIDENCE = 20
"""Most evidence rows of a finding: one rule yields no more, but findings merged over ranks do."""

NAMES = frozenset({"op", "kernel", "module", "function", "host_was_in", "instruction", "computation", "name"})
"""Keys whose values are names in the program; a long name is shortened instead of folded."""

LINE_IS = "line_is"
"""Key that describes the line of a place; left out if names and places need the room."""

START, SINCE = "start_ns", "since_start_ns"
"""The only key that is a point in time on the trace's clock, and the key it is shown as."""

UNITS: dict[str, Unit] = {"ns": "ns", "bytes": "bytes", "share": "share", "percent": "share", "pct": "share"}
"""Unit by the suffix of a key."""


def finding_blocks(analysis: Analysis) -> tuple[FindingBlock, ...]:
    """All findings: those with a time first, costliest first, causes before their consequences."""
    wholes, several, alone = Wholes(analysis), len(analysis.sources) > 1, programs_alone(analysis)
    starts = starts_by_label(analysis)
    made = [
        _block(rule, finding, wholes, starts, several=several, alone=alone) for rule, finding in analysis.findings()
    ]
    made.sort(key=lambda block: block.saves is None or block.saves.unit != "ns")
    return tuple(causes_first(made, lambda block: (block.rule, block.finding)))


def recording_sections(analysis: Analysis) -> tuple[Section, ...]:
    """How to make a better recording, apart from findings, because it makes no step faster."""
    items = [
        f"{rule}: {finding.title}. {finding.record or finding.advice}" for rule, finding in analysis.of_recording()
    ]
    if not items:
        return ()
    return (Section(title="Record it better", blocks=(Listing(items=tuple(items), few=len(items)),)),)


def _block(
    rule: str, finding: Finding, wholes: Wholes, starts: Mapping[str, int], *, several: bool, alone: bool
) -> FindingBlock:
    share, over = wholes.share(finding), ""
    if share is not None and share.of == ONCE:
        over = ONCE
    elif share is not None and finding.cost_ns_per_step is None:
        over = "per run" if alone else "in all"
    saves = None if share is None else Amount(share.saves_ns, "ns")
    whole, of = (None, "") if share is None else (share.of_ns, share.of)
    if saves is None and finding.cost_bytes and finding.bytes_are == "freed":
        saves, whole, of = Amount(finding.cost_bytes, "bytes"), finding.memory_bytes, "memory"
    return FindingBlock(
        rule=rule,
        finding=finding,
        saves=saves,
        over=over,
        share=None if saves is None or not whole else saves.value / whole,
        share_of=of,
        ranks=finding.ranks if several else (),
        evidence=evidence_table(finding.evidence, starts) if finding.evidence else None,
    )


def starts_by_label(analysis: Analysis) -> dict[str, int]:
    """Start of each source by its label in the evidence; ``""``: the only source."""
    if len(analysis.starts_ns) == 1:
        return {"": analysis.starts_ns[0]}
    labels = [source_label(source.rank, index) for index, source in enumerate(analysis.sources)]
    return dict(zip(labels, analysis.starts_ns, strict=False))  # a hand-made source has no start


def evidence_table(evidence: Sequence[Mapping[str, Cell]], starts: Mapping[str, int]) -> Table | None:
    """The first rows of a finding without empty columns; ``None`` if all columns are empty.

    Points in time count from the start of their trace: ``starts`` by the label in a row's ``source``, ``""`` for rows
    without it. A point whose start is unknown is left out.
    """
    rows = [_counted(row, starts) for row in evidence[:MOST_EVIDENCE]]
    keys = [key for key in rows[0] if any(row.get(key) not in (None, "") for row in rows)]
    if not keys:
        return None
    often = Counter(map(_title, keys))
    return Table(
        heads=tuple(
            Head(
                _title(key, full=often[_title(key)] > 1),
                _unit(key, [row.get(key) for row in rows]),
                drop=int(key == LINE_IS),
                limit=0 if key in PLACE_KEYS | NAMES else NAME_LIMIT,
            )
            for key in keys
        ),
        rows=tuple(tuple(_value(key, row.get(key)) for key in keys) for row in rows),
        few=FIRST_ROWS,
        left=max(0, len(evidence) - MOST_EVIDENCE),
        rest="rows in the JSON report",
    )


def _counted(row: Mapping[str, Cell], starts: Mapping[str, int]) -> Mapping[str, Cell]:
    moment = row.get(START)
    if not isinstance(moment, int):
        return row
    begins = starts.get(str(row.get("source", "")))
    since = None if begins is None else moment - begins
    return {SINCE if key == START else key: since if key == START else cell for key, cell in row.items()}


def _title(key: str, *, full: bool = False) -> str:
    """``wait_ns`` -> ``'wait'``: the cells have the unit. ``full``: keep it because another column has this title."""
    stem, _, unit = key.rpartition("_")
    if full and unit == "ns":
        stem = f"{stem}_time"
    elif full or not stem or unit not in UNITS or unit == "share":
        stem = key
    return stem.replace("_", " ")


def _unit(key: str, cells: Sequence[Cell]) -> Unit:
    if any(isinstance(cell, str) for cell in cells):
        return "place" if key in PLACE_KEYS else "code" if key in NAMES else "text"
    return UNITS.get(key.rpartition("_")[2], "count")


def _value(key: str, cell: Cell) -> Value:
    """The value of a cell; in a column of words and numbers each number has its unit."""
    if cell is None or isinstance(cell, str):
        return cell
    unit = key.rpartition("_")[2]
    return Amount(cell / 100 if unit in ("percent", "pct") else cell, UNITS.get(unit, "count"))
