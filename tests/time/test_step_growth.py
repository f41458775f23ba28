"""Steps that become longer over the run."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge as judge_trace
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Finding
from tests.build import EVERYTHING, TraceBuilder
from tests.rules import judged_by

judge = judged_by("step_growth")
RULE = load_rule("step_growth")

FORWARD = "train.py(30): main > train.py(12): forward"
JOIN = "train.py(34): main > torch.cat"


def run(times_us: list[float], *, waits_us: list[float] | None = None, sampled: bool = True) -> TraceBuilder:
    """Steps without a profiler: 10 ms at one line, the rest at another. Sampled every 5 ms."""
    b = TraceBuilder(recorded=EVERYTHING | {"python_samples", "run_steps"})
    b.step(0, 0, 10_000)
    b.op("aten::relu", 0, 10_000)
    at = 1_000_000.0
    for number, time in enumerate(times_us, 1):
        b.run_step(number, at, at + time, wait=0 if waits_us is None else waits_us[number - 1])
        for piece in range(int(time // 5_000) if sampled else 0):
            stack = FORWARD if piece < 2 else JOIN
            b.sample(stack, at + piece * 5_000, lasts=5_000, step=number, step_us=time)
        at += time
    b.step_times_us = tuple(times_us)
    return b


def held(b: TraceBuilder, name: str, kind: str, sizes: list[int], *, graphs: bool = False, line: int = 40) -> None:
    for index, size in enumerate(sizes):
        b.row("held_names", name=b.code(name), kind=b.code(kind), file=b.code("train.py"), line=line,
              function=b.code("main"), step=10 * index, size=size, bytes=size if kind == "array" else 0,
              graphs=graphs)  # fmt: skip


def only(b: TraceBuilder) -> Finding:
    (finding,) = judge(b).findings
    return finding


GROWING = [10_000.0 + 400 * step for step in range(80)]


def test_a_step_that_grows_is_found_with_the_line_that_grew() -> None:
    finding = only(run(GROWING))
    assert (finding.where.file, finding.where.line) == ("train.py", 34)
    assert "from 10.6 ms to 41.0 ms" in finding.title, "the middles of the first and last block"
    assert finding.cost_ns_per_step == finding.untraced_ns_per_step == 15_200_000, "the median step less the first"
    assert [row["site"] for row in finding.evidence] == ["train.py:34"]


def test_a_variable_that_grew_is_named() -> None:
    b = run(GROWING)
    held(b, "seen", "array", [1000, 2000, 3000, 4000])
    finding = only(b)
    assert "`seen` becomes longer" in finding.title
    assert (finding.where.file, finding.where.line) == ("train.py", 40)
    assert "torch.cat" in finding.advice


def test_a_graph_that_grew_has_another_fix() -> None:
    b = run(GROWING)
    held(b, "total", "graph", [10, 20, 30, 40], graphs=True)
    assert "detach" in only(b).advice


def test_tokens_of_one_generation_take_longer_and_longer() -> None:
    """Attention reads all keys and values before: a cache that is joined anew is `data_movement`'s."""
    b = run(GROWING)
    held(b, "past", "array", [1000, 2000, 3000, 4000])
    one = ((4, 9), *((4, 1),) * 30)
    assert judge_trace(RULE, replace(b.build(), step_tokens=one)).status == "clean"
    several = (*one, *one)
    assert judge_trace(RULE, replace(b.build(), step_tokens=several)).status == "flagged"


def test_the_threshold_is_a_third_more_where_a_variable_grew_and_half_as_much_again_elsewhere() -> None:
    def status(us: float, *, named: bool) -> str:
        b = run([10_000 + us * step for step in range(80)], sampled=False)
        if named:
            held(b, "seen", "array", [1000, 2000, 3000, 4000])
        return judge(b).status

    assert status(40.0, named=True) == "flagged"
    assert status(39.0, named=True) == "clean"
    assert status(67.0, named=False) == "flagged"
    assert status(65.0, named=False) == "clean", "a machine that becomes slower does that too"


@pytest.mark.parametrize(
    "times",
    [
        pytest.param([10_000.0 if step % 2 else 40_000.0 for step in range(80)], id="alternating lengths"),
        pytest.param([40_000.0 if 30 <= step < 50 else 10_000.0 for step in range(80)], id="one slow phase"),
        pytest.param([60_000.0 - 2_000 * step if step < 20 else 20_000.0 for step in range(80)], id="warm-up"),
        pytest.param([10_000.0 if step < 40 else 30_000.0 for step in range(80)], id="one jump"),
        pytest.param((10_000 * np.random.default_rng(3).lognormal(0, 1, 200)).tolist(), id="noise"),
    ],
)
def test_what_is_no_growth_stays_clean(times: list[float]) -> None:
    assert judge(run(times)).status == "clean"


def test_time_without_a_core_is_no_growth() -> None:
    waits = [400.0 * step for step in range(80)]
    assert judge(run(GROWING, waits_us=waits)).status == "clean"


def test_where_all_lines_keep_their_share_the_machine_became_slower() -> None:
    b = TraceBuilder(recorded=EVERYTHING | {"python_samples", "run_steps"})
    b.step(0, 0, 10_000)
    b.op("aten::relu", 0, 10_000)
    at = 1_000_000.0
    for number, time in enumerate(GROWING, 1):
        b.run_step(number, at, at + time)
        for piece in range(4):
            b.sample(FORWARD if piece < 2 else JOIN, at + piece, lasts=time / 4, step=number, step_us=time)
        at += time
    b.step_times_us = tuple(GROWING)
    assert judge(b).status == "clean"
    held(b, "seen", "array", [1000, 2000, 3000, 4000])
    assert judge(b).status == "flagged", "a variable that grows is the program's"


def test_few_steps_and_steps_that_do_not_wait_are_not_judged() -> None:
    few = judge(run(GROWING[:39]))
    assert few.status == "abstained"
    assert few.reason is not None
    assert "39 steps" in few.reason
    b = run(GROWING)
    b.step_times_us = ()
    assert judge(b).status == "abstained"


def test_text_that_each_call_computes_whole_is_left_to_its_own_rule() -> None:
    trace = run(GROWING).build()
    assert judge(replace(trace, step_tokens=tuple((2, 16 + step) for step in range(80)))).status == "clean"
