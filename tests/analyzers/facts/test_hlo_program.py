from __future__ import annotations

import pytest

from perfscope.analyzers.facts.hlo_program import Runs, control_runs, costs, fused, launched, primitive, scope
from tests.hlo_build import hlo_module, hlo_trace

NESTED = """
    %double (p: f32[8]) -> f32[8] {
      %p = f32[8] parameter(0)
      ROOT %d = f32[8] add(%p, %p)
    }
    %inner (c: f32[8]) -> f32[8] {
      %c = f32[8] parameter(0)
      ROOT %f = f32[8] fusion(%c), kind=kLoop, calls=%double
    }
    %stop (c: f32[8]) -> pred[] {
      %c = f32[8] parameter(0)
      ROOT %s = pred[] constant(true)
    }
    %outer (c: f32[8]) -> f32[8] {
      %c = f32[8] parameter(0)
      ROOT %w = f32[8] while(%c), condition=%stop, body=%inner, INNER
    }
    ENTRY %main (a: f32[8]) -> f32[8] {
      %a = f32[8] parameter(0)
      %k = f32[8] call(%a), to_apply=%inner
      ROOT %w = f32[8] while(%k), condition=%stop, body=%outer, backend_config={"known_trip_count":{"n":"3"}}
    }
"""
KNOWN = NESTED.replace("INNER", 'backend_config={"known_trip_count":{"n":"5"}}')


def test_loops_multiply_and_calls_add():
    runs = control_runs(hlo_module(KNOWN))
    assert runs["outer"] == Runs(times=3, exact=True)
    assert runs["inner"] == Runs(times=1 + 3 * 5, exact=True)
    assert "double" not in runs


def test_an_unknown_trip_count_counts_once_and_is_no_exact_number():
    runs = control_runs(hlo_module(NESTED.replace(", INNER", "")))
    assert runs["inner"] == Runs(times=1 + 3, exact=False)
    assert runs["outer"].exact


def test_callers_come_before_what_they_call():
    order = list(control_runs(hlo_module(KNOWN)))
    assert order[0] == "main"
    assert order.index("outer") < order.index("inner")


def test_only_fusions_and_plain_instructions_are_launched():
    module = hlo_module(KNOWN)
    assert [(one.name, runs.times) for _, one, runs in launched(module)] == [("f", 16)]
    (fusion,) = (one for _, one, _ in launched(module))
    assert [one.opcode for one in fused(module, fusion)] == ["parameter", "add"]


@pytest.mark.parametrize(
    ("path", "name", "where"),
    [
        ("jit(step)/transpose(jvp(mlp))/while/body/checkpoint/dot_general", "dot_general", "mlp"),
        ("jit(f)/jvp(experts)/jit(silu)/mul", "mul", "experts"),
        ("jit(f)/jvp(bhqd,bhkd->bhqk)/dot_general", "dot_general", "bhqd,bhkd->bhqk"),
        ("jit(f)/(jvp()/reduce_sum:transpose(jvp())/dot_general)", "dot_general", ""),
        ("jit(f)/vmap(layers/attention)/add", "add", "layers/attention"),
        ("", "", ""),
        ("add", "add", ""),
    ],
)
def test_paths(path: str, name: str, where: str):
    assert (primitive(path), scope(path)) == (name, where)


def test_programs_that_are_not_scheduled_have_no_cost():
    assert hlo_trace(hlo_module(KNOWN, scheduled=False)).fact(costs) == ()
    assert len(hlo_trace(hlo_module(KNOWN)).fact(costs)) == 1
