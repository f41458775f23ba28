"""``perfscope advise memory RUN --verify``: plans that are compiled already, programs that are not what they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfscope.__main__ import run
from perfscope.analyzers.hlo.buffers import assigned_memory
from perfscope.analyzers.readers.load import load_path
from perfscope.model.documents import compile_manifest
from perfscope.model.documents.compile_manifest import Checkpointed
from perfscope.plugins.ahead.common.build_key import sources_digest
from perfscope.plugins.memory_advice.compile_plans import VERIFIED, exact_command
from perfscope.plugins.memory_advice.models import step_models
from perfscope.plugins.memory_advice.plans import plan_memory
from perfscope.plugins.memory_advice.step_model_hlo import predicted_recompute, recomputed_flops
from perfscope.plugins.memory_advice.verified import setting
from tests.conftest import REPOSITORY

FIXTURES = REPOSITORY / "fixtures" / "programs-h100"
NONE = FIXTURES / "attention-policy-none"
WORDS = {"dots": "attention-policy-dots", "full": "attention-policy-full"}


def manifest_of(folder: Path, **changes: Any) -> None:
    held = compile_manifest.load(folder)
    (folder / compile_manifest.FILE).write_bytes(compile_manifest.dump(msgspec.structs.replace(held, **changes)))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiled run of ``train.py`` whose two other policies have been compiled."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import jax\n")
    digest = sources_digest(("train.py",), module=False)
    folder = tmp_path / "perfscope-runs" / "one"
    shutil.copytree(NONE, folder)
    manifest_of(folder, command=("train.py", "--lr", "0.1"), sources=digest)
    versions = compile_manifest.load(folder).versions
    for word, name in WORDS.items():
        place = folder / VERIFIED / name
        shutil.copytree(FIXTURES / name, place)
        manifest_of(place, sources=digest, versions=versions, checkpoint=Checkpointed(policy=word))
    return folder


def peak_of(name: str) -> tuple[int, int]:
    (trace,) = load_path(str(FIXTURES / name)).traces
    timeline = assigned_memory(trace.hlo[0])
    assert timeline is not None
    return timeline.peak_bytes, recomputed_flops(trace, 0)


def test_plans_beside_what_was_compiled(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "memory", str(kept), "--verify", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["checkpoint"]: row for row in document["verified"]}
    left = rows.pop(None)
    assert left["reason"] == "it divides or moves state, which no checkpoint policy does"
    assert left["compiled_peak_bytes"] is left["error"] is left["predicted_recompute_flops"] is None
    assert rows
    for word, row in rows.items():
        name = WORDS[word]
        peak, again = peak_of(name)
        assert (row["compiled_peak_bytes"], row["compiled_recompute_flops"]) == (peak, again)
        assert row["error"] == pytest.approx(row["predicted_peak_bytes"] / peak - 1, abs=1e-6)
        assert row["predicted_recompute_flops"] == pytest.approx(again, rel=0.05)
        assert row["folder"] == f"{VERIFIED}/{name}"
        assert row["kept"] is True
        assert row["reason"] == ""


def test_the_page_and_the_terminal(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "memory", str(kept), "--verify", "1", "--html", "page.html"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Verified plan --checkpoint peak predicted compiled error" in out
    assert "perfscope compile --target h100 --sweep checkpoint=none,dots,full train.py --lr 0.1 compiles all" in out
    page = (tmp_path / "page.html").read_text()
    assert "<h2>Verified</h2>" in page
    assert "Not compiled: " in page
    assert str(tmp_path) not in page.replace(str(kept), "")


def test_estimates_only_name_the_command_that_compiles(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "memory", str(kept), "--estimate", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verified"] is None
    assert any("--sweep checkpoint=none,dots,full train.py --lr 0.1" in note for note in document["notes"])


def test_peaks_are_those_of_the_compiled_policies(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "memory", str(kept), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert peak_of(WORDS["full"])[0] in {plan["peak_bytes"] for plan in document["front"]}
    assert not any("--sweep" in note for note in document["notes"])


def test_a_program_that_is_gone_leaves_estimates_with_the_reason(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").unlink()
    assert run(["advise", "memory", str(kept), "--json", "-"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("train.py: not here" in note for note in notes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("edited", "train.py: its sources are not those that one was compiled from; compile it again"),
        ("gone", "train.py: not here; --verify compiles the program again, from the folder it was started in"),
        ("secret", "its command is not kept in full (values that look like secrets are not)"),
        ("old", "it does not say from which sources it was compiled"),
    ],
)
def test_a_program_that_is_not_what_it_was(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, said: str
) -> None:
    if change == "edited":
        (tmp_path / "train.py").write_text("import jax  # another\n")
    elif change == "gone":
        (tmp_path / "train.py").unlink()
    elif change == "secret":
        manifest_of(kept, command=("train.py", "--token", "***"))
    else:
        manifest_of(kept, sources=None)
    assert run(["advise", "memory", str(kept), "--verify"]) == 4
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", [["--verify", "latest"], ["--verify", "0"], ["--verify", "-1"]])
def test_asked_wrongly(kept: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert run(["advise", "memory", str(kept), *words]) == 2
    assert capsys.readouterr().out == ""


def test_what_is_no_run_of_compile(capsys: pytest.CaptureFixture[str]) -> None:
    file = next((NONE / "programs").glob("*.hlo.pb*"))
    assert run(["advise", "memory", str(file), "--verify"]) == 2
    assert "--verify takes a run of perfscope compile" in capsys.readouterr().err


def test_commands_have_what_the_run_was_asked(kept: Path) -> None:
    manifest_of(kept, functions=("step",), until_exit=True, command=("-m", "my.train", "--name", "a b"))
    (trace,) = load_path(str(kept)).traces
    assert exact_command(trace) == (
        "perfscope compile --target h100 --function step --until-exit --sweep checkpoint=none,dots,full "
        "-m my.train --name 'a b'"
    )
    manifest_of(kept, command=("train.py", "***"))
    (trace,) = load_path(str(kept)).traces
    assert exact_command(trace) is None


def test_what_a_checkpoint_policy_cannot_set() -> None:
    steps = step_models(load_path(str(NONE)).traces)
    model = steps.models[0]
    plans = plan_memory(model, devices=8)
    assert {"none", "full"} <= {setting(plan)[0] for plan in plan_memory(model, moving=False).front} <= {"none", *WORDS}
    divided = next(plan for plan in plans.front if plan.placement.level)
    assert setting(divided) == (None, "it divides or moves state, which no checkpoint policy does")


def test_everything_kept_runs_nothing_of_the_layers_again() -> None:
    (trace,) = load_path(str(FIXTURES / "attention-policy-full")).traces
    inner = predicted_recompute(trace, 0, "keep")
    _, own = peak_of("attention-policy-none")
    assert inner == own  # the blocks of keys within a layer
    assert recomputed_flops(trace, 0) > 2 * own
