"""Plans over a pretended device, in the children that the command starts; where that fails, the usual plan and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope._cut import torch_pretend_run
from perfscope._cut.torch_pretend_fit import unfit
from perfscope.analyzers.devices.target_text import parse_target
from perfscope.analyzers.readers.compiled import read_plan_folder
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.sections.plan import plan_section
from perfscope.commands.compile import request_of
from perfscope.dashboards.report.sections.plan import plan_views
from perfscope.model.documents import compile_manifest
from perfscope.model.torch_plan import TorchPlan
from perfscope.model.trace import Trace
from perfscope.profiler.ahead.common import child_process
from perfscope.profiler.ahead.common.compile import compile_program
from perfscope.profiler.ahead.targets import plugins
from tests.ahead import torch_programs

pytestmark = [pytest.mark.aot, pytest.mark.slow]

TABLE = {
    # (launches, MB) planned with the whole pretence of an H100: see TABLE of test_torch_plan; attention as one kernel
    # has 7 and 13 scheduler nodes there, of which 4 and 3 are parts of its results and no launches
    "fused attention forward": (3, 117.6),
    "fused attention backward": (10, 320.0),
    "flex attention forward": (1, None),
    "flex attention backward": (2, None),
    "convolution forward": (None, None),
    "convolution backward": (None, None),
    "scaled product": (2, None),
    "mlp forward": (5, 1812.1),
    "mlp backward": (11, 3291.6),
    "attention forward": (12, 497.3),
    "attention backward": (19, 858.6),
}
ROUNDED = 0.05
"""MB: the table has one digit behind the point."""

LOOP = "for _ in range(6):"
PROGRAM = torch_programs.TABLE.replace(LOOP, torch_programs.MORE + LOOP)

CHILD = """
from perfscope.profiler.ahead import child
{change}
child.main()
"""
"""A child in which something of torch is other than it is here."""


@pytest.fixture(autouse=True)
def needs_triton() -> None:
    found = plugins.find("torch")
    if isinstance(found, plugins.MissingPlugin):
        pytest.skip(f"{found.reason}: PERFSCOPE_PLUGINS names no folder with triton")
    version = found.versions["torch"]
    why = unfit(version, for_gpu="+cpu" not in version)
    if why is not None:
        pytest.skip(why)


def pretended(
    folder: Path, text: str | None, *words: str, target: str = "h100", seconds: float = 1200, registers: bool = False
) -> Trace:
    """The plan of a program of that text, or of a module."""
    if text is not None:
        script = folder / "train.py"
        script.write_text(text)
        words = (str(script), *words)
    machine = parse_target(target, None)
    request = request_of(
        words, module=text is None, framework="torch", target=machine, seconds=seconds, registers=registers,
        pretend_device=True,
    )  # fmt: skip
    trace = read_plan_folder(compile_program(request, root=folder / "runs"))
    trace.target = machine
    return trace


def plan_of(trace: Trace) -> TorchPlan:
    """Its one plan."""
    (held,) = trace.torch_plans
    return held.plan


def why_not(trace: Trace) -> str:
    """The one note that says why the usual way was gone, in the plan and in the manifest."""
    notes = [note for note in plan_of(trace).notes if note.startswith("--pretend-device: ")]
    assert len(notes) == 1
    assert notes[0].endswith("; planned over CPU tensors instead")
    assert compile_manifest.load(Path(trace.source.path)).notes.count(notes[0]) == 1
    assert plan_of(trace).way == "cpu-triton"
    return notes[0]


def broken(monkeypatch: pytest.MonkeyPatch, folder: Path, change: str) -> None:
    """Have all children run with that change."""
    (folder / "child.py").write_text(CHILD.format(change=change))
    monkeypatch.setattr(child_process, "CHILD", folder / "child.py")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return pretended(tmp_path_factory.mktemp("table"), PROGRAM)


def test_launches_and_bytes_are_those_of_the_target_s_own_plan(table: Trace) -> None:
    plan = plan_of(table)
    assert plan.way == "pretended-device"
    assert plan.complete
    for (name, (launches, moved)), graph in zip(TABLE.items(), plan.graphs, strict=True):
        found = sum(kernel.bytes for kernel in graph.kernels) / 1e6
        assert launches is None or len(graph.kernels) == launches, name
        assert moved is None or found == pytest.approx(moved, abs=ROUNDED), name


def test_what_cannot_be_planned_over_cpu_tensors(table: Trace) -> None:
    kernels = [kernel for graph in plan_of(table).graphs for kernel in graph.kernels]
    flex = [kernel for kernel in kernels if kernel.name.startswith("triton_tem_")]
    assert [kernel.kind for kernel in flex] == ["attention", "attention"]
    assert {kernel.flops for kernel in flex} == {None}  # how much its mask leaves out is not known
    named = {kernel.name: kernel for kernel in kernels}
    assert any("convolution" in name for name in named)
    (scaled,) = (kernel for name, kernel in named.items() if "_scaled_mm" in name)
    assert (scaled.dtype, scaled.shape) == ("float8_e4m3fn", "256x512x1024")
    said = " ".join(plan_of(table).not_covered)
    assert "cuDNN" in said
    assert "scaled products" in said


def test_a_second_build_has_the_same_fingerprint(table: Trace, tmp_path: Path) -> None:
    again = plan_of(pretended(tmp_path, PROGRAM))
    assert again.fingerprint == plan_of(table).fingerprint
    assert again.graphs == plan_of(table).graphs


def test_nothing_of_it_is_in_this_process(table: Trace) -> None:
    torch = pytest.importorskip("torch")
    assert table.torch_plans
    assert torch.cuda.is_available.__module__ == "torch.cuda"
    assert torch._C._accelerator_getAccelerator() is None
    assert not type(torch.autograd.Variable._execution_engine).__module__.startswith("perfscope")
    with pytest.raises(AssertionError, match="not compiled with CUDA"):
        torch.empty(1).cuda()


def test_a_training_script_is_planned_to_its_step(tmp_path: Path) -> None:
    plan = plan_of(pretended(tmp_path, torch_programs.EAGER))
    assert plan.way == "pretended-device"
    assert plan.complete
    assert plan.compiled_by == "perfscope"
    assert plan.optimizers == ("AdamW",)
    products = [kernel for graph in plan.graphs for kernel in graph.kernels if kernel.kind == "product"]
    assert len(products) == 20 + 2 * 20 - 1
    assert {kernel.dtype for kernel in products} == {"bfloat16"}  # autocast is that for CUDA


def test_registers_of_what_is_planned_over_it(tmp_path: Path) -> None:
    text = torch_programs.CONSTANTS.replace("self.first(x)", "torch.softmax(self.first(x), -1)")
    trace = pretended(tmp_path, text, registers=True)
    assert plan_of(trace).way == "pretended-device"
    kernels = [kernel for graph in plan_of(trace).graphs for kernel in graph.kernels]
    assert {kernel.kind for kernel in kernels} >= {"reduction", "product"}
    for kernel in kernels:
        assert (kernel.registers is None) is not kernel.name.startswith("triton_"), kernel.name
        if kernel.registers is not None:
            assert kernel.registers.failure is None
            assert kernel.registers.capability == "sm_90a"
            assert 8 <= (kernel.registers.registers or 0) <= 255
            assert kernel.registers.spilled_bytes == 0
    (view,) = plan_views(plan_section([trace]))
    shown = [dict(cells) for cells in view.kernels]
    assert {bool(cells["registers"]) for cells in shown if cells["kernel"].startswith("triton_")} == {True}
    assert any("XBLOCK" in cells["block size"] for cells in shown)


def test_constants_of_a_graph_stay_on_the_host(tmp_path: Path) -> None:
    plan = plan_of(pretended(tmp_path, torch_programs.CONSTANTS))
    assert plan.way == "pretended-device"
    assert plan.complete
    assert {graph.direction for graph in plan.graphs} == {"forward", "backward"}


@pytest.mark.parametrize(("variant", "written_out"), [("naive", True), ("sdpa", False)])
def test_attention_defect_and_twin(tmp_path: Path, variant: str, written_out: bool) -> None:
    words = ("perfscope.workloads.attention", "--variant", variant, "--size", "gpu", "--device", "cuda")
    trace = pretended(tmp_path, None, *words)
    assert plan_of(trace).way == "pretended-device"
    rule = load_rule("unfused_attention")
    assert rule.plan is not None
    assert bool(list(rule.plan(trace))) is written_out


def test_a_program_that_ends_its_process_falls_back(tmp_path: Path) -> None:
    said = why_not(pretended(tmp_path, torch_programs.CRASHES))
    assert "the program under it was ended by SIGSEGV" in said


def test_a_program_that_mixes_devices_raises_as_on_the_target(tmp_path: Path) -> None:
    trace = pretended(tmp_path, torch_programs.MIXES)
    assert "raised FakeTensorDeviceMismatchError at train.py:6: " in why_not(trace)
    assert plan_of(trace).complete  # over CPU tensors it cannot be seen


def test_a_program_that_stays_on_the_cpu_falls_back(tmp_path: Path) -> None:
    said = why_not(pretended(tmp_path, torch_programs.MIXES.replace('"cuda"', '"cpu"')))
    assert "on the CPU" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGABRT)", "a trial of it was ended by SIGABRT"),
        (
            "from perfscope.profiler.ahead import torch_pretend_fit as fit; fit.KNOWN = ('9.9',)",
            "it was tried with torch 9.9, not with ",
        ),
        (
            "from perfscope.profiler.ahead import torch_pretend_hooks as hooks; real = hooks.slots_in\n"
            "hooks.slots_in = lambda at: {**real(at), 'current_device': real(at)['isBuilt']}",
            "current_device of CUDAHooksInterface answers 0 and not -1",
        ),
        (
            "from perfscope.profiler.ahead import torch_pretend_hooks as hooks; real = hooks.slots_in\n"
            "hooks.slots_in = lambda at: {**real(at), 'one_more': max(real(at).values()) + 1}",
            "the table of CUDAHooksInterface has ",
        ),
        (
            "import torch; torch._C._ensureCUDADeviceGuardSet = lambda: None",
            "torch does not put a guard of its own in place of ours",
        ),
    ],
)
def test_a_torch_that_it_does_not_fit_fails_the_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: str, said: str
) -> None:
    broken(monkeypatch, tmp_path, change)
    request = request_of(("train.py",), module=False, framework="torch", target=parse_target("h100", None))
    assert said in str(torch_pretend_run.trial(request.target))


def test_a_trial_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken(monkeypatch, tmp_path, "import time; time.sleep(600)")
    request = request_of(("train.py",), module=False, framework="torch", target=parse_target("h100", None))
    assert "a trial of it did not end in its time" in str(torch_pretend_run.trial(request.target, seconds=1))


def test_gpus_of_others_are_planned_the_usual_way(tmp_path: Path) -> None:
    assert "MI300X is no device of NVIDIA's" in why_not(pretended(tmp_path, torch_programs.MIXES, target="mi300x"))
