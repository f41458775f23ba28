"""The workloads as programs: their command line, and the lines of code that reports will name."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfscope.workloads.options import DEFECTS, MEMORY_DEFECTS, POLICIES, Options, parse

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "perfscope" / "workloads"
NAMES = ("attention", "moe", "ssm")


def defect_lines(file: str) -> dict[int, str]:
    lines = (FOLDER / file).read_text().splitlines()
    return {number: line for number, line in enumerate(lines, start=1) if "# defect:" in line}


def step_of(name: str, variant: str, *defects: str, tmp_path: Path) -> Any:
    """The op graph of the second step of a training run."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from perfscope.analyzers.readers.op_graph import read_op_graph
    from perfscope.profiler.torch.op_graph.capture import OpGraphCapture
    from perfscope.workloads.training import train

    module = importlib.import_module(f"perfscope.workloads.{name}")
    capture, steps = OpGraphCapture(), []

    def boundary(*_: Any) -> None:
        steps.append(1)
        if len(steps) == 1:
            capture.start(1)
        elif len(steps) == 2:
            capture.stop()

    hook = register_optimizer_step_post_hook(boundary)
    try:
        train(
            module.Block,
            Options(variant=variant, size=module.SIZES["tiny"], steps=3, defects=frozenset(defects)),
        )
    finally:
        hook.remove()
        capture.stop()
        torch.set_float32_matmul_precision("highest")
    capture.save(tmp_path / "graph.json.gz")
    return read_op_graph(tmp_path / "graph.json.gz")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "transformer"])
def test_it_runs_as_a_module_and_as_a_script(name: str) -> None:
    arguments = ["--size", "tiny", "--steps", "2"]
    for target in (["-m", f"perfscope.workloads.{name}"], [str(FOLDER / f"{name}.py")]):
        done = subprocess.run(
            [sys.executable, *target, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "PATH": ""},
        )
        assert done.returncode == 0, done.stderr
        assert [line.split()[:3] for line in done.stdout.splitlines()] == [["step", "0", "loss"], ["step", "1", "loss"]]


def test_they_import_nothing_of_perfscope_but_each_other() -> None:
    imported = {
        (path.name, found)
        for path in FOLDER.rglob("*.py")
        for found in re.findall(r"^\s*(?:from|import) (perfscope\.[\w.]+|torch)", path.read_text(), re.MULTILINE)
        if not found.startswith("perfscope.workloads") and (found != "torch" or path.parent.name == "jax")
    }
    assert imported == set()


def test_a_program_without_backward_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = importlib.import_module("perfscope.workloads.attention")
    monkeypatch.setattr(attention, "evaluate", lambda options: [0.0])
    attention.main(Options(variant="flex", size=attention.SIZES["tiny"]))
    assert "no backward on the CPU: forward only" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_sizes_and_presets(name: str) -> None:
    module = importlib.import_module(f"perfscope.workloads.{name}")

    def asked(*arguments: str) -> Options:
        return parse("", module.VARIANTS, module.SIZES, arguments)

    assert asked() == Options(variant=module.VARIANTS[0], size=module.SIZES["cpu"])
    large = asked("--size", "gpu")
    assert (large.device, large.dtype, large.size) == ("cuda", "bfloat16", module.SIZES["gpu"])
    assert asked("--size", "gpu", "--defect", "fp32").dtype == "float32"
    assert asked("--size", "gpu", "--device", "cpu", "--dim", "64").size.dim == 64
    assert asked("--defect", "item", "--defect", "loader").defects == {"item", "loader"}
    with pytest.raises(SystemExit):
        asked("--defect", "nonsense")


@pytest.mark.parametrize(("name", "variant"), [("moe", "index_add"), ("attention", "sdpa"), ("ssm", "parallel")])
def test_a_twin_never_waits_for_a_value(name: str, variant: str, tmp_path: Path) -> None:
    graph = step_of(name, variant, tmp_path=tmp_path)
    assert graph.ops
    assert [op for op in graph.ops if op.host_read] == []


def test_the_loop_waits_on_the_line_that_says_so(tmp_path: Path) -> None:
    graph = step_of("moe", "loop", tmp_path=tmp_path)
    waits = [op for op in graph.ops if op.host_read]
    assert {(op.file, op.line) for op in waits} == {("perfscope/workloads/moe.py", next(iter(defect_lines("moe.py"))))}
    assert {op.host_read for op in waits} == {"nonzero"}
    assert len(waits) == 2 * 4  # layers, experts


def test_reading_the_loss_waits_on_its_line(tmp_path: Path) -> None:
    graph = step_of("moe", "index_add", "item", tmp_path=tmp_path)
    (wait,) = [op for op in graph.ops if op.host_read]
    assert wait.host_read == "item"
    assert ".item()" in defect_lines("training.py")[wait.line]


def test_the_scan_is_two_small_ops_a_step_of_time_on_one_line(tmp_path: Path) -> None:
    line = next(iter(defect_lines("ssm.py")))
    found = {}
    for variant in ("scan", "parallel"):
        graph = step_of("ssm", variant, tmp_path=tmp_path)
        found[variant] = [op for op in graph.ops if op.phase == "forward" and op.pointwise and op.line == line]
    assert len(found["scan"]) == 2 * 96
    assert found["parallel"] == []


def test_naive_attention_keeps_scores_and_its_twin_does_not(tmp_path: Path) -> None:
    line = next(iter(defect_lines("attention.py")))
    naive = step_of("attention", "naive", tmp_path=tmp_path)
    assert {"aten.bmm.default", "aten.div.Tensor"} <= {op.name for op in naive.ops if op.line == line}
    fused = step_of("attention", "sdpa", tmp_path=tmp_path)
    assert any("scaled_dot_product" in op.name for op in fused.ops)
    assert not any(op.line == line for op in fused.ops)


@pytest.mark.parametrize("defect", ["checkpoint", "checkpoint-reentrant"])
def test_checkpointing_recomputes(defect: str, tmp_path: Path) -> None:
    again = [op for op in step_of("attention", "sdpa", defect, tmp_path=tmp_path).ops if op.recompute]
    assert any(op.flops for op in again)


def test_the_optimizer_is_one_op_or_many(tmp_path: Path) -> None:
    fused, loop = (
        [op for op in step_of("ssm", "parallel", *defect, tmp_path=tmp_path).ops if op.phase == "optimizer"]
        for defect in ([], ["adam-loop"])
    )
    assert len([op for op in fused if op.name.startswith("aten._fused_adamw_")]) == 1
    assert len(loop) > 100


@pytest.mark.parametrize("file", ["attention.py", "moe.py", "ssm.py", "training.py", "data.py"])
def test_each_defect_is_one_line_that_says_what_it_is(file: str) -> None:
    lines = defect_lines(file)
    assert lines
    assert all(line.split("#")[0].strip() for line in lines.values())


def test_every_defect_has_its_place() -> None:
    source = (FOLDER / "training.py").read_text() + (FOLDER / "data.py").read_text()
    assert [name for name in DEFECTS if f'"{name}" in' not in source and f'"{name}" not in' not in source] == []


FORMS = [("full", False), ("full", True), ("selective", False)]


def module() -> Any:
    from perfscope.workloads import transformer

    return transformer


def options_of(**named: Any) -> Options:
    return Options(**{"variant": "sdpa", "size": module().SIZES["tiny"], "steps": 3, **named})


def numbers(options: Options) -> tuple[Any, list[Any]]:
    """Loss and gradients of one step with the seed's weights."""
    model = module().build(options)
    size = options.size
    tokens = torch.randint(size.vocab, (size.batch, size.seq + 1), generator=torch.Generator().manual_seed(1))
    loss = module().loss_of(model, tokens)[0]
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("variant", ["sdpa", "naive"])
@pytest.mark.parametrize(("policy", "reentrant"), FORMS)
def test_policies_compute_the_same(policy: str, reentrant: bool, variant: str) -> None:
    loss, gradients = numbers(options_of(variant=variant))
    other, others = numbers(options_of(variant=variant, policy=policy, reentrant=reentrant))
    assert torch.equal(loss, other)  # the same arithmetic is done again: not a bit differs
    assert all(torch.equal(item, two) for item, two in zip(gradients, others, strict=True))


def kept_bytes(options: Options) -> int:
    """Bytes that autograd has saved when the backward begins, each storage once, parameters aside."""
    model = module().build(options)
    size = options.size
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = module().loss_of(model, torch.zeros(size.batch, size.seq + 1, dtype=torch.int64))[0]
    assert loss.requires_grad
    return sum(saved.values())


def test_a_policy_saves_what_it_says() -> None:
    # With hooks of the outside, what the policy keeps of a block by itself (selective) is not counted.
    everything, inputs = kept_bytes(options_of()), kept_bytes(options_of(policy="full", reentrant=True))
    assert inputs < everything / 3


def losses_of(capsys: pytest.CaptureFixture[str], options: Options) -> tuple[list[float], str]:
    losses: list[float] = module().train(options)
    torch.set_float32_matmul_precision("highest")
    return losses, capsys.readouterr().out


@pytest.mark.parametrize("defect", sorted(MEMORY_DEFECTS))
def test_a_defect_of_memory_changes_no_number(capsys: pytest.CaptureFixture[str], defect: str) -> None:
    plain, _ = losses_of(capsys, options_of())
    defective, said = losses_of(capsys, options_of(defects=frozenset([defect])))
    twin, twin_said = losses_of(capsys, options_of(twins=frozenset([defect])))
    assert defective == twin == plain
    assert said == twin_said
    assert said.splitlines()[0].split()[0] in ("entropy", "bank")


def test_it_learns(capsys: pytest.CaptureFixture[str]) -> None:
    losses, _ = losses_of(capsys, options_of(steps=12, policy="selective"))
    assert losses[-1] < losses[0] - 0.1


def test_its_flags() -> None:
    transformer = module()
    asked = transformer.parse(["--policy", "full", "--reentrant", "--twin", "leak", "--layers", "3"])
    assert asked == options_of(
        size=replace(transformer.SIZES["cpu"], layers=3), steps=12, policy="full", reentrant=True, twins={"leak"}
    )
    large = transformer.parse(["--size", "gpu", "--defect", "fragment"])
    assert (large.device, large.dtype, large.defects, large.policy) == ("cuda", "bfloat16", {"fragment"}, "none")
    assert set(POLICIES) == {"none", "full", "selective"}
    for wrong in (["--reentrant"], ["--defect", "leak", "--twin", "leak"], ["--policy", "dots"], ["--defect", "item"]):
        with pytest.raises(SystemExit):
            transformer.parse(wrong)
