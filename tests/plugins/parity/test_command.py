"""`perfscope parity` on the command line, with the real frameworks in separate processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.__main__ import main
from perfscope.plugins.parity.document import load

MODELS = Path(__file__).with_name("models.py")
TWINS = "perfscope.workloads.twins"
PLANTED = Path(__file__).with_name("planted.py")


def run(tmp_path: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["parity", *arguments, "-q", "-o", str(tmp_path / "runs")])
    return int(ended.value.code or 0)


def model(name: str) -> str:
    return f"{MODELS}:{name}"


def written(tmp_path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((tmp_path / "p.json").read_text())
    return result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model.py", "model.py:f"], "model.py: give file.py:function"),
        (["gone.py:f", "gone.py:g"], "gone.py: no such file"),
        ([model("nothing"), model("in_jax")], "has no function nothing"),
        ([model("in_torch"), model("broken")], "RuntimeError: no such checkpoint"),
        (["{tmp}", model("in_jax"), "--dtype-a", "bfloat16"], "is a recording"),
        (["{tmp}", model("in_jax")], "recording.json"),
    ],
)
@pytest.mark.torch
@pytest.mark.jax
def test_what_cannot_be_compared_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, *(text.replace("{tmp}", str(tmp_path)) for text in arguments)) in (2, 4)
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


@pytest.mark.torch
@pytest.mark.jax
def test_a_port_is_the_same_and_a_wrong_epsilon_is_named_at_its_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then the recording of A is compared again, which needs no PyTorch."""
    right = run(tmp_path, model("in_torch"), model("in_jax"), "--strict", "--json", str(tmp_path / "p.json"))
    assert right == 0
    document = written(tmp_path)
    assert (document["schema"], document["verdict"]) == ("perfscope.parity/1", "same")
    activations = [row["name"] for row in document["rows"] if row["kind"] == "activation"]
    assert activations == ["fc1", "norm", "fc2", "output"]
    assert {row["kind"] for row in document["rows"]} == {"activation", "gradient", "weight gradient"}
    recording = next((tmp_path / "runs").glob("parity-*")) / "a"
    assert load(recording.parent).verdict == "same"
    capsys.readouterr()

    code = run(tmp_path, str(recording), model("wrong_epsilon"), "--fail-on", "divergence")
    assert code == 1
    assert "A and B part at norm: its output differs by" in capsys.readouterr().out
    assert run(tmp_path, str(recording), model("wrong_epsilon")) == 0  # a divergence is a finding


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_norm_that_scales_before_it_multiplies_is_no_divergence(tmp_path: Path, dtype: str) -> None:
    sides = (model("rms_torch"), model("rms_jax"), "--dtype-a", dtype, "--dtype-b", dtype)
    assert run(tmp_path, *sides, "--json", str(tmp_path / "p.json")) == 0
    document = written(tmp_path)
    assert document["verdict"] == "same"
    regrouped = {row["name"] for row in document["rows"] if row["regrouped"]}
    assert regrouped == {"norm1", "norm2"}


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.jax
def test_weights_that_were_converted_by_hand_are_compared(tmp_path: Path) -> None:
    arguments = (model("in_torch"), model("converted_wrong"), "--keep-weights", "--json", str(tmp_path / "p.json"))
    assert run(tmp_path, *arguments) == 0
    document = written(tmp_path)
    assert document["first"]["row"]["name"] == "fc2"
    wrong = [(row["name"], row["remark"]) for row in document["rows"] if row["kind"] == "weight" and row["diverges"]]
    assert wrong == [("fc2.weight", "it is A's transposed")]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.jax
def test_a_weight_without_a_counterpart_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, model("in_torch"), model("one_weight_more")) == 4
    assert "weights without a counterpart: B has extra [3]" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.jax
def test_weights_of_a_file_are_those_of_both(tmp_path: Path) -> None:
    names = {"fc1": (8, 6), "norm": (8,), "fc2": (8, 8)}
    generator, header, data = np.random.default_rng(0), {}, b""
    for name, shape in names.items():
        for part, sizes in (("weight", shape), ("bias", (8,))):
            raw = generator.uniform(0.5, 1, sizes).astype(np.float32).tobytes()
            header[f"{name}.{part}"] = {
                "dtype": "F32",
                "shape": sizes,
                "data_offsets": [len(data), len(data) + len(raw)],
            }
            data += raw
    text = json.dumps(header).encode()
    file = tmp_path / "w.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    for a, b in (("in_torch", "in_jax"), ("in_jax", "in_torch")):
        assert run(tmp_path, model(a), model(b), "--weights", str(file), "--json", str(tmp_path / "p.json")) == 0
        assert written(tmp_path)["verdict"] == "same"
    stored = [np.load(path) for path in (tmp_path / "runs").glob("*/[ab]/run/arrays.npz")]
    weights = [value for arrays in stored for name, value in arrays.items() if name.startswith("weight:")]
    assert len(weights) == 24
    assert all(((value >= 0.5) & (value <= 1)).all() for value in weights)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.parametrize("side", ["a", "b"])
def test_dtypes_of_one_framework_are_compared(tmp_path: Path, side: str) -> None:
    for name in ("in_torch", "in_jax"):
        options = ("--dtype-b", "bfloat16", "--reference", side, "--strict", "--json", str(tmp_path / "p.json"))
        assert run(tmp_path, model(name), model(name), *options) == 0
        document = written(tmp_path)
        assert (document["verdict"], document["b"]["dtype"]) == ("same", "bfloat16")
        assert document["reference"] == f"{side.upper()} in float64"
        errors = [(row["error_a"], row["error_b"]) for row in document["rows"] if row["name"] == "output"]
        assert errors[0][0] < 1e-6 < 1e-4 < errors[0][1]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "layers"), [("attention", 18), ("transformer", 18), ("moe", 12), ("ssm", 8)])
def test_the_twins_of_the_workloads_are_the_same(tmp_path: Path, name: str, layers: int, dtype: str) -> None:
    sides = (f"{TWINS}:{name}_torch", f"{TWINS}:{name}_jax", "--dtype-a", dtype, "--dtype-b", dtype)
    assert run(tmp_path, *sides, "--json", str(tmp_path / "p.json")) == 0
    document = written(tmp_path)
    assert document["verdict"] == "same"
    assert sum(row["kind"] == "activation" for row in document["rows"]) == layers
    assert document["unmatched_a"] == (["blocks.0.out"] if name == "ssm" else [])  # its bias is added to the sum


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.parametrize(
    ("name", "layer", "line"),
    [
        ("transposed_weight", "blocks.0.attention.out", "dot_general at perfscope/workloads/jax/attention.py"),
        ("wrong_epsilon", "norm", "reduce_sum at perfscope/workloads/jax/layers.py"),
        ("missing_scale", "blocks.0.attention.out", "select_n at tests/plugins/parity/planted.py"),
    ],
)
def test_planted_errors_are_named_at_their_layer(tmp_path: Path, name: str, layer: str, line: str) -> None:
    sides = (f"{TWINS}:attention_torch", f"{PLANTED}:{name}")
    assert run(tmp_path, *sides, "--fail-on", "divergence", "--json", str(tmp_path / "p.json")) == 1
    first = written(tmp_path)["first"]
    assert first["row"]["name"] == layer
    assert first["next_b"].startswith(line)
