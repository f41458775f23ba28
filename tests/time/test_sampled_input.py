"""Data loaders that only sampled stacks show."""

from __future__ import annotations

import pytest

from perfscope.model.finding import Outcome
from tests.build import EVERYTHING, TraceBuilder
from tests.rules import judged_by

judge = judged_by("input_stall")

FIT = "train.py(20): main > site-packages/keras/src/backend/jax/trainer.py(400): fit"
STEP = f"{FIT} > site-packages/keras/src/backend/jax/trainer.py(300): train_step"
LOADS = f"{FIT} > site-packages/keras/src/trainers/data_adapters/py_dataset_adapter.py(200): get_batch"
MAKES = f"{LOADS} > train.py(9): __getitem__ > numpy.roll"
STEP_US, STEPS = 10_000.0, 40


def run(stack: str, *, pieces: int = 4) -> TraceBuilder:
    """40 steps of 10 ms; ``pieces`` of 10 samples per step are in a stack, the others in the step."""
    b = TraceBuilder(recorded=(EVERYTHING - {"device_work"}) | {"python_samples", "run_steps"})
    b.step(0, 0, STEP_US)
    b.op("aten::relu", 0, STEP_US)
    b.run_step(0, 0, STEP_US, free=False)
    for number in range(1, STEPS + 1):
        begin = 1_000_000.0 + number * STEP_US
        for piece in range(10):
            shown = stack if piece < pieces else STEP
            b.sample(shown, begin + piece * 1_000, lasts=1_000, step=number, step_us=STEP_US)
        b.run_step(number, begin, begin + STEP_US)
    b.step_times_us = (STEP_US,) * STEPS
    return b


def outcome(stack: str, *, pieces: int = 4) -> Outcome:
    return judge(run(stack, pieces=pieces))


def test_the_line_that_makes_the_batch_is_named_with_the_fix_of_its_library() -> None:
    (finding,) = outcome(MAKES).findings
    assert finding.cost_ns_per_step == 4_000_000
    assert (finding.where.file, finding.where.line) == ("train.py", 9)
    assert "keras.utils.PyDataset" in finding.advice
    assert finding.evidence[0]["site"] == "train.py:9"


GRAIN = "site-packages/grain/_src/core.py(5): __next__"


def test_threads_that_make_the_batch_are_named_and_the_loop_that_waits() -> None:
    b = run(f"train.py(20): main > {GRAIN} > lib/python3.11/threading.py(327): wait > lock.acquire")
    for number in range(1, STEPS + 1):
        at = 1_000_000.0 + number * STEP_US
        decode = f"lib/python3.11/threading.py(982): run > {GRAIN} > site-packages/av/video.py(9): decode"
        b.sample(decode, at, lasts=4_000, step=number, step_us=STEP_US, tid=2)
    (finding,) = judge(b).findings
    assert (finding.where.file, finding.where.line) == ("train.py", 20)
    assert "decode" in finding.title
    assert "worker_count=N" in finding.advice
    assert "interpreter's lock" in finding.detail


@pytest.mark.parametrize(("pieces", "status"), [(1, "flagged"), (0, "abstained")])
def test_a_twentieth_of_the_step(pieces: int, status: str) -> None:
    assert outcome(MAKES, pieces=pieces).status == status


def test_host_work_outside_of_a_loader_is_not_input() -> None:
    assert outcome("train.py(20): main > train.py(9): augment > numpy.roll").status == "abstained"
