"""Parquet: every row, column, unit and meaning comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.readers.load import load_all
from perfscope.model.errors import DataError, UsageError
from perfscope.model.trace import TABLES, Trace
from perfscope.model.trace.columns import MISSING
from perfscope.model.untrusted_text import clean
from perfscope.plugins.exports import parquet
from perfscope.plugins.exports.export import Subject, export
from tests.build import TraceBuilder
from tests.plugins.exports.traces import SECRET, everything

pq = pytest.importorskip("pyarrow.parquet", reason="pip install pyarrow")


def same(folder: Path, traces: list[Trace]) -> None:
    """Hold every file to the tables it was made of."""
    for name, table in TABLES.items():
        rows = [trace.rows[name] for trace in traces]
        if not any(map(len, rows)):
            assert not (folder / f"{name}.parquet").exists()
            continue
        found = pq.read_table(folder / f"{name}.parquet")
        assert found.column("trace").to_pylist() == [i for i, one in enumerate(rows) for _ in range(len(one))]
        assert found.column("rank").to_pylist() == [
            trace.source.rank for trace, one in zip(traces, rows, strict=True) for _ in range(len(one))
        ]
        for column in table.columns:
            expected: list[Any] = []
            for trace, one in zip(traces, rows, strict=True):
                values = one[column.name]
                if column.text:
                    expected += [None if code == MISSING else clean(trace.strings[code]) for code in values.tolist()]
                elif values.dtype.kind == "f" and column.nullable:
                    expected += [None if np.isnan(value) else value for value in values.tolist()]
                elif column.nullable:
                    expected += [None if value == MISSING else value for value in values.tolist()]
                else:
                    expected += values.tolist()
            assert found.column(column.name).to_pylist() == expected, (name, column.name)


@pytest.mark.slow
def test_tables_come_back(tmp_path: Path) -> None:
    traces = [everything(rank=0), everything(rank=None)]
    export(Subject(traces=tuple(traces)), "parquet", tmp_path / "out")
    same(tmp_path / "out", traces)
    field = pq.read_schema(tmp_path / "out" / "kernels.parquet").field("call")
    assert field.nullable
    assert field.metadata == {
        b"unit": b"row of calls",
        b"doc": b"the call that launched it (a graph launch for graph kernels)",
        b"refers": b"calls",
    }
    assert pq.read_schema(tmp_path / "out" / "kernels.parquet").metadata[b"doc"] == b"One row per kernel on a device."
    sources = pq.read_table(tmp_path / "out" / "sources.parquet").to_pylist()
    assert [(one["trace"], one["rank"], one["file"], one["format"]) for one in sources] == [
        (0, 0, "built.json", "kineto"), (1, None, "built.json", "kineto"),
    ]  # fmt: skip
    assert not any(SECRET.encode() in file.read_bytes() for file in (tmp_path / "out").iterdir())


def test_large_tables_are_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_ROW_GROUP", 2)
    export(Subject(traces=(everything(),)), "parquet", tmp_path / "out")
    same(tmp_path / "out", [everything()])
    assert pq.ParquetFile(tmp_path / "out" / "kernels.parquet").num_row_groups == 3


@pytest.mark.corpus
@pytest.mark.parametrize(
    "name",
    ["kineto/TraceLens__h100_bert-small.json.gz", "torch_mem/assignment2-systems__tiny.pickle.gz",
     "xplane/TraceLens__mi300_jax08_gemm.xplane.pb.gz", "jax_memprof/Ajax__memory.prof"],
)  # fmt: skip
def test_real_traces_come_back(tmp_path: Path, corpus: Path, name: str) -> None:
    traces = load_all(corpus / name)
    export(Subject(traces=tuple(traces)), "parquet", tmp_path / "out")
    same(tmp_path / "out", traces)


def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="no table has a row"):
        export(Subject(traces=(TraceBuilder().build(),)), "parquet", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    with pytest.raises(UsageError, match="exists; the export needs a new or an empty folder"):
        export(Subject(traces=(everything(),)), "parquet", tmp_path / "full")
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["full", "mine"]

    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(parquet, "import_module", absent)
    with pytest.raises(UsageError, match="pip install pyarrow"):
        export(Subject(traces=(everything(),)), "parquet", tmp_path / "out")
