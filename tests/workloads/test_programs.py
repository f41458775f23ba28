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

from perfscope.workloads.options import MEMORY_DEFECTS, POLICIES, Options, parse

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "perfscope" / "workloads"
NAMES = ("attention", "moe", "ssm")


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


@pytest.mark.slow
def test_experts_in_four_processes_have_the_numbers_of_one() -> None:
    """``--capacity 4`` drops nothing."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    room = ["perfscope.workloads.experts", "--variant", "room", "--expert", "4", "--capacity", "4"]
    one, *several = (
        printed_losses(["-m", "perfscope.workloads.moe", "--variant", "loop", "--heads", "8", "--batch", "4"]),
        printed_losses([*launcher, "-m", *room]),
        printed_losses([*launcher, "-m", "perfscope.workloads.experts", "--variant", "exact", "--expert", "2"]),
    )
    assert len(one) == 3
    for losses in several:
        assert losses == pytest.approx(one, abs=2e-4)  # four digits are printed


@pytest.mark.slow
def test_divided_sequences_have_the_numbers_of_whole_ones() -> None:
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "4",
        "-m",
        "perfscope.workloads.context",
    ]
    one = printed_losses(["-m", "perfscope.workloads.attention", "--variant", "sdpa", "--batch", "2"])
    assert len(one) == 3
    for flags in (["--split", "contiguous"], ["--split", "zigzag"], ["--split", "zigzag", "--variant", "ring"]):
        assert printed_losses([*launcher, *flags]) == pytest.approx(one, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "defect"), [("fsdp", "accumulate"), ("tensor", "gather"), ("pipeline", "uneven")])
def test_a_divided_model_has_the_numbers_of_a_whole_one(program: str, defect: str) -> None:
    def losses(processes: int, *flags: str) -> list[float]:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        return printed_losses([*launcher, "-m", f"perfscope.workloads.parallel.{program}", *flags])

    one = losses(1)
    assert len(one) == 3
    assert losses(4) == pytest.approx(one, abs=2e-4)  # four digits are printed
    assert losses(4, "--defect", defect) == pytest.approx(one, abs=2e-4)


def printed_losses(words: list[str]) -> list[float]:
    done = subprocess.run(
        [sys.executable, *words, "--size", "tiny", "--steps", "3"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    return [float(line.split()[-1]) for line in done.stdout.splitlines()]


def test_they_import_nothing_of_perfscope_but_each_other() -> None:
    imported = {
        (path.name, found)
        for path in FOLDER.rglob("*.py")
        for found in re.findall(r"^\s*(?:from|import) (perfscope\.[\w.]+|torch)", path.read_text(), re.MULTILINE)
        if not found.startswith("perfscope.workloads") and (found != "torch" or path.parent.name == "jax")
    }
    assert imported == set()


def reached_from(path: Path) -> set[Path]:
    """A file of the workloads and those that it imports."""
    found, left = set(), [path]
    while left:
        file = left.pop()
        if file not in found:
            found.add(file)
            names = re.findall(r"^from (perfscope\.workloads\.[\w.]+) import", file.read_text(), re.MULTILINE)
            left += [named for name in names if (named := REPOSITORY / f"{name.replace('.', '/')}.py").is_file()]
    return found


def test_no_program_in_jax_imports_torch() -> None:
    reached = {file for path in (FOLDER / "jax").rglob("*.py") for file in reached_from(path)}
    assert FOLDER / "options.py" in reached
    assert [file for file in reached if re.search(r"^(import|from) torch\b", file.read_text(), re.MULTILINE)] == []


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
