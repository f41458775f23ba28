"""What the action is asked: with which base it compares, and that no input is code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ci.jobs import LITTLE, MUCH, merged, of_pull_request, payload
from tests.ci.runner import ACTION, COMMENT, job
from tests.dashboards.hosts.fake import TOKEN, Fake, github_job, served
from tests.profiler.ab_programs import commit, git, repository


@pytest.fixture
def fake() -> Iterator[Fake]:
    with served() as running:
        yield running


class TestWhichBase:
    """What a job compares with, told by its log: the program is missing, so nothing is measured."""

    def said(
        self, folder: Path, checkout: Path, event: str, payload: dict[str, Any], base: str = "", **more: str
    ) -> str:
        one = job(folder, checkout, event, payload, **more)
        assert one.run(ACTION, {"program": "missing.py", "base": base}) != 0
        return one.step("Compare").out

    def test_of_a_merge_its_first_parent_by_name_where_it_has_one(self, tmp_path: Path) -> None:
        checkout = tmp_path / "checkout"
        merged(checkout, LITTLE, MUCH)
        base, head = (git(checkout, "rev-parse", "--short=12", name).strip() for name in ("HEAD^1", "HEAD"))
        unnamed = self.said(tmp_path / "one", checkout, "pull_request", payload(), GITHUB_BASE_REF="main")
        assert f"base {base} ({base}), head HEAD ({head})" in unnamed
        git(checkout, "update-ref", "refs/remotes/origin/main", "HEAD^1")
        named = self.said(tmp_path / "two", checkout, "pull_request", payload(), GITHUB_BASE_REF="main")
        assert f"base origin/main ({base}), head HEAD ({head})" in named

    def test_of_a_branch_where_it_began(self, tmp_path: Path) -> None:
        checkout = tmp_path / "checkout"
        began, _ = repository(checkout)
        git(checkout, "switch", "-q", "-c", "later", "HEAD~1")
        tip = commit(checkout, other="# what others did meanwhile\n")
        git(checkout, "switch", "-q", "main")
        held = payload()
        held["pull_request"]["base"]["sha"] = tip
        assert f"({began[:12]}), head HEAD" in self.said(tmp_path / "one", checkout, "pull_request", held)
        assert f"({began[:12]}), head HEAD" in self.said(tmp_path / "two", checkout, "push", {"before": "0" * 40})
        assert f"base later ({tip[:12]})" in self.said(tmp_path / "three", checkout, "push", {}, base="later")

    def test_what_the_checkout_lacks_is_fetched_if_it_is_asked_for(self, tmp_path: Path) -> None:
        origin = tmp_path / "origin"
        repository(origin)
        git(origin, "branch", "release", "HEAD~1")
        wanted = git(origin, "rev-parse", "release").strip()
        git(tmp_path, "clone", "-q", "--depth=1", f"file://{origin}", "checkout")
        checkout = tmp_path / "checkout"
        assert "fetch-depth: 0" in self.said(tmp_path / "one", checkout, "push", {"before": wanted})
        said = self.said(tmp_path / "two", checkout, "push", {}, base="release")
        assert f"base {wanted[:12]} ({wanted[:12]})" in said


class TestAskedWrongly:
    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        folder = tmp_path / "checkout"
        repository(folder)
        return folder

    @pytest.mark.parametrize(
        ("inputs", "said"),
        [
            ({}, "program: what is to be run?"),
            ({"program": "train.py 'open"}, "program: a quote is not closed"),
            ({"program": "train.py", "mode": "fast"}, "mode is ab, programs or runs"),
            ({"program": "train.py", "base": "--upload-pack=touch"}, "base is not given as one word"),
            ({"program": "train.py", "base": "nowhere"}, "the base is not in this checkout"),
            ({"program": "train.py", "head": "nowhere"}, "head is no commit"),
            ({"mode": "runs"}, "base is not given"),
            ({"program": "train.py", "target": "h100"}, "target is of mode programs"),
            ({"program": "train.py", "mode": "programs", "pairs": "3"}, "pairs, least and profile are of mode ab"),
            ({"program": "train.py", "mode": "programs", "target": "--output=x"}, "target is not given as one word"),
            ({"program": "train.py", "options": "--pairs '2"}, "options: a quote is not closed"),
        ],
    )
    def test_it_is_one_line(
        self, tmp_path: Path, checkout: Path, fake: Fake, inputs: dict[str, str], said: str
    ) -> None:
        one = of_pull_request(tmp_path / "job", checkout, fake)
        assert one.run(ACTION, inputs) == 2
        assert f"::error title=perfscope::{said}" in one.step("Compare").out
        assert one.step("Gate").skipped

    @pytest.mark.parametrize("name", ["program", "base", "head", "pairs", "fail-on", "options", "profile", "least"])
    def test_no_input_is_code(self, tmp_path: Path, checkout: Path, fake: Fake, name: str) -> None:
        bad = "$(touch pwned) `touch pwned`; touch pwned\ntouch pwned | touch pwned ${{ github.token }} * ${IN_BASE@P}"
        one = of_pull_request(tmp_path / "job", checkout, fake, token="")
        assert one.run(ACTION, {"program": "missing.py", "base": "HEAD", name: bad}) != 0
        assert not list(tmp_path.rglob("pwned"))

    def test_the_trigger_that_gives_secrets_to_strangers(self, tmp_path: Path, checkout: Path, fake: Fake) -> None:
        one = job(tmp_path / "job", checkout, "pull_request_target", payload(), **github_job(fake, token=TOKEN))
        assert one.run(ACTION, {"program": "train.py"}) == 2
        assert "pull_request_target runs a stranger's code" in one.step("Compare").out

    def test_an_artifact_without_a_report(self, tmp_path: Path, checkout: Path, fake: Fake) -> None:
        secret = tmp_path / "secret"
        secret.write_text("token")
        for at, make in enumerate((lambda path: None, lambda path: path.symlink_to(secret), lambda path: path.mkdir())):
            folder = tmp_path / f"artifact{at}"
            folder.mkdir()
            make(folder / "report.json")
            one = job(tmp_path / f"job{at}", checkout, "workflow_run", {}, **github_job(fake, token=TOKEN))
            assert one.run(COMMENT, {"report": str(folder)}) == 4
            assert "the artifact holds no report.json" in one.ran[0].out
        assert fake.seen == []

    def test_what_is_installed(self, tmp_path: Path, checkout: Path, fake: Fake) -> None:
        one = of_pull_request(tmp_path / "job", checkout, fake)
        one.run(ACTION, {"requirements": "'torch>=2.6' -r requirements.txt"})
        words = [
            "install",
            "--quiet",
            "--disable-pip-version-check",
            str(ACTION),
            "torch>=2.6",
            "-r",
            "requirements.txt",
        ]
        assert one.installed() == words
        assert one.step("Install perfscope").out.startswith("perfscope ")
        two = of_pull_request(tmp_path / "again", checkout, fake)
        two.run(ACTION, {"install": "no"})
        assert two.installed() == []
