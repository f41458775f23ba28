"""What the tests share: one step of a JAX workload, compiled once, and of its PyTorch twin on the same weights."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np

from perfscope.workloads.options import Options

Numbers = dict[str, np.ndarray]
"""``loss``, ``logits`` and the gradient of every parameter by its name in PyTorch, float32."""


def workload(name: str) -> Any:
    return importlib.import_module(f"perfscope.workloads.jax.{name}")


def options(name: str, variant: str, dtype: str = "float32", **more: Any) -> Options:
    return Options(variant=variant, size=workload(name).SIZES["tiny"], dtype=dtype, **more)


def tokens(name: str) -> np.ndarray:
    """tokens_BM of the tiny size, random: the affine walk of the workloads repeats itself."""
    size = workload(name).SIZES["tiny"]
    return np.random.default_rng(1).integers(size.vocab, size=(size.batch, size.seq + 1), dtype=np.int32)


@functools.cache
def jax_numbers(name: str, variant: str, dtype: str) -> Numbers:
    """One step of the JAX workload with the weights of seed 0."""
    import jax

    from perfscope.workloads.jax.training import LanguageModel, loss_of, start

    model = LanguageModel(workload(name).Block, options(name, variant, dtype))

    def objective(weights: Any, tokens_BM: Any) -> tuple[Any, Any]:
        seen: list[Any] = []

        def watched(*arguments: Any) -> Any:
            seen.append(model(*arguments))
            return seen[-1]

        loss = loss_of(watched, weights, tokens_BM)  # type: ignore[arg-type]
        return loss, seen[0]

    step = jax.jit(jax.value_and_grad(objective, has_aux=True))
    (loss, logits), gradients = jax.device_get(step(start(model).weights, tokens(name)))
    gradients, logits = jax.tree.map(lambda array: array.astype(np.float32), (gradients, logits))
    return {"loss": loss, "logits": logits, **torch_names(name, gradients)}


def torch_model(name: str, variant: str, dtype: str) -> Any:
    """The PyTorch twin with the weights of the JAX workload's seed 0."""
    import torch

    from perfscope.workloads import training as torch_training
    from perfscope.workloads.jax.training import LanguageModel

    module = importlib.import_module(f"perfscope.workloads.{name}")
    weights = LanguageModel(workload(name).Block, options(name, variants(name)[0], dtype)).initial()
    asked = torch_training.Options(variant=variant, size=module.SIZES["tiny"], dtype=dtype)
    model = torch_training.build(module.Block, asked)
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in torch_names(name, weights).items()})
    return model


@functools.cache
def torch_numbers(name: str, variant: str, dtype: str) -> Numbers:
    """One step of the PyTorch twin with the same weights."""
    import torch

    from perfscope.workloads import training as torch_training

    model, tokens_BM = torch_model(name, variant, dtype), torch.from_numpy(tokens(name)).long()
    seen: list[Any] = []
    model.register_forward_hook(lambda module, inputs, logits: seen.append(logits.detach().float().numpy()))
    loss = torch_training.loss_of(model, tokens_BM)
    loss.backward()
    gradients = {name: parameter.grad.float().numpy() for name, parameter in model.named_parameters()}
    return {"loss": loss.detach().numpy(), "logits": seen[0], **gradients}


def variants(name: str) -> tuple[str, ...]:
    names: tuple[str, ...] = workload(name).VARIANTS
    return names


def torch_names(name: str, tree: dict[str, Any]) -> dict[str, np.ndarray]:
    """A tree of weights, or of their gradients, as PyTorch names and lays them out: one layer, outputs first."""
    flat = {
        "embedding.weight": tree["embedding_VD"],
        "head.weight": tree["head_DV"].T,
        "norm.weight": tree["norm"]["scale_D"],
        "norm.bias": tree["norm"]["shift_D"],
    }
    layers = len(next(iter(tree["blocks"]["norm1" if name == "attention" else "norm"].values())))
    for layer in range(layers):
        for key, array in LAYOUTS[name](_Layer(tree["blocks"], layer)).items():
            flat[f"blocks.{layer}.{key}"] = array
    return flat


class _Layer:
    """The arrays of one layer, by path."""

    def __init__(self, blocks: dict[str, Any], layer: int) -> None:
        self.blocks, self.layer = blocks, layer

    def __call__(self, *path: str) -> np.ndarray:
        array = functools.reduce(lambda node, key: node[key], path, self.blocks)
        return np.asarray(array[self.layer])

    def norm(self, name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": self(name, "scale_D"), f"{name}.bias": self(name, "shift_D")}


def _attention(layer: _Layer) -> dict[str, np.ndarray]:
    qkv_DCHK, out_HKD = layer("qkv_DCHK"), layer("out_HKD")
    dim = len(qkv_DCHK)
    return {
        **layer.norm("norm1"),
        **layer.norm("norm2"),
        "attention.qkv.weight": qkv_DCHK.reshape(dim, 3 * dim).T,
        "attention.out.weight": out_HKD.reshape(dim, dim).T,
        "up.weight": layer("up_DF").T,
        "up.bias": layer("up_F"),
        "down.weight": layer("down_FD").T,
        "down.bias": layer("down_D"),
    }


def _moe(layer: _Layer) -> dict[str, np.ndarray]:
    return {
        **layer.norm("norm"),
        "router.weight": layer("router_DE").T,
        "experts.up_EDG": layer("experts", "up_EDG"),
        "experts.down_EFD": layer("experts", "down_EFD"),
    }


def _ssm(layer: _Layer) -> dict[str, np.ndarray]:
    linear = {"decay": ("decay_DG", "decay_G"), "write": ("write_DG", "write_G")}
    linear |= {"read": ("read_DN", "read_N"), "out": ("out_DD", "out_D")}
    arrays = layer.norm("norm")
    for name, (weight, bias) in linear.items():
        arrays |= {f"{name}.weight": layer(weight).T, f"{name}.bias": layer(bias)}
    return arrays


LAYOUTS = {"attention": _attention, "moe": _moe, "ssm": _ssm}


def distances(ours: Numbers, theirs: Numbers) -> dict[str, float]:
    """Relative distance, in the 2-norm, of everything in two steps."""
    assert set(ours) == set(theirs)
    return {
        name: float(np.linalg.norm(ours[name] - value.astype(np.float64)) / np.linalg.norm(value.astype(np.float64)))
        for name, value in theirs.items()
    }


TOLERANCE = {
    # The same arithmetic in another order. A sum of n terms of unit roundoff 2**-24 is off by about sqrt(n) of them;
    # the longest sums have 4096 terms: 64 * 6e-8 = 4e-6, and a model is a few of them in a row.
    "float32": {"loss": 1e-6, "logits": 1e-5, "gradient": 1e-5},
    # Activations and gradients are rounded to 8 bits after every op, and not after the same ones: XLA fuses, and keeps
    # float32 between ops that PyTorch rounds. Each rounding is off by up to 2**-9 = 2e-3; the gradients of the first
    # layer have some 30 behind them, independent of each other: sqrt(30) * 2e-3 = 1e-2, more where terms cancel (the
    # gradients of norms and biases, sums over all tokens). The loss is a float32 mean over all tokens.
    "bfloat16": {"loss": 1e-3, "logits": 2e-2, "gradient": 5e-2},
}


def assert_same(ours: Numbers, theirs: Numbers, dtype: str) -> None:
    allowed = TOLERANCE[dtype]
    found = distances(ours, theirs)
    wrong = {name: far for name, far in found.items() if not far <= allowed.get(name, allowed["gradient"])}
    assert wrong == {}
