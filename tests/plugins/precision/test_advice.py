"""Measured losses of products in both frameworks, and the proposals that follow from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.__main__ import run
from perfscope.analyzers.devices import named_device
from perfscope.plugins.numerics.document import Numerics, Product, RecipeLoss
from perfscope.plugins.precision.advice import advise, expected
from perfscope.plugins.precision.document import dump, load
from perfscope.plugins.precision.measure import losses
from perfscope.plugins.precision.recipes import RECIPES

ml_dtypes = pytest.importorskip("ml_dtypes")
PLANTED = Path(__file__).parent / "planted.py"


def recorded(framework: str, prepared: Callable[[], Callable[[], Any]], steps: int = 2) -> Numerics:
    """Numerics of some equal steps of the program that ``prepared()`` returns."""
    from importlib import import_module

    step = [0]
    recorder = import_module(f"perfscope.plugins.numerics.{framework}.recorder").Recorder(lambda: step[0])
    recorder.start()
    try:
        program = prepared()
        for step[0] in range(steps):
            program()
    finally:
        recorder.stop()
    document: Numerics = recorder.document(lambda moment: moment[0], steps)
    assert document.notes == ()
    return document


def loss_of(product: Product, recipe: str) -> RecipeLoss:
    (found,) = [loss for loss in product.losses if loss.recipe == recipe]
    return found


def _cast(array: Any) -> Any:
    return (array * (448 / np.abs(array).max())).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)


@pytest.fixture(scope="module")
def in_torch() -> Numerics:
    from tests.plugins.precision.planted import cotangent, make

    torch = pytest.importorskip("torch")
    module, inputs = make()
    start = torch.from_numpy(cotangent())
    with pytest.MonkeyPatch.context() as patch:  # another test of this process may have compiled a model
        patch.setattr("perfscope.plugins.numerics.torch.recorder.why_no_structure", lambda: None)
        return recorded("torch", lambda: lambda: module(*inputs).backward(start))


@pytest.mark.torch
def test_products_of_torch_are_named_and_measured_on_the_whole_product(in_torch: Numerics) -> None:
    found = {(one.name, one.kind): one for one in in_torch.products}
    names = ("plain", "outlier", "cancels")
    kinds = ("forward", "input gradient", "weight gradient")
    wanted = {(f"Planted.{name}", kind) for name in names for kind in kinds}
    assert set(found) == wanted - {("Planted.plain", "input gradient")}  # its input needs no gradient
    plain = found["Planted.plain", "forward"]
    assert (plain.batch, plain.rows, plain.columns, plain.terms, plain.steps) == (1, 16, 16, 1024, 2)
    from tests.plugins.precision.planted import make

    module, (x,) = make()
    left, right = x.numpy(), module.plain.weight.detach().numpy()
    cast = [_cast(one) for one in (left, right)]
    scales = [np.abs(one).max() / 448 for one in (left, right)]
    exact = left.astype(np.float64) @ right.T
    error = np.linalg.norm(cast[0] @ cast[1].T * scales[0] * scales[1] - exact) / np.linalg.norm(exact)
    assert loss_of(plain, "e4m3-tensor").error == pytest.approx(error, rel=0.02)  # scales are rounded differently


@pytest.mark.torch
def test_layers_go_where_they_keep_their_values(in_torch: Numerics) -> None:
    h100 = advise(in_torch, "run", named_device("H100 SXM"))
    rows = {row.layer: row for row in h100.layers}
    assert h100.recipe == "e4m3-tensor"
    assert [rows[f"Planted.{name}"].proposal for name in ("plain", "outlier", "cancels")] == [
        "e4m3-tensor", "bf16", "float32",
    ]  # fmt: skip
    assert "become 0" in rows["Planted.outlier"].reason
    assert rows["Planted.cancels"].reason.startswith("forward: error")
    assert h100.layers[0].layer == "Planted.cancels"  # the widest first
    assert rows["Planted.cancels"].now_ns == rows["Planted.cancels"].then_ns
    b200 = advise(in_torch, "run", named_device("B200"))
    assert RECIPES[b200.recipe].block == 32  # blocks keep the outlier apart
    assert {row.layer: row.proposal for row in b200.layers}["Planted.outlier"] == b200.recipe
    assert advise(in_torch, "run", None, ("bf16",)).recipe == ""


@pytest.mark.slow
@pytest.mark.jax
def test_products_of_jax_are_measured_as_those_of_torch(in_torch: Numerics) -> None:
    jax = pytest.importorskip("jax")
    from tests.plugins.precision.planted import cotangent, make_jax

    function, parameters, inputs = make_jax()

    def prepared() -> Any:
        step = jax.jit(jax.grad(lambda weights, x: (function(weights, x) * cotangent()).sum()))
        return lambda: step(parameters, *inputs)

    products = {(one.name, one.kind): one for one in recorded("jax", prepared).products}
    for theirs in in_torch.products:
        ours = products[f"weights/{theirs.name.rpartition('.')[2]}", theirs.kind]
        near = 0.02 if theirs.kind == "forward" else 0.5  # gradients are measured on other rows
        for recipe in ("e4m3-tensor", "mxfp8", "bf16"):
            assert loss_of(ours, recipe).error == pytest.approx(loss_of(theirs, recipe).error, rel=near)


def test_a_scale_that_is_rounded_down_saturates_the_largest_value() -> None:
    left = np.full((1, 4, 32), 0.01, np.float32)
    left[:, :, 0] = 1.9  # 448 / 256 is the largest value of a scale of 1 / 256
    right = np.ones((1, 4, 32), np.float32)
    found = losses(left, right, (1.9, 1.0))
    assert found["mxfp8"].bias < -0.05
    assert found["mxfp8"].overflow > 0
    assert abs(found["mxfp8-up"].bias) < 0.05
    assert found["mxfp8-up"].overflow == 0
    assert "e4m3-delayed" not in found
    assert losses(np.full((1, 4, 32), np.nan, np.float32), right, (1.0, 1.0)) == {}


def test_delayed_scales_lose_values_that_grow() -> None:
    generator = np.random.default_rng(0)
    left, right = (generator.standard_normal((1, 16, 64)).astype(np.float32) for _ in range(2))
    now = float(np.abs(left).max()), float(np.abs(right).max())
    found = losses(left, right, now, (now[0] / 4, now[1]))
    assert found["e4m3-delayed"].overflow > 0.1
    assert found["e4m3-delayed"].bias < -0.1
    assert found["e4m3-tensor"].overflow == 0
    assert found["e4m3-tensor"].error < 1.5 * expected("e4m3-tensor")


@pytest.mark.torch
def test_a_program_is_run_and_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [str(tmp_path / name) for name in ("plan.json", "plan.md")]
    words = ["advise", "precision", f"{PLANTED}:make", "--device", "H100 SXM"]
    assert run([*words, "--json", files[0], "--markdown", files[1]]) == 0
    assert "may use e4m3-tensor" in capsys.readouterr().out
    advice = load(Path(files[0]))
    assert advice.steps == 2
    assert json.loads(dump(advice))["layers"][0]["proposal"] == "float32"
    assert Path(files[1]).read_text().startswith("### perfscope: ")


@pytest.mark.parametrize(
    ("words", "code"),
    [(["absent.py:make"], 4), (["latest"], 4), (["x.py"], 2), (["latest", "--recipes", "e4m3-tenser"], 2)],
)
def test_bad_input_is_one_line(
    words: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["advise", "precision", *words]) == code
    assert capsys.readouterr().err.count("\n") == 1
