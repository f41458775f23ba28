"""The GitHub action, step by step in real checkouts, against an API of our own."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.ci.jobs import LITTLE, MUCH, PLACE, merged, of_pull_request
from tests.ci.runner import ACTION, COMMENT, job
from tests.dashboards.hosts.fake import BOT, TOKEN, Fake, github_job, pull, served
from tests.profiler.ab_programs import commit, git, sleeps
from tests.profiler.programs import LOOP

QUICK = "--calibration 0 --no-confirm --seed 5"
SLOW = sleeps(0.016)

TORCH = (
    LOOP
    + """
from work import more

work(int(sys.argv[1]), after=more)
"""
)


@pytest.fixture
def fake() -> Iterator[Fake]:
    with served() as running:
        yield running


@pytest.mark.torch
@pytest.mark.slow
def test_a_regression_of_a_torch_program_from_end_to_end(tmp_path: Path, fake: Fake) -> None:
    checkout = tmp_path / "checkout"
    merged(checkout, LITTLE, MUCH, train=TORCH)
    for at in range(130):
        fake.add(7, "someone", f"comment {at}")
    forged = fake.add(7, "mallory", "<!-- perfscope-report:compare -->\nall is well")
    first = of_pull_request(tmp_path / "first", checkout, fake)
    code = first.run(ACTION, {"program": "train.py 25", "pairs": "3", "options": QUICK})
    compared = first.step("Compare")
    assert code == 1, compared.out
    assert first.outputs["compare"]["outputs"]["verdict"] == "regression"
    assert first.outputs["compare"]["outputs"]["code"] == "1"

    # Everything was kept and said before the gate.
    kept = {path.name for path in (tmp_path / "first" / "artifact").iterdir()}
    assert kept == {"report.json", "report.md", "report.html", "junit.xml"}
    (used,) = first.used
    assert used["with"]["name"] == "perfscope-report"
    assert "::error title=perfscope::a gate was not met" in first.step("Gate").out
    assert "step time" in first.summary
    suite = ET.parse(tmp_path / "first" / "artifact" / "junit.xml").getroot()
    assert suite.findall(".//failure")
    (body,) = fake.bodies(7, BOT)
    assert body.startswith("<!-- perfscope-report:compare -->\n")
    assert "regression" in body
    assert "work.py:8" in body  # the line of the products: profiled launches say the cause
    assert f"({PLACE})" in body
    assert git(checkout, "worktree", "list").count("\n") == 1
    assert git(checkout, "status", "--porcelain") == ""

    # The author mends it and pushes: the same comment says so.
    git(checkout, "switch", "-q", "faster")
    commit(checkout, work=LITTLE)
    git(checkout, "switch", "-q", "main")
    git(checkout, "merge", "-q", "--no-ff", "-m", "a merge", "faster")
    second = of_pull_request(tmp_path / "second", checkout, fake)
    code = second.run(
        ACTION,
        {"program": "train.py 25", "pairs": "2", "options": f"{QUICK} --profile 0", "base": "main~1", "fail-on": ""},
    )
    assert code == 0, second.step("Compare").out
    (mended,) = fake.bodies(7, BOT)
    assert mended != body
    assert [one.method for one in fake.seen if one.method in ("POST", "PATCH") and one.path != "/graphql"] == [
        "POST",
        "PATCH",
    ]
    assert forged["body"].endswith("all is well")


class TestWithoutTorch:
    """The same with a program of neither framework, whose launches are short."""

    ASKED: ClassVar = {"program": "train.py 25", "pairs": "6", "options": f"{QUICK} --profile 0"}

    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        folder = tmp_path / "checkout"
        merged(folder, sleeps(0.004), SLOW)
        return folder

    def test_a_fork_writes_the_artifact_and_the_second_job_posts_it(
        self, tmp_path: Path, checkout: Path, fake: Fake
    ) -> None:
        first = of_pull_request(tmp_path / "first", checkout, fake, repository="someone/model", token="")
        assert first.run(ACTION, self.ASKED) == 1
        assert fake.seen == []
        assert "not posted: the change comes from a fork" in first.step("Comment").out
        held = json.loads((tmp_path / "first" / "artifact" / "report.json").read_text())
        assert held["headline"] == "regression"

        # The job behind it has a token, and no checkout at all.
        empty = tmp_path / "empty"
        empty.mkdir()
        head = {"full_name": "someone/model", "owner": {"login": "someone"}}
        run = {"event": "pull_request", "head_sha": "a" * 40, "head_branch": "faster", "head_repository": head}
        event = {"workflow_run": {**run, "html_url": "https://github.com/octo/model/actions/runs/1"}}
        fake.pulls = [pull(41, "b" * 40), pull(42, "a" * 40)]
        second = job(tmp_path / "second", empty, "workflow_run", event, **github_job(fake, token=TOKEN))
        assert second.run(COMMENT, {"report": str(tmp_path / "first" / "artifact")}) == 0, second.ran
        assert second.installed() == ["install", "--quiet", "--disable-pip-version-check", str(ACTION)]
        (body,) = fake.bodies(42, BOT)
        assert "regression" in body
        assert "(https://github.com/octo/model/actions/runs/1)" in body
        assert fake.bodies(41, BOT) == []

    def test_a_token_without_the_permission_is_a_warning(self, tmp_path: Path, checkout: Path, fake: Fake) -> None:
        fake.broken = [lambda _: (403, {"message": "Resource not accessible by integration"}, {})] * 9
        one = of_pull_request(tmp_path / "job", checkout, fake)
        assert one.run(ACTION, {**self.ASKED, "fail-on": "", "pairs": "2"}) == 0
        out = one.step("Comment").out
        assert "pull-requests: write" in out
        assert "::warning title=perfscope::the comment was not posted" in out
        assert TOKEN not in "".join(step.out for step in one.ran)

    def test_no_comment_where_none_is_wanted_or_there_is_no_pull_request(
        self, tmp_path: Path, checkout: Path, fake: Fake
    ) -> None:
        asked = {**self.ASKED, "program": "-m train 25", "fail-on": "", "pairs": "2"}
        assert of_pull_request(tmp_path / "off", checkout, fake).run(ACTION, {**asked, "comment": "no"}) == 0
        before = git(checkout, "rev-parse", "HEAD^1").strip()
        pushed = job(tmp_path / "push", checkout, "push", {"before": before}, **github_job(fake, token=TOKEN))
        assert pushed.run(ACTION, asked) == 0
        assert "nothing to comment on" in pushed.step("Comment").out
        assert fake.seen == []

    def test_a_program_that_fails_is_told_and_leaves_no_report(
        self, tmp_path: Path, checkout: Path, fake: Fake
    ) -> None:
        one = of_pull_request(tmp_path / "job", checkout, fake)
        assert one.run(ACTION, {"program": "missing.py"}) == 4
        assert [step.name for step in one.ran if step.skipped] == ["Draw the report", "Keep the report", "Comment"]
        said = one.step("Compare").out
        assert "exit code 2" in said
        assert "can't open file" in said[said.index("the last lines of the program") :]
        assert "ended with code 4" in one.step("Gate").out
        assert (one.used, fake.seen) == ([], [])


PROGRAM = """HloModule jit_step

ENTRY %main.4 (p.1: f32[64,64]) -> f32[64,64] {{
  %p.1 = f32[64,64]{{1,0}} parameter(0)
{lines}
}}
"""
DOT = "%dot.{at} = f32[64,64]{{1,0}} dot(%{of}, %p.1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"


def compiled(products: int) -> str:
    """A compiled program of that many matrix products."""
    lines = [DOT.format(at=at, of=f"dot.{at - 1}" if at > 2 else "p.1") for at in range(2, products + 2)]
    lines[-1] = f"ROOT {lines[-1]}"
    return PROGRAM.format(lines="\n".join(f"  {line}" for line in lines))


def test_two_recordings_that_earlier_steps_made(tmp_path: Path, fake: Fake) -> None:
    for name, products in (("before", 1), ("after", 2)):
        (tmp_path / f"{name}.hlo.txt").write_text(compiled(products))
    asked = {"mode": "runs", "base": "before.hlo.txt", "head": "after.hlo.txt", "key": "flops", "artifact": "flops"}
    one = of_pull_request(tmp_path / "job", tmp_path, fake)
    assert one.run(ACTION, {**asked, "fail-on": "regression,finding:high"}) == 1, one.ran
    assert one.used[0]["with"]["name"] == "flops"
    (body,) = fake.bodies(7, BOT)
    assert body.startswith("<!-- perfscope-report:flops -->")
    assert "524 k | 1.05 M" in body

    # What recordings say is no order to the runner while they are compared.
    compare = one.step("Compare").out.splitlines()
    stop = compare[0].removeprefix("::stop-commands::")
    assert len(stop) == 32
    assert compare[-1] == f"::{stop}::"

    again = of_pull_request(tmp_path / "again", tmp_path, fake)
    assert again.run(ACTION, {**asked, "head": "before.hlo.txt"}) == 0, again.ran
    assert again.outputs["compare"]["outputs"]["verdict"] == "no change"
    (body,) = fake.bodies(7, BOT)
    assert "no change" in body
