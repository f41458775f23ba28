"""docs/adding-a-result.md, followed in a copy of the package; every result table keeps its own declaration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from perfscope.analyzers.results import result_modules, result_table
from perfscope.model.plugins import named
from perfscope.model.results import Column, ResultTable
from tests.conftest import REPOSITORY
from tests.house.test_docs import DOCS, blocks, titled

PAGE = DOCS / "adding-a-result.md"
FILE = "perfscope/analyzers/time/results/memsets.py"

FOLLOW = """
import json, sys
from pathlib import Path

import docs.generate
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.query import Database
from perfscope.dashboards.report import json_report, text
from perfscope.model.plugins import named
from perfscope.model.trace import CopyKind, HostMemory
from tests.build import TraceBuilder
from tests.web.views import view_of

builder = TraceBuilder()
builder.step(1, 0, 1000)
builder.kernel("gemm", 0, 900)
for start, end in ((100, 160), (900, 920)):
    builder.copy("Memset (Device)", start, end, stream=9, size=4096, kind=CopyKind.MEMSET, host_memory=HostMemory.NONE)
trace = builder.build()
folder = Path(sys.argv[1])
parquet = None
if "parquet" in named("exports"):
    import pyarrow.parquet

    from perfscope.plugins.exports.export import Subject, export

    export(Subject(traces=(trace,)), "parquet", folder / "tables")
    parquet = pyarrow.parquet.read_table(folder / "tables" / "memsets.parquet").to_pylist()

print(json.dumps({
    "query": Database([trace]).query("select * from memsets").to_dict("records"),
    "report": json_report.document(analyze(trace)),
    "text": text.render(analyze(trace)),
    "view": view_of("results", [trace], folder)["tables"],
    "parquet": parquet,
    "page": docs.generate.query_page(),
    "schema": json.loads(docs.generate.pages()["report-schema.json"]),
}))
"""


def followed(folder: Path, file: str) -> dict[str, Any]:
    """Output of perfscope for two memsets when ``file`` is added to a copy of it."""
    copy = folder / "copy"
    for name in ("perfscope", "tests", "docs", "fixtures", "pyproject.toml"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if name == "perfscope":
            _linked(REPOSITORY / name, copy / name)
        else:
            (copy / name).symlink_to(REPOSITORY / name)
    (copy / FILE).parent.mkdir(exist_ok=True)
    (copy / FILE).write_text(file)
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, "-c", FOLLOW, str(folder)], cwd=copy, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _linked(source: Path, target: Path) -> None:
    """The folders of ``source`` with links to its files."""
    target.mkdir()
    for path in source.iterdir():
        if path.is_dir() and path.name != "__pycache__":
            _linked(path, target / path.name)
        elif path.is_file():
            (target / path.name).symlink_to(path)


@pytest.mark.slow
def test_one_file_adds_a_table_and_one_line_a_column_everywhere(tmp_path: Path) -> None:
    line, _ = blocks(PAGE, "text")
    last = '        Column("bytes", int, "bytes", "memory that was cleared"),\n'
    file = titled(PAGE)[FILE]
    assert last in file
    shown = followed(tmp_path, file.replace(last, last + line))
    row = {"device": 0, "memsets": 2, "time_ns": 80_000, "bytes": 8192, "longest_ns": 60_000}
    (queried,) = shown["query"]
    assert {name: queried[name] for name in row} == row
    if "parquet" in named("exports"):
        assert shown["parquet"] == [{"trace": 0, "rank": 0, **row}]
    assert shown["report"]["tables"]["memsets"] == {"rows": [{"source": 0, "rank": 0, **row}], "left": 0}
    assert "Memory that is cleared" in shown["text"]
    assert "80.0 us" in shown["text"]
    assert "8.00 KiB" not in shown["text"]  # not among the columns that the section names
    assert shown["view"]["memsets"]["rows"] == [list(row.values())]
    assert [column["key"] for column in shown["view"]["memsets"]["columns"]] == list(row)
    assert "## memsets" in shown["page"]
    assert "| `longest_ns` | longest memset, ns |" in shown["page"]
    schema = shown["schema"]
    properties = schema["properties"]["tables"]["properties"]["memsets"]["properties"]["rows"]
    assert properties["items"]["properties"]["longest_ns"]["description"] == "longest memset, ns"
    Draft202012Validator(schema).validate(shown["report"])
    broken = json.loads(json.dumps(shown["report"]))
    broken["tables"]["memsets"]["rows"][0]["memsets"] = "two"
    assert list(Draft202012Validator(schema).iter_errors(broken))


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_the_code_of_the_page_passes_the_house_style(command: list[str]) -> None:
    ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", FILE, "-"]
    done = subprocess.run(ruff, input=titled(PAGE)[FILE], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", result_modules())
def test_a_table_has_the_name_of_its_module_and_describes_its_columns(name: str) -> None:
    table = result_table(name)
    assert table.name == name
    assert table.doc.endswith(".")
    names = [column.name for column in table.columns]
    assert len(names) == len(set(names))
    assert not {"source", "rank", "trace"} & set(names)
    assert set(table.shown) <= set(names)
    assert all(column.doc for column in table.columns)


def test_a_value_of_another_type_than_declared_is_seen() -> None:
    table: ResultTable[dict[str, Any]] = ResultTable(
        name="made_up", doc="Made up.", columns=(Column("times", int, "count", "times"),), rows=lambda trace: ()
    )
    table.check({"times": 2})
    with pytest.raises(ValueError, match=r"made_up\.times"):
        table.check({"times": "2"})
