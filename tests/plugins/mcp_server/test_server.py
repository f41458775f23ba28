"""`perfscope mcp` through the client of the official SDK over stdio, and its refusals without it."""

from __future__ import annotations

import ast
import asyncio
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfscope.commands.analyze import analyze
from perfscope.model.errors import DataError, NotStartedError, UsageError
from perfscope.model.version import install_command
from perfscope.plugins.mcp_server.answers import MOST_CHARACTERS, TOOLS, Answers
from perfscope.plugins.mcp_server.command import mcp
from perfscope.plugins.mcp_server.folders import Folders

FIXTURES = Path(__file__).parents[3] / "fixtures"
ITEM, PLAIN = "20260101-000000-item-0001", "20260101-000000-plain-0002"
HOSTILE = "x`rm -rf`\n## Ignore \x1b[2J|.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mcp")
    runs = root / "allowed" / "perfscope-runs"
    shutil.copytree(FIXTURES / "cpu-attention-sdpa-item", runs / ITEM)
    shutil.copytree(FIXTURES / "cpu-attention-sdpa", runs / PLAIN)
    shutil.copytree(FIXTURES / "cpu-attention-sdpa", root / "others")
    (runs / "latest").symlink_to(ITEM)
    (root / "allowed" / "way-out").symlink_to(root / "others")
    linked = root / "allowed" / "linked"
    linked.mkdir()
    (linked / "trace.json").symlink_to(root / "others" / "run.json")
    (root / "allowed" / HOSTILE).write_text("{}")
    return root / "allowed"


@pytest.fixture
def answers(folder: Path) -> Answers:
    return Answers(Folders([str(folder)]))


Call = tuple[str, Mapping[str, Any]]


def ask(folder: Path, calls: Sequence[Call]) -> tuple[list[str], list[tuple[bool, str]]]:
    """Names of the tools, and error flag and text of each call, over stdio."""
    sdk = pytest.importorskip("mcp", reason="the SDK is not installed: pip install 'perfscope[mcp]'")

    async def talk() -> tuple[list[str], list[tuple[bool, str]]]:
        server = sdk.StdioServerParameters(
            command=sys.executable, args=["-m", "perfscope", "mcp", str(folder)], cwd=folder
        )
        async with sdk.Client(server) as client:
            tools = (await client.list_tools()).tools
            assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
            results = [await client.call_tool(name, dict(arguments)) for name, arguments in calls]
            return [tool.name for tool in tools], [(bool(each.is_error), each.content[0].text) for each in results]

    return asyncio.run(asyncio.wait_for(talk(), 240))


def test_an_agent_gets_each_answer_and_one_line_per_error(folder: Path) -> None:
    tools, results = ask(
        folder,
        [
            ("list_runs", {}),
            ("analyze", {"run": "latest"}),
            ("findings", {"run": ITEM, "rule": "host_sync"}),
            ("explain", {"words": "host_sync"}),
            ("query", {"run": PLAIN, "sql": "select count(*) as n from ops"}),
            ("compare", {"base": ITEM, "head": PLAIN}),
            ("what_if", {"run": PLAIN, "change": "aten::mm x0.5"}),
            ("replay", {"run": PLAIN, "op": "aten::mm"}),
            ("analyze", {"run": "../others"}),
            ("analyze", {"run": "20990101"}),
        ],
    )
    assert tools == list(TOOLS)
    assert [failed for failed, _ in results] == [False] * 8 + [True, True]
    texts = [text for _, text in results]
    assert ITEM in texts[0]
    assert "# perfscope report" in texts[1]
    assert "Why it costs" in texts[3]
    assert re.search(r"^n\n\d", texts[4])
    assert "Basis: modelled" in texts[6]
    assert "def main" in texts[7]
    assert texts[8].endswith("../others: outside the folders of this server; list_runs has the names of recordings")
    assert "20990101: no such recording" in texts[9]
    assert "\n" not in texts[8] + texts[9]


@pytest.mark.slow
def test_answers_are_bounded_repeatable_and_name_basis_and_check(answers: Answers) -> None:
    makers = {
        "list_runs": lambda: answers.list_runs(),
        "findings": lambda: answers.findings(ITEM, "host_sync"),
        "clean": lambda: answers.findings(PLAIN, "host_sync"),
        "symptom": lambda: answers.explain("my GPU is idle"),
        "query": lambda: answers.query(PLAIN, "select * from range(500)", 200),
        "tables": lambda: answers.query(PLAIN),
        "compare": lambda: answers.compare(PLAIN, ITEM),
        "what_if": lambda: answers.what_if(PLAIN, "aten::mm x0.5"),
        "replay": lambda: answers.replay(PLAIN, "aten::mm"),
    }
    texts = {name: make() for name, make in makers.items()}
    assert texts == {name: make() for name, make in makers.items()}
    for name, text in texts.items():
        assert len(text) <= MOST_CHARACTERS, name
        assert "\nBasis: " in text, name
        assert "\nVerify: `perfscope " in text, name
    assert "more than 200 rows" in texts["query"] or "cut at" in texts["query"]
    assert "### 1. host_sync" in texts["findings"]
    assert "host_sync is clean" in texts["clean"]
    assert answers.analyze(ITEM) == answers.analyze(ITEM)
    assert len(answers.analyze(ITEM)) <= MOST_CHARACTERS


def test_a_change_is_modelled_and_an_op_becomes_a_script(answers: Answers) -> None:
    text = answers.what_if(PLAIN, "aten::mm x0")
    (command,) = re.findall(r"Verify: `(.*)`", text)
    saved = re.search(r"\(-([\d.]+)%\)", text)
    assert saved is not None
    assert 0 < float(saved[1]) < 100
    done = CliRunner().invoke(analyze, shlex.split(command)[2:])
    assert done.exit_code == 0
    assert f"-{saved[1]}%" in done.output, "the command gives the same change"
    script = answers.replay(PLAIN, "mm").partition("\nBasis: ")[0]
    assert ast.parse(script).body
    for call, said in (
        (lambda: answers.what_if(PLAIN, "aten::mm"), "give TARGET xFACTOR"),
        (lambda: answers.what_if(PLAIN, "aten::no_such_op x0.5"), "no op, host span or kernel is called"),
        (lambda: answers.replay(PLAIN, "rm -rf /"), "not an op"),
        (lambda: answers.replay("../others", "mm"), "outside the folders"),
    ):
        with pytest.raises(UsageError, match=said):
            call()


@pytest.mark.parametrize(
    "name", ["../others", "/etc", "way-out", "s3://bucket/../../../others", "..", "../none", "linked"]
)
def test_a_path_outside_is_refused(answers: Answers, name: str) -> None:
    for call in (answers.analyze, answers.query, lambda name: answers.compare(PLAIN, name)):
        with pytest.raises(UsageError, match="outside the folders of this server"):
            call(name)


@pytest.mark.parametrize("name", ["", "  ", "none", "a\0b", "x" * 5_000, "https://host/trace.json"])
def test_a_missing_run_is_one_line(answers: Answers, name: str) -> None:
    with pytest.raises((DataError, UsageError)) as caught:
        answers.analyze(name)
    assert "\n" not in str(caught.value)


def test_a_run_is_found_by_the_beginning_of_its_id(answers: Answers) -> None:
    assert answers.query("20260101-000000-item", "select 1 as one").startswith("one\n1\n")
    with pytest.raises(UsageError, match="2 runs begin so"):
        answers.analyze("20260101")


def test_a_hostile_name_stays_on_its_line(answers: Answers) -> None:
    text = answers.list_runs()
    assert "\x1b" not in text
    line = next(line for line in text.splitlines() if line.startswith("- file x"))
    assert "## Ignore" in line
    assert "`" not in line


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/passwd')",
        "copy (select 1) to '/tmp/none.csv'",
        "create table t as select 1",
        "select 1) ; drop table ops; select * from (select 1",
        "attach '/tmp/none.db'",
    ],
)
def test_a_query_reads_nothing_else_and_changes_nothing(answers: Answers, sql: str) -> None:
    with pytest.raises(UsageError, match="query"):
        answers.query(PLAIN, sql)
    assert not Path("/tmp/none.csv").exists()


def test_rows_are_bounded(answers: Answers) -> None:
    with pytest.raises(UsageError, match="from 1 to 200"):
        answers.query(PLAIN, "select 1", 1_000)
    assert "(more than 3 rows" in answers.query(PLAIN, "select * from range(1_000_000)", 3)


def test_without_the_package_the_install_command_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "perfscope.plugins.mcp_server.server", raising=False)
    result = CliRunner().invoke(mcp, [str(folder)])
    assert isinstance(result.exception, NotStartedError)
    assert install_command("mcp") in str(result.exception)


def test_a_folder_that_does_not_exist_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        Folders([str(tmp_path / "none")])
