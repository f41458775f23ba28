"""Options on their way into the program, and the passes they plan."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.model.capture import CaptureOptions, Message, load_message, parse_steps
from perfscope.model.errors import UsageError
from perfscope.profiler.session.passes import first_step, passes


@pytest.mark.parametrize("steps", [None, (3, 9)])
def test_a_message_arrives_as_it_was_sent(steps: tuple[int, int] | None) -> None:
    options = CaptureOptions(level="deep", steps=steps, warmup=7, step_annotation="ü", quiet=True)
    sent = Message(directory="/r", options=options, pythonpath=None, follow=True)
    assert load_message(sent.dump()) == sent


@pytest.mark.parametrize("text", ["", ":", "5", "5:", ":5", "a:b", "-1:3", "1:2:3", "0:3", "4:4", "5:4", "1.5:3"])
def test_steps_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--steps"):
        parse_steps(text)


def test_steps_are_half_open() -> None:
    assert parse_steps("20:25") == (20, 25)


@pytest.mark.parametrize(
    ("options", "first", "plan"),
    [
        ({}, 2, [("timing", 3), ("structure", 1), ("detail", 1)]),
        ({"warmup": 0}, 1, [("timing", 3), ("structure", 1), ("detail", 1)]),
        ({"level": "light", "warmup": 5}, 5, [("timing", 3)]),
        ({"level": "deep"}, 2, [("timing", 5), ("structure", 1), ("detail", 3)]),
        ({"steps": (20, 22)}, 20, [("timing", 2), ("structure", 1), ("detail", 1)]),
        ({"whole": True}, 2, [("timing", 1)]),
    ],
)
def test_levels_plan_their_passes(options: dict[str, Any], first: int, plan: list[tuple[str, int]]) -> None:
    asked = CaptureOptions(**options)
    assert first_step(asked) == first
    assert [(one.name, one.count) for one in passes(asked)] == plan


def test_the_timing_pass_records_nothing_that_costs_but_in_deep() -> None:
    for level in ("light", "default"):
        timing = passes(CaptureOptions(level=level))[0]  # type: ignore[arg-type]
        assert (timing.shapes, timing.memory, timing.stacks, timing.device_syncs) == (False,) * 4
    deep = passes(CaptureOptions(level="deep"))[0]
    assert deep.shapes
    assert deep.device_syncs
    assert not deep.stacks
