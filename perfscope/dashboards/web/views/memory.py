"""Each memory: its curve by category, the blocks alive at chosen moments, and the owners at its peak.

Each curve has its own file (`curve_file`), because a job of many ranks has hundreds; the page reads the one it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfscope.analyzers.memory import (
    GROUPINGS,
    MOST_PROGRAMS,
    RESULT,
    Block,
    PeakHolders,
    memory_holders,
    owners,
)
from perfscope.analyzers.results import result_table
from perfscope.dashboards.figures.memory import curve_of as memory_curve_of
from perfscope.dashboards.report.renderers.html import sections_html
from perfscope.dashboards.report.results import shown
from perfscope.dashboards.report.sections.memory import memory_sections
from perfscope.dashboards.report.sections.memory_picture import NOT_KNOWN, category_words
from perfscope.dashboards.web.views import Gathered, Job, Place
from perfscope.dashboards.web.views._not_recorded import memory_cards as planned_memory
from perfscope.dashboards.web.views._tables import table
from perfscope.model.memory import MemoryTimeline
from perfscope.model.results import ResultTable
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import sanitize

# Data of one memory: its curve by category, the blocks alive at chosen moments, and the owners at its peak.
#
# All bounded: the curve as in `memory_picture`; for each moment the largest blocks and the sum of the others.


MOST_MOMENTS = 200
"""Most moments with a list of blocks, besides the peak: every other point of the curve."""
MOST_BLOCKS = 40
"""Most blocks listed for a moment, largest first; the others are summed up."""
MOST_HOLDERS = 1_000
"""Most modules, lines, ops and blocks of a peak."""
TEXT_CHARS = 160

OWNER_COLUMNS = shown(
    RESULT, "name", "bytes", "share", "blocks", "members", name=lambda owner: _sanitized(owner.name()) or NOT_KNOWN
)
PEAK_BLOCKS: ResultTable[Block] = result_table("peak_blocks")
BLOCK_COLUMNS = shown(PEAK_BLOCKS, "bytes", "category", "name", "module", "line", "op", "phase", "step", "blocks")
MOST_SHOWN = 24
"""Most memories that can be chosen: the highest of each kind, then the others by peak."""


def curve_of(trace: Trace, timeline: MemoryTimeline) -> dict[str, Any]:
    """The figure's curve, and the blocks alive at its ``moments`` (indexes of its positions)."""
    held = memory_curve_of(trace, timeline)
    moments = _moments(len(held["positions"]), held["peak"]["place"])
    positions = [timeline.first + held["positions"][moment] for moment in moments]
    blocks, alive = _alive(trace, timeline, positions)
    return held | {"moments": moments, "alive": alive, "blocks": blocks}


def _moments(many: int, peak: int) -> list[int]:
    """Positions on the curve with a list of blocks; the peak is one of them."""
    chosen = np.linspace(0, many - 1, min(many, MOST_MOMENTS)).astype(np.int64).tolist()
    return sorted({*chosen, peak})


def _alive(
    trace: Trace, timeline: MemoryTimeline, positions: Sequence[int]
) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """(blocks, by moment ``[indexes of blocks, number of further blocks, their bytes]``): each block is listed once."""
    place_of: dict[int, int] = {}
    alive = []
    size, count = timeline.blocks["bytes"], timeline.blocks["count"]
    for position in positions:
        rows = timeline.alive_at(position)
        kept = [place_of.setdefault(row, len(place_of)) for row in rows[:MOST_BLOCKS].tolist()]
        rest = rows[MOST_BLOCKS:]
        alive.append([kept, int(count[rest].sum()), int(size[rest].sum())])
    return [_block(trace, timeline, row) for row in place_of], alive


def _block(trace: Trace, timeline: MemoryTimeline, row: int) -> dict[str, Any]:
    """A block by column of `PEAK_BLOCKS`, its texts cleaned; '' for an unknown text."""
    block = Block(trace=trace, timeline=timeline, row=row)
    record = PEAK_BLOCKS.record(block) | {"category": category_words(block.category)}
    numbers = ("bytes", "step", "blocks", "start", "end")
    return {name: value if name in numbers else _sanitized(value) for name, value in record.items()}


def _sanitized(text: str | None) -> str:
    return sanitize(text or "", TEXT_CHARS)


def peak_tables(trace: Trace, timeline: MemoryTimeline, peak: PeakHolders) -> dict[str, Any]:
    """Owners at the peak: the largest blocks, and a table per grouping, which sums to the peak if complete."""
    rows = timeline.alive_at(peak.position).tolist()
    blocks = [_block(trace, timeline, row) for row in rows[:MOST_HOLDERS]]
    made = {
        "blocks": {**table(BLOCK_COLUMNS, blocks), "left": max(0, len(rows) - MOST_HOLDERS)},
        **{name: table(OWNER_COLUMNS, owners(peak, name), most=MOST_HOLDERS) for name in GROUPINGS},
    }
    return {name: held for name, held in made.items() if held["rows"]}


def gather(trace: Trace, place: Place) -> list[dict[str, Any]]:
    """Write the curve and tables of each memory of one rank; return what identifies them."""
    result = []
    peaks = [peak_holders for peak_holders in trace.fact(memory_holders) if peak_holders.bytes]
    programs = sorted(
        (peak for peak in peaks if peak.timeline.space == "program"), key=lambda peak_holders: -peak_holders.bytes
    )
    kept = [*(peak for peak in peaks if peak.timeline.space != "program"), *programs[:MOST_PROGRAMS]]
    for number, peak in enumerate(kept):
        timeline = peak.timeline
        moving = timeline.first != timeline.last
        held = {
            "curve": curve_of(trace, timeline) if moving else None,
            "tables": peak_tables(trace, timeline, peak),
        }
        (place.folder / f"{number}.json").write_bytes(msgspec.json.encode(held))
        result.append(
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
    return result


def view(job: Job) -> dict[str, Any]:
    """``html``: the cards, without the curves drawn by the page; ``memories``: the choices.

    ``tables``: owners at each peak, ``<place>-<kind>``. ``planned``: the peaks of planned steps, as HTML.
    """
    held = [
        {**memory, "rank": item.source.rank, "whose": _whose(item, len(job.gathered))}
        for item in job.gathered
        for memory in item.held
    ]
    held.sort(key=lambda item: -item["peak_bytes"])
    kinds: set[tuple[Any, ...]] = set()
    first: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for memory in held:
        kind = tuple(memory["kind"])
        (others if kind in kinds else first).append(memory)
        kinds.add(kind)
    chosen = [*first, *others][:MOST_SHOWN]
    tables: dict[str, Any] = {}
    for index, memory in enumerate(chosen):
        written = read_curve(job.folder, memory)
        tables |= {f"{index}-{kind}": rows for kind, rows in written["tables"].items()}
    return {
        "html": "".join(sections_html(memory_sections(job.analysis.memory, pictures=not chosen), more="More memories")),
        "planned": planned_memory(job.analysis),
        "memories": chosen,
        "left": len(held) - len(chosen),
        "tables": tables,
    }


def _whose(item: Gathered, several: int) -> str:
    if item.source.rank is not None and several > 1:
        return f"rank {item.source.rank}"
    return "" if several == 1 else sanitize(item.source.path, 40)


def read_curve(folder: Path, memory: dict[str, Any]) -> dict[str, Any]:
    """``{"curve", "tables"}`` of one of ``memories``; ``folder`` is this view's."""
    content = (folder / str(memory["trace"]) / f"{memory['number']}.json").read_bytes()
    held: dict[str, Any] = msgspec.json.decode(content, type=dict[str, Any])
    return held
