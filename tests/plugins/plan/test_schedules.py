"""Pipelines: bubbles and micro-batches in memory against schedules that are played, event by event."""

from __future__ import annotations

import pytest

from perfscope.plugins.plan.schedules import bubble_weights, divided, in_flight, makespan


def played(stages: int, micro_batches: int, forward: float, backward: float, *, warm: bool) -> tuple[float, list[int]]:
    """Time of all stages, and the most micro-batches that each holds. ``warm``: 1F1B, else all forwards first."""
    order = []
    for stage in range(stages):
        ahead = min(micro_batches, stages - stage) if warm else micro_batches
        words = [("F", number) for number in range(ahead)]
        for number in range(micro_batches):
            words.append(("B", number))
            if ahead + number < micro_batches:
                words.append(("F", ahead + number))
        order.append(words)
    ends: dict[tuple[str, int, int], float] = {}
    clock, place = [0.0] * stages, [0] * stages
    while any(place[stage] < len(order[stage]) for stage in range(stages)):
        moved = False
        for stage in range(stages):
            while place[stage] < len(order[stage]):
                kind, number = order[stage][place[stage]]
                needs = (kind, stage - 1 if kind == "F" else stage + 1, number)
                first = stage == (0 if kind == "F" else stages - 1)
                if not first and needs not in ends:
                    break
                begin = max(clock[stage], 0.0 if first else ends[needs])
                clock[stage] = ends[kind, stage, number] = begin + (forward if kind == "F" else backward)
                place[stage] += 1
                moved = True
        assert moved
    held = []
    for stage in range(stages):
        now = most = 0
        for kind, _ in order[stage]:
            now += 1 if kind == "F" else -1
            most = max(most, now)
        held.append(most)
    return max(clock), held


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (4, 4), (4, 12), (6, 9), (8, 3)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_closed_formulas_equal_a_played_schedule(schedule: str, stages: int, micro_batches: int) -> None:
    time, held = played(stages, micro_batches, 1.0, 2.0, warm=schedule == "1f1b")
    assert time == makespan([3.0] * stages, micro_batches)
    assert held == [in_flight(schedule, stage, stages, micro_batches, 1) for stage in range(stages)]


def test_bubble_by_schedule() -> None:
    """For F + B = 2 and W = 1 per stage: 3, 1.5, 1 and 0 per further stage."""
    bubbles = {}
    for schedule, chunks in (("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1)):
        whole, weights = bubble_weights(schedule, chunks)
        bubbles[schedule] = whole * 2 + weights * 1
    assert bubbles == {"1f1b": 3.0, "interleaved": 1.5, "zb-h1": 1.0, "zb-h2": 0.0}


def test_interleaved_holds_more_as_published() -> None:
    """Korthikanti et al. 2022, section 4.2.3: ``1 + (p-1)/(pv)`` times the activations of 1F1B on the first stage.

    They count v chunks of one v-th each; with two chunks and four stages: 4 (1 + 3/8) = 5.5.
    """
    assert in_flight("interleaved", 0, 4, 64, 2) == pytest.approx(5.5)


def test_layers_go_to_the_stage_with_least_to_do() -> None:
    assert divided(32, 4, 1, 0.0, 0.0) == (8, 8, 8, 8)
    assert divided(32, 4, 1, 0.0, 3.0) == (8, 9, 9, 6)
    assert divided(126, 16, 1, 0.1, 1.0) is not None
    assert sum(divided(126, 16, 1, 0.1, 1.0) or ()) == 126
    assert divided(126, 16, 8, 0.1, 1.0) == (7, *[8] * 14, 7)  # Llama 3 405B: one layer less at both ends
    assert divided(105, 8, 2, 0.0, 0.0) is None
