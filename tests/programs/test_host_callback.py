"""Calls of Python from compiled programs: in programs that the installed JAX compiles, with and without times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.parse.text import module_of
from perfscope.analyzers.registry import load_rule
from tests.hlo_build import hlo_trace, recorded_trace

RULE = load_rule("host_callback")


def compiled(function: Callable[..., Any]) -> HloModule:
    jax = pytest.importorskip("jax")
    text = jax.jit(function).lower(jax.numpy.ones(4)).compile().as_text()
    return module_of(text.splitlines(), "built.hlo.txt")


def printed(x: Any) -> Any:
    import jax

    jax.debug.print("{}", x.sum())
    return x * 2


def in_a_loop(x: Any) -> Any:
    import jax

    def turn(carry: Any, _: Any) -> Any:
        jax.debug.callback(print, carry)
        return carry * 2, None

    return jax.lax.scan(turn, x, None, length=5)[0]


def pure(x: Any) -> Any:
    import jax

    return jax.pure_callback(lambda value: value, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1


def callback_of(module: HloModule) -> str:
    (name,) = (
        instruction.name
        for computation in module.computations.values()
        for instruction in computation.instructions
        if "callback" in (instruction.custom_call_target or "")
    )
    return name


@pytest.mark.parametrize(
    ("function", "op", "severity", "calls"),
    [(printed, "debug_print", "low", 1), (in_a_loop, "debug_callback", "medium", 5), (pure, "pure_callback", "low", 1)],
)
def test_each_callback_is_found_at_its_line(function: Callable[..., Any], op: str, severity: str, calls: int) -> None:
    (finding,) = judge(RULE, hlo_trace(compiled(function))).findings
    assert (finding.basis, finding.severity, finding.cost_ns) == ("structural", severity, None)
    assert (finding.where.file or "").endswith("test_host_callback.py")
    assert finding.where.op in (op, "debug_callback"), "jax before 0.9 prints by a callback"
    assert finding.evidence[0]["calls_per_run"] == calls


def test_recorded_callbacks_have_their_time_and_small_ones_are_left_out() -> None:
    module = compiled(in_a_loop)
    name = callback_of(module)
    for longer, status in ((10.0, "flagged"), (0.2, "clean")):
        ops = [(name, 100.0 * turn, 100.0 * turn + longer) for turn in range(5)]
        trace = recorded_trace(module, ops=ops, steps=[(0, 500)])
        outcome = judge(RULE, trace)
        assert outcome.status == status
        assert [finding.cost_ns for finding in outcome.findings] == ([50_000] if status == "flagged" else [])


def test_a_program_without_callbacks_is_clean() -> None:
    assert judge(RULE, hlo_trace(compiled(lambda x: x * 2))).status == "clean"
