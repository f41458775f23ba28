"""The model holds itself to its declaration, and its public edge is pandas."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace

from perfscope.model.trace import MISSING, TABLES, CallKind, Rows, Source, Trace
from perfscope.model.trace import TraceBuilder as ModelBuilder
from tests.build import TraceBuilder
from tests.conftest import REPOSITORY

SOURCE = Source(path="x", format="kineto", rank=2, events_read=0, events_unplaced=0)


def test_undeclared_missing_and_uneven_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="undeclared columns"):
        Rows(TABLES["steps"], {"wrong": [1]})
    with pytest.raises(ValueError, match="column end_ns is missing"):
        Rows(TABLES["steps"], {"start_ns": [1]})
    with pytest.raises(ValueError, match="different length"):
        Rows(TABLES["steps"], {"start_ns": [1], "end_ns": [1, 2]})


def test_nullable_columns_may_be_left_out() -> None:
    rows = Rows(TABLES["devices"], {"ordinal": [3]})
    assert rows["name"].tolist() == rows["memory_bytes"].tolist() == [MISSING]
    assert len(Rows(TABLES["devices"], {})) == 0


def test_every_column_has_a_unit_and_a_meaning() -> None:
    for table in TABLES.values():
        assert table.doc
        for column in table.columns:
            assert column.unit, f"{table.name}.{column.name}"
            assert column.doc, f"{table.name}.{column.name}"
            assert column.refers is None or column.refers in TABLES


def build() -> TraceBuilder:
    made = TraceBuilder(rank=2)
    made.op("aten::mm", 0, 10)
    made.launched("gemm", 1, 5, 9, correlation=4)
    made.call("cudaStreamSynchronize", 6, 9, kind=CallKind.SYNC)
    made.copy("Memset (Device)", 9, 10)
    return made


def test_frames_are_decoded_and_carry_the_rank() -> None:
    trace = build().build()
    assert trace.kernels["name"].tolist() == ["gemm"]
    assert trace.kernels["rank"].tolist() == [2]
    assert trace.copies["call"].isna().all()
    assert trace.copies["call"].dtype == "Int64"
    assert trace.launches["name"].tolist() == ["cudaLaunchKernel"]
    assert trace.syncs["name"].tolist() == ["cudaStreamSynchronize"]
    assert isinstance(trace.steps, pd.DataFrame)
    assert trace.span_ns() == (0, 10_000)


def test_a_trace_cannot_be_changed() -> None:
    trace = build().build()
    for name in (*trace.__struct_fields__, "anything"):
        with pytest.raises(AttributeError):
            setattr(trace, name, None)
    with pytest.raises(TypeError):
        trace.rows["steps"] = Rows(TABLES["steps"], {})  # type: ignore[index]
    for copy in (trace, pickle.loads(pickle.dumps(trace)), replace(trace)):
        with pytest.raises(ValueError, match="read-only"):
            copy.rows["kernels"]["start_ns"][0] = 1
    assert isinstance(trace.strings, tuple)
    frame = trace.kernels
    frame.loc[0, "start_ns"] = 1  # a frame is a copy
    assert trace.kernels["start_ns"].tolist() == [5_000]


def test_a_changed_copy_derives_its_facts_again_and_a_noted_one_keeps_them() -> None:
    trace = build().build()

    def ranks(asked: Trace) -> int | None:
        return asked.source.rank

    assert trace.fact(ranks) == 2
    assert replace(trace, source=SOURCE).fact(lambda one: one.source.path) == "x"
    assert replace(trace, source=replace(trace.source, rank=5)).fact(ranks) == 5
    noted = trace.noted("told later")
    assert noted.source.notes == ("told later",)
    assert trace.source.notes == ()
    noted.seed(ranks, 7)
    assert (noted.fact(ranks), trace.fact(ranks)) == (7, 2)


def test_a_builder_takes_tables_of_other_traces_with_their_texts() -> None:
    trace = build().build()
    builder = ModelBuilder.of(trace)
    builder.rows |= builder.merge_tables(recorded_memory("other"), ("frames", "held", "memory"), blank=("op", "thread"))
    builder.record("memory")
    builder.note("merged")
    merged = builder.build(window_steps=3)
    merged.check()
    assert merged.frames["file"].tolist() == ["other.py"]
    assert merged.memory["op"].isna().all()
    assert (merged.source.rank, merged.source.notes, merged.window_steps) == (2, ("merged",), 3)
    assert merged.kernels["name"].tolist() == ["gemm"]
    assert trace.frames.empty
    assert not trace.source.notes


def test_facts_are_derived_once() -> None:
    trace, calls = build().build(), []

    def fact(asked: Trace) -> int:
        calls.append(asked)
        return 7

    assert trace.fact(fact) + trace.fact(fact) == 14
    assert calls == [trace]


@pytest.mark.parametrize(
    ("table", "column", "value", "said"),
    [
        ("kernels", "end_ns", 0, "kernels: a row ends before it starts"),
        ("kernels", "call", 99, "kernels.call: points outside its target"),
        ("kernels", "name", 10_000, "kernels.name: points outside its target"),
        ("slices", "parent", -2, "slices.parent: points outside its target"),
        ("kernels", "device", -1, "kernels.device: points outside its target"),
    ],
)
def test_check_names_what_is_wrong(table: str, column: str, value: int, said: str) -> None:
    trace = build().build()
    values = trace.rows[table][column].copy()
    values[0] = value
    trace = replace(trace, rows={**trace.rows, table: trace.rows[table].with_columns({column: values})})
    with pytest.raises(ValueError, match=said):
        trace.check()


def test_undeclared_recorded_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="undeclared recorded keys"):
        Trace(source=SOURCE, strings=[], rows={}, recorded=frozenset({"everything"}))


def test_equal_texts_under_two_codes_are_shown() -> None:
    rows = Rows(TABLES["threads"], {"process": [0, 1], "thread": [0, 0]})
    assert rows.frame(["same", "same"])["process"].tolist() == ["same", "same"]
    assert np.array_equal(rows["thread"], [0, 0])


def recorded_memory(name: str) -> Trace:
    """A recording with an op, one allocation in it, one block that is held and one tensor with a name."""
    made = TraceBuilder(path=f"{name}.json", rank=2)
    made.op(name, 0, 10)
    made.row("frames", file=made.code(f"{name}.py"), line=7, name=made.code("f"), parent=-1)
    place = {"on_device": False, "ordinal": -1, "address": 64, "bytes": 512}
    made.row("memory", time_ns=5_000, thread=0, op=0, action=0, frame=0, **place)
    made.row("held", count=1, state=0, frame=0, **place)
    made.row("tensors", name=made.code(f"{name}.weight"), category=1, **place)
    return made.build()


def test_memory_of_the_detail_pass_is_the_runs() -> None:
    made = TraceBuilder(rank=2)
    made.op("aten::add", 0, 1)
    made.row(
        "tensors", name=made.code("of the timing pass"), category=1, on_device=False, ordinal=-1, address=1, bytes=4
    )
    made.detail = recorded_memory("aten::mm")
    trace = made.build()
    assert trace.memory_pass is trace.detail
    assert trace.memory["bytes"].tolist() == [512]
    assert trace.memory["rank"].tolist() == [2]
    assert trace.memory_pass.slices["name"].iloc[trace.memory["op"].iloc[0]] == "aten::mm"
    assert trace.frames["file"].iloc[trace.held["frame"].iloc[0]] == "aten::mm.py"
    assert trace.tensors["name"].tolist() == ["aten::mm.weight"], "addresses of the pass that the events are of"
    assert len(trace.segments) == 0
    assert trace.slices["name"].tolist() == ["aten::add"], "times are of the timing pass"
    assert "1 memory" in repr(trace)
    assert trace.sizes() == {"frames": 1, "held": 1, "memory": 1, "slices": 1, "tensors": 1, "threads": 1}


def test_memory_of_the_trace_itself_goes_before_that_of_the_detail_pass() -> None:
    trace = recorded_memory("own")
    trace = replace(trace, detail=recorded_memory("other"))
    assert trace.memory_pass is trace
    assert trace.tensors["name"].tolist() == ["own.weight"]
    assert build().build().memory_pass.memory.empty, "no memory anywhere"


def test_every_table_of_the_documentation_is_a_frame() -> None:
    page = (REPOSITORY / "docs" / "model.md").read_text(encoding="utf-8")
    documented = re.findall(r"^## (\w+)$", page, re.MULTILINE)
    assert sorted(documented) == sorted(TABLES)
    builder = TraceBuilder()
    builder.launched("gemm", 1, 5, 9, correlation=3)
    trace = builder.build()
    for table in documented:
        frame = getattr(trace, table)
        assert len(frame) == len(trace.rows[table])
        stored = [column.name for column in TABLES[table].columns]
        assert [name for name in frame.columns if name in stored] == stored
    assert len(trace.devices) == len(trace.threads) == 1
