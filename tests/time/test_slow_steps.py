"""Steps that are slow because of additional work: pictures, logs, rollouts."""

from __future__ import annotations

import pytest

from perfscope.model.finding import Finding
from tests.build import EVERYTHING, TraceBuilder
from tests.rules import judged_by

judge = judged_by("slow_steps")

TRAIN = "train.py(30): main > train.py(12): forward > torch.relu"
DRAW = "train.py(33): main > train.py(50): draw > train.py(12): forward > torch.relu"
LOG = "train.py(35): main > site-packages/wandb/run.py(9): log"

STEP_US, STEPS = 10_000.0, 40


def training(
    rare: str, *, every: int = 8, rare_us: float = 40_000, steps: int = STEPS, usual: str = TRAIN
) -> TraceBuilder:
    """Steps of 10 ms without a profiler, the stacks sampled every 5 ms; each ``every``-th does ``rare`` as well."""
    b = TraceBuilder(recorded=EVERYTHING | {"python_samples"})
    b.step(0, 0, STEP_US)
    b.op("aten::relu", 0, STEP_US)
    times, at = [], 1_000_000.0
    for number in range(1, steps + 1):
        own = rare_us if number % every == 0 else 0.0
        times.append(STEP_US + own)
        for piece in range(int(times[-1] // 5_000)):
            stack = usual if piece < 2 else rare
            b.sample(stack, at + piece * 5_000, lasts=5_000, step=number, step_us=times[-1])
        at += times[-1]
    b.step_times_us = tuple(times)
    return b


def only(b: TraceBuilder) -> Finding:
    (finding,) = judge(b).findings
    return finding


def test_a_picture_every_eighth_step_is_found_by_the_call_that_only_those_steps_make() -> None:
    finding = only(training(DRAW))
    assert (finding.where.file, finding.where.line) == ("train.py", 33), "not line 12, which all steps run"
    assert finding.cost_ns == 5 * 40_000_000, "five pictures of 40 ms"
    assert finding.cost_ns_per_step == finding.untraced_ns_per_step == 5_000_000, "of a mean step of 15 ms"
    assert finding.evidence[0]["time_per_step_ns"] == 5_000_000
    assert "every 8th step" in finding.title
    assert "--steps 40:41" in finding.advice


def test_a_librarys_loop_is_told_by_the_functions_it_calls() -> None:
    trainer = "site-packages/transformers/trainer.py"
    epoch = f"train.py(9): <module> > {trainer}(80): _epoch"
    draw = f"{epoch} > {trainer}(90): _maybe_draw_or_log > {trainer}(200): _draw > F.linear"
    log = f"{epoch} > {trainer}(93): _maybe_draw_or_log > {trainer}(300): _log > wandb.log"
    b = training(draw, usual=f"{epoch} > {trainer}(70): training_step > F.linear")
    for number in (7, 15, 23, 31):
        b.sample(log, 3_000_000 + 40_000 * number, lasts=10_000, step=number, step_us=20_000)
    rows = only(b).evidence
    assert [str(row["host_was_in"]).rpartition(" ")[2] for row in rows] == ["_draw", "_log"]
    assert {row["site"] for row in rows} == {"train.py:9"}
    assert [row["samples"] for row in rows] == [40, 4]


def test_a_function_that_a_decorator_made_does_not_name_the_work() -> None:
    inside = "site-packages/some/utils.py(5): deprecated.<locals>.wrapper.<locals>.wrapped_func"
    finding = only(training(f"{TRAIN.rpartition(' > ')[0]} > {inside}", usual=TRAIN))
    assert "wrapped_func" not in finding.title + finding.advice


@pytest.mark.parametrize(("rare_us", "status"), [(10_000, "flagged"), (5_000, "clean")])
def test_a_step_is_slow_from_twice_the_median(rare_us: float, status: str) -> None:
    assert judge(training(LOG, every=4, rare_us=rare_us)).status == status


@pytest.mark.parametrize(("every", "status"), [(20, "flagged"), (40, "clean")])
def test_one_slow_step_may_be_the_end_of_the_program(every: int, status: str) -> None:
    assert judge(training(DRAW, every=every, rare_us=60_000)).status == status


def test_below_a_tenth_of_the_time_it_is_none() -> None:
    assert judge(training(LOG, every=20, rare_us=20_000)).status == "clean"


@pytest.mark.parametrize(
    "stack",
    [
        TRAIN,
        "train.py(30): main > train.py(12): forward > site-packages/torch/nn/modules/module.py(9): _wrapped_call_impl",
        "train.py(31): main > loss.item",
        "train.py(32): main > site-packages/torch/_dynamo/convert_frame.py(5): _compile",
    ],
    ids=["the same line, longer", "inside a framework", "waiting for a device", "compiling"],
)
def test_what_is_no_work_of_their_own_is_none(stack: str) -> None:
    assert judge(training(stack)).status == "clean"


@pytest.mark.parametrize("of_others", ["save", "evaluate"])
def test_saves_and_evaluations_belong_to_other_rules(of_others: str) -> None:
    called = "site-packages/torch/serialization.py(9): save" if of_others == "save" else "train.py(60): evaluate > f"
    assert judge(training(f"train.py(35): main > {called}")).status == "clean"


def test_few_steps_are_not_evaluated() -> None:
    assert judge(training(DRAW, steps=9)).status == "abstained"


def test_without_sampled_stacks_it_is_not_evaluated() -> None:
    b = training(DRAW)
    b.recorded = EVERYTHING - {"python_samples"}
    assert judge(b).missing == ("python_samples",)


def ahead(rare: str, **more: float) -> TraceBuilder:
    """The same of a host that runs ahead of its work: its steps are counted and not timed."""
    b = training(rare, rare_us=40_000, **more)  # type: ignore[arg-type]
    at = 0
    for number, step_us in enumerate(b.step_times_us, 1):
        until = at + round(step_us * 1000)
        b.row("run_steps", number=number, from_ns=at, until_ns=until, free=True, wait_ns=-1)
        at = until
    b.step_times_us = ()
    return b


def test_of_a_host_that_runs_ahead_logging_is_judged() -> None:
    finding = only(ahead(LOG))
    assert (finding.where.file, finding.where.line) == ("train.py", 35)
    assert finding.cost_ns == 5 * 40_000_000
    assert "runs ahead" in finding.detail


def test_of_a_host_that_runs_ahead_other_work_is_not_judged() -> None:
    assert not judge(ahead(DRAW)).findings


def test_few_samples_tell_where_all_are_of_one_line() -> None:
    b = training(LOG, rare_us=20_000, every=10, steps=20)
    assert only(b).where.line == 35
    fewer = training(LOG, rare_us=10_000, every=10, steps=20)
    for at in (1_000, 6_000):
        fewer.sample(DRAW, at, lasts=5_000, step=10, step_us=20_000)
    assert not judge(fewer).findings, "of two lines ten samples are needed"


def test_steps_that_are_too_short_for_a_sample_have_none_of_the_calls() -> None:
    b = ahead(LOG)
    b.tables["samples"] = [row for row in b.tables["samples"] if row["step"] % 8 == 0]
    assert only(b).where.line == 35


def test_the_cost_of_slow_steps_is_of_their_time_where_most_steps_are_shorter_than_a_sample() -> None:
    b = TraceBuilder(recorded=EVERYTHING | {"python_samples"})
    b.step(0, 0, 1_000)
    b.op("aten::relu", 0, 1_000)
    times, at = [], 1_000_000.0
    for number in range(1, 201):
        slow = number % 20 == 0
        times.append(5_000.0 if slow else 1_000.0)
        if slow or number % 5 == 1:  # a sample lasts at most as long as its step
            b.sample(LOG if slow else TRAIN, at, lasts=times[-1], step=number, step_us=times[-1])
        at += times[-1]
    b.step_times_us = tuple(times)
    assert only(b).cost_ns == 10 * 5_000_000, "ten steps of 5 ms, of 240 ms"


def test_the_line_that_is_named_is_below_the_loop_where_other_steps_have_no_samples() -> None:
    loader = "site-packages/torch/utils/data/dataloader.py"
    restart = f"train.py(15): <module> > train.py(10): main > {loader}(5): __iter__ > {loader}(9): _next_data"
    optimizer = "train.py(15): <module> > train.py(12): main > site-packages/torch/optim/sgd.py(3): step"
    b = training(restart, usual=optimizer)
    b.tables["samples"] = [row for row in b.tables["samples"] if row["step"] % 8 == 0]
    finding = only(b)
    assert (finding.where.file, finding.where.line) == ("train.py", 10), "not line 15, which calls the loop"
    assert "__iter__" in finding.title


def test_a_model_that_runs_in_each_step_is_not_told_to_run_less_often() -> None:
    finding = only(training("train.py(31): main > train.py(20): Decoder.forward > F.linear"))
    assert "Decoder.forward" in finding.title
    assert finding.advice == ""
    assert "shows the work that only it does" in finding.record
