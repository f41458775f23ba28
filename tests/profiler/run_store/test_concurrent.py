"""Several jobs that end at once: real processes write into one store, and nothing is lost or there twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from perfscope.profiler.store.packs import fetch
from perfscope.profiler.store.runs import RunStore
from tests.conftest import REPOSITORY
from tests.profiler.run_store.records import stored

WRITERS, OWN, COMMON = 6, 8, 4

PROGRAM = """
import sys
from pathlib import Path
from perfscope.profiler.store.packs import pack
from perfscope.profiler.store.runs import RunStore
from tests.profiler.run_store.records import stored
where, folder, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
store = RunStore(where if "://" in where else Path(where))
print("ready", flush=True)
sys.stdin.readline()
new = sum(store.put(stored(1000 + one)) for one in range({common}))
new += sum(store.put(stored(number * {own} + one)) for one in range({own}))
one = pack(folder / "run", folder / f"pack-{{number}}")
store.set_baseline("main", stored(number * {own}), one)
store.set_baseline(f"own-{{number}}", stored(1000), one)
store.remove_baseline(f"own-{{number}}")
print(new)
"""


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
    expected = {stored(number).uid for number in (*range(WRITERS * OWN), *range(1000, 1000 + COMMON))}
    assert {run.uid for run in store.runs()} == expected
    assert store.counts()[0] == len(expected)
    baselines = store.baselines()
    assert sorted(one.run.id for one in baselines) == sorted(stored(number * OWN).id for number in range(WRITERS))
    digests = {one.digest for one in baselines}
    assert len(digests) == 1
    fetch(store.database, str(digests.pop()), tmp_path / "copy")
    with store.database.session(write=False) as session:
        assert session.rows("SELECT COUNT(*) FROM perfscope_metrics") == [(2 * len(expected),)]


def test_a_writer_that_is_killed_leaves_a_whole_store(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    RunStore(path).put(stored(0))
    program = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from perfscope.profiler.store.runs import RunStore\n"
        "with RunStore(Path(sys.argv[1])).database.session(write=True) as session:\n"
        "    session.execute('DELETE FROM perfscope_runs')\n"
        "    session.execute('CREATE TABLE big AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n '\n"
        "                    'WHERE x < 300000) SELECT x FROM n')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], cwd=REPOSITORY, check=False)
    assert done.returncode == -9
    store = RunStore(path)
    assert store.runs() == (stored(0),)
    assert store.put(stored(1))
