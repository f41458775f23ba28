"""``perfscope store``: in, out, what is in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.plugins.history.store.database import VARIABLE
from perfscope.plugins.history.store.runs import RunStore
from tests.kept_runs import ITEM, put_run
from tests.plugins.history.records import stored_run

RUNS = Path("perfscope-runs")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert run(["store", *words]) == code
    both = capsys.readouterr()
    return both.out + both.err


def test_a_folder_of_runs_one_run_and_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no store yet" in said(capsys, "status")
    for number in range(3):
        put_run(RUNS, number)
    assert said(capsys, "import", "perfscope-runs") == "perfscope-runs: 3 runs added to perfscope-runs/store.sqlite\n"
    assert "0 runs added" in said(capsys, "import", "perfscope-runs")
    other = put_run(Path("elsewhere"), 9, fixture=ITEM)
    assert said(capsys, "import", str(other)) == f"{other.name}: added to perfscope-runs/store.sqlite\n"
    assert said(capsys, "import", str(other)) == f"{other.name}: is in perfscope-runs/store.sqlite\n"
    trace = next(path for path in (other / "rank00000").iterdir() if path.name.startswith("timing"))
    assert f"{trace.name}: added to" in said(capsys, "import", str(trace))
    assert "schema 1, 5 runs, the newest of 20" in said(capsys, "status")
    held = json.loads(said(capsys, "status", "--json"))
    assert (held["schema"], held["runs"], held["baselines"], held["packed_bytes"]) == (1, 5, 0, 0)


def test_runs_are_counted_again_where_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    place = put_run(RUNS, 0)
    said(capsys, "import", "perfscope-runs")
    store = RunStore(RUNS / "store.sqlite")
    record = store.runs()[0]
    from msgspec.structs import replace

    store.put(replace(record, metrics=(), perfscope="0.0.1"), again=True)
    assert "is in" in said(capsys, "import", str(place))
    assert store.runs()[0].metrics == ()
    assert "counted again in" in said(capsys, "import", "perfscope-runs", "--again")
    assert store.runs() == (record,)


def test_a_branch_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    place = put_run(RUNS, 0, commit="a" * 40)
    said(capsys, "import", str(place), "--branch", "main")
    assert RunStore(RUNS / "store.sqlite").runs()[0].branch == "main"


@pytest.mark.slow
def test_out_of_one_store_and_into_another(capsys: pytest.CaptureFixture[str]) -> None:
    base, head = put_run(RUNS, 0), put_run(RUNS, 1, fixture=ITEM, name="other")
    for name, place in (("main", base), ("other", head)):
        assert run(["baseline", "set", name, str(place)]) == 0
    text = said(capsys, "export", "all.tar")
    assert text.startswith("all.tar: 2 runs, 2 baselines, files of 2 (")
    assert said(capsys, "export", "one.tar", "--name", "train", "--numbers-only").startswith(
        "one.tar: 1 run, 1 baseline, files of 0"
    )
    shutil.rmtree(RUNS)
    assert said(capsys, "import", "all.tar") == (
        "all.tar: 2 runs and 2 baselines added to perfscope-runs/store.sqlite (0 were there)\n"
    )
    assert "0 runs and 0 baselines added to perfscope-runs/store.sqlite (4 were there)" in said(
        capsys, "import", "all.tar"
    )
    assert run(["compare", "baseline:main", "baseline:other", "-q", "--json", "out.json"]) == 0
    held = json.loads(Path("out.json").read_text())
    assert held["headline"] == "regression"
    assert base.name in held["base"]["paths"][0]
    assert head.name in held["head"]["paths"][0]


def test_texts_of_an_export_are_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    from perfscope.plugins.history.store.exchange import export

    theirs = RunStore(Path("theirs.sqlite"))
    theirs.put(stored_run(0, notes=("\x1b[2Jclear", "token=abcdefgh12345"), command=("/home/alice/train.py",)))
    export(theirs, Path("theirs.tar"), runs=theirs.runs())
    said(capsys, "import", "theirs.tar")
    mine = RunStore(RUNS / "store.sqlite").runs()[0]
    assert mine.notes == ("clear", "token=[hidden]")
    assert mine.command == ("~/train.py",)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("import", "gone"), 4, "gone: no such file"),
        (("import", "text"), 4, "text: "),
        (("import", "broken"), 4, "broken: none of its runs could be read"),
        (("import", "text", "--store", "text"), 4, "text: damaged, or not a store"),
        (("export", "out.tar"), 4, "nothing to export"),
        (("export", "no/out.tar", "--store", "full.sqlite"), 4, "no/out.tar: cannot be written"),
        (("import",), 2, "PATH"),
        (("status", "--store", "text"), 4, "text: damaged, or not a store"),
        (("status", "--store", "redis://x"), 2, "scheme redis://"),
        (("migrate", "--store", "text"), 4, "text: damaged, or not a store"),
    ],
)
def test_what_cannot_be(words: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("text").write_text("neither a store nor a trace " * 100)
    put_run(Path("broken"), 0).joinpath("run.json").write_text("{")
    RunStore(Path("full.sqlite")).put(stored_run(0))
    before = Path("text").read_bytes()
    found = said(capsys, *words, code=code)
    assert text in found
    assert found.count("internal error") == 0
    assert Path("text").read_bytes() == before


def test_migrate_says_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    RunStore(Path("s.sqlite")).put(stored_run(0))
    assert (
        said(capsys, "migrate", "--store", "s.sqlite")
        == "s.sqlite: schema 1, needs a perfscope with schema 1 or later\n"
    )


def test_the_store_by_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(VARIABLE, "mine.sqlite")
    put_run(RUNS, 0)
    assert "1 run added to mine.sqlite" in said(capsys, "import", "perfscope-runs")
    assert not (RUNS / "store.sqlite").exists()


def test_a_store_among_runs_is_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    put_run(RUNS, 0)
    said(capsys, "import", "perfscope-runs")
    capsys.readouterr()
    assert run(["analyze", "perfscope-runs"]) == 0


@pytest.mark.parametrize("arguments", [["baseline"], ["store"], ["help", "baseline"]])
def test_a_group_alone_shows_its_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert f"Usage: perfscope {arguments[-1]}" in capsys.readouterr().out


def test_a_typo_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["baseline", "lst"]) == 2
    assert "list" in capsys.readouterr().err.lower().partition("did you mean")[2]
