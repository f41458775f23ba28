"""Labels of programs: short, and different for all of a trace."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.facts.hlo_program import program_label, program_labels, programs_apart
from perfscope.analyzers.hlo.module import HloModule
from tests.build import TraceBuilder
from tests.hlo_build import hlo_module, hlo_trace

BASE = hlo_module("ENTRY %main () -> f32[] {\n  ROOT %c = f32[] constant(1)\n}", "jit_step")


def module(name: str = "jit_step", source: str = "", program_id: int | None = None) -> HloModule:
    return replace(BASE, name=name, source=source, program_id=program_id)


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
    recording.hlo = (module("jit_a"), module("jit_b"))
    assert programs_apart(recording) == (recording,)


def test_programs_alone_are_judged_for_the_device_that_was_named() -> None:
    trace = hlo_trace(module("jit_a"), module("jit_b"))
    trace.source = replace(trace.source, programs=2)
    trace.judged_device = "NVIDIA H200"
    parts = programs_apart(trace)
    assert [[one.name for one in part.hlo] for part in parts] == [["jit_a"], ["jit_b"]]
    assert {part.judged_device for part in parts} == {"NVIDIA H200"}
