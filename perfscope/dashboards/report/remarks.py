"""What a reader of a report must know of its sources: unplaced events, repairs, notes."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from perfscope.dashboards.report.device_rows import span_text
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perfscope.analyzers.engine import Analysis
    from perfscope.model.trace import Source


# Sources that are no recording of a run: compiled programs, memory snapshots.


PROGRAM_FORMATS = frozenset({"compiled", "hlo_proto", "hlo_text"})
"""Formats that hold compiled or planned programs and no recording of their run."""


def programs_alone(analysis: Analysis) -> bool:
    """Compiled programs and no recording: they have neither events nor steps nor devices."""
    return bool(analysis.sources) and all(
        PROGRAM_FORMATS.issuperset(source.format.split(", ")) for source in analysis.sources
    )


MEMORY_FORMATS = frozenset({"jax_memory", "torch_memory"})
"""Formats of memory snapshots: they hold neither steps nor work."""


def memory_alone(analysis: Analysis) -> bool:
    """Memory snapshots and no recording of a run."""
    return bool(analysis.sources) and all(source.format in MEMORY_FORMATS for source in analysis.sources)


REASON_LIMIT = 600
"""Characters of a reason or a note: what to capture, in full."""

_NUMBER = re.compile(r"\d[\d,.]*")


def remarks(analysis: Analysis) -> Iterator[str]:
    """One line each: what is silenced and configured, then of the sources, counts summed over them."""
    if silenced := analysis.silenced():
        counts = Counter((rule, finding.where.label(), finding.silenced) for rule, finding in silenced)
        named = "; ".join(f"{rule} {where}: {reason}" for rule, where, reason in counts)
        count = f"{len(silenced)} finding{'' if len(silenced) == 1 else 's'}"
        yield f"silenced: {count} ({sanitize(named, REASON_LIMIT)})"
    yield from (f"configured: {sanitize(text, REASON_LIMIT)}" for text in analysis.settings)
    yield from _of_sources(analysis.sources)


def _of_sources(sources: Sequence[Source]) -> Iterator[str]:
    """Counts are summed over the sources, and notes that differ in numbers only are said once."""
    unplaced = sum(source.events_unplaced for source in sources)
    if unplaced:
        why = _counted([source.unplaced for source in sources])
        read = sum(source.events_read for source in sources)
        yield f"unplaced: {unplaced:,} of {read:,} events" + (f" ({why})" if why else "")
    if repairs := _counted([source.repairs for source in sources]):
        yield f"repaired: {repairs}"
    ranks = Counter(source.rank for source in sources if source.rank is not None)
    if twice := [rank for rank, count in ranks.items() if count > 1]:
        yield f"note: several traces of rank {span_text(twice)}: judged as one job, which they may not be"
    yield from _notes(sources)


def _counted(parts: Sequence[Mapping[str, int]]) -> str:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return "; ".join(f"{count:,} {sanitize(reason)}" for reason, count in sorted(total.items()))


def _notes(sources: Sequence[Source]) -> Iterator[str]:
    """Each kind of note with its first wording; of many sources, how many have it."""
    kinds: dict[str, tuple[str, int]] = {}
    for source in sources:
        for note in source.notes:
            kind = _NUMBER.sub("#", note)
            first, count = kinds.get(kind, (note, 0))
            kinds[kind] = (first, count + 1)
    for first, count in kinds.values():
        yield f"note: {sanitize(first, REASON_LIMIT)}{_of_many(count, len(sources))}"


def _of_many(count: int, sources: int) -> str:
    return "" if count == sources else f" ({count} of {sources} sources)"
