"""The GitHub action without a GPU: two commits compiled for a machine that is not there, in real checkouts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aot import require
from tests.ci.jobs import of_pull_request
from tests.ci.runner import ACTION
from tests.commands.test_compare_programs import BARRIER, BROKEN, COMMENTED, MODEL, TRAIN
from tests.dashboards.hosts.fake import BOT, Fake, served
from tests.profiler.ab_programs import commit, git, repository

ASKED = {"mode": "programs", "target": "h100", "program": "train.py", "key": "programs"}


@pytest.fixture
def fake() -> Iterator[Fake]:
    with served() as running:
        yield running


def merged(folder: Path, head: str) -> None:
    """As GitHub checks out a pull request whose branch makes ``head`` of the model."""
    repository(folder, MODEL, MODEL)
    commit(folder, train=TRAIN)
    git(folder, "switch", "-q", "-c", "topic")
    commit(folder, work=head)
    git(folder, "switch", "-q", "main")
    commit(folder, other="# what others did meanwhile\n")
    git(folder, "merge", "-q", "--no-ff", "-m", "a merge", "topic")


@pytest.mark.aot
@pytest.mark.jax
@pytest.mark.slow
class TestForAnH100:
    @pytest.fixture(autouse=True)
    def compiler(self) -> None:
        require("gpu-nvidia")

    def test_a_broken_fusion_fails_the_job_and_names_its_line(self, tmp_path: Path, fake: Fake) -> None:
        checkout = tmp_path / "checkout"
        merged(checkout, BROKEN)
        one = of_pull_request(tmp_path / "job", checkout, fake)
        one.variables["PERFSCOPE_PLUGINS"] = os.environ.get("PERFSCOPE_PLUGINS", "")
        assert one.run(ACTION, ASKED) == 1, one.step("Compare").out
        assert one.outputs["compare"]["outputs"]["verdict"] == "regression"
        kept = tmp_path / "job" / "artifact"
        assert {path.name for path in kept.iterdir()} == {"report.json", "report.md", "report.html", "junit.xml"}
        held = json.loads((kept / "report.json").read_text())
        assert held["programs"][0]["rows"][0]["source"] == BARRIER
        (body,) = fake.bodies(7, BOT)
        assert body.startswith("<!-- perfscope-report:programs -->\n")
        assert "lost-fusions" in body
        assert body.index(BARRIER) < body.index("By instruction")
        assert BARRIER in one.summary
        file, line = BARRIER.split(":")
        assert f"::error file={file},line={line},title=perfscope" in one.step("Draw the report").out
        assert "::error title=perfscope::a gate was not met" in one.step("Gate").out
        assert git(checkout, "worktree", "list").count("\n") == 1
        assert git(checkout, "status", "--porcelain") == ""

    def test_a_comment_in_the_code_passes(self, tmp_path: Path, fake: Fake) -> None:
        checkout = tmp_path / "checkout"
        merged(checkout, COMMENTED)
        one = of_pull_request(tmp_path / "job", checkout, fake)
        one.variables["PERFSCOPE_PLUGINS"] = os.environ.get("PERFSCOPE_PLUGINS", "")
        assert one.run(ACTION, ASKED) == 0, one.step("Compare").out
        assert one.outputs["compare"]["outputs"]["verdict"] == "no change"
        (body,) = fake.bodies(7, BOT)
        assert "identical: same fingerprint" in body
        assert len(body.splitlines()) == 2


def test_the_compiler_is_installed_into_a_folder_of_its_own(tmp_path: Path, fake: Fake) -> None:
    checkout = tmp_path / "checkout"
    repository(checkout)
    one = of_pull_request(tmp_path / "job", checkout, fake)
    asked = {
        **ASKED,
        "base": "HEAD~1",
        "program": "missing.py",
        "plugins": "jax-cuda13-pjrt==0.10.2 'jax-cuda13-plugin==0.10.2'",
    }
    assert one.run(ACTION, asked) in (2, 4)
    held = one.installed()
    at = held.index("--no-deps")
    assert held[at + 1 :] == [
        "--target", str(one.temp / "perfscope-plugins"), "jax-cuda13-pjrt==0.10.2", "jax-cuda13-plugin==0.10.2",
    ]  # fmt: skip
    assert fake.seen == []
