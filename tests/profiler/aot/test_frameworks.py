"""The framework of a program is read from its imports and those of its own modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.model.errors import NotStartedError
from perfscope.profiler.ahead.common.program import frameworks_of


def _script(folder: Path, **modules: str) -> tuple[str, ...]:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return (str(folder / "train.py"),)


def test_the_import_of_an_own_module_counts(tmp_path: Path) -> None:
    words = _script(tmp_path, train="import model\n", model="def f():\n    import jax.numpy as jnp\n")
    assert frameworks_of(words, module=False) == ("jax",)


def test_both_are_found(tmp_path: Path) -> None:
    words = _script(tmp_path, train="import jax\nfrom torch import nn\n")
    assert frameworks_of(words, module=False) == ("jax", "torch")


def test_a_library_of_one_framework_counts_for_it(tmp_path: Path) -> None:
    assert frameworks_of(_script(tmp_path, train="import flax\n"), module=False) == ("jax",)


def test_neither_is_none(tmp_path: Path) -> None:
    assert frameworks_of(_script(tmp_path, train="import json\nimport train\n"), module=False) == ()


def test_a_program_that_is_no_python_is_named_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(NotStartedError, match=r"train\.py:2: invalid syntax"):
        frameworks_of(_script(tmp_path, train="import jax\nthis is no python\n"), module=False)


def test_a_module_that_is_no_python_imports_nothing(tmp_path: Path) -> None:
    words = _script(tmp_path, train="import torch\nimport model\n", model="this is no python\n")
    assert frameworks_of(words, module=False) == ("torch",)


@pytest.mark.parametrize("module", [True, False])
def test_a_program_that_is_not_there(module: bool) -> None:
    with pytest.raises(NotStartedError, match=r"no\.such\.thing: no such"):
        frameworks_of(("no.such.thing",), module=module)


def test_the_workloads() -> None:
    assert frameworks_of(("perfscope.workloads.jax.attention",), module=True) == ("jax",)
    assert frameworks_of(("perfscope.workloads.attention",), module=True) == ("torch",)
