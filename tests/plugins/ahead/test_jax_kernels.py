"""The JAX workloads compile for GPUs and a TPU; Pallas kernels have a cost, and no finding of the plain version."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfscope
from perfscope.__main__ import run
from perfscope.analyzers.hlo.cost.module import hlo_costs
from perfscope.plugins.ahead.targets.plugins import Kind
from tests.accuracy.labels import lines_of, place_of
from tests.plugins.ahead.compilers import require

pytestmark = [pytest.mark.aot, pytest.mark.jax, pytest.mark.slow]

TARGETS: dict[str, tuple[Kind, str]] = {
    "h100": ("gpu-nvidia", "gpu"),
    "mi300x": ("gpu-amd", "gpu"),
    "v5e": ("tpu", "tpu"),
}
CALLS = {"__gpu$xla.gpu.triton", "tpu_custom_call"}
SMALL = "--dtype bfloat16 --batch 2 --seq 256 --dim 256 --heads 4 --layers 1"
SEVERAL = {"h100": "h100x8", "mi300x": "mi300xx8", "v5e": "v5e:2x4"}
"""Eight devices of each target, for `context`."""
HEADS = {"ssm": "--heads 16"}
"""Its states: matrix products of Triton need 16 at least."""
KERNELS = {
    "attention": ("pallas", "window", "shared"),
    "context": ("ring-flash",),
    "decode": ("paged",),
    "moe": ("grouped",),
    "quantized": ("int8", "fp8", "int4"),
    "ssm": ("kernel", "ssd"),
}
DEFECTS = (
    ("attention", "window-naive", "unfused_attention"),
    ("attention", "shared-naive", "unfused_attention"),
    ("moe", "ragged", "dense_expert_compute"),
    ("ssm", "ssd-scan", "sequential_scan"),
)

OTHERS = (
    ("h100", "decode --variant slices"),
    ("v5e", "decode --variant slices"),
    ("h100x2", "context --variant ring --devices 2"),
    ("v5e:2x2", "context --variant ring --devices 4"),
    ("h100x2", "experts --data 1 --expert 2"),
    ("v5e:2x2", "experts --data 1 --expert 4"),
    ("h100", "generate"),
    ("v5e", "generate"),
    ("h100", "pipelines.evaluation"),
)
"""Programs without a kernel and a fixture. ``loop`` and ``pipelines.checkpoint`` have the step of `attention`."""


def compiled(
    target: str, workload: str, variant: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> perfscope.Trace:
    """A workload compiled for a target."""
    kind, device = TARGETS[target]
    require(kind)
    monkeypatch.chdir(folder)
    words = (
        f"-m perfscope.workloads.jax.{workload} --device {device} --variant {variant} {SMALL} {HEADS.get(workload, '')}"
    )
    asked = SEVERAL[target] if workload == "context" else target
    assert run(["compile", "--target", asked, "-q", *words.split()]) == 0
    return perfscope.load(folder / "perfscope-runs" / "latest")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("workload", "variant"), [(name, one) for name, some in KERNELS.items() for one in some])
def test_a_kernel_compiles_and_is_costed(
    target: str, workload: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = compiled(target, workload, variant, tmp_path, monkeypatch)
    rows = [row for cost in trace.fact(hlo_costs) for row in cost.rows]
    kernels = [row for row in rows if (row.instruction.custom_call_target or "") in CALLS]
    assert kernels
    assert all(row.flops and row.once.bytes for row in kernels)
    avoided = {rule for name, _, rule in DEFECTS if name == workload or (name, workload) == ("attention", "context")}
    assert avoided.isdisjoint(rule for rule, _ in perfscope.analyze(trace).findings())


@pytest.mark.parametrize(("workload", "variant", "rule"), DEFECTS)
def test_the_plain_version_is_the_first_finding_at_its_line(
    workload: str, variant: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, first = perfscope.analyze(compiled("h100", workload, variant, tmp_path, monkeypatch)).findings()[0]
    assert found == rule
    assert place_of(first.where.file, first.where.line) in lines_of(rule, "")


@pytest.mark.parametrize(("target", "words"), OTHERS)
def test_every_other_program_compiles(target: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, device = TARGETS[target.partition("x")[0].partition(":")[0]]
    require(kind)
    monkeypatch.chdir(tmp_path)
    module, *flags = words.split()
    command = ["-m", f"perfscope.workloads.jax.{module}", "--device", device, "--size", "tiny", "--steps", "3", *flags]
    assert run(["compile", "--target", target, "-q", *command]) == 0
    assert perfscope.load(tmp_path / "perfscope-runs" / "latest").fact(hlo_costs)
