"""docs/export.md: what it shows works as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfscope.commands.export import FORMATS
from perfscope.dashboards.exports import Subject, export
from tests.dashboards.exports.built import everything, finding
from tests.dashboards.exports.oracle import asked

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "export.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_every_format_is_described() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(FORMATS)


def test_the_queries_answer(tmp_path: Path) -> None:
    (sql,) = blocks("sql")
    queries = [one for one in re.split(r";\s*", sql) if one.strip()]
    target = tmp_path / "t.pftrace"
    export(Subject(traces=(everything(),), findings=(finding(),)), "perfetto", target)
    streams, launches, collectives, found = asked(target, *queries)
    assert streams[0] == ["rank 0 · device 0 (Test GPU)", "stream 7", 101_000]
    assert launches[0] == ["cudaLaunchKernel", "gemm", 10_000] or launches[0][0] == "cudaGraphLaunch"
    assert collectives == [["ncclDevKernel_AllReduce", "all_reduce", 30_000, 1 << 40]]
    assert found[0][:2] == ["The host waits 3 ms in aten::item", 3_000_000]


def test_the_tables_join_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    export(Subject(traces=(everything(),)), "parquet", tmp_path / "tables")
    (code,) = [one for one in blocks("python") if "read_parquet" in one]
    names: dict[str, object] = {}
    exec(code, names)
    rank = names["rank"]
    assert rank[["name_x", "name_y"]].to_numpy().tolist() == [  # type: ignore[index]
        ["gemm", "cudaLaunchKernel"], ["overlapping", "cudaLaunchKernel"], ["first", "cudaGraphLaunch"],
        ["second", "cudaGraphLaunch"],
    ]  # fmt: skip
