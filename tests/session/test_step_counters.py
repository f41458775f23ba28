"""Counters at the boundaries of steps: waiting for cores, memory, and variables that grow."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.model.documents.counters import StepCounters, dump_counters, load_counters
from perfscope.model.errors import DataError
from perfscope.profiler.session.held_names import HeldNames
from perfscope.profiler.session.step_counters import (
    CoreReadings,
    StepCounting,
    _busy_ns,
    _local_processes,
    _throttled_ns,
    why_unsupported,
)

LOOKS = 6


def names(loop: Any) -> dict[str, Any]:
    """Variables that grew in a loop that calls ``look(step)`` after each of its steps."""
    held = HeldNames()
    loop(held.look)
    return {item.name: item for item in held.grown()}


def test_a_list_is_named_with_the_line_that_adds_to_it() -> None:
    def loop(look: Any) -> None:
        kept, fixed, emptied = [], [1, 2], deque[int]()
        for step in range(LOOKS):
            kept.append(bytes(step))
            emptied.append(step)
            if step % 3 == 2:
                emptied.clear()
            look(step)
        assert fixed

    found = names(loop)
    assert set(found) == {"kept"}
    assert found["kept"].kind == "container"
    assert found["kept"].size == tuple(range(1, LOOKS + 1))
    code = loop.__code__
    assert found["kept"].line == code.co_firstlineno + 3
    assert Path(found["kept"].file).name == Path(__file__).name


def test_arrays_and_graphs_are_told_apart() -> None:
    torch = pytest.importorskip("torch")

    def loop(look: Any) -> None:
        weight = torch.ones(3, requires_grad=True)
        total, detached, joined, fresh = 0, 0, torch.zeros(0), None
        for step in range(LOOKS):
            fresh = (weight * step).sum()
            total = total + fresh
            detached = detached + fresh.detach()
            joined = torch.cat([joined, torch.ones(5)])
            look(step)

    found = names(loop)
    assert {name: item.kind for name, item in found.items()} == {"total": "graph", "joined": "array"}
    assert found["joined"].bytes == tuple(20 * count for count in range(1, LOOKS + 1))
    first = loop.__code__.co_firstlineno
    assert (found["total"].line, found["joined"].line) == (first + 5, first + 7)


class Trainer:
    """A user's class: its attributes are looked at."""

    def __init__(self) -> None:
        self.outputs: list[int] = []

    def step(self, number: int) -> None:
        self.outputs.append(number)

    @property
    def forbidden(self) -> int:
        raise AssertionError("a property of the program was read")


def test_attributes_of_the_users_objects_are_named_by_their_class() -> None:
    def loop(look: Any) -> None:
        trainer = Trainer()
        for step in range(LOOKS):
            trainer.step(step)
            look(step)

    found = names(loop)
    assert found["trainer.outputs"].line == Trainer.step.__code__.co_firstlineno + 1


class Fragile(list[int]):
    """A list of the program's own, whose methods must not run."""

    def __len__(self) -> int:
        raise AssertionError("code of the program ran")

    __getitem__ = __iter__ = __getattr__ = __len__  # type: ignore[assignment]


def test_no_code_of_the_program_runs_and_nothing_is_kept_alive() -> None:
    released = []

    class Value:
        def __del__(self) -> None:
            released.append(True)

    def loop(look: Any) -> None:
        fragile, value = Fragile(), Value()
        look(0)
        assert fragile is not None
        del value
        assert released == [True], "the frame's copy of its variables held it"

    names(loop)


@pytest.mark.skipif(why_unsupported() is not None, reason=str(why_unsupported()))
def test_readings_are_of_the_thread_that_began_and_grow() -> None:
    readings = CoreReadings()
    readings.begin()
    readings.read(traced=True)
    thread = threading.Thread(target=lambda: readings.read(traced=True))
    thread.start()
    thread.join()
    readings.at_boundary(needed=True)
    readings.stop()
    readings.read(traced=True)
    rows = readings.rows
    assert len(rows) == 3, "none after the end"
    for column in range(5):
        values = [row[column] for row in rows]
        assert values == sorted(values)


def test_a_long_run_keeps_steps_of_its_whole_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfscope.profiler.session.step_counters.MOST_STEPS", 64)
    counting = StepCounting(wanted=True)
    for step in range(1_000):
        counting.begin(traced=step == 3)
        counting.end(step, 10 * step, 10 * step + 5, free=step != 3, traced=step == 3)
    document = counting.document()
    counting.stop()
    assert document is not None
    numbers = document.step_number
    assert len(numbers) <= 65
    assert 3 in numbers, "those of the timing pass stay"
    assert max(numbers) > 950
    steps = [number for number in numbers if number != 3]
    assert len({later - earlier for earlier, later in itertools.pairwise(steps)}) == 1


def test_throttling_of_both_kinds_of_cgroup_is_in_ns() -> None:
    assert _throttled_ns("nr_throttled 3\nthrottled_usec 1500\n") == 1_500_000
    assert _throttled_ns("nr_throttled 3\nthrottled_time 1500\n") == 1_500


def test_a_document_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "counters.json.gz"
    path.write_bytes(dump_counters(StepCounters(memory_step=(1,), rss_bytes=(2,), device_bytes=(3,))))
    assert load_counters(path).rss_bytes == (2,)
    path.write_bytes(dump_counters(StepCounters(memory_step=(1, 2), rss_bytes=(2,), device_bytes=(3,))))
    with pytest.raises(DataError, match="different length"):
        load_counters(path)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux")
def test_nothing_is_looked_at_under_a_debugger() -> None:
    held = HeldNames()
    sys.settrace(lambda *_: None)
    try:
        kept = []
        for step in range(LOOKS):
            kept.append(step)
            held.look(step)
    finally:
        sys.settrace(None)
    assert held.grown() == ()


def test_processor_time_of_the_machine_is_in_ns_without_idle_and_stolen_time() -> None:
    text = "cpu  100 20 30 4000 500 6 7 80 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
    assert _busy_ns(text) == (100 + 20 + 30 + 6 + 7) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def test_ranks_that_meet_at_a_local_address_share_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    group = SimpleNamespace(is_initialized=lambda: True, get_world_size=lambda: 4)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    assert _local_processes() == 4
    monkeypatch.setenv("MASTER_ADDR", "node-17")
    assert _local_processes() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert _local_processes() == 2
