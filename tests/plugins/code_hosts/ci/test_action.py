"""The GitHub action, step by step in real checkouts, against a fake API."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.ab.repositories import commit, git, repository, sleeps
from tests.plugins.ahead.compilers import require
from tests.plugins.ahead.test_compare_commits import BARRIER, BROKEN, COMMENTED, MODEL, TRAIN
from tests.plugins.code_hosts.ci.jobs import CHEAP_WORK, EXPENSIVE_WORK, PLACE, merge_checkout, of_pull_request, payload
from tests.plugins.code_hosts.ci.runner import ACTION, COMMENT, evaluated, job, substituted
from tests.plugins.code_hosts.fake_api import BOT, TOKEN, Fake, github_job, pull, serve_fake
from tests.session.programs import LOOP

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
    with serve_fake() as running:
        yield running


@pytest.mark.torch
@pytest.mark.slow
def test_a_regression_of_a_torch_program_from_end_to_end(tmp_path: Path, fake: Fake) -> None:
    checkout = tmp_path / "checkout"
    merge_checkout(checkout, CHEAP_WORK, EXPENSIVE_WORK, train=TORCH)
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

    # The author fixes it and pushes: the same comment reports that.
    git(checkout, "switch", "-q", "faster")
    commit(checkout, work=CHEAP_WORK)
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
        merge_checkout(folder, sleeps(0.004), SLOW)
        return folder

    @pytest.mark.slow
    def test_a_fork_writes_the_artifact_and_the_second_job_posts_it(
        self, tmp_path: Path, checkout: Path, fake: Fake
    ) -> None:
        first = of_pull_request(tmp_path / "first", checkout, fake, repository="someone/model", token="")
        assert first.run(ACTION, self.ASKED) == 1
        assert fake.seen == []
        assert "not posted: the change comes from a fork" in first.step("Comment").out
        held = json.loads((tmp_path / "first" / "artifact" / "report.json").read_text())
        assert held["headline"] == "regression"

        # The following job has a token, and no checkout at all.
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

    @pytest.mark.slow
    def test_a_token_without_the_permission_is_a_warning(self, tmp_path: Path, checkout: Path, fake: Fake) -> None:
        fake.broken = [lambda _: (403, {"message": "Resource not accessible by integration"}, {})] * 9
        one = of_pull_request(tmp_path / "job", checkout, fake)
        assert one.run(ACTION, {**self.ASKED, "fail-on": "", "pairs": "2"}) == 0
        out = one.step("Comment").out
        assert "pull-requests: write" in out
        assert "::warning title=perfscope::the comment was not posted" in out
        assert TOKEN not in "".join(step.out for step in one.ran)

    @pytest.mark.slow
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


@pytest.mark.slow
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

    # Texts of recordings are not executed by the runner while they are compared.
    compare = one.step("Compare").out.splitlines()
    stop = compare[0].removeprefix("::stop-commands::")
    assert len(stop) == 32
    assert compare[-1] == f"::{stop}::"

    again = of_pull_request(tmp_path / "again", tmp_path, fake)
    assert again.run(ACTION, {**asked, "head": "before.hlo.txt"}) == 0, again.ran
    assert again.outputs["compare"]["outputs"]["verdict"] == "no change"
    (body,) = fake.bodies(7, BOT)
    assert "no change" in body


class TestWhichBase:
    """The base of a job's comparison, from its log: the program is missing, so nothing is measured."""

    def said(
        self, folder: Path, checkout: Path, event: str, payload: dict[str, Any], base: str = "", **more: str
    ) -> str:
        one = job(folder, checkout, event, payload, **more)
        assert one.run(ACTION, {"program": "missing.py", "base": base}) != 0
        return one.step("Compare").out

    @pytest.mark.slow
    def test_of_a_merge_its_first_parent_by_name_where_it_has_one(self, tmp_path: Path) -> None:
        checkout = tmp_path / "checkout"
        merge_checkout(checkout, CHEAP_WORK, EXPENSIVE_WORK)
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

    @pytest.mark.slow
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

    @pytest.mark.parametrize("name", ["program", "base", "pairs", "options"])
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


CONTEXT = {
    "github": {"event": {"before": "b"}, "token": "t"},
    "steps": {"a": {"outputs": {"x": ""}}},
    "inputs": {"fail-on": "y"},
}

EXAMPLE_ACTION = """
inputs: {word: {description: a word, default: "${{ github.token }}"}}
runs:
  using: composite
  steps:
    - {name: one, id: one, shell: bash, run: 'echo "said=$WORD" >>"$GITHUB_OUTPUT"', env: {WORD: "${{ inputs.word }}"}}
    - {name: two, shell: bash, run: 'false | true', if: "steps.one.outputs.said == 'fail'"}
    - {name: three, shell: bash, run: 'echo "$0 $PWD" >>"$GITHUB_STEP_SUMMARY"'}
"""


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("inputs.fail-on", "y"),
        ("steps.a.outputs.x != ''", False),
        ("steps.gone.outputs.x", None),
        ("github.event.pull_request.base.sha || github.event.before", "b"),
        ("github.token && inputs.fail-on", "y"),
        ("github.token == 't'", True),
    ],
)
def test_expressions(expression: str, value: object) -> None:
    assert evaluated(expression, CONTEXT) == value


def test_what_it_does_not_know_is_an_error() -> None:
    for expression in ("always()", "a ? b", "fromJSON(inputs.x)"):
        with pytest.raises(AssertionError, match="not known"):
            evaluated(expression, CONTEXT)
    assert substituted("x ${{ github.token }} ${{ github.none }}", CONTEXT) == "x t "


def test_steps_run_in_order_until_one_fails(tmp_path: Path) -> None:
    (tmp_path / "action.yml").write_text(EXAMPLE_ACTION)
    one = job(tmp_path / "job", tmp_path, "push", {}, token="t")
    assert one.run(tmp_path, {}) == 0
    assert one.outputs["one"]["outputs"] == {"said": "t"}
    assert [step.skipped for step in one.ran] == [False, True, False]
    assert str(tmp_path) in one.summary

    two = job(tmp_path / "again", tmp_path, "push", {})
    assert two.run(tmp_path, {"word": "fail"}) == 1
    assert [step.skipped for step in two.ran] == [False, False, True]
    with pytest.raises(AssertionError, match="does not have"):
        two.run(tmp_path, {"words": "x"})


def test_an_expression_in_the_shell_is_refused(tmp_path: Path) -> None:
    (tmp_path / "action.yml").write_text(EXAMPLE_ACTION.replace("false | true", "echo ${{ inputs.word }}"))
    with pytest.raises(AssertionError, match=r"inputs\.word"):
        job(tmp_path / "job", tmp_path, "push", {}).run(tmp_path, {"word": "fail"})


ASKED = {"mode": "programs", "target": "h100", "program": "train.py", "key": "programs"}


def merge_model(folder: Path, head: str) -> None:
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
        merge_model(checkout, BROKEN)
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
        merge_model(checkout, COMMENTED)
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
