"""One run of several tasks: what became of each, and which ranks left nothing. No file is touched here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from perfscope.profiler.run import Process, Run

MOST_NAMED = 8
"""Tasks or ranks a note names one by one."""


def as_one_run(held: Mapping[int, Run], running: Collection[int], processes: tuple[Process, ...]) -> Run:
    """The run that tasks wrote together. ``held``: manifest by task, not empty; ``running``: tasks that live."""
    first = held[min(held)]
    fates: dict[str, list[int]] = defaultdict(list)
    for number, task in sorted(held.items()):
        if number == first.task:
            continue
        if task.state == "running":
            fates["it still runs" if number in running else "its perfscope was killed"].append(number)
        elif task.exit_code and not task.notes:
            fates[f"its program ended with {task.exit_code}"].append(number)
        for note in task.notes:
            fates[note].append(number)
    notes = tuple(f"{named('task', numbers)}: {fate}" for fate, numbers in fates.items())
    state = first.state
    if state == "running" and first.task not in running:
        state = "killed"
    return replace(first, state=state, notes=(*first.notes, *notes), processes=processes or first.processes)


def left_nothing(ranks: Collection[int], world_size: int | None) -> str | None:
    """``'rank 3 of 4 left nothing here'``; ``None`` if all are there or their number is not known."""
    missing = [rank for rank in range(world_size or 0) if rank not in ranks]
    return f"{named('rank', missing)} of {world_size:,} left nothing here" if missing else None


def ranks_of(run: Run) -> tuple[set[int], int | None]:
    """The ranks that recorded something, and how many there were: as they told, else as many as tasks."""
    ranks = {process.rank for process in run.processes if any(one.artifact for one in process.captures)}
    worlds = {process.world_size for process in run.processes if process.world_size is not None}
    return ranks, max(worlds, default=run.tasks)


def named(what: str, numbers: Sequence[int]) -> str:
    """``'ranks 3, 5'``; beyond ``MOST_NAMED`` only their number."""
    more = f" and {len(numbers) - MOST_NAMED:,} more" if len(numbers) > MOST_NAMED else ""
    return f"{what}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:MOST_NAMED]))}{more}"
