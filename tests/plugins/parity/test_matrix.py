"""`perfscope parity --record` and `--matrix`: sides that ran here and elsewhere, in pairs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.__main__ import main
from perfscope.model.errors import UsageError
from perfscope.plugins.parity.cases.matrix import Spec, specs_of
from perfscope.plugins.parity.document import load_arrays

pytestmark = [pytest.mark.torch, pytest.mark.jax]
MODELS = Path(__file__).with_name("models.py")


def run(folder: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["parity", *arguments, "-q", "-o", str(folder / "runs")])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bf16``: in PyTorch, and ``jax``: with its weights and inputs, and another epsilon."""
    folder = tmp_path_factory.mktemp("recorded")
    first = run(folder, f"{MODELS}:in_torch", "--record", str(folder / "bf16"), "--dtype-a", "bfloat16")
    second = run(folder, str(folder / "bf16"), f"{MODELS}:wrong_epsilon", "--record", str(folder / "jax"))
    assert (first, second) == (0, 0)
    return folder


def matrix(folder: Path, *arguments: str) -> dict[str, Any]:
    told = folder / "cases.json"
    assert run(folder, *arguments, "--json", str(told), "--fail-on", "divergence") in (0, 1)
    result: dict[str, Any] = json.loads(told.read_text())
    return {case["name"]: case for case in result["cases"]}


def test_sides(tmp_path: Path) -> None:
    assert specs_of("cpu-f32, cuda:1-bf16,h100-bf16@x/y") == [
        Spec("cpu-f32", "cpu", "float32"), Spec("cuda:1-bf16", "cuda:1", "bfloat16"),
        Spec("h100-bf16", folder=Path("x/y")),
    ]  # fmt: skip
    for text in ("cpu-f32", "cpu-f32,cpu-f32", "cpu,cpu-f32", "cpu-int8,cpu-f32", "-f32,cpu-f32", ""):
        with pytest.raises(UsageError, match="--matrix"):
            specs_of(text)
    assert run(tmp_path, "--matrix", "cpu-f32,cpu-bf16") == 2  # no program
    assert run(tmp_path, "--matrix", f"a@{tmp_path}/gone,b@{tmp_path}") == 2


@pytest.mark.slow
def test_the_side_that_is_wrong_parts_from_all_others(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = f"cpu-f32,gpu-bf16@{recorded / 'bf16'},tpu@{recorded / 'jax'}"
    cases = matrix(recorded, f"{MODELS}:in_torch", "--matrix", sides)
    assert {name: case["verdict"] for name, case in cases.items()} == {
        "cpu-f32 and gpu-bf16": "same", "cpu-f32 and tpu": "diverges", "gpu-bf16 and tpu": "diverges",
    }  # fmt: skip
    row = cases["cpu-f32 and tpu"]["first"]["row"]
    assert (row["name"], row["line_a"].partition(":")[0].rpartition("/")[2]) == ("norm", "models.py")
    assert cases["cpu-f32 and gpu-bf16"]["share"] < 1
    assert "first at norm" in capsys.readouterr().out


@pytest.mark.slow
def test_recorded_sides_need_no_program_and_must_have_one_set_of_inputs_and_weights(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(matrix(recorded, "--matrix", f"a@{recorded / 'bf16'},b@{recorded / 'jax'}")) == 1
    for what, message in (("input:0", "other inputs"), ("weight:fc1/kernel", "other weights: fc1/kernel differs")):
        changed = tmp_path / what.partition(":")[0]
        shutil.copytree(recorded / "jax", changed)
        arrays = load_arrays(changed / "run" / "arrays.npz")
        arrays[what] = arrays[what] + 1
        np.savez(changed / "run" / "arrays.npz", **arrays)  # type: ignore[arg-type]
        capsys.readouterr()
        assert run(tmp_path, "--matrix", f"a@{recorded / 'bf16'},b@{changed}") == 4
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    shutil.rmtree(changed / "reference")
    assert run(tmp_path, "--matrix", f"a@{recorded / 'bf16'},b@{changed}") == 4
    assert run(tmp_path, f"{MODELS}:in_torch", "--record", str(recorded / "jax")) == 2  # is not replaced
    assert run(tmp_path, f"{MODELS}:broken", "--record", str(tmp_path / "new")) == 4
