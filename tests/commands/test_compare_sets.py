"""``perfscope compare`` on folders of runs: what is a set, what is not, and what comes out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfscope.__main__ import run
from perfscope.dashboards.reports import compare_document
from tests.conftest import REPOSITORY

PLAIN, ITEM = "cpu-attention-sdpa", "cpu-attention-sdpa-item"


def lay(folder: Path, name: str, at: int, **changed: Any) -> Path:
    """A recorded run in ``folder``, as if it had been the ``at``-th launch."""
    place = folder / f"20260101-{at:06}-train-abcd"
    shutil.copytree(REPOSITORY / "fixtures" / name, place)
    manifest = json.loads((place / "run.json").read_text())
    manifest |= {"created_utc": f"2026-01-01T00:00:{at:02}+00:00", "command": ["train.py"], **changed}
    (place / "run.json").write_text(json.dumps(manifest))
    return place


def sets(root: Path, names: dict[str, str], each: int = 2) -> tuple[Path, Path]:
    """Launches of both sides in turns."""
    for at in range(2 * each):
        arm = ("base", "head", "head", "base")[at % 4]
        lay(root / arm, names[arm], at)
    return root / "base", root / "head"


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it said."""

    exit_code: int
    output: str


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """``perfscope compare ARGUMENTS``."""

    def called(*arguments: object) -> Done:
        code = run(["compare", *map(str, arguments)])
        said = capsys.readouterr()
        return Done(exit_code=code, output=said.out + said.err)

    return called


def test_two_sets(tmp_path: Path, compare: Callable[..., Done]) -> None:
    base, head = sets(tmp_path, {"base": PLAIN, "head": ITEM})
    out = tmp_path / "out.json"
    done = compare(base, head, "--json", out, "--fail-on", "regression")
    assert done.exit_code == 1, done.output
    held = json.loads(out.read_text())
    document = compare_document.parse(out.read_bytes(), str(out))
    assert (document.headline, document.method.kind) == ("regression", "sets of runs")
    assert (held["method"]["pairs"], held["method"]["profiled"]) == (2, 2)
    assert [one["arm"] for one in held["method"]["launches"]] == ["base", "head", "head", "base"]
    assert ".item()" in done.output or "training.py" in held["causes"][0]["place"]
    assert held["base"]["paths"] == [str(base)]
    assert compare(head, base, "--fail-on", "regression").exit_code == 0


def test_a_run_against_a_set(tmp_path: Path, compare: Callable[..., Done]) -> None:
    _, head = sets(tmp_path, {"base": PLAIN, "head": ITEM})
    one = lay(tmp_path / "alone", PLAIN, 30)
    done = compare(one, head)
    assert (done.exit_code, "sets of runs" in done.output) == (0, True), done.output


def test_one_run_in_a_folder_is_that_run(tmp_path: Path, compare: Callable[..., Done]) -> None:
    lay(tmp_path / "base", PLAIN, 1)
    lay(tmp_path / "head", PLAIN, 2)
    done = compare(tmp_path / "base", tmp_path / "head")
    assert done.exit_code == 0, done.output
    assert "sets of runs" not in done.output


def test_traces_beside_runs(tmp_path: Path, compare: Callable[..., Done]) -> None:
    base, head = sets(tmp_path, {"base": PLAIN, "head": PLAIN})
    trace = next(base.glob("*/rank00000/timing.pt.trace.json.gz"))
    shutil.copy(trace, base / "rank0.pt.trace.json.gz")
    (base / "notes.txt").write_text("no trace")
    done = compare(base, head)
    assert done.exit_code == 4
    assert done.output.count("\n") == 1
    assert "a trace beside them (rank0.pt.trace.json.gz)" in done.output


def test_runs_of_several_programs(tmp_path: Path, compare: Callable[..., Done]) -> None:
    base, head = sets(tmp_path, {"base": PLAIN, "head": PLAIN})
    lay(base, PLAIN, 40, command=["other.py"])
    done = compare(base, head)
    assert done.exit_code == 2
    assert "runs of 2 programs (`train.py`, `other.py`)" in done.output


def test_a_set_and_a_file(tmp_path: Path, compare: Callable[..., Done]) -> None:
    base, _ = sets(tmp_path, {"base": PLAIN, "head": PLAIN})
    trace = next(base.glob("*/rank00000/timing.pt.trace.json.gz"))
    done = compare(base, trace)
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert "is no run" in done.output


def test_a_run_that_cannot_be_read_is_left_out_and_named(tmp_path: Path, compare: Callable[..., Done]) -> None:
    base, head = sets(tmp_path, {"base": PLAIN, "head": PLAIN})
    broken = lay(base, PLAIN, 41)
    shutil.rmtree(broken / "rank00000")
    done = compare(base, head)
    assert done.exit_code == 0, done.output
    assert "20260101-000041-train-abcd was left out" in " ".join(done.output.split())


def test_none_can_be_read(tmp_path: Path, compare: Callable[..., Done]) -> None:
    base, head = sets(tmp_path, {"base": PLAIN, "head": PLAIN})
    for one in base.iterdir():
        shutil.rmtree(one / "rank00000")
    done = compare(base, head)
    assert (done.exit_code, done.output.count("\n")) == (4, 1)
    assert "none of its 2 runs can be read" in done.output


@pytest.mark.corpus
def test_ranks_are_no_set(corpus: Path, tmp_path: Path, compare: Callable[..., Done]) -> None:
    """The traces of one job's ranks in a folder are one side of four ranks, as before."""
    for name in ("sst_long_a2a", "sst_sleep"):
        (tmp_path / name).mkdir()
        for file in (corpus / "kineto").glob(f"torchrec__{name}*"):
            shutil.copy(file, tmp_path / name)
    out = tmp_path / "out.json"
    assert compare(tmp_path / "sst_long_a2a", tmp_path / "sst_sleep", "--json", out).exit_code == 0
    held = json.loads(out.read_text())
    assert (held["base"]["ranks"], held["method"]["kind"]) == (4, "single captures")
