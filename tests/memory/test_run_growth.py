"""Memory that grows over the run, by readings after steps without a profiler."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.engine import judge as judge_trace
from perfscope.analyzers.memory.over_run import MOST_READINGS, memory_over_run
from perfscope.analyzers.memory.run_growth import LEAST_RESIDENT_BYTES, run_growth
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.sections import MemorySection
from perfscope.dashboards.report.blocks import Plot, Table
from perfscope.dashboards.report.sections.memory import memory_sections
from perfscope.model.finding import Finding
from tests.build import EVERYTHING, TraceBuilder
from tests.rules import judged_by

judge = judged_by("memory_leak")
RULE = load_rule("memory_leak")

MIB = 1 << 20
STEPS = list(range(8, 68, 4))


def run(resident: list[int], *, device: list[int] | None = None, steps: list[int] = STEPS) -> TraceBuilder:
    b = TraceBuilder(recorded=(EVERYTHING - {"memory"}) | {"run_memory"})
    b.step(1, 0, 10_000)
    b.op("aten::mm", 0, 10_000)
    for index, step in enumerate(steps):
        b.row("run_memory", step=step, rss_bytes=resident[index], device_bytes=-1 if device is None else device[index])
    return b


def growing(per_step: int, base: int = 300 * MIB) -> list[int]:
    return [base + per_step * step for step in STEPS]


def held(b: TraceBuilder, name: str, kind: str, bytes_per_step: int, *, graphs: bool = False) -> TraceBuilder:
    for step in (8, 9, 20, 60):
        b.row("held_names", name=b.code(name), kind=b.code(kind), file=b.code("train.py"), line=40,
              function=b.code("main"), step=step, size=step, bytes=bytes_per_step * step, graphs=graphs)  # fmt: skip
    return b


def only(b: TraceBuilder) -> Finding:
    (finding,) = judge(b).findings
    return finding


def test_a_sum_that_keeps_each_graph_is_named_at_its_line() -> None:
    finding = only(held(run(growing(MIB)), "mae", "graph", 0, graphs=True))
    assert "grows 1.00 MiB per step" in finding.title
    assert (finding.where.file, finding.where.line) == ("train.py", 40)
    assert "`.detach()`" in finding.advice
    assert finding.severity == "high", "as much again within a thousand steps"
    assert finding.cost_bytes == 44 * MIB, "from step 20 to 64: the first readings are left out"


def test_a_list_of_arrays_is_named_if_it_explains_the_growth() -> None:
    finding = only(held(run(growing(MIB)), "outputs", "container", MIB))
    assert "`outputs` keeps arrays of every step" in finding.title
    finding = only(held(run(growing(MIB)), "outputs", "container", MIB // 4))
    assert "outputs" not in finding.title
    assert finding.where.file is None


def test_the_devices_memory_goes_first() -> None:
    flat = [300 * MIB] * len(STEPS)
    assert only(run(flat, device=growing(8192, 4 * MIB))).subject == "growth of device memory"
    assert judge(run(growing(MIB), device=flat)).status == "clean", "what the device holds is not the host's"


def test_the_threshold_of_resident_memory_is_above_what_we_take() -> None:
    small = 20 * MIB
    assert judge(run(growing(LEAST_RESIDENT_BYTES, small))).status == "flagged"
    assert judge(run(growing(LEAST_RESIDENT_BYTES - 1, small))).status == "clean"


def test_what_levels_off_jumps_or_goes_up_and_down_is_no_leak() -> None:
    base = np.array(growing(0))
    levels = base + MIB * np.minimum(np.arange(len(STEPS)), 6)
    jump = base + 50 * MIB * (np.arange(len(STEPS)) > 7)
    saw = base + 10 * MIB * (np.arange(len(STEPS)) % 4)
    for values in (levels, jump, saw):
        assert judge(run(values.tolist())).status == "clean"


def test_few_readings_are_not_judged() -> None:
    assert judge(run(growing(MIB)[:6], steps=STEPS[:6])).status == "abstained"
    close = list(range(8, 8 + len(STEPS)))
    assert run(growing(MIB), steps=close).build().fact(run_growth) is None, "fewer than twenty steps"


def test_a_graph_that_grows_is_said_before_the_memory_shows_it() -> None:
    flat = [300 * MIB] * len(STEPS)
    finding = only(held(run(flat), "losses", "container", 4, graphs=True))
    assert (finding.subject, finding.severity, finding.basis) == ("growth of a graph", "low", "structural")
    assert judge(held(run(flat), "log", "container", 0)).status == "clean", "a list of numbers"


def test_what_one_generation_keeps_of_its_tokens_is_no_leak() -> None:
    kept = held(run(growing(2 * MIB)), "past", "container", 2 * MIB).build()
    one, without_cache = ((4, 9), *((4, 1),) * 30), tuple((4, 9 + step) for step in range(30))
    for tokens in (one, without_cache):
        assert judge_trace(RULE, replace(kept, step_tokens=tokens)).status == "clean"


def test_what_grows_over_several_generations_or_keeps_graphs_is_a_leak() -> None:
    tokens = ((4, 9), *((4, 1),) * 10, (4, 9), *((4, 1),) * 10)
    kept = held(run(growing(2 * MIB)), "outputs", "container", 2 * MIB)
    assert judge_trace(RULE, replace(kept.build(), step_tokens=tokens)).status == "flagged"
    assert judge_trace(RULE, replace(kept.build(), step_tokens=((4, 128),) * 30)).status == "flagged"
    graphs = held(run(growing(2 * MIB)), "scores", "container", 2 * MIB, graphs=True)
    assert judge_trace(RULE, replace(graphs.build(), step_tokens=((4, 1),) * 30)).status == "flagged"


def test_the_curve_over_the_run_has_the_first_the_last_and_the_largest_reading() -> None:
    steps = list(range(0, 1000, 2))
    resident = [300 * MIB] * len(steps)
    resident[123] = 900 * MIB
    (curve,) = memory_over_run(run(resident, steps=steps).build())
    assert (curve.kind, curve.steps[0], curve.steps[-1]) == ("resident", 0, 998)
    assert len(curve.steps) <= MOST_READINGS
    assert curve.bytes[curve.steps.index(246)] == 900 * MIB
    device, _ = memory_over_run(run(growing(0), device=growing(MIB)).build())
    assert (device.kind, device.bytes) == ("device", tuple(growing(MIB)))
    assert memory_over_run(run(growing(0)[:2], steps=STEPS[:2]).build()) == (), "two readings are no curve"


def test_the_curve_is_drawn_and_its_numbers_are_in_a_table() -> None:
    curves = memory_over_run(run(growing(MIB)).build())
    (section,) = memory_sections(MemorySection(over_run=curves))
    assert section.summary == "resident memory of the process: 308 MiB to 364 MiB, steps 8 to 64"
    plot, numbers, _ = section.blocks
    assert isinstance(plot, Plot)
    assert plot.lines[0].points[-1] == (64.0, 364.0 * MIB)
    assert isinstance(numbers, Table)
    assert memory_sections(MemorySection()) == ()
