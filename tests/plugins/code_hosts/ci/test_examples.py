"""The action and the examples as files: valid, pinned, of few rights, no code made of text; and docs/ci.md is true."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfscope.analyzers.compare.statistics.estimators import quantile
from perfscope.analyzers.compare.statistics.paired import looks_for
from tests.ab.repositories import git, sleeps
from tests.conftest import REPOSITORY
from tests.plugins.code_hosts.ci.jobs import merge_checkout
from tests.plugins.code_hosts.ci.runner import COMMENT, Job
from tests.plugins.code_hosts.fake_api import GITLAB_BOT, TOKEN, Fake, github_job, gitlab_job, serve_fake

EXAMPLES = REPOSITORY / "ci" / "examples"
ACTIONS = [REPOSITORY / "action.yml", COMMENT / "action.yml"]
WORKFLOWS = sorted(EXAMPLES.glob("github*.yml"))
SCRIPTS = sorted((REPOSITORY / "ci").rglob("*.sh"))
PAGE = (REPOSITORY / "docs" / "ci.md").read_text()
PINNED = re.compile(r"uses: [\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
PLACEHOLDER = re.compile(r"uses: OWNER/perfscope(/ci/comment)?@COMMIT$")


def held(path: Path) -> dict[str, Any]:
    """The file's YAML. The key ``on`` is true to YAML 1.1."""
    found = yaml.safe_load(path.read_text())
    return {("on" if name is True else name): value for name, value in found.items()}


def jobs(path: Path) -> list[dict[str, Any]]:
    return list(held(path)["jobs"].values())


def schema(name: str) -> dict[str, Any]:
    """The published schema, as check-jsonschema carries it."""
    package = pytest.importorskip("check_jsonschema")
    folder = Path(package.__file__).parent / "builtin_schemas" / "vendor"
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *((path, "github-actions") for path in ACTIONS),
        *((path, "github-workflows") for path in WORKFLOWS),
        (EXAMPLES / "gitlab-ci.yml", "gitlab-ci"),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else value,
)
def test_the_published_schema_accepts_it(path: Path, name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft7Validator(schema(name)).validate(held(path))


@pytest.mark.parametrize("path", [*ACTIONS, *WORKFLOWS], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_others_wrote_is_pinned_by_its_commit(path: Path) -> None:
    lines = [line.strip().removeprefix("- ") for line in path.read_text().splitlines() if "uses:" in line]
    assert [line for line in lines if not PINNED.search(line) and not PLACEHOLDER.search(line)] == []


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: path.parent.name)
def test_a_step_is_given_what_its_script_reads(path: Path) -> None:
    """And no input is part of a command's text."""
    for step in held(path)["runs"]["steps"]:
        if "run" not in step:
            continue
        assert "${{" not in step["run"]
        (name,) = re.findall(r'"\$GITHUB_ACTION_PATH/([\w./]+)"', step["run"])
        script = (path.parent / name).read_text()
        read = set(re.findall(r"\b(IN_[A-Z_]+|REPORT|ARTIFACT_URL|CODE|BASE_SHA)\b", script)) | {"IN_PYTHON"}
        optional = {"IN_PYTHON"} if name == "ci/gate.sh" else set()
        assert set(step["env"]) - {"GITHUB_TOKEN"} == read - optional, name


def test_only_the_step_that_posts_has_the_token() -> None:
    for path in ACTIONS:
        with_token = [step["name"] for step in held(path)["runs"]["steps"] if "token" in json.dumps(step)]
        assert with_token == ["Comment" if path.parent == REPOSITORY else "Post the report"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_bash_and_strict(path: Path) -> None:
    assert subprocess.run(["bash", "-n", str(path)], capture_output=True).returncode == 0
    text = path.read_text()
    assert "${{" not in text
    assert "eval " not in text
    if path.name != "words.sh":
        assert "set -euo pipefail" in text


class TestWorkflows:
    @pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
    def test_permissions_are_given_by_the_job_and_are_few(self, path: Path) -> None:
        assert held(path)["permissions"] == {}
        writes = {name for one in jobs(path) for name, right in one["permissions"].items() if right == "write"}
        assert writes <= {"pull-requests"}
        assert all("timeout-minutes" in one for one in jobs(path))

    @pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
    def test_no_strangers_code_beside_a_secret(self, path: Path) -> None:
        triggers = held(path)["on"]
        assert "pull_request_target" not in triggers
        used = [step["uses"] for one in jobs(path) for step in one["steps"]]
        if "workflow_run" in triggers:
            assert not [name for name in used if "checkout" in name]
        assert "secrets." not in path.read_text()
        assert not [step for one in jobs(path) for step in one["steps"] if "run" in step]

    @pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
    def test_inputs_are_those_of_the_action(self, path: Path) -> None:
        for step in [step for one in jobs(path) for step in one["steps"] if "OWNER/perfscope" in step["uses"]]:
            action = ACTIONS[1] if "ci/comment" in step["uses"] else ACTIONS[0]
            assert set(step["with"]) <= set(held(action)["inputs"])

    def test_checkouts_leave_no_token_behind(self) -> None:
        steps = [step for path in WORKFLOWS for one in jobs(path) for step in one["steps"]]
        assert [step["with"] for step in steps if "checkout" in step["uses"]] == [
            {"fetch-depth": 0, "persist-credentials": False}
        ] * 3

    def test_the_two_jobs_find_each_other(self) -> None:
        first, second = held(EXAMPLES / "github-compare.yml"), held(EXAMPLES / "github-comment.yml")
        assert second["on"]["workflow_run"]["workflows"] == [first["name"]]
        (download,) = [step for step in jobs(EXAMPLES / "github-comment.yml")[0]["steps"] if "download" in step["uses"]]
        assert download["with"]["name"] == held(ACTIONS[0])["inputs"]["artifact"]["default"]
        assert jobs(EXAMPLES / "github-compare.yml")[0]["permissions"] == {"contents": "read"}


class TestGitLab:
    """The scripts of the example's jobs, line by line, in one checkout."""

    @pytest.fixture
    def fake(self) -> Iterator[Fake]:
        with serve_fake() as running:
            yield running

    def job(self, name: str, folder: Path, checkout: Path, variables: dict[str, str]) -> int:
        example = held(EXAMPLES / "gitlab-ci.yml")
        variables = {**example[name].get("variables", {}), "PERFSCOPE": "perfscope", **variables}
        quick = "--pairs 6 --calibration 0 --no-confirm --profile 0"
        lines = [line.replace("--pairs 10", quick).replace("--steps 200", "25") for line in example[name]["script"]]
        return shell(Job(folder=folder, checkout=checkout, github={}, variables=variables), lines)

    @pytest.mark.slow
    def test_a_regression_fails_one_job_and_the_next_keeps_a_note(self, tmp_path: Path, fake: Fake) -> None:
        checkout = tmp_path / "checkout"
        merge_checkout(checkout, sleeps(0.004), sleeps(0.016))
        base, head = (git(checkout, "rev-parse", name).strip() for name in ("HEAD~1", "HEAD"))
        commits = {"CI_MERGE_REQUEST_DIFF_BASE_SHA": base, "CI_COMMIT_SHA": head}
        ci = gitlab_job(fake, CI_PIPELINE_URL="https://git.example/p/1", **commits)
        assert self.job("perfscope", tmp_path / "one", checkout, ci) == 1
        kept = {path.name for path in (checkout / "perfscope-report").iterdir()}
        assert kept == {"report.json", "report.html", "junit.xml"}
        assert fake.seen == []
        for _ in range(2):
            assert self.job("perfscope-note", tmp_path / "two", checkout, {**ci, "GITLAB_TOKEN": TOKEN}) == 0
        (note,) = fake.bodies(12, GITLAB_BOT)
        assert "regression" in note
        assert "(https://git.example/p/1)" in note


def shell(made: Job, lines: list[str]) -> int:
    """The lines as one script of a job whose `python` and `perfscope` are ours; the code of the first that fails."""
    made.folder.mkdir(parents=True, exist_ok=True)
    variables = made.machine()
    command = made.folder / "bin" / "perfscope"
    command.write_text('#!/bin/bash\nexec "$REAL_PYTHON" -P -m perfscope "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", "\n".join(lines)],
        cwd=made.checkout, env={**variables, **made.variables}, capture_output=True, text=True,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    return done.returncode


class TestPage:
    """docs/ci.md."""

    def test_every_input_is_told(self) -> None:
        rows = [row.split("|")[1] for row in PAGE.splitlines() if row.startswith("| `")]
        told = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
        assert set(held(ACTIONS[0])["inputs"]) <= told

    def test_defaults_are_told_as_they_are(self) -> None:
        given = {name: one.get("default", "") for name, one in held(ACTIONS[0])["inputs"].items()}
        for name in ("mode", "fail-on", "artifact", "working-directory"):
            assert re.search(rf"^\| `{name}` \| `{re.escape(given[name])}` \|", PAGE, re.MULTILINE)

    @pytest.mark.slow
    def test_commands_run_as_they_stand(self, tmp_path: Path) -> None:
        checkout = tmp_path / "checkout"
        merge_checkout(checkout, sleeps(0.004), sleeps(0.004))
        git(checkout, "switch", "-q", "-c", "topic")
        git(checkout, "branch", "-q", "-f", "main", "HEAD~1")
        first, second = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
        with serve_fake() as fake:
            variables = github_job(fake, GITHUB_TOKEN=TOKEN)
            for at, block in enumerate((first, second)):
                quick = "--pairs 2 --calibration 0 --profile 0 -- train.py 25"
                lines = block.replace("-- train.py --steps 200", quick).replace("OWNER/NAME", "octo/model").splitlines()
                made = Job(folder=tmp_path / str(at), checkout=checkout, github={}, variables=variables)
                assert shell(made, lines) == 0
            assert [one.method for one in fake.seen if one.method == "POST" and one.path != "/graphql"] == ["POST"]

    def test_launches_and_minutes(self) -> None:
        """2 for warmth, 5 pairs to calibrate, looks at 6 and 10, as many to confirm, one pair profiled."""
        looks = looks_for(10)
        quiet = [2 + 10 + 2 * look + 2 for look in looks]
        changed = [launches + 2 * look for launches, look in zip(quiet, looks, strict=True)]
        assert f"no change ({quiet[0]} to {quiet[-1]} launches) | a change ({changed[0]} to {changed[-1]})" in PAGE
        for seconds in (10, 30, 60):
            minutes = [round(count * seconds / 60) for count in (*quiet, *changed)]
            row = f"| {seconds} s | {minutes[0]} to {minutes[1]} min | {minutes[2]} to {minutes[3]} min |"
            assert row in PAGE

    def test_what_pairs_buy(self) -> None:
        """Student's interval of a mean: t(97.5%, n - 1) * spread / sqrt(n)."""
        for spread in (1, 2, 5):
            halves = [quantile(0.975, pairs - 1) * spread / math.sqrt(pairs) for pairs in (6, 10, 15, 20, 30)]
            assert f"| {spread}% | {' | '.join(f'{half:.1f}%' for half in halves)} |" in PAGE
