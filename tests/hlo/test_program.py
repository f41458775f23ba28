from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.hlo.device import program_device
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.program import (
    Runs,
    control_runs,
    costs,
    fused,
    launched,
    primitive,
    program_label,
    program_labels,
    programs_apart,
    scope,
)
from tests.build import TraceBuilder
from tests.hlo_build import GPU, hlo_module, hlo_trace, recorded_trace

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


ON_GPU = hlo_module(
    f"ENTRY %main (a: f32[4]) -> f32[4] {{\n  %a = f32[4]{{0}} parameter(0)\n"
    f"  ROOT %n = f32[4]{{0}} negate(%a), {GPU}\n}}"
)
ON_CPU = hlo_module(
    "ENTRY %main (a: f32[4]) -> f32[4] {\n  %a = f32[4]{0} parameter(0)\n"
    '  ROOT %n = f32[4]{0} negate(%a), backend_config={"outer_dimension_partitions":["2"]}\n}'
)


def label(trace) -> str | None:
    known = program_device(trace)
    return None if known is None else known.label()


def named(trace, name: str):
    return msgspec.structs.replace(trace, judged_device=name)


def test_programs_alone_are_judged_for_an_assumed_device():
    assert label(hlo_trace(ON_GPU)) == "H100 SXM (assumed)"


def test_a_named_device_wins_over_the_assumption():
    assert label(named(hlo_trace(ON_GPU), "A100-SXM4-80GB")) == "A100 SXM 80GB"


def test_a_recorded_device_wins_over_a_named_one():
    trace = named(recorded_trace(ON_GPU, ops=[("n", 0, 1)], device="NVIDIA B200"), "A100-SXM4-80GB")
    assert label(trace) == "B200"


@pytest.mark.parametrize(("name", "expected"), [("Test GPU", None), ("", "H100 SXM (assumed)")])
def test_no_other_device_stands_in_for_one_without_known_peaks(name: str, expected: str | None):
    assert label(recorded_trace(ON_GPU, ops=[("n", 0, 1)], device=name)) == expected


def test_a_tpu_does_not_run_what_was_compiled_for_a_gpu():
    assert label(named(hlo_trace(ON_GPU), "TPU v5p")) == "H100 SXM (assumed)"


def test_programs_for_a_cpu_have_no_device():
    assert ON_CPU.platform == "cpu"
    assert label(named(hlo_trace(ON_CPU), "A100-SXM4-80GB")) is None
    assert label(hlo_trace(ON_GPU, ON_CPU)) is None


BASE = hlo_module("ENTRY %main () -> f32[] {\n  ROOT %c = f32[] constant(1)\n}", "jit_step")


def module(name: str = "jit_step", source: str = "", program_id: int | None = None) -> HloModule:
    return msgspec.structs.replace(BASE, name=name, source=source, program_id=program_id)


@pytest.mark.parametrize(
    ("modules", "labels"),
    [
        ([module("jit_a(3)", "x.txt"), module("jit_b", "y.txt")], ("jit_a", "jit_b")),
        ([module(source="d/full.hlo.txt.gz"), module(source="d/dots.hlo.pb")], ("full", "dots")),
        ([module(source="r1/hlo/s.hlo.pb"), module(source="r2/hlo/s.hlo.pb")], ("r1/…/s", "r2/…/s")),
        ([module(source="r1/s.hlo.pb"), module(source="r2/s.hlo.pb")], ("r1/s", "r2/s")),
        (
            [module(source="x.xplane.pb: jit_step(4)", program_id=4), module(source="x.xplane.pb: jit_step(9)",
             program_id=9)],
            ("jit_step (program 4)", "jit_step (program 9)"),
        ),
        ([module(source="x.txt"), module(source="x.txt"), module("jit_a")], ("jit_step #1", "jit_step #2", "jit_a")),
    ],
    ids=["names", "files", "folders", "one folder up", "numbers", "counted"],
)  # fmt: skip
def test_the_shortest_that_tells_them_apart(modules: list[HloModule], labels: tuple[str, ...]) -> None:
    assert program_labels(modules) == labels
    trace = hlo_trace(*modules)
    assert tuple(program_label(one, trace) for one in trace.hlo) == labels


SOURCES = st.lists(st.sampled_from(["a", "b", "a/b", "b.txt", ""]), max_size=4).map("/".join)


@given(
    st.lists(st.tuples(st.sampled_from(["jit_a", "jit_b", "a"]), SOURCES, st.none() | st.integers(0, 2)), max_size=8)
)
def test_no_two_are_alike(asked: list[tuple[str, str, int | None]]) -> None:
    labels = program_labels([module(*one) for one in asked])
    assert len(set(labels)) == len(labels)
    assert all(labels)


def test_a_recording_is_one_whatever_programs_it_holds() -> None:
    recording = TraceBuilder(recorded=frozenset({"hlo", "device_work"})).build()
    recording = msgspec.structs.replace(recording, hlo=(module("jit_a"), module("jit_b")))
    assert programs_apart(recording) == (recording,)


def test_programs_alone_are_judged_for_the_device_that_was_named() -> None:
    trace = hlo_trace(module("jit_a"), module("jit_b"))
    trace = msgspec.structs.replace(trace, source=msgspec.structs.replace(trace.source, programs=2))
    trace = msgspec.structs.replace(trace, judged_device="NVIDIA H200")
    parts = programs_apart(trace)
    assert [[one.name for one in part.hlo] for part in parts] == [["jit_a"], ["jit_b"]]
    assert {part.judged_device for part in parts} == {"NVIDIA H200"}
