"""Orbax checkpoints as weights: the part of the tree that is read, and the message without Orbax."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from perfscope.model.errors import DataError

jnp = pytest.importorskip("jax.numpy")


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Trees restored by a fake Orbax, by the name of the folder; other folders are not checkpoints for it."""
    trees: dict[str, Any] = {}

    class StandardCheckpointer:
        def restore(self, path: Path) -> Any:
            if path.name not in trees:
                raise FileNotFoundError(f"Metadata file does not exist at {path}\nmore")
            return trees[path.name]

    package, module = ModuleType("orbax"), ModuleType("orbax.checkpoint")
    module.StandardCheckpointer = StandardCheckpointer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "orbax", package)
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", module)
    return trees


def test_parameters_of_a_training_state(tmp_path: Path, restored: dict[str, Any]) -> None:
    from perfscope.plugins.parity.checkpoints.orbax import open_orbax

    kernel = jnp.arange(6.0).reshape(2, 3)
    restored[tmp_path.name] = {
        "params": {"params": {"up": {"kernel": kernel, "bias": jnp.ones(3, jnp.bfloat16)}, "count": jnp.zeros(3, int)}},
        "opt_state": {"up": {"kernel": kernel}},
        "step": 7,
    }
    opened = open_orbax(tmp_path)
    assert {weight.name: (weight.shape, weight.dtype) for weight in opened.weights} == {
        "up/kernel": ((2, 3), "float32"),
        "up/bias": ((3,), "bfloat16"),
    }
    assert opened.arrays["up/bias"].tolist() == [0x3F80] * 3
    assert np.array_equal(opened.arrays["up/kernel"], np.arange(6.0).reshape(2, 3))


def test_the_step_of_a_manager_has_it_in_a_folder(tmp_path: Path, restored: dict[str, Any]) -> None:
    from perfscope.plugins.parity.checkpoints.orbax import open_orbax

    (tmp_path / "default").mkdir()
    restored["default"] = {"scale": jnp.ones(2)}
    assert list(open_orbax(tmp_path).arrays) == ["scale"]


def test_no_checkpoint_is_one_line(tmp_path: Path, restored: dict[str, Any]) -> None:
    from perfscope.plugins.parity.checkpoints.orbax import open_orbax

    assert restored == {}
    with pytest.raises(DataError, match=r"not read as an Orbax checkpoint: FileNotFoundError: [^\n]*$"):
        open_orbax(tmp_path)


def test_without_orbax_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfscope.plugins.parity.checkpoints.orbax import open_orbax

    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(DataError, match="pip install orbax-checkpoint"):
        open_orbax(tmp_path)
