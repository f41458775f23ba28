from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.predict import estimate
from perfscope.analyzers.predict.calibration import FEWEST, Calibration, bounded, calibrate, measured_run
from tests.hlo_build import GPU, hlo_module, hlo_trace, recorded_trace
from tests.predict.targets import target

H100 = target("H100 SXM")
SIZE = 1 << 24
"""float32 numbers of each value: 64 MiB."""


def chain(count: int, *, size: int = SIZE, name: str = "jit_step") -> HloModule:
    """A chain of elementwise kernels: ``n0``, ``n1`` ..."""
    shape = f"f32[{size}]"
    text = f"ENTRY %main (p: {shape}) -> {shape} {{\n  %p = {shape} parameter(0)\n"
    before = "p"
    for number in range(count):
        root = "ROOT " if number == count - 1 else ""
        text += f"  {root}%n{number} = {shape} negate(%{before}), {GPU}\n"
        before = f"n{number}"
    return hlo_module(f"{text}}}\n", name)


def calibrated(module: HloModule, times: dict[str, float], *, gap: float = 0.0) -> Calibration:
    """The module held against one run of it; times in us."""
    at, ops = 0.0, []
    for name, took in times.items():
        ops.append((name, at, at + took))
        at += took + gap
    trace = recorded_trace(module, ops=ops, runs=[1] * len(ops))
    found = calibrate(estimate(module, H100), module, trace)
    assert found is not None
    return found


def test_measured_times_replace_modelled_ones() -> None:
    found = calibrated(chain(3), {"n0": 45.0, "n1": 50.0, "n2": 900.0}, gap=1.0)
    assert found.matched == "the same program"
    assert found.run.step_ns == 997_000
    assert found.run.busy_ns == 995_000
    assert found.calibrated.low == 995_000
    assert found.not_measured == 0
    worst = found.instructions[0]
    assert (worst.row.name, worst.inside) == ("n2", False)
    assert worst.off_ns == 900_000 - worst.row.once.high
    assert sum(one.inside for one in found.instructions) == 2
    assert not found.inside


def test_what_was_not_measured_is_priced_by_its_kind_where_enough_were() -> None:
    module = chain(FEWEST + 1)
    low = estimate(module, H100).rows[0].once.low
    times = {f"n{number}": low * 2 / 1000 for number in range(FEWEST)}
    found = calibrated(module, times)
    assert (found.not_measured, found.by_group) == (1, 1)
    (group,) = found.groups
    assert (group.group, group.instructions) == ("memory-bound", FEWEST)
    assert group.share == pytest.approx(0.5, rel=1e-3)
    # all reached half of the peak, so the last one is taken to
    assert found.calibrated.low == pytest.approx(2 * low * (FEWEST + 1), rel=1e-3)


def test_few_measured_ones_price_no_others() -> None:
    module = chain(FEWEST)
    found = calibrated(module, {f"n{number}": 100.0 for number in range(FEWEST - 1)})
    assert (found.not_measured, found.by_group) == (1, 0)
    once = estimate(module, H100).rows[0].once
    assert found.calibrated.low == pytest.approx(100_000 * (FEWEST - 1) + once.low)


def test_another_program_of_the_name_says_what_differs() -> None:
    recorded = chain(3, size=SIZE // 2)
    trace = recorded_trace(recorded, ops=[("n0", 0, 10), ("n1", 10, 20), ("n2", 20, 30)], runs=[1, 1, 1])
    module = chain(2)
    found = calibrate(estimate(module, H100), module, trace)
    assert found is not None
    assert found.matched == "the same name"
    assert found.differences == (
        "0 of 3 measured instructions are in the modelled program",
        "2 of the same name have another shape",
    )
    assert found.instructions == ()
    assert found.calibrated.low == found.modelled.low


def test_no_run_no_calibration() -> None:
    module = chain(2)
    assert calibrate(estimate(module, H100), module, hlo_trace(module)) is None
    other = recorded_trace(chain(2, name="jit_other"), ops=[("n0", 0, 10)], runs=[1])
    assert calibrate(estimate(module, H100), module, other) is None


def test_of_a_collective_the_device_counts_that_came_last() -> None:
    module = hlo_module(
        "%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n"
        "  ROOT %s = f32[] add(%a, %b)\n}\n"
        "ENTRY %main (p: f32[1024]) -> f32[1024] {\n  %p = f32[1024] parameter(0)\n"
        f"  ROOT %r = f32[1024] all-reduce(%p), channel_id=1, to_apply=%add, replica_groups={{{{0,1}}}}, {GPU}\n}}\n"
    )
    trace = recorded_trace(
        module,
        ops=[("r", 0, 100), ("r", 80, 100), ("r", 200, 230), ("r", 150, 230)],
        runs=[1, 1, 2, 2],
        ordinals=[0, 1, 0, 1],
    )
    run = measured_run(trace, module)
    assert run is not None
    assert (run.runs, run.devices, run.apart) == (4, 2, True)
    assert run.instructions["main", "r"] == (20_000 + 30_000) / 2


def test_runs_that_are_not_told_apart_have_no_gaps_in_them() -> None:
    module = chain(2)
    trace = recorded_trace(module, ops=[("n0", 0, 10), ("n1", 15, 25), ("n0", 30, 40), ("n1", 45, 55)])
    run = measured_run(trace, module)
    assert run is not None
    assert not run.apart
    assert run.step_ns == run.busy_ns == 20_000


def test_bounded_keeps_the_worst() -> None:
    found = bounded(calibrated(chain(3), {"n0": 50.0, "n1": 60.0, "n2": 900.0}), 1)
    assert [one.row.name for one in found.instructions] == ["n2"]


SCRIPT = Path(__file__).parents[2] / "benchmarks" / "modelled_time.py"


def benchmark() -> ModuleType:
    """The script that prints the page's tables."""
    spec = importlib.util.spec_from_file_location("modelled_time", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["modelled_time"] = module
    spec.loader.exec_module(module)
    return module


TABLES = benchmark()


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.parametrize("case", TABLES.CASES, ids=lambda case: Path(case.file).name)
def test_nothing_was_faster_than_its_low_end(corpus: Path, case: object) -> None:
    seen = 0
    for label, found in TABLES.calibrations(corpus, case):
        assert found.run.step_ns >= found.modelled.low, label
        for one in found.instructions:
            assert one.measured_ns >= one.row.once.low, f"{label}: {one.row.name}"
            seen += 1
    assert seen


@pytest.mark.slow
@pytest.mark.corpus
def test_what_the_train_step_misses_by_is_what_the_page_says(corpus: Path) -> None:
    (found,) = (one for label, one in TABLES.calibrations(corpus, TABLES.CASES[0]) if label == "jit_train_step")
    worst = found.instructions[0]
    assert worst.row.name == "input_scatter_fusion"
    assert worst.row.contended
    assert not found.inside
    assert found.run.step_ns - worst.measured_ns < 1.2 * found.modelled.high
    # with measured times in it, what is left are devices that wait for one another
    assert found.calibrated.high < found.run.step_ns
    assert found.calibrated.low > 0.85 * found.run.step_ns
