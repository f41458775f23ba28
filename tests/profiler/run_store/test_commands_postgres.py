"""Two machines that share a server: one sets a baseline, the other compares with it; nothing of the URL is shown."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.profiler.store.address import VARIABLE
from tests.commands.kept_runs import ITEM, put_run
from tests.conftest import REPOSITORY
from tests.profiler.run_store.conftest import PASSWORD

RUNS = Path("perfscope-runs")


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert run(list(words)) == code
    both = capsys.readouterr()
    text = both.out + both.err
    assert PASSWORD not in text
    assert "s3cret" not in text
    return re.sub(r"\s+", " ", text)


def test_a_baseline_of_another_machine(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, postgres)
    for machine in ("ci", "laptop"):
        (tmp_path / machine).mkdir()
    monkeypatch.chdir(tmp_path / "ci")
    base = put_run(RUNS, 0)
    text = said(capsys, "baseline", "set", "main", str(base))
    assert "kept in postgresql:///t" in text
    assert "2 runs added" in said(capsys, "store", "import", str(_two_more()))
    monkeypatch.chdir(tmp_path / "laptop")
    head = put_run(RUNS, 9, fixture=ITEM)
    said(capsys, "compare", "--baseline", "main", str(head), "--json", "out.json", "--fail-on", "regression", code=1)
    held = json.loads(Path("out.json").read_text())
    assert held["headline"] == "regression"
    assert held["notes"][0].startswith(f"baseline main: {base.name}")
    assert not (RUNS / "store.sqlite").exists()
    assert base.name in said(capsys, "baseline", "list")
    out = said(capsys, "history", "step time", "--json", "-")
    assert sum(len(one["points"]) for one in json.loads(out)["series"]) == 3
    assert "left out" not in said(capsys, "history", "step time"), "runs of this folder are not put on a server unasked"
    assert "schema 1, 3 runs" in said(capsys, "store", "status")
    said(capsys, "store", "export", "out.tar")
    assert "3 runs and 1 baseline added" in said(capsys, "store", "import", "out.tar", "--store", "copy.sqlite")
    assert "removed 1 run" in said(capsys, "baseline", "rm", "main")


def _two_more() -> Path:
    for number in (1, 2):
        put_run(Path("more"), number)
    return Path("more")


def test_the_password_in_tracebacks_of_a_failing_server(postgres: str, tmp_path: Path) -> None:
    """-v shows tracebacks; the URL is in the environment of a real process."""
    wrong = re.sub(r":[^:@]*@", ":wr0ng-s3cret@", postgres)
    put_run(tmp_path / RUNS, 0)
    done = subprocess.run(
        [sys.executable, "-m", "perfscope", "baseline", "list", "-v", "--store", wrong],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(REPOSITORY), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 4
    assert "Traceback" in done.stderr
    assert "wr0ng" not in done.stdout + done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("perfscope: postgresql:///t")
    assert "password authentication failed" in last
    shutil.rmtree(tmp_path / RUNS)
