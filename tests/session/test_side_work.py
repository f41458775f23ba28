"""Saves and evaluations as the session notes them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perfscope.analyzers.readers.run.counters import attach_counters
from perfscope.model.documents.counters import SideWork, StepCounters, dump_counters, load_counters
from perfscope.model.trace import TraceBuilder
from perfscope.profiler.session.side_work import SideWorkLog
from perfscope.profiler.session.storage import own_storage, storage_with_workers

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def log() -> Iterator[SideWorkLog]:
    made = SideWorkLog()
    made.watch()
    yield made
    made.stop()


def test_a_save_has_its_line_and_its_bytes(log: SideWorkLog, tmp_path: Path) -> None:
    torch.save(torch.zeros(1000), tmp_path / "weights.pt")
    (event,) = log.events()
    assert (event.activity, event.call, event.of_steps) == ("save", "save", True)
    assert Path(event.file).name == Path(__file__).name
    assert event.function.endswith("test_a_save_has_its_line_and_its_bytes")
    assert event.begin_ns < event.end_ns <= event.stored_ns
    if own_storage() is not None:
        assert 4000 <= event.bytes < 40_000


def test_a_save_in_a_thread_is_not_of_the_steps(log: SideWorkLog, tmp_path: Path) -> None:
    thread = threading.Thread(target=torch.save, args=(torch.zeros(3), tmp_path / "weights.pt"))
    thread.start()
    thread.join()
    (event,) = log.events()
    assert (event.of_steps, event.file) == (False, "")


def test_an_asynchronous_save_ends_when_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    future: Future[None] = Future()
    saver: Any = ModuleType("torch.distributed.checkpoint.state_dict_saver")
    saver.async_save = lambda state: future
    monkeypatch.setitem(sys.modules, saver.__name__, saver)
    log = SideWorkLog()
    log.watch()
    saver.async_save({})
    assert not log.events()
    future.set_result(None)
    (event,) = log.events()
    assert event.call == "async_save"
    assert event.stored_ns > event.end_ns
    log.stop()


def test_a_manager_that_stores_on_its_own_is_looked_at_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    class CheckpointManager:
        busy = True

        def save(self, step: int) -> bool:
            return True

        def is_saving_in_progress(self) -> bool:
            return self.busy

    module: Any = ModuleType("orbax.checkpoint.checkpoint_manager")
    module.CheckpointManager = CheckpointManager
    monkeypatch.setitem(sys.modules, module.__name__, module)
    log = SideWorkLog()
    log.watch()
    manager = CheckpointManager()
    manager.save(1)
    log.step_ended(1)
    assert log.events()[0].stored_ns == -1
    manager.busy = False
    log.step_ended(2)
    (event,) = log.events()
    assert event.call == "CheckpointManager.save"
    assert event.stored_ns > event.end_ns
    log.stop()


def test_an_evaluation_lasts_until_the_model_trains_again(log: SideWorkLog) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.eval()
    model.train()
    (event,) = log.events()
    assert (event.activity, event.call) == ("evaluation", "eval")
    assert Path(event.file).name == Path(__file__).name


def test_a_model_that_stays_in_evaluation_mode_is_no_evaluation(log: SideWorkLog) -> None:
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    model.eval()
    log.step_ended(1)
    model.train()
    other.eval()
    model.train()
    assert not log.events()


def test_a_compiled_function_may_switch_the_mode(log: SideWorkLog) -> None:
    model = torch.nn.Dropout()

    @torch.compile(backend="eager", fullgraph=True)
    def evaluated(x: Any) -> Any:
        model.eval()
        result = model(x)
        model.train()
        return result

    assert evaluated(torch.ones(2)).tolist() == [1, 1]
    torch.compiler.reset()


def test_data_that_is_loaded_leaves_room_for_saves(log: SideWorkLog, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    for number in range(3):
        torch.save(torch.zeros(3), path)
        torch.load(path)
        log.step_ended(number)
    assert [event.activity for event in log.events()] == ["save"] * 3


def test_bytes_from_storage_and_of_system_calls_are_counted(tmp_path: Path) -> None:
    before = storage_with_workers()
    if before is None:
        pytest.skip("this system does not count reads of processes")
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(1 << 20))
    path.read_bytes()
    after = storage_with_workers()
    assert after is not None
    assert after.read - before.read >= 1 << 20
    assert after.written - before.written >= 1 << 20


def test_the_document_becomes_rows_on_the_clock_of_the_trace(tmp_path: Path) -> None:
    event = SideWork(activity="save", call="save", file="train.py", line=3, function="main", begin_ns=40, end_ns=60)
    counters = StepCounters(
        step_number=(1, 2), step_begin_ns=(0, 50), step_end_ns=(50, 100), step_free=(True, True), side_work=(event,),
        storage_step=(1, 2), storage_ns=(50, 100), storage_read_bytes=(10, 30), storage_fetched_bytes=(5, 4),
    )  # fmt: skip
    path = tmp_path / "counters.json.gz"
    path.write_bytes(dump_counters(counters))
    builder = TraceBuilder()
    builder.table("steps", {"number": [1], "start_ns": [1000], "end_ns": [1050], "name": builder.codes(["step"])})
    attach_counters(builder, load_counters(path))
    rows = builder.rows["side_work"]
    assert (rows["from_ns"][0], rows["until_ns"][0], rows["stored_ns"][0], rows["line"][0]) == (1040, 1060, -1, 3)
    storage = builder.rows["storage"]
    assert storage["at_ns"].tolist() == [1050, 1100]
    assert storage["fetched_bytes"].tolist() == [5, 5], "a worker that ended takes its sum along"


def test_events_beyond_the_most_are_counted(log: SideWorkLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("perfscope.profiler.session.side_work.MOST_EVENTS", 2)
    model = torch.nn.Linear(2, 2)
    for number in range(5):
        model.eval()
        model.train()
        log.step_ended(number)
    counters = StepCounters(
        step_number=(0,), step_begin_ns=(0,), step_end_ns=(1,), step_free=(True,), side_work=log.events(),
        side_work_dropped=log.dropped,
    )  # fmt: skip
    (tmp_path / "counters.json.gz").write_bytes(dump_counters(counters))
    builder = TraceBuilder()
    builder.table("steps", {"number": [0], "start_ns": [0], "end_ns": [1], "name": builder.codes(["step"])})
    attach_counters(builder, load_counters(tmp_path / "counters.json.gz"))
    (note,) = [note for note in builder.notes if "evaluations" in note]
    assert note.startswith("only the first 2 saves, waits for saves and evaluations were recorded; 3 later ones")
