"""A loop over parameters, its foreach and fused twins, and optimizers that only look like a loop."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.rules import judged_by

ADAM = ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_")


outcome = judged_by("unfused_optimizer")


def trained(ops: Sequence[str], *, step_us: float = 1000, us: float = 2, gap_us: float = 0, optimizer: str = "AdamW",
            counters: int = 0, recorded: frozenset[str] = EVERYTHING, other_us: float = 0) -> Trace:  # fmt: skip
    """An optimizer step of ``ops``, one kernel of ``us`` each with ``gap_us`` between them."""
    t = TraceBuilder(recorded=recorded)
    t.step(0, 0, step_us)
    t.python("train.py(50): train", 0, 400)
    t.annotation(f"Optimizer.step#{optimizer}.step", 1, 390)
    for number in range(counters):
        t.op("aten::add_", 2 + number, 2.5 + number, shapes="[[], []]", dtypes='["float", "Scalar"]')
    at = 100.0
    for number, name in enumerate(ops):
        start = 20 + 4 * number
        t.op(f"aten::{name}", start, start + 3, external_id=number)
        if name.startswith("_foreach_"):
            t.op(f"aten::{name.removeprefix('_foreach_')}", start + 1, start + 2)
        t.kernel(name, at, at + us, external_id=number)
        at += us + gap_us
    if other_us:
        t.op("aten::mm", 380, 385, external_id=900)
        t.kernel("gemm", at, at + other_us, external_id=900)
    return t.build()


def test_a_loop_is_flagged_with_class_line_and_cost():
    (finding,) = outcome(trained(ADAM * 4, gap_us=1)).findings
    assert finding.subject == "AdamW in a loop"
    assert (finding.where.op, finding.where.file, finding.where.line) == ("AdamW.step", "train.py", 50)
    # 20 passes of a parameter now, 7 fused; 31 gaps of 1 us
    assert finding.cost_ns == round(64_000 * (1 - 7 / 20)) + 31_000
    assert finding.basis == "modelled"
    assert "fused=True" in finding.advice
    assert finding.evidence[0]["between_ns"] == 31_000


def test_just_below_the_threshold_is_clean():
    saved_us = 64 * (1 - 7 / 20)
    assert outcome(trained(ADAM * 4, step_us=saved_us * 100 - 1)).status == "flagged"
    assert outcome(trained(ADAM * 4, step_us=saved_us * 100 + 10)).status == "clean"


def test_one_parameter_is_no_loop():
    assert outcome(trained(ADAM[:7], us=20)).status == "clean"


def test_foreach_is_low_and_counts_bytes_only():
    (finding,) = outcome(trained([f"_foreach_{name}" for name in ADAM], us=20, gap_us=5)).findings
    assert finding.severity == "low"
    assert finding.subject == "AdamW with foreach"
    assert finding.cost_ns == round(160_000 * (1 - 7 / 20))


@pytest.mark.parametrize(
    "trace",
    [
        trained(["_fused_adamw_"], us=200),
        trained([], optimizer="FusedAdam", counters=60),
        trained(ADAM * 4, optimizer="Shampoo", other_us=100),
        trained(["_foreach_add_"], optimizer="SGD", us=200),
    ],
    ids=["fused", "step counters of a fused one", "mostly matrix products", "a list op that is all there is to do"],
)
def test_what_is_fused_or_no_elementwise_loop_is_clean(trace: Trace):
    assert outcome(trace).status == "clean"


def test_sgd_moves_three_tensors_either_way_so_only_its_gaps_cost():
    (finding,) = outcome(trained(["add_"] * 16, optimizer="SGD", gap_us=10)).findings
    assert finding.cost_ns == 150_000


def test_without_an_accelerator_op_time_and_the_host_between_count():
    t = TraceBuilder(recorded=frozenset({"host_ops", "steps"}))
    t.step(0, 0, 1000)
    t.annotation("Optimizer.step#Adam.step", 0, 200)
    for number, name in enumerate(ADAM * 2):
        t.op(f"aten::{name}", 10 * number, 10 * number + 6)
        t.op("aten::copy_", 10 * number + 1, 10 * number + 2)  # of a scalar, inside the op
    (finding,) = outcome(t.build()).findings
    assert finding.evidence[0]["update_ops"] == 14  # without shapes, add_ may be the step counter
    assert finding.evidence[0]["between_ns"] == 200_000 - 14 * 6_000
    assert "on the host between its ops" in finding.detail


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ("RMSprop", "torch.optim.RMSprop(params, ..., foreach=True)"),
        ("Lion", "torch._foreach_mul_"),
        ("SGD", "fused=True"),
    ],
)
def test_the_fix_is_one_that_the_class_has(optimizer: str, words: str):
    (finding,) = outcome(trained(ADAM * 4, optimizer=optimizer, gap_us=1)).findings
    assert words in finding.advice


@pytest.mark.parametrize(
    ("optimizer", "words"), [("Adadelta", "torch.compile(optimizer.step)"), ("Adam", "fused=True")]
)
def test_lists_are_no_fix_on_a_cpu(optimizer: str, words: str):
    t = TraceBuilder(recorded=frozenset({"host_ops", "steps"}))
    t.step(0, 0, 1000)
    t.annotation(f"Optimizer.step#{optimizer}.step", 0, 200)
    for number, name in enumerate(ADAM * 2):
        t.op(f"aten::{name}", 10 * number, 10 * number + 6)
    (finding,) = outcome(t.build()).findings
    assert words in finding.advice


def test_abstains_without_an_optimizer_step_and_without_host_ops():
    inference = TraceBuilder()
    inference.op("aten::mul_", 0, 5)
    assert outcome(inference.build()).status == "abstained"
    assert outcome(trained(ADAM * 4, recorded=EVERYTHING - {"host_ops"})).status == "abstained"


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (("train.py(50): train", "accelerate/optimizer.py(179): step"), ("train.py", 50)),
        (("accelerate/optimizer.py(179): step",), ("accelerate/optimizer.py", 179)),
        (("train.py(50): train", "lion.py(9): step"), ("lion.py", 9)),
    ],
)
def test_a_step_that_a_package_calls_is_of_the_programs_line(frames: tuple[str, ...], place: tuple[str, int]):
    t = TraceBuilder(recorded=frozenset({"host_ops", "steps", "python_stack"}))
    t.step(0, 0, 1000)
    for depth, frame in enumerate(frames):
        t.python(frame, depth, 300 - depth)
    t.annotation("Optimizer.step#Adam.step", 10, 200)
    for number, name in enumerate(ADAM * 2):
        t.op(f"aten::{name}", 12 + 10 * number, 12 + 10 * number + 6)
    (finding,) = outcome(t.build()).findings
    assert (finding.where.file, finding.where.line) == place
