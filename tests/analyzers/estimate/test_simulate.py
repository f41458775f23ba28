from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.estimate.simulate import PRIORITY, Played, Task, play


@st.composite
def task_lists(draw: st.DrawFn) -> list[Task]:
    """Random tasks on a few streams that wait for random earlier ones."""
    tasks: list[Task] = []
    for index in range(draw(st.integers(0, 14))):
        stream = draw(st.integers(0, 3))
        waits = draw(st.lists(st.integers(0, index - 1), max_size=3, unique=True)) if index else []
        tasks.append(
            Task(
                kind=draw(st.sampled_from(PRIORITY)),
                stream=stream,
                duration=draw(st.integers(0, 9)),
                gap=draw(st.integers(0, 3)),
                waits=tuple(waits),
            )
        )
    return tasks


def by_moments(tasks: list[Task], played: Played) -> dict[str, int]:
    """What each ns of the stretch counts as, asked ns by ns."""
    counted = dict.fromkeys(("compute", "communication", "copy", "gap"), 0)
    for moment in range(played.makespan):
        kinds = {
            task.kind
            for task, start, end in zip(tasks, played.starts, played.ends, strict=True)
            if start <= moment < end
        }
        counted[next((kind for kind in PRIORITY if kind in kinds), "gap")] += 1
    return counted


@given(task_lists())
def test_parts_add_up_to_the_stretch_and_say_what_each_moment_was(tasks: list[Task]) -> None:
    played = play(tasks)
    counted = by_moments(tasks, played)
    parts = played.parts
    assert parts.total == played.makespan
    assert (parts.compute, parts.communication, parts.copies, parts.gaps) == (
        counted["compute"],
        counted["communication"],
        counted["copy"],
        counted["gap"],
    )
    assert sum(played.exposed) + parts.gaps == played.makespan
    assert all(shown <= task.duration for shown, task in zip(played.exposed, tasks, strict=True))


@given(task_lists())
def test_nothing_begins_before_what_it_waits_for(tasks: list[Task]) -> None:
    played = play(tasks)
    for index, task in enumerate(tasks):
        before = [other for other in range(index) if tasks[other].stream == task.stream]
        for other in (*before, *task.waits):
            assert played.starts[index] >= played.ends[other] + task.gap
        assert played.ends[index] - played.starts[index] == task.duration


@given(task_lists(), st.integers(0, 13), st.integers(1, 20))
def test_a_longer_task_never_shortens_the_whole(tasks: list[Task], which: int, more: int) -> None:
    if which >= len(tasks):
        return
    one = tasks[which]
    longer = [*tasks]
    longer[which] = Task(kind=one.kind, stream=one.stream, duration=one.duration + more, gap=one.gap, waits=one.waits)
    assert play(longer).makespan >= play(tasks).makespan


@given(task_lists())
def test_the_critical_path_has_no_slack(tasks: list[Task]) -> None:
    played = play(tasks)
    path = sorted(played.critical(), key=lambda index: (played.starts[index], index))
    assert sum(tasks[index].duration + tasks[index].gap for index in path) == played.makespan
    if path:
        assert played.ends[path[-1]] == played.makespan


def test_a_collective_beside_kernels_is_hidden_and_the_rest_of_it_exposed() -> None:
    kernel = Task(kind="compute", stream=0, duration=40)
    gather = Task(kind="communication", stream=1, duration=100, waits=(0,))
    beside = Task(kind="compute", stream=0, duration=30)
    user = Task(kind="compute", stream=0, duration=10, gap=5, waits=(1,))
    played = play([kernel, gather, beside, user])
    assert played.makespan == 40 + 100 + 5 + 10
    assert (played.parts.compute, played.parts.communication, played.parts.gaps) == (80, 70, 5)
    assert played.exposed[1] == 70
    assert played.critical() == {0, 1, 3}
