"""``perfscope history`` from runs on disk to screen, JSON and page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.plugins.history.store.database import VARIABLE
from tests.kept_runs import ITEM, enter, put_run, repository

RUNS = Path("perfscope-runs")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Twelve commits with a run each; from the seventh on the host reads a value in each step, and it is slower."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        made = repository(folder, patch, 12)
        for number, commit in enumerate(made):
            slow = number >= 6
            step_ns = (12_000_000 if slow else 10_000_000) + 10_000 * (number % 3)
            put_run(RUNS, number, commit=commit, fixture=ITEM if slow else "cpu-attention-sdpa", step_ns=step_ns)
    return folder, made


@pytest.fixture(scope="module")
def stored(runs: tuple[Path, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same runs, all of them in the store."""
    folder = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        enter(runs[0], folder, patch)
        assert run(["history", "-q"]) == 0
    return folder


@pytest.fixture
def line(runs: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commits of the runs in the current folder, where no store is yet."""
    enter(runs[0], tmp_path, monkeypatch)
    return runs[1]


@pytest.fixture
def known(line: list[str], stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As ``line``, with the runs in the store."""
    enter(stored, tmp_path, monkeypatch)
    return line


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert run(["history", *words]) == code
    both = capsys.readouterr()
    return both.out, both.err


def test_on_the_screen(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys)
    assert err == "perfscope: took 12 new runs into perfscope-runs/store.sqlite\n"
    assert "  train: train.py on Test CPU, by commit\n" in out
    assert re.search(r"step time +12 +10\.0 ms +12\.0 ms +\+20\.\d% +▁▁▁▁▁▁██████", out)
    assert f"changed after {line[5][:12]}, up to {line[6][:12]}\n" in out
    assert re.search(r"step time 10\.0 ms → 12\.0 ms \(\+20\.\d%\), p \de-\d+", out)
    assert "reads by the host per step (structure) 0 → 1" in out
    out, err = said(capsys)
    assert err == "", "the second time nothing is new"


@pytest.mark.slow
def test_one_metric_with_its_runs(known: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, "step time")
    assert "reads by the host" not in out
    rows = [row for row in out.splitlines() if "2026" in row]
    assert len(rows) == 12
    assert [row for row in rows if "new level" in row] == [row for row in rows if known[6][:12] in row]
    assert said(capsys, "reads by", "-q")[0].count("-train-") == 12
    several = said(capsys, "OPS")[0]
    assert "ops per step" in several
    assert "FLOPs per step" in several
    assert "step time" not in several


def test_json_and_page(known: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, "--json", "-")
    held = json.loads(out)
    assert (held["schema"], held["runs"]) == ("perfscope.history/1", 12)
    series = next(one for one in held["series"] if one["metric"] == "step time")
    assert [point["commit"] for point in series["points"]] == known
    assert [(change["after_commit"], change["up_to_commit"]) for change in series["changes"]] == [(known[5], known[6])]
    out, err = said(capsys, "--html", "out.html", "--json", "out.json")
    assert out != ""
    assert err == "perfscope: wrote out.json\nperfscope: wrote out.html\n"
    assert json.loads(Path("out.json").read_text()) == held
    page = Path("out.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "default-src 'none'" in page
    assert "http" not in re.sub(r'xmlns="[^"]*"|http-equiv', "", page)
    moved = [one for one in held["series"] if len({point["value"] for point in one["points"]}) > 1]
    assert page.count('<svg class="ps-plot"') == len(moved) < len(held["series"])


@pytest.mark.slow
def test_several_commits_between_two_runs(line: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import shutil

    for number in (5, 6, 7):
        shutil.rmtree(next(RUNS.glob(f"*-train-{number:04x}")))
    assert f"changed after {line[4][:12]}, up to {line[8][:12]} (4 commits)" in said(capsys)[0]


def test_part_of_it(known: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    held = json.loads(said(capsys, "step time", "--last", "4", "--json", "-")[0])
    assert [point["commit"] for point in held["series"][0]["points"]] == known[-4:]
    assert "no runs of name other in it" in said(capsys, "--name", "other", code=4)[1]
    assert "no runs of branch topic in it" in said(capsys, "--branch", "topic", code=4)[1]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("no such metric",), 2, "no such metric: no such metric; there are "),
        (("--json", "-", "--html", "-"), 2, "stdout holds one of them"),
        (("--last", "0"), 2, "0"),
        (("--json", "no/such/folder.json"), 4, "cannot be written"),
    ],
)
def test_asked_wrongly(
    known: list[str], words: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in said(capsys, *words, code=code)[1]


def test_nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert "no runs in it; `perfscope run` makes them" in said(capsys, code=4)[1]
    assert list(tmp_path.iterdir()) == [], "asking makes no store"


@pytest.mark.slow
def test_a_run_that_cannot_be_read_is_not_in_the_way(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    next(RUNS.glob("*-train-0003")).joinpath("run.json").write_text("{")
    out, err = said(capsys, "step time")
    assert "took 11 new runs" in err
    assert "left out: " in err
    assert "run.json: not valid JSON" in err
    assert re.search(r"step time +11 ", out)


@pytest.mark.slow
def test_runs_that_failed_and_other_machines(known: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    put_run(RUNS, 20, commit=known[11], exit_code=1)
    put_run(RUNS, 21, commit=known[11], cpu="Faster CPU", step_ns=1_000_000)
    put_run(RUNS, 22, commit=known[11], cpu="Faster CPU", step_ns=1_000_000)
    out, _ = said(capsys, "step time")
    assert "train: train.py on Faster CPU, by commit" in out
    assert re.search(r"step time +2 +1\.00 ms +1\.00 ms", out)
    assert re.search(r"step time +12 +10\.0 ms", out), "the faster machine is no improvement of this series"
    assert "left out: 1 run that did not finish, or whose program failed" in out
    assert "runs of several machines are several series" in out


def test_strangers_names_are_made_fit_to_show(known: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    put_run(RUNS, 20, name="\x1b[2Jevil<script>", command=["--token", "ghp_" + "a" * 30, "</script>"])
    out, _ = said(capsys, "step time", "-v", "--html", "out.html")
    page = Path("out.html").read_text()
    assert "\x1b" not in out + page
    assert "<script>e" not in page
    assert "evil<script>" not in page
    assert page.count("</script>") == 2
    assert "ghp_" not in out + page + (RUNS / "store.sqlite").read_bytes().decode("latin-1")
