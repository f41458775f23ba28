"""Each memory: its curve by category, the blocks alive at any of many moments, who holds its peak.

Curves go to a file each (`curve_file`), since a job of many ranks has hundreds; the page reads the one that it shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from perfscope.analyzers.memory.holders import memory_holders
from perfscope.analyzers.memory.trace_memories import MOST_PROGRAMS
from perfscope.dashboards.report.sections.memory import memory_view
from perfscope.dashboards.report.sections.memory_formats import memory_cards
from perfscope.dashboards.web.views import Gathered, Job, Place
from perfscope.dashboards.web.views._memory_parts import curve_of, peak_tables
from perfscope.dashboards.web.views._planned import memory_cards as planned_memory
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import sanitize

MOST_SHOWN = 24
"""Memories that can be chosen: of each kind the highest, then the others by their peak."""


def gather(trace: Trace, place: Place) -> list[dict[str, Any]]:
    """Write the curve and the tables of each memory of one rank; returned: what tells them apart."""
    found = []
    peaks = [one for one in trace.fact(memory_holders) if one.bytes]
    programs = sorted((one for one in peaks if one.timeline.space == "program"), key=lambda one: -one.bytes)
    kept = [*(one for one in peaks if one.timeline.space != "program"), *programs[:MOST_PROGRAMS]]
    for number, peak in enumerate(kept):
        timeline = peak.timeline
        moving = timeline.first != timeline.last
        held = {
            "curve": curve_of(trace, timeline, peak) if moving else None,
            "tables": peak_tables(trace, timeline, peak),
        }
        (place.folder / f"{number}.json").write_bytes(msgspec.json.encode(held))
        found.append(
            {
                "trace": place.number,
                "number": number,
                "kind": [timeline.space, timeline.label if timeline.space == "program" else "", timeline.of_driver],
                "label": sanitize(timeline.label, 60),
                "space": timeline.space,
                "axis": timeline.axis,
                "of_driver": timeline.of_driver,
                "basis": timeline.basis,
                "detail": timeline.detail,
                "known_from": timeline.known_from,
                "peak_bytes": peak.bytes,
                "capacity": timeline.capacity_bytes,
                "notes": [sanitize(note, 300) for note in timeline.notes],
                "moving": moving,
            }
        )
    return found


def view(job: Job) -> dict[str, Any]:
    """``html``: the cards; ``memories``: what can be chosen; ``tables``: who holds each peak, ``<place>-<kind>``.

    ``planned``: the peaks of planned steps, as HTML.
    """
    found = memory_view(job.analysis.memory)
    held = [
        {**memory, "rank": one.source.rank, "whose": _whose(one, len(job.gathered))}
        for one in job.gathered
        for memory in one.held
    ]
    held.sort(key=lambda one: -one["peak_bytes"])
    kinds: set[tuple[Any, ...]] = set()
    first: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for memory in held:
        kind = tuple(memory["kind"])
        (others if kind in kinds else first).append(memory)
        kinds.add(kind)
    chosen = [*first, *others][:MOST_SHOWN]
    tables: dict[str, Any] = {}
    for place, memory in enumerate(chosen):
        written = read_curve(job.folder, memory)
        tables |= {f"{place}-{kind}": rows for kind, rows in written["tables"].items()}
    return {
        "html": "" if found is None else "".join(memory_cards(found)),
        "planned": planned_memory(job.analysis),
        "memories": chosen,
        "left": len(held) - len(chosen),
        "tables": tables,
    }


def _whose(one: Gathered, several: int) -> str:
    if one.source.rank is not None and several > 1:
        return f"rank {one.source.rank}"
    return "" if several == 1 else sanitize(one.source.path, 40)


def read_curve(folder: Path, memory: dict[str, Any]) -> dict[str, Any]:
    """``{"curve", "tables"}`` of one of ``memories``; ``folder`` is that of this view."""
    content = (folder / str(memory["trace"]) / f"{memory['number']}.json").read_bytes()
    held: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
    return held
