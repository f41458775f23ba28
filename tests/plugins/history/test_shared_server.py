"""Several jobs that end at once: real processes write into one store, and nothing is lost or there twice."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.plugins.history.store.database import VARIABLE
from perfscope.plugins.history.store.packs import fetch
from perfscope.plugins.history.store.runs import RunStore
from tests.conftest import REPOSITORY
from tests.kept_runs import ITEM, put_run
from tests.plugins.history.conftest import PASSWORD
from tests.plugins.history.records import stored_run

WRITERS, OWN, COMMON = 6, 8, 4

PROGRAM = """
import sys
from pathlib import Path
from perfscope.plugins.history.store.packs import pack
from perfscope.plugins.history.store.runs import RunStore
from tests.plugins.history.records import stored_run
where, folder, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
store = RunStore(where if "://" in where else Path(where))
print("ready", flush=True)
sys.stdin.readline()
new = sum(store.put(stored_run(1000 + one)) for one in range({common}))
new += sum(store.put(stored_run(number * {own} + one)) for one in range({own}))
one = pack(folder / "run", folder / f"pack-{{number}}")
store.set_baseline("main", stored_run(number * {own}), one)
store.set_baseline(f"own-{{number}}", stored_run(1000), one)
store.remove_baseline(f"own-{{number}}")
print(new)
"""


@pytest.mark.slow
def test_writers_at_the_same_time(where: str | Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_bytes(bytes(range(256)) * 5_000)
    program = PROGRAM.format(common=COMMON, own=OWN)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(where), str(tmp_path), str(number)],
            cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(WRITERS)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:  # the tables are not there yet: they are made at once too
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    said = [writer.communicate(timeout=120) for writer in writers]
    assert [(writer.returncode, error) for writer, (_, error) in zip(writers, said, strict=True)] == [(0, "")] * WRITERS
    assert sum(int(out) for out, _ in said) == WRITERS * OWN + COMMON, "a common run was new to one of them"
    store = RunStore(where)
    expected = {stored_run(number).uid for number in (*range(WRITERS * OWN), *range(1000, 1000 + COMMON))}
    assert {run.uid for run in store.runs()} == expected
    assert store.counts()[0] == len(expected)
    baselines = store.baselines()
    assert sorted(one.run.id for one in baselines) == sorted(stored_run(number * OWN).id for number in range(WRITERS))
    digests = {one.digest for one in baselines}
    assert len(digests) == 1
    fetch(store.database, str(digests.pop()), tmp_path / "copy")
    with store.database.session(write=False) as session:
        assert session.rows("SELECT COUNT(*) FROM perfscope_metrics") == [(2 * len(expected),)]


def test_a_writer_that_is_killed_leaves_a_whole_store(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    RunStore(path).put(stored_run(0))
    program = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from perfscope.plugins.history.store.runs import RunStore\n"
        "with RunStore(Path(sys.argv[1])).database.session(write=True) as session:\n"
        "    session.execute('DELETE FROM perfscope_runs')\n"
        "    session.execute('CREATE TABLE big AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n '\n"
        "                    'WHERE x < 300000) SELECT x FROM n')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], cwd=REPOSITORY, check=False)
    assert done.returncode == -9
    store = RunStore(path)
    assert store.runs() == (stored_run(0),)
    assert store.put(stored_run(1))


RUNS = Path("perfscope-runs")


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert run(list(words)) == code
    both = capsys.readouterr()
    text = both.out + both.err
    assert PASSWORD not in text
    assert "s3cret" not in text
    return re.sub(r"\s+", " ", text)


@pytest.mark.slow
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
