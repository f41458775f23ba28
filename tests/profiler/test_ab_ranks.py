"""Times of a launch of several ranks."""

from __future__ import annotations

from perfscope.model.documents.run import Process
from perfscope.profiler.ab.launch import merge_ranks


def rank(number: int, *step_ns: int, world: int | None = 2, **more: object) -> Process:
    held: dict[str, object] = {"steps_seen": len(step_ns) + 2, **more}
    return Process(
        rank=number, directory=f"rank{number:05d}", world_size=world, untraced_step_ns=step_ns, **held  # type: ignore[arg-type]
    )  # fmt: skip


def test_each_step_is_as_long_as_that_of_the_slowest_rank() -> None:
    found = merge_ranks([rank(0, 5, 9, 5), rank(1, 7, 6, 5)])
    assert (found.step_ns, found.ranks, found.remark) == ((7, 9, 5), 2, None)


def test_windows_too() -> None:
    found = merge_ranks(
        [rank(0, 1, 1, windows_ns=(80, 90), window_steps=8), rank(1, 1, 2, windows_ns=(81, 70), window_steps=8)]
    )
    assert (found.windows_ns, found.window_steps, found.step_ns) == ((81, 90), 8, (1, 2))


def test_ranks_of_different_steps_are_told() -> None:
    found = merge_ranks([rank(0, 5, 5, 5, 5), rank(1, 9, 9)])
    assert (found.step_ns, found.ranks) == ((9, 9), 2)
    assert found.remark is not None
    assert "its 2 ranks took 4 to 6 steps" in found.remark
    assert "rank 1, the slowest, stands for all" in found.remark


def test_processes_that_are_no_ranks_are_not_mixed() -> None:
    first, second = rank(0, 5, 5, world=None), rank(1, 9, 9, world=None)
    found = merge_ranks([first, second])
    assert (found.step_ns, found.ranks) == ((5, 5), 1)
    assert found.remark == "2 processes had steps: the times are of the first"
    assert merge_ranks([first]).remark is None


def test_without_steps_there_are_no_times() -> None:
    assert merge_ranks([rank(0, steps_seen=0)]).step_ns == ()
    assert merge_ranks([]).ranks == 1
