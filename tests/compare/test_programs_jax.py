"""Programs that the installed jax compiles here, for the CPU, compared by instruction."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from perfscope.analyzers.compare.programs.diff import program_change
from perfscope.analyzers.compare.programs.row import ProgramChange
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.parse.proto import module_of_proto

pytestmark = pytest.mark.jax

MODEL = """
import jax.numpy as jnp


def step(x):
    held = jnp.exp(x) * 2.0
    kept = jnp.tanh(held) + x
    return (kept * kept,)
"""
COMMENTED = MODEL.replace("    kept =", "    # of both\n    kept =")
RETURNED = MODEL.replace("return (kept * kept,)", "return (kept * kept, held)")


def compiled(text: str) -> tuple[HloModule, HloModule]:
    """(before, after) optimization, of the program in ``text`` as a file ``model.py``."""
    import jax

    module = ModuleType("model")
    exec(compile(text, "model.py", "exec"), module.__dict__)
    step: Callable[..., Any] = module.__dict__["step"]
    lowered = jax.jit(step).lower(jax.ShapeDtypeStruct((512, 512), "float32"))
    (after,) = lowered.compile().runtime_executable().hlo_modules()
    before = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return (
        module_of_proto(before, "before.pb"),
        module_of_proto(after.as_serialized_hlo_module_proto(), "after.pb"),
    )


def change(base: str, head: str) -> ProgramChange:
    (first, base_module), (last, head_module) = compiled(base), compiled(head)
    return program_change(base_module, head_module, before=(first, last))


def test_two_builds_of_one_source_and_of_one_with_a_comment_are_the_same() -> None:
    assert change(MODEL, MODEL).identical
    found = change(MODEL, COMMENTED)
    assert found.identical
    assert found.written == ()


def test_a_value_that_is_returned_is_written() -> None:
    found = change(MODEL, RETURNED)
    assert found.base_fingerprint != found.head_fingerprint
    assert any(row.delta("bytes moved per run") >= 512 * 512 * 4 for row in found.rows)
    assert all(row.where().rpartition(":")[0].endswith("model.py") or not row.where() for row in found.rows)
