"""Which of a program's events are its steps."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from perfscope.model.capture import CaptureOptions
from perfscope.profiler.session import steps
from perfscope.profiler.session.steps import Source, StepFinder


class Recorded:
    """Stores the calls of a recorder, without the times."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def settled(self, source: str, completed: int) -> None:
        self.events.append(("settled", source, completed))

    def unsettled(self) -> None:
        self.events.append("unsettled")

    def broken(self, error: Exception) -> None:
        self.events.append(("broken", str(error)))

    def begin(self, number: int) -> None:
        self.events.append(("begin", number))

    def end(self, now: int) -> None:
        assert now > 0
        self.events.append("end")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock that only moves when a test moves it."""
    now = [1]
    monkeypatch.setattr(steps, "perf_counter_ns", lambda: now[0])
    return now


def finder(**options: Any) -> tuple[StepFinder, Recorded, list[Source]]:
    recorder = Recorded()
    forgotten: list[Source] = []
    return StepFinder(CaptureOptions(**options), recorder, forgotten.append), recorder, forgotten


def test_edges_settle_after_the_warm_up_and_the_other_sources_are_forgotten() -> None:
    found, recorder, forgotten = finder()
    for _ in range(3):
        found.edge(Source.OPTIMIZER)
    assert recorder.events == [("settled", "optimizer.step", 2), ("begin", 2), "end", ("begin", 3)]
    assert forgotten == [source for source in Source if source not in (Source.EXPLICIT, Source.OPTIMIZER)]
    assert found.completed == {Source.OPTIMIZER: 3}


@pytest.mark.parametrize(("warmup", "first"), [(0, 1), (1, 1), (4, 4)])
def test_the_first_step_is_never_begun(warmup: int, first: int) -> None:
    found, recorder, _ = finder(warmup=warmup)
    for _ in range(6):
        found.edge(Source.PROFILER)
    assert recorder.events[:2] == [("settled", "torch.profiler", first), ("begin", first)]


def test_a_far_window_still_settles_after_the_warm_up() -> None:
    found, recorder, _ = finder(steps=(100, 102))
    found.edge(Source.OPTIMIZER)
    found.edge(Source.OPTIMIZER)
    assert recorder.events[0] == ("settled", "optimizer.step", 2)


def test_the_profilers_steps_win_over_the_optimizers() -> None:
    found, recorder, _ = finder()
    for _ in range(3):
        found.edge(Source.OPTIMIZER)
        found.edge(Source.OPTIMIZER) if not recorder.events else None
        found.edge(Source.PROFILER)
    assert found.source is Source.OPTIMIZER, "it had settled before the profiler showed itself"
    found, recorder, _ = finder()
    for _ in range(3):
        found.edge(Source.PROFILER)
        found.edge(Source.OPTIMIZER)
    assert found.source is Source.PROFILER


def test_perfscope_step_takes_over_even_late() -> None:
    found, recorder, _ = finder()
    for _ in range(4):
        found.edge(Source.OPTIMIZER)
    for _ in range(3):
        found.explicit_edge()
        found.edge(Source.OPTIMIZER)
    assert recorder.events[-5:] == [
        "unsettled",
        ("settled", "perfscope.step", 2),
        ("begin", 2),
        "end",
        ("begin", 3),
    ]


def test_a_with_statement_holds_only_its_body() -> None:
    found, recorder, _ = finder()
    for _ in range(4):
        found.explicit_edge()
        found.explicit_enter()
        found.explicit_exit()
    assert recorder.events == [("settled", "perfscope.step", 2), ("begin", 2), "end", ("begin", 3), "end"]
    assert found.completed[Source.EXPLICIT] == 4


@pytest.mark.parametrize(
    "name",
    [
        "train_step",
        "Step 12",
        "step",
        "iteration 3",
        "iter_7",
        "training_batch",
        "train step",
        "STEP#4",
        "[pl][profile]run_training_batch",
    ],
)
def test_names_of_steps_are_known(name: str, clock: list[int]) -> None:
    found, recorder, _ = finder()
    for _ in range(3):
        found.annotation_enter(name)
        clock[0] += 10
        found.annotation_exit(name)
    assert recorder.events[0][0] == "settled"
    assert found.source is Source.ANNOTATION


@pytest.mark.parametrize(
    "name", ["Optimizer.step#AdamW.step", "forward", "optimizer_step", "steps", "perfscope.step#3", "batch norm", ""]
)
def test_other_names_are_no_steps(name: str) -> None:
    found, recorder, _ = finder()
    for _ in range(4):
        found.annotation_enter(name)
        found.annotation_exit(name)
    assert recorder.events == []
    assert found.best() is None


def test_a_wanted_annotation_is_taken_and_no_other() -> None:
    found, recorder, _ = finder(step_annotation="epoch")
    for turn in range(3):
        found.annotation_enter("train_step")
        found.annotation_exit("train_step")
        found.annotation_enter(f"epoch {turn}")
        found.annotation_exit(f"epoch {turn}")
    assert recorder.events == [("settled", "annotation epoch", 2), ("begin", 2), "end"]


def test_nested_ranges_of_one_name_are_one_step(clock: list[int]) -> None:
    found, recorder, _ = finder(warmup=1)
    for _ in range(2):
        for event in (found.annotation_enter, found.annotation_enter, found.annotation_exit, found.annotation_exit):
            event("step")
            clock[0] += 1
    assert recorder.events == [("settled", "annotation step", 1), ("begin", 1), "end"]


@pytest.mark.parametrize(("inside", "source"), [(49, Source.OPTIMIZER), (51, Source.ANNOTATION)])
def test_a_range_must_cover_half_of_the_loop(clock: list[int], inside: int, source: Source) -> None:
    found, _, forgotten = finder()
    for _ in range(4):
        found.annotation_enter("step")
        clock[0] += inside
        found.edge(Source.OPTIMIZER) if inside < 50 else None
        found.annotation_exit("step")
        clock[0] += 100 - inside
    assert found.source is source
    assert (Source.ANNOTATION in forgotten) == (source is Source.OPTIMIZER)


def test_events_of_another_thread_are_no_steps() -> None:
    found, recorder, _ = finder()
    found.edge(Source.OPTIMIZER)
    thread = threading.Thread(target=lambda: [found.edge(Source.OPTIMIZER) for _ in range(5)])
    thread.start()
    thread.join()
    assert found.completed == {Source.OPTIMIZER: 1}
    assert recorder.events == []


def test_an_error_goes_to_the_recorder_and_not_to_the_program() -> None:
    found, recorder, _ = finder()

    def fail(number: int) -> None:
        raise RuntimeError("planted")

    recorder.begin = fail  # type: ignore[method-assign]
    found.edge(Source.OPTIMIZER)
    found.edge(Source.OPTIMIZER)
    assert recorder.events[-1] == ("broken", "planted")
