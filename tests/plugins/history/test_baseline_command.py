"""``perfscope baseline`` and comparisons with baselines: selection, messages, and what is kept of a run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.history.baselines import resolved, sides
from tests.kept_runs import ITEM, enter, put_run, repository
from tests.session.test_environment import git

RUNS = Path("perfscope-runs")


@pytest.fixture(scope="module")
def commits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A repository with six commits, the oldest first, and nothing else in it."""
    folder = tmp_path_factory.mktemp("commits")
    with pytest.MonkeyPatch.context() as patch:
        return folder, repository(folder, patch, 6)


@pytest.fixture(scope="module")
def baselines(commits: tuple[Path, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Baselines ``main`` at commits 1 and 3, set in the other order; a run at 5 is HEAD."""
    template, line = commits
    folder = tmp_path_factory.mktemp("baselines")
    with pytest.MonkeyPatch.context() as patch:
        enter(template, folder, patch)
        runs = [put_run(RUNS, number, commit=line[number]) for number in (1, 3, 5)]
        for one in (runs[1], runs[0]):
            assert run(["baseline", "set", "main", str(one)]) == 0
    return folder


@pytest.fixture
def line(commits: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commits of a repository in the current folder."""
    enter(commits[0], tmp_path, monkeypatch)
    return commits[1]


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """Output of a command on both streams, folded lines joined."""
    capsys.readouterr()
    assert run(list(words)) == code
    both = capsys.readouterr()
    return re.sub(r"\s+", " ", both.out + both.err)


def test_set_list_and_remove(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (put_run(RUNS, number, commit=line[number]) for number in range(2))
    text = said(capsys, "baseline", "set", "main", str(first))
    assert text.startswith(f"baseline main: {first.name} of {line[0][:12]}; ")
    assert "files kept in perfscope-runs/store.sqlite" in text
    said(capsys, "baseline", "set", "main", second.name)
    assert f"main {second.name} {line[1][:12]}" in said(capsys, "baseline", "list")
    rows = json.loads(said(capsys, "baseline", "list", "main", "--json"))
    assert [(row["run"], row["commit"], row["program"]) for row in rows] == [
        (second.name, line[1], "train"), (first.name, line[0], "train")
    ]  # fmt: skip
    assert rows[0]["packed_bytes"] > 10_000
    assert said(capsys, "baseline", "rm", "main", first.name).startswith("baseline main: removed 1 run from")
    assert said(capsys, "baseline", "rm", "main").startswith("baseline main: removed 1 run from")
    assert "no such baseline" in said(capsys, "baseline", "rm", "main", code=4)
    assert "no baselines in" in said(capsys, "baseline", "list")


def test_the_branch_is_kept_where_git_knows_it(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    put_run(RUNS, 0, commit=line[5])
    put_run(RUNS, 1, commit=line[4])
    for number in range(2):
        said(capsys, "baseline", "set", f"b{number}", str(sorted(RUNS.glob("2026*"))[number]))
    rows = json.loads(said(capsys, "baseline", "list", "--json"))
    assert {row["name"]: row["branch"] for row in rows} == {"b0": "main", "b1": None}


@pytest.mark.slow
def test_the_branch_of_the_manifest_goes_before(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run_ = put_run(RUNS, 0, commit=line[5])
    raw = json.loads((run_ / "run.json").read_text())
    raw["git"]["branch"] = "topic"
    (run_ / "run.json").write_text(json.dumps(raw))
    said(capsys, "baseline", "set", "a", str(run_))
    assert json.loads(said(capsys, "baseline", "list", "--json"))[0]["branch"] == "topic"
    said(capsys, "store", "import", str(run_), "--branch", "other", "--again")
    assert json.loads(said(capsys, "baseline", "list", "--json"))[0]["branch"] == "other"


@pytest.mark.slow
def test_it_is_compared_in_full_when_its_folder_is_gone(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    base, head = put_run(RUNS, 0, commit=line[0]), put_run(RUNS, 1, commit=line[1], fixture=ITEM)
    said(capsys, "compare", str(base), str(head), "--json", "whole.json", "-q")
    said(capsys, "baseline", "set", "main", str(base))
    assert resolved("baseline:main") == str(RUNS / base.name), "its own folder, while that is there"
    shutil.rmtree(base)
    text = said(
        capsys, "compare", "baseline:main", str(head), "--json", "again.json", "--fail-on", "regression", code=1
    )
    assert "regression" in text
    whole, again = (json.loads(Path(name).read_text()) for name in ("whole.json", "again.json"))
    assert again["metrics"] == whole["metrics"]
    assert again["causes"] == whole["causes"]
    assert again["step"] == whole["step"]
    assert again["findings"] == whole["findings"]
    unpacked = Path(resolved("baseline:main"))
    assert unpacked.is_relative_to(RUNS / ".baselines")
    assert [path.name for path in sorted(RUNS.iterdir())] == [".baselines", head.name, "store.sqlite"]
    assert "1 run," in said(capsys, "store", "status"), "what was unpacked is no run of this folder"


def test_a_folder_that_was_written_again_is_not_the_baseline(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    base = put_run(RUNS, 0, commit=line[0])
    said(capsys, "baseline", "set", "main", str(base))
    shutil.rmtree(base)
    put_run(RUNS, 0, commit=line[3], fixture=ITEM)
    path = Path(resolved("baseline:main"))
    assert ".baselines" in path.parts
    assert json.loads((path / "run.json").read_text())["git"]["commit"] == line[0]


def test_a_folder_that_lost_a_recording_is_not_the_baseline(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    base = put_run(RUNS, 0, commit=line[0])
    said(capsys, "baseline", "set", "main", str(base))
    next(path for path in (base / "rank00000").iterdir() if path.name.startswith("timing")).unlink()
    assert ".baselines" in Path(resolved("baseline:main")).parts


@pytest.mark.parametrize("hostile", ["..", ".", "../..", "/etc", ".baselines"])
def test_an_id_from_a_strangers_store_leads_nowhere(
    line: list[str], hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from msgspec.structs import replace

    from perfscope.plugins.history import run_record
    from perfscope.plugins.history.store.runs import RunStore
    from tests.plugins.history.records import stored_run

    RunStore(RUNS / "store.sqlite").set_baseline("main", replace(stored_run(), id=hostile), None)
    monkeypatch.setattr(run_record, "uid_of", lambda place: pytest.fail(f"{place} was read"))
    with pytest.raises(DataError, match="only the numbers are in"):
        resolved("baseline:main")


def notes(base: str | None, head: str | None, baseline: str | None) -> tuple[str, str]:
    """The baseline run, and all notes."""
    found = sides(base, head, baseline)
    return Path(found.base).name, " | ".join(found.notes)


@pytest.fixture
def kept(line: list[str], baselines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The runs of ``baselines``, in the current folder."""
    enter(baselines, tmp_path, monkeypatch)
    return sorted(RUNS.glob("*-train-*"))


def test_the_baseline_that_heads_commit_comes_from(kept: list[Path], line: list[str]) -> None:
    name, words = notes("latest", None, "main") if (RUNS / "latest").exists() else notes(str(kept[2]), None, "main")
    assert name == kept[1].name
    assert words == f"baseline main: {kept[1].name} of {line[3][:12]}, 2 commits before HEAD"
    older = put_run(RUNS, 10, commit=line[2])
    assert notes(str(older), None, "main")[0] == kept[0].name, "a later one is not where its code comes from"
    assert notes(None, str(older), "main")[0] == kept[0].name
    assert notes(None, None, str(older))[0] == kept[0].name, "--baseline HEAD: of any name"


def test_another_branch_has_the_merge_base(kept: list[Path], line: list[str], tmp_path: Path) -> None:
    git(tmp_path, "checkout", "-q", "-b", "topic", line[2])
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "topic")
    head = put_run(RUNS, 10, commit=git(tmp_path, "rev-parse", "HEAD"))
    name, words = notes(str(head), None, "main")
    assert name == kept[0].name
    assert "2 commits before HEAD" in words


def test_heads_own_commit_is_taken_last(kept: list[Path], line: list[str]) -> None:
    """A job that runs twice must not be compared with itself, unless the code is another or there is nothing else."""
    again = put_run(RUNS, 10, commit=line[3])
    assert notes(str(again), None, "main")[0] == kept[0].name
    dirty = put_run(RUNS, 11, commit=line[3], dirty=True)
    name, words = notes(str(dirty), None, "main")
    assert name == kept[1].name
    assert "HEAD's own commit" in words
    first = put_run(RUNS, 12, commit=line[1])
    name, words = notes(str(first), None, "main")
    assert (name, "HEAD's own commit" in words) == (kept[0].name, True)


def test_heads_own_run_is_no_baseline_of_it(kept: list[Path]) -> None:
    assert notes(str(kept[1]), None, "main")[0] == kept[0].name


def test_git_knows_no_way(kept: list[Path], tmp_path: Path) -> None:
    head = put_run(RUNS, 10, commit="f" * 40)
    name, words = notes(str(head), None, "main")
    assert name == kept[0].name, "set last"
    assert "git finds no path from it to HEAD" in words
    assert "shallow clone?" in words
    (tmp_path / ".git").rename(tmp_path / "git-is-gone")
    assert "git finds no path" in notes(str(kept[2]), None, "main")[1]


def test_the_same_machine_before_a_nearer_commit(
    kept: list[Path], line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    nearer = put_run(RUNS, 10, commit=line[4], cpu="Other CPU")
    said(capsys, "baseline", "set", "main", str(nearer))
    assert notes(str(kept[2]), None, "main")[0] == kept[1].name
    elsewhere = put_run(RUNS, 11, commit=line[5], cpu="Third CPU")
    name, words = notes(str(elsewhere), None, "main")
    assert name == nearer.name
    assert "the baseline ran on another machine (Other CPU, x86_64, Linux; HEAD on Third CPU, x86_64, Linux)" in words


def test_without_a_name_the_program_is_the_same(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    train = put_run(RUNS, 0, commit=line[0])
    other = put_run(RUNS, 1, commit=line[1], name="other")
    for name, one in (("a", train), ("b", other)):
        said(capsys, "baseline", "set", name, str(one))
    head = put_run(RUNS, 2, commit=line[2])
    assert notes(str(head), None, "")[0] == train.name
    stranger = put_run(RUNS, 3, commit=line[2], name="stranger")
    with pytest.raises(DataError, match=r"^--baseline: no such baseline of stranger in .*; there are a, b"):
        notes(str(stranger), None, "")


def test_other_arguments_are_told(kept: list[Path], line: list[str]) -> None:
    head = put_run(RUNS, 10, commit=line[5], command=["train.py", "--large"])
    assert "the baseline is of another command: train.py" in notes(str(head), None, "main")[1]


@pytest.mark.slow
def test_what_is_said_is_in_every_report(kept: list[Path], line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "compare", "--baseline", "main", str(kept[2]), "--json", "out.json")
    words = f"baseline main: {kept[1].name} of {line[3][:12]}, 2 commits before HEAD"
    assert words in text
    assert words in json.loads(Path("out.json").read_text())["notes"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("compare", "baseline:nope", "latest"), 4, "baseline:nope: no such baseline in perfscope-runs/store.sq"),
        (("compare", "baseline:", "latest"), 4, "no such baseline"),
        (("compare", "--baseline", "nope", "RUN"), 4, "no such baseline"),
        (("compare", "--baseline", "main", "RUN", "RUN"), 2, "give HEAD alone"),
        (("compare", "--baseline",), 2, "needs HEAD"),
        (("compare", "--baseline", "main", "gone"), 4, "gone: no such file"),
        (("compare", "RUN"), 2, "compare needs BASE and HEAD"),
        (("compare", "--strict"), 2, "compare needs BASE and HEAD"),
        (("baseline", "set", "a b", "RUN"), 2, "invalid baseline name"),
        (("baseline", "set", "main", "gone"), 4, "gone: no such file"),
        (("baseline", "set", "main", "RUN", "--commit", "HEAD"), 2, "--commit HEAD: not a commit's hash"),
        (("baseline", "set", "main", "RUN", "--store", "mysql://me:secret@host"), 2, "scheme mysql://"),
        (("baseline", "rm", "main", "gone"), 4, "gone: no such run"),
    ],
)  # fmt: skip
def test_asked_wrongly(
    kept: list[Path], words: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = said(capsys, *(str(kept[2]) if word == "RUN" else word for word in words), code=code)
    assert text in found
    assert "secret" not in found


@pytest.mark.slow
def test_numbers_only_and_too_large(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    base, head = put_run(RUNS, 0, commit=line[0]), put_run(RUNS, 1, commit=line[1])
    (base / "extra").write_bytes(bytes(range(256)) * 4)
    import random

    (base / "large").write_bytes(random.Random(0).randbytes(3 << 20))
    assert "more than 1 MiB packed" in said(capsys, "baseline", "set", "main", str(base), "--most-mib", "1", code=4)
    assert "no baselines" in said(capsys, "baseline", "list")
    assert "its numbers kept" in said(capsys, "baseline", "set", "main", str(base), "--numbers-only")
    assert run(["compare", "baseline:main", str(head), "-q", "--json", "x.json"]) == 0
    shutil.rmtree(base)
    assert "only the numbers are in" in said(capsys, "compare", "baseline:main", str(head), code=4)


def test_old_ones_are_let_go(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    runs = [put_run(RUNS, number, commit=line[number]) for number in range(3)]
    for one in runs[:2]:
        said(capsys, "baseline", "set", "main", str(one), "--keep", "2")
    assert f"let go: {runs[0].name} (--keep 2)" in said(capsys, "baseline", "set", "main", str(runs[2]), "--keep", "2")


def test_a_run_that_failed_is_told(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    failed = put_run(RUNS, 0, commit=line[0], exit_code=1)
    assert "its program failed: compare with care" in said(capsys, "baseline", "set", "main", str(failed))


def test_a_store_that_cannot_be_used_is_told_first(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    base = put_run(RUNS, 0, commit=line[0])
    (RUNS / "store.sqlite").write_bytes(b"no store" * 1000)
    for words in (
        ("baseline", "set", "main", str(base)),
        ("baseline", "list"),
        ("compare", "baseline:main", str(base)),
    ):
        assert "perfscope-runs/store.sqlite: damaged, or not a store" in said(capsys, *words, code=4)
    assert (RUNS / "store.sqlite").read_bytes() == b"no store" * 1000


def test_a_recording_as_baseline(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run_ = put_run(RUNS, 0)
    trace = next(path for path in (run_ / "rank00000").iterdir() if path.name.startswith("timing"))
    shutil.copy(trace, "base.json.gz")
    shutil.copy(trace, "head.json.gz")
    said(capsys, "baseline", "set", "main", "base.json.gz", "--commit", line[0])
    Path("base.json.gz").unlink()
    with pytest.raises(DataError, match="no such baseline"):
        sides("head.json.gz", None, "main")  # the very same bytes are the same recording
    assert Path(resolved("baseline:main")).read_bytes() == trace.read_bytes()


def test_two_of_them_can_be_compared(kept: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = sides("baseline:main", str(kept[2]), None)
    assert Path(found.base).name == kept[0].name, "the newest that was set"
    with pytest.raises(UsageError):
        sides("baseline:main", None, None)
