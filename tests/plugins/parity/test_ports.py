"""Conversions between PyTorch and the libraries of JAX, with each library's own model; skipped where it is missing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from perfscope.__main__ import main
from perfscope.plugins.parity.checkpoints import open_checkpoint
from perfscope.plugins.parity.document import load

PORTS = Path(__file__).with_name("ports.py")
pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.jax]


def need(*packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments), "-q"])
    return int(ended.value.code or 0)


def same(one: Path, other: Path) -> bool:
    """Whether two checkpoints have the same arrays, bit for bit."""
    a, b = open_checkpoint(one), open_checkpoint(other)
    types = [{each.name: (each.dtype, each.shape) for each in opened.weights} for opened in (a, b)]
    return types[0] == types[1] and all(np.array_equal(a.arrays[name], b.arrays[name]) for name in types[0])


@pytest.mark.parametrize(
    ("name", "package"), [("linen", "flax"), ("nnx", "flax"), ("equinox", "equinox"), ("keras", "keras")]
)
def test_a_network_goes_to_a_library_and_back_and_computes_the_same(tmp_path: Path, name: str, package: str) -> None:
    need(package)
    torch, other = f"{PORTS}:net_torch", f"{PORTS}:net_{name}"
    own, there, back = (tmp_path / f"{file}.safetensors" for file in ("own", "there", "back"))
    assert run("convert", torch, torch, "--to", own) == 0
    assert run("convert", own, other, "--to", there) == 0
    assert run("convert", there, torch, "--to", back) == 0
    assert same(own, back)
    shape = open_checkpoint(there).arrays[next(n for n in open_checkpoint(there).arrays if n.endswith("fc1/" + (
        "weight" if name == "equinox" else "kernel")))].shape  # fmt: skip
    assert shape == ((16, 8) if name == "equinox" else (8, 16))
    assert run("parity", torch, other, "--weights", own, "--strict", "-o", tmp_path / "runs") == 0
    document = load(next((tmp_path / "runs").glob("parity-*")))
    assert document.verdict == "same"
    assert sum(row.kind == "activation" for row in document.rows) == 5


def test_a_llama_of_transformers_goes_to_its_port_and_back_and_computes_the_same(tmp_path: Path) -> None:
    """In bfloat16 and in several files, by way of Orbax, with layers stacked on the second axis."""
    need("transformers", "orbax.checkpoint" if find_spec("orbax") else "orbax")
    port = f"{PORTS}:llama_jax"
    files, orbax, back = tmp_path / "hf" / "m.safetensors.index.json", tmp_path / "orbax", tmp_path / "back.safetensors"
    model = f"{PORTS}:llama_torch"
    assert run("convert", model, model, "--to", files, "--dtype", "bfloat16", "--shard-size", "0.00003") == 0
    assert len(list(files.parent.glob("*.safetensors"))) > 1
    assert run("convert", files.parent, port, "--to", orbax) == 0
    assert run("convert", orbax, model, "--to", back) == 0
    assert same(files, back)
    arguments = ("--weights", files.parent, "--strict", "-o", tmp_path / "runs")
    assert run("parity", model, port, *arguments) == 0
    document = load(next((tmp_path / "runs").glob("parity-*")))
    assert document.verdict == "same"
    assert {row.kind for row in document.rows} == {"activation", "gradient", "weight gradient"}
