"""The recording of a PyTorch model: layers in order, their gradients, weights used outside of modules, wide runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfscope.plugins.parity.document import Arrays, Recording
from perfscope.plugins.parity.side import RunRequest, SideError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def record(make: Callable[[], Any], **request: Any) -> tuple[Recording, Arrays]:
    from perfscope.plugins.parity.torch_side import TorchSide

    def seeded() -> Any:
        torch.manual_seed(0)
        return make()

    return TorchSide(seeded, None).run(RunRequest(**request))


def mlp() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)), (torch.randn(3, 4),)


def test_outputs_of_modules_are_layers_with_their_weights_and_line() -> None:
    recording, arrays = record(mlp)
    assert [(layer.name, layer.op, layer.weights) for layer in recording.layers] == [
        ("0", "Linear", ("0.weight", "0.bias")),
        ("1", "GELU", ()),
        ("2", "Linear", ("2.weight", "2.bias")),
        ("output", "addmm", ()),
    ]
    hidden = arrays["input:0"] @ arrays["weight:0.weight"].T + arrays["weight:0.bias"]
    np.testing.assert_allclose(arrays["layer:0"], hidden, rtol=1e-5, atol=1e-6)
    assert [(layer.roundings, layer.terms) for layer in recording.layers[:3]] == [(1, 4), (2, 5), (3, 13)]
    assert (recording.framework, recording.dtype, recording.device) == ("torch", "float32", "cpu")


def test_gradients_are_those_of_autograd_from_the_fixed_cotangents() -> None:
    recording, arrays = record(mlp)
    torch.manual_seed(0)
    model, (given,) = mlp()
    hidden = model[0](given)
    hidden.retain_grad()
    output = model[2](model[1](hidden))
    last = len(recording.layers) - 1
    assert set(np.abs(arrays[f"gradient:{last}"]).ravel()) == {1.0}
    output.backward(torch.from_numpy(arrays[f"gradient:{last}"]))
    np.testing.assert_allclose(arrays["gradient:0"], hidden.grad.numpy(), rtol=1e-6)
    np.testing.assert_allclose(arrays["weight_gradient:0.weight"], model[0].weight.grad.numpy(), rtol=1e-6)


def test_weights_and_inputs_of_another_side_take_the_place_of_the_own() -> None:
    own = record(mlp)[1]
    weights = {name.removeprefix("weight:"): 0 * value for name, value in own.items() if name.startswith("weight:")}
    weights["2.bias"] = weights["2.bias"] + 5
    arrays = record(mlp, weights=weights, inputs=[np.ones((3, 4), np.float32)])[1]
    np.testing.assert_array_equal(arrays["layer:3"], np.full((3, 2), 5.0))
    with pytest.raises(SideError, match=r"input 0 is \[2, 4\] in A and \[3, 4\] in B"):
        record(mlp, inputs=[np.ones((2, 4), np.float32)])
    with pytest.raises(SideError, match="no value for the weight"):
        record(mlp, weights={})


class Raw(torch.nn.Module):
    """A parameter unused by modules, another that is used in two places, and a cast."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 4)
        self.mix = torch.nn.Parameter(torch.randn(4, 4))
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        mixed = x.float() @ self.mix.float().T
        return self.head(mixed.to(x.dtype))


def raw() -> Any:
    return Raw(), torch.tensor([[1, 2, 3]])


def test_a_parameter_outside_of_modules_is_a_layer_where_it_is_used_and_tied_weights_are_one() -> None:
    from perfscope.plugins.parity.torch_side import TorchSide

    weights, _ = TorchSide(raw, None).describe()
    assert [(each.name, each.kind, each.aliases) for each in weights] == [
        ("mix", "", ()),
        ("table.weight", "embedding", ("head.weight",)),
    ]
    recording, _ = record(raw)
    assert [(layer.name, layer.weights) for layer in recording.layers] == [
        ("table", ("table.weight",)),
        ("mix", ("mix",)),
        ("head", ("table.weight",)),
        ("output", ()),
    ]
    assert recording.layers[1].line.startswith("tests/plugins/parity/test_torch_side.py:")


def test_a_wide_run_makes_no_narrowing_cast() -> None:
    wide = record(raw, dtype="float64", wide=True)[1]
    narrow = record(raw, dtype="float64")[1]
    exact = wide["layer:0"][0] @ wide["weight:mix"].T
    np.testing.assert_allclose(wide["layer:1"], exact, rtol=1e-14)
    assert np.abs(narrow["layer:1"] - exact).max() > 1e-10
    assert wide["layer:1"].dtype == np.float64


def test_numbers_of_ops_do_not_depend_on_their_layout() -> None:
    op = next(op for op in record(mlp)[0].ops if op.name == "addmm")
    value = record(mlp)[1]["layer:0"].astype(np.float64)
    assert (op.size, op.layers) == (24, 0)
    assert op.norm == pytest.approx(np.linalg.norm(value))
    assert op.absolute == pytest.approx(np.abs(value.T).sum())


def test_dropout_that_is_left_on_is_a_note() -> None:
    def make(training: bool) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
        return model.train(training), torch.ones(2, 4)

    assert "dropout" in record(lambda: make(True))[0].notes[0]
    assert record(lambda: make(False))[0].notes == ()


def test_a_mask_of_the_smallest_number_has_room_in_a_float64_run() -> None:
    from perfscope.plugins.parity.torch_side import TorchSide

    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.full((3,), torch.finfo(x.dtype).min).to(x.dtype)

    recording, arrays = TorchSide(lambda: (Masked(), torch.ones(3)), None).run(RunRequest(dtype="float64", wide=True))
    assert recording.layers[-1].dtype == "float64"
    assert (arrays["layer:0"] < -1e308).all()
    assert torch.get_default_dtype() == torch.float32
