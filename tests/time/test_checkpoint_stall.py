"""Saves that the loop waits for, and steps that are slower while a save is stored."""

from __future__ import annotations

import pytest

from perfscope.model.finding import Finding
from tests.build import EVERYTHING, TraceBuilder
from tests.rules import judged_by

judge = judged_by("checkpoint_stall")

TRAIN = "train.py(30): main > train.py(12): forward > torch.relu"
SAVE = "train.py(35): main > site-packages/torch/serialization.py(9): save"
STEP_US, STEPS, FIRST_US = 10_000.0, 40, 1_000_000.0
RUN = EVERYTHING | {"run_steps", "side_work"}


def run(
    *, every: int = 8, save_us: float = 40_000, slower_us: float = 0, of_steps: bool = True, kept: int = 1
) -> TraceBuilder:
    """A traced step, and 40 steps of 10 ms of which each ``every``-th saves 80 MB as well.

    ``slower_us``: the saves are stored during the three next steps, each of which takes that much longer.
    ``kept``: the recording has each step whose number is a multiple of it.
    """
    b = TraceBuilder(recorded=RUN)
    b.step(0, 0, STEP_US)
    b.op("aten::relu", 0, STEP_US)
    at, times = FIRST_US, []
    b.run_step(0, 0, STEP_US, free=False)
    for number in range(1, STEPS + 1):
        begin = at
        at += STEP_US + (slower_us if number > 3 and 1 <= number % every <= 3 else 0)
        if number % every == 0:
            storing = 3 * (STEP_US + slower_us) if slower_us else 0
            _event(b, "save", at, at + save_us, stored=at + save_us + storing, of_steps=of_steps)
            at += save_us if of_steps else 0
        if number % kept == 0:
            b.run_step(number, begin, at)
        times.append(at - begin)
    b.step_times_us = tuple(times)
    return b


def _event(
    b: TraceBuilder, kind: str, begin: float, end: float, *, stored: float | None = None, of_steps: bool = True
) -> None:
    b.row(
        "side_work", kind=b.code(kind), call=b.code(kind), file=b.code("train.py"), line=35, function=b.code("main"),
        from_ns=round(begin * 1000), until_ns=round(end * 1000),
        stored_ns=round((end if stored is None else stored) * 1000), bytes=80_000_000, of_steps=of_steps,
    )  # fmt: skip


def only(b: TraceBuilder) -> Finding:
    (finding,) = judge(b).findings
    return finding


def test_saves_are_named_by_their_line_and_spread_over_all_steps() -> None:
    finding = only(run())
    assert (finding.where.file, finding.where.line) == ("train.py", 35)
    assert finding.cost_ns == 5 * 40_000_000
    assert finding.cost_ns_per_step == finding.untraced_ns_per_step == 5_000_000
    assert finding.evidence[0]["each_ns"] == 40_000_000
    assert "76.3 MiB at 2.00 GB/s" in finding.detail
    assert "async_save" in finding.advice


@pytest.mark.parametrize(("save_us", "status"), [(4_300, "flagged"), (4_100, "clean")])
def test_below_a_twentieth_of_the_time_it_is_clean(save_us: float, status: str) -> None:
    assert judge(run(save_us=save_us)).status == status


def test_one_save_counts_for_as_many_steps_as_were_recorded() -> None:
    finding = only(run(every=STEPS))
    assert finding.cost_ns_per_step == 1_000_000
    assert "one save in 40 steps" in finding.detail


def test_saves_outside_of_the_steps_and_in_traced_ones_do_not_count() -> None:
    b = run(every=STEPS + 1)
    _event(b, "save", 1_000, 9_000)
    _event(b, "save", 900_000, 990_000)
    _event(b, "save", 2_000_000, 2_900_000)
    assert judge(b).status == "clean"


def test_a_save_in_a_thread_that_slows_no_step_is_clean() -> None:
    assert judge(run(of_steps=False)).status == "clean"


def test_steps_while_a_save_is_stored_are_compared_with_the_others() -> None:
    finding = only(run(save_us=10, slower_us=5_000))
    assert finding.subject == "steps while a save is stored"
    row = finding.evidence[0]
    assert (row["step_ns"], row["other_step_ns"], row["slowed_steps"]) == (15_000_000, 10_000_000, 12)
    assert finding.cost_ns == 12 * 5_000_000


def test_of_a_long_run_the_steps_that_are_not_kept_count_too() -> None:
    finding = only(run(save_us=10, slower_us=5_000, kept=2))
    assert finding.evidence[0]["slowed_steps"] == round(4 * 39 / 20)
    assert finding.cost_ns == round(4 * 5_000_000 * 39 / 20)


@pytest.mark.parametrize(("slower_us", "status"), [(900, "clean"), (2_500, "flagged")])
def test_a_tenth_is_the_usual_spread(slower_us: float, status: str) -> None:
    assert judge(run(save_us=10, slower_us=slower_us)).status == status


@pytest.mark.parametrize(("every", "status"), [(8, "abstained"), (STEPS + 1, "clean")])
def test_on_a_busy_machine_short_saves_are_not_judged(every: int, status: str) -> None:
    b = run(every=every, save_us=10)
    for row in b.tables["run_steps"]:
        row["wait_ns"] = (row["until_ns"] - row["from_ns"]) // 2
    assert judge(b).status == status


def test_waits_for_saves_have_their_own_fix() -> None:
    b = run(every=STEPS + 1)
    for number in range(5):
        _event(b, "wait", 1_100_000 + number * 20_000, 1_110_000 + number * 20_000)
    finding = only(b)
    assert finding.subject == "waits for saves"
    assert "before the next one" in finding.advice


def sampled(rare: str) -> TraceBuilder:
    """The same steps without exact times: stacks sampled every 5 ms."""
    b = TraceBuilder(recorded=EVERYTHING | {"python_samples"})
    b.step(0, 0, STEP_US)
    b.op("aten::relu", 0, STEP_US)
    at, times = FIRST_US, []
    for number in range(1, STEPS + 1):
        times.append(STEP_US + (40_000 if number % 8 == 0 else 0))
        for piece in range(int(times[-1] // 5_000)):
            stack = TRAIN if piece < 2 else rare
            b.sample(stack, at + piece * 5_000, lasts=5_000, step=number, step_us=times[-1])
        at += times[-1]
    b.step_times_us = tuple(times)
    return b


def test_without_exact_times_the_share_of_the_samples_counts() -> None:
    finding = only(sampled(SAVE))
    assert finding.where.line == 35
    assert finding.cost_ns == 5 * 40_000_000


def test_restoring_is_no_save() -> None:
    assert judge(sampled("train.py(35): main > site-packages/orbax/checkpoint/x.py(9): restore")).status == "clean"


def test_without_either_it_abstains() -> None:
    b = run()
    b.recorded = EVERYTHING
    outcome = judge(b)
    assert outcome.status == "abstained"
    assert outcome.missing == ("side_work",)
