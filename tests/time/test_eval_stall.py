"""Evaluations in the loop of a training."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfscope.model.documents.run import ProgramFact
from perfscope.model.documents.stacks import SampledLoader
from perfscope.model.finding import Finding
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.rules import judged_by

judge = judged_by("eval_stall")

TRAIN = "train.py(30): main > train.py(12): forward > site-packages/torch/optim/adam.py(9): step"
EVALUATE = "train.py(33): main > train.py(50): evaluate > train.py(52): accuracy > f"
STEP_US, STEPS, FIRST_US = 10_000.0, 40, 1_000_000.0


def training(rare: str, *, rare_us: float = 40_000, exact: bool = False, every: int = 8) -> TraceBuilder:
    """A traced step, and 40 of 10 ms; each ``every``-th evaluates. Stacks are sampled every 5 ms."""
    b = TraceBuilder(recorded=EVERYTHING | {"python_samples", "run_steps"} | ({"side_work"} if exact else set()))
    b.step(0, 0, STEP_US)
    b.op("aten::relu", 0, STEP_US)
    b.run_step(0, 0, STEP_US, free=False)
    at, times = FIRST_US, []
    for number in range(1, STEPS + 1):
        own = rare_us if number % every == 0 else 0.0
        times.append(STEP_US + own)
        for piece in range(int(times[-1] // 5_000)):
            b.sample(TRAIN if piece < 2 else rare, at + piece * 5_000, lasts=5_000, step=number, step_us=times[-1])
        if own and exact:
            b.row(
                "side_work", kind=b.code("evaluation"), call=b.code("eval"), file=b.code("train.py"), line=51,
                function=b.code("evaluate"), from_ns=round((at + STEP_US) * 1000),
                until_ns=round((at + STEP_US + own) * 1000), stored_ns=-1, bytes=-1, of_steps=True,
            )  # fmt: skip
        b.run_step(number, at, at + times[-1])
        at += times[-1]
    b.step_times_us = tuple(times)
    return b


def only(b: TraceBuilder | Trace) -> Finding:
    (finding,) = judge(b).findings
    return finding


@pytest.mark.parametrize("exact", [True, False])
def test_the_line_of_the_loop_is_named_and_the_function_with_most_of_the_time(exact: bool) -> None:
    finding = only(training(EVALUATE, exact=exact))
    assert (finding.where.file, finding.where.line) == ("train.py", 33)
    assert finding.cost_ns == 5 * 40_000_000
    assert finding.cost_ns_per_step == finding.untraced_ns_per_step == 5_000_000
    assert "accuracy" in finding.title
    assert finding.evidence[0]["site"] == "train.py:52"


@pytest.mark.parametrize(("rare_us", "status"), [(9_000, "flagged"), (8_500, "clean")])
def test_below_a_tenth_of_the_time_it_is_clean(rare_us: float, status: str) -> None:
    assert judge(training(EVALUATE, rare_us=rare_us, exact=True)).status == status


def test_evaluations_of_several_lines_have_their_mean_time() -> None:
    b = training(EVALUATE, exact=True)
    start = round((FIRST_US + 2 * STEP_US) * 1000)
    b.row(
        "side_work", kind=b.code("evaluation"), call=b.code("eval"), file=b.code("other.py"), line=9,
        function=b.code("check"), from_ns=start, until_ns=start + 4_000_000, stored_ns=-1, bytes=-1, of_steps=True,
    )  # fmt: skip
    assert "6 evaluations of 34.0 ms" in only(b).title


def test_a_function_that_each_step_calls_is_no_evaluation() -> None:
    assert judge(training("train.py(33): main > train.py(50): validate_inputs > f", every=1)).status == "clean"


def test_what_only_the_name_of_a_file_says_is_no_evaluation() -> None:
    assert judge(training("eval.py(33): main > eval.py(50): draw > f")).status == "clean"


def test_batches_of_one_sample_and_reads_are_named() -> None:
    b = training("train.py(33): main > train.py(50): evaluate > loss.item", exact=True)
    b.loaders = (
        SampledLoader(dataset="D", batch_size=64, workers=0),
        SampledLoader(dataset="D", batch_size=1, workers=0),
    )
    finding = only(b)
    assert "one sample" in finding.detail
    assert "larger batches" in finding.advice
    assert "read them once" in finding.advice
    assert "larger batches" not in only(training(EVALUATE)).advice


def test_without_samples_and_times_it_abstains() -> None:
    b = training(EVALUATE)
    b.recorded = EVERYTHING | {"run_steps"}
    outcome = judge(b)
    assert outcome.status == "abstained"
    assert outcome.missing == ("side_work",)


def test_of_a_host_that_runs_ahead_waits_may_be_for_its_steps() -> None:
    b = training("train.py(33): main > train.py(50): evaluate > jax.device_get")
    b.step_times_us = ()
    assert judge(b).status == "clean"
    b = training(EVALUATE)
    b.step_times_us = ()
    assert judge(b).status == "flagged", "work of the host"


def test_each_evaluation_may_wait_for_one_step() -> None:
    """Five evaluations of 40 ms that only wait: the step of 10 ms before each is not theirs."""
    finding = only(training("train.py(33): main > train.py(50): evaluate > loss.item", exact=True))
    assert finding.cost_ns == 5 * 30_000_000


def launched(program: str = "jit_eval_step", *, calls: int = 400, traced: bool = True) -> Trace:
    """Steps that launch ``calls`` evaluating calls of 3 ms each in 200 steps of 10 ms, and wait for none."""
    b = training(TRAIN, rare_us=0)
    if traced:
        for run in range(2):
            for piece in range(3):
                start = 1_000_000 * (1 + 4 * run + piece)
                b.row("hlo_ops", start_ns=start, end_ns=start + 1_000_000, name=b.code("dot"), module=b.code(program),
                      run_id=run, encloses=False)  # fmt: skip
    name = program.removeprefix("jit_")
    facts = (
        ProgramFact(name="jitted_step", value="train_step", file="train.py", line=4, count=200),
        ProgramFact(name="jitted_calls", value=name, file="train.py", line=9, count=calls),
    )
    return replace(b.build(), program_facts=facts)


def test_an_evaluation_that_is_only_launched_has_the_time_of_its_programs() -> None:
    finding = only(launched())
    assert finding.cost_ns_per_step == 2 * 3_000_000
    assert (finding.where.file, finding.where.line) == ("train.py", 9)
    assert "The host only launches eval_step" in finding.detail
    assert "400 calls in the run" in finding.detail


@pytest.mark.parametrize(
    "b", [launched("jit_draw"), launched(calls=60), launched(traced=False)], ids=["another", "short", "not traced"]
)
def test_other_programs_short_evaluations_and_unknown_times_are_clean(b: Trace) -> None:
    assert judge(b).status == "clean"
