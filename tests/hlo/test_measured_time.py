"""Measured time joined with instructions: by number, by name, and what finds no partner."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction, Shape
from perfscope.analyzers.hlo.time import HloTime, hlo_time
from perfscope.analyzers.readers.xspace import reader as xspace_reader
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.conftest import corpus_files
from tests.readers.wire import SpaceWriter, content, planes

US = 1_000_000
SHAPE = Shape(dtype="f32", dims=(4,))


def module(name: str, program: int | None, **computations: list[str]) -> HloModule:
    held = {}
    for computation, names in computations.items():
        instructions = tuple(Instruction(name=one, opcode="add", shape=SHAPE) for one in names)
        by_name = {found.name: found for found in instructions}
        held[computation] = Computation(name=computation, instructions=instructions, by_name=by_name)
    return HloModule(name=name, entry=next(iter(held)), computations=held, program_id=program)


def event(name: str, program: int, start: float, end: float, mark: int = 0) -> tuple[Any, ...]:
    stats = {"hlo_op": name, "hlo_module": "jit_f", "program_id": program, "run_id": 1, "device_ordinal": 0}
    return name, int(start * US), int(end * US), {**stats, "_p": mark} if mark else stats


def joined(folder: Path, modules: tuple[HloModule, ...], *events: tuple[Any, ...]) -> HloTime:
    path = folder / "x.xplane.pb"
    path.write_bytes(SpaceWriter().plane("/host:CPU", {"pool": list(events)}).bytes())
    read = xspace_reader.read(path)
    assert isinstance(read, Trace)
    trace = Trace(
        source=read.source, strings=read.strings, rows=read.rows, recorded=read.recorded | {"hlo"}, hlo=modules
    )
    return trace.fact(hlo_time)


def test_two_programs_of_one_name_are_apart(tmp_path: Path) -> None:
    modules = module("jit_f", 1, main=["a", "b"]), module("jit_f", 2, main=["a"])
    found = joined(tmp_path, modules, event("a", 1, 0, 10), event("a", 2, 20, 50), event("a", 1, 60, 64))
    first, second = found.by_key[0, "a"], found.by_key[1, "a"]
    assert (first.calls, first.total_ns, first.mean_ns, first.program_id) == (2, 14_000, 7_000.0, 1)
    assert (second.calls, second.total_ns, second.computation) == (1, 30_000, "main")
    assert [row.total_ns for row in found.instructions] == [30_000, 14_000]
    assert (found.total_ns, found.unmatched_ns) == (44_000, 0)


def test_work_in_a_thread_pool_is_in_the_total(tmp_path: Path) -> None:
    end = ("end: a", 70 * US, 71 * US, {"_c": 9})
    found = joined(tmp_path, (module("jit_f", 1, main=["a"]),), event("a", 1, 0, 10, mark=9), end)
    assert (found.by_key[0, "a"].total_ns, found.by_key[0, "a"].launch_ns) == (70_000, 10_000)


def test_a_loops_time_is_not_counted_twice(tmp_path: Path) -> None:
    modules = (module("jit_f", 1, main=["while"], body=["a"]),)
    found = joined(tmp_path, modules, event("while", 1, 0, 100), event("a", 1, 10, 30), event("a", 1, 40, 60))
    loop, body = found.by_key[0, "while"], found.by_key[0, "a"]
    assert (loop.encloses, body.encloses, body.computation) == (True, False, "body")
    assert (loop.total_ns, body.total_ns, found.total_ns) == (100_000, 40_000, 40_000)


def test_what_has_no_module_is_said(tmp_path: Path) -> None:
    modules = (module("jit_f", 1, main=["a"]),)
    found = joined(tmp_path, modules, event("a", 1, 0, 30), event("other", 1, 30, 40), event("a", 5, 40, 100))
    assert {(row.program_id, row.instruction) for row in found.instructions if row.module_index is None} == {
        (1, "other"), (5, "a"),
    }  # fmt: skip


def test_the_name_decides_where_no_number_is_known(tmp_path: Path) -> None:
    alone = module("jit_f", None, main=["a"])
    assert joined(tmp_path, (alone,), event("a", 1, 0, 10)).by_key[0, "a"].calls == 1
    two = (alone, replace(alone, entry="main"))
    assert not joined(tmp_path, two, event("a", 1, 0, 10)).by_key  # which of them it was is not known
    assert not joined(tmp_path, (replace(alone, name="jit_g"),), event("a", 1, 0, 10)).by_key


def test_nothing_measured() -> None:
    build = TraceBuilder()
    build.op("aten::add", 0, 5)
    found = build.build().fact(hlo_time)
    assert (found.instructions, found.total_ns) == ((), 0)


FILES = [*corpus_files("xplane", "*mi300*"), *corpus_files("aot", "*.xplane.pb.gz")]


@pytest.mark.corpus
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_measured_instruction_has_its_module(path: Path) -> None:
    trace = xspace_reader.read(path)
    assert isinstance(trace, Trace)
    found = trace.fact(hlo_time)
    assert found.unmatched_ns == 0
    counted: dict[tuple[str, int], int] = defaultdict(int)
    for plane in planes(content(path)):
        for line in plane.lines:
            for _, _, _, stats in plane.events(line):
                # an op of the CPU backend has its run, a kernel its size; a call to launch one has neither
                if "hlo_op" in stats and ("run_id" in stats or plane.name.startswith("/device:")):
                    counted[stats["hlo_op"], stats["program_id"]] += 1
    assert counted == {(row.instruction, row.program_id): row.calls for row in found.instructions}


@pytest.mark.corpus
def test_published_figures_of_a_cpu_profile(corpus: Path) -> None:
    """Sum of the events' durations against start to end mark, as measured on this file before (ms)."""
    trace = xspace_reader.read(corpus / "aot" / "attn_naive.xplane.pb.gz")
    assert isinstance(trace, Trace)
    rows = {row.instruction: row for row in trace.fact(hlo_time).instructions}
    for name, launch, span in (
        ("broadcast_select_fusion", 0.90, 14.98),
        ("broadcast_multiply_fusion.1", 1.04, 8.96),
        ("dot", 13.6, 33.1),
        ("ynn_fusion.6", 14.20, 14.20),
    ):
        assert rows[name].launch_ns / 1e6 == pytest.approx(launch, abs=0.05)
        assert rows[name].total_ns / 1e6 == pytest.approx(span, abs=0.05)
        assert rows[name].calls == 20
