"""The memory of the eager and of the planned step of a program, from its first op on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from perfscope.profiler.aot.torch_inductor import Scheduled
from perfscope.profiler.aot.torch_memory import MemoryLedger
from perfscope.profiler.aot.torch_memory_events import NOWHERE, Place
from perfscope.profiler.aot.torch_memory_file import PlanMemory, StepMemory
from perfscope.profiler.aot.torch_memory_graph import GraphBuffers, buffers_of
from perfscope.profiler.aot.torch_memory_peak import Step, disagreements, step_memory
from perfscope.profiler.aot.torch_plan_file import PlanPlace
from perfscope.profiler.captures.op_graph_frames import Frames

_log = logging.getLogger(__name__)


class PlannedMemory:
    """Counts while the program runs. What breaks here costs the peak and nothing else of the plan."""

    def __init__(self, frames: Frames, place_of: Callable[[Iterable[Any]], PlanPlace | None]) -> None:
        """``place_of(nodes)``: the user's line of nodes of an FX graph."""
        self.ledger = MemoryLedger(frames)
        self._place_of = place_of
        self._graphs: list[GraphBuffers | None] = []
        self._uncounted: dict[str, None] = {}
        self._eager: StepMemory | None = None
        self._planned: StepMemory | None = None

    def install(self) -> None:
        """Count from now on; enter the fake world first."""
        self.ledger.install()

    def planned(self, scheduled: Scheduled) -> None:
        """A graph was planned, in the order of their numbers."""
        direction = "backward" if scheduled.backward else "inference" if scheduled.inference else "forward"
        label = f"{scheduled.compile_id} {direction}"
        try:
            found = buffers_of(scheduled.graph, label=label, places=self._place)
        except (ImportError, AttributeError, TypeError, KeyError, AssertionError) as error:
            _log.debug("buffers of %s", label, exc_info=True)
            self._uncounted[f"buffers of graph {label}: inductor's wrapper is not understood ({error})"[:300]] = None
            self._graphs.append(None)
            return
        if found.unread:
            self._uncounted[f"graph {label} has branches or loops: what they hold inside is not counted"] = None
        self._graphs.append(found)

    @contextmanager
    def graph(self, number: int | None, arguments: list[Any]) -> Iterator[Callable[[Any], None]]:
        """Around the run of a planned graph (`Planner`)."""
        buffers = None if number is None else self._graphs[number]
        with self.ledger.graph(number, arguments, () if buffers is None else buffers.results) as taken:
            yield taken

    def begin(self) -> None:
        """A step begins."""
        self.ledger.start()

    def end(self, optimizers: Iterable[Any], *, eager: bool) -> None:
        """It ended. Of planned steps the last one counts: in the first graphs are still being made."""
        ledger = self.ledger
        held, events = ledger.take(optimizers)
        step = Step(
            held=held, events=events, joins=ledger.joins, backward_began=ledger.backward_began, graphs=self._graphs,
            all_on_device=not ledger.names_device, first_op=ledger.first,
        )  # fmt: skip
        try:
            found = step_memory(step)
            self._uncounted.update(dict.fromkeys(disagreements(step)))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            _log.debug("memory of a step", exc_info=True)
            self._uncounted[f"memory of a step could not be summed up: {type(error).__name__}: {error}"[:300]] = None
            return
        if eager:
            self._eager = found
        else:
            self._planned = found

    def found(self) -> PlanMemory:
        """What was found."""
        return PlanMemory(eager=self._eager, planned=self._planned, uncounted=tuple(self._uncounted)[:1000])

    def _place(self, origins: Iterable[Any]) -> Place:
        place = self._place_of(origins)
        return NOWHERE if place is None else (place.file, place.line, place.function)
