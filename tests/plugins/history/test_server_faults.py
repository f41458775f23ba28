"""A PostgreSQL server that is not there, or is killed while a baseline is written: one line, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.__main__ import run
from perfscope.plugins.history.store import database
from perfscope.plugins.history.store.database import VARIABLE
from tests.kept_runs import put_run
from tests.plugins.history.conftest import PASSWORD, new_server, url

pytestmark = pytest.mark.slow
RUNS = Path("perfscope-runs")


def baselines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert run(["baseline", "list", "main", "--json"]) == 0
    return [row["run"] for row in json.loads(capsys.readouterr().out)]


def one_line(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(list(words)) == 4
    both = capsys.readouterr()
    assert both.out == ""
    (line,) = both.err.splitlines()
    assert line.startswith("perfscope: postgresql:///")
    assert PASSWORD not in line
    return line


def test_a_server_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second, third = (str(put_run(RUNS, number)) for number in range(3))
    with new_server() as server:
        monkeypatch.setenv(VARIABLE, url(server.folder, "postgres"))
        assert run(["baseline", "set", "main", first]) == 0
        before = baselines(capsys)
        statements, last = [0], 0
        original = database.Session.__init__

        def killing(self: Any, execute: Callable[[str, Any], Any]) -> None:
            def counted(sql: str, values: Any) -> Any:
                statements[0] += 1
                if statements[0] == last:
                    server.kill()
                return execute(sql, values)

            original(self, counted)

        monkeypatch.setattr(database.Session, "__init__", killing)
        assert run(["baseline", "set", "other", third, "--keep", "2"]) == 0
        number = statements[0]
        assert number > 6
        for last in (1, 2, number // 2, number - 1, number):
            statements[0] = 0
            one_line(capsys, "baseline", "set", "main", second, "--keep", "2")
            assert statements[0] == last
            one_line(capsys, "baseline", "list")
            server.start()
            assert baselines(capsys) == before
        last = 0
        assert run(["baseline", "set", "main", second, "--keep", "2"]) == 0
        assert sorted(baselines(capsys)) == sorted([*before, Path(second).name])


def test_a_server_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = str(put_run(RUNS, 0))
    with new_server() as server:
        monkeypatch.setenv(VARIABLE, url(server.folder, "postgres"))
        server.stop()
        for words in (
            ("baseline", "set", "main", made),
            ("baseline", "list"),
            ("history", "step time"),
            ("store", "status"),
            ("compare", "--baseline", "main", made),
        ):
            assert "No such file" in one_line(capsys, *words)
        assert Path(made, "run.json").is_file()
        server.start()
        assert run(["baseline", "set", "main", made]) == 0
