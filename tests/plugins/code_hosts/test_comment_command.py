"""``perfscope comment`` on its command line: its host, its comment, and its messages on failure."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.compare.runs.comparison import compare
from perfscope.dashboards.report.compare import json as compare_json
from tests.compare.runs import gpu_run
from tests.plugins.code_hosts.fake_api import BOT, GITLAB_BOT, TOKEN, Fake, github_job, gitlab_job, pull, serve_fake

MARKER = "<!-- perfscope-report:compare -->"
OF_THE_JOB = ("GITHUB_", "GITLAB_", "CI_", "GH_")
OWN = {"full_name": "octo/model"}


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serve_fake() as running:
        yield running


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text(compare_json.as_text(compare_json.document(compare([gpu_run()], [gpu_run(item=True)]))))
    return path


def asked(folder: Path, *arguments: str, **job: str) -> SimpleNamespace:
    """Run ``perfscope comment ARGUMENTS`` in a job with the variables ``job``, without those of the tests' own job."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name in [name for name in os.environ if name.startswith(OF_THE_JOB) or name == "CI"]:
            patch.delenv(name)
        for name, value in job.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        code = run(["comment", *arguments])
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def event(folder: Path, held: dict[str, Any]) -> str:
    path = folder / "event.json"
    path.write_text(json.dumps(held))
    return str(path)


def pull_request(head: Any) -> dict[str, Any]:
    return {"pull_request": {"number": 7, "head": {"repo": head}, "base": {"repo": OWN}}}


def workflow_run(sha: str = "a" * 40, kind: str = "pull_request") -> dict[str, Any]:
    head = {"full_name": "someone/model", "owner": {"login": "someone"}}
    run = {"event": kind, "head_sha": sha, "head_branch": "faster", "head_repository": head, "pull_requests": []}
    return {"workflow_run": run}


def test_github_made_then_replaced(fake: Fake, tmp_path: Path, report: Path) -> None:
    job = github_job(fake, GITHUB_TOKEN=TOKEN, GITHUB_REF="refs/pull/7/merge")
    first = asked(tmp_path, str(report), "--link", "https://github.com/octo/model/actions/runs/1", **job)
    assert first.returncode == 0, first.stderr
    place = f"{fake.base}/octo/model/pull/7#issuecomment-1001"
    assert first.stdout == f"created  #7  {place}\n"
    (body,) = fake.bodies(7, BOT)
    assert body.startswith(f"{MARKER}\n")
    assert "train.py:11" in body
    assert "(https://github.com/octo/model/actions/runs/1)" in body
    assert len(body) <= 60_000

    report.write_text(compare_json.as_text(compare_json.document(compare([gpu_run()], [gpu_run()]))))
    second = asked(tmp_path, str(report), **job)
    assert second.stdout == f"updated  #7  {place}\n"
    (body,) = fake.bodies(7, BOT)
    assert body.startswith(f"{MARKER}\n")
    assert "not judged" in body  # one launch each, and no step without a profiler
    assert asked(tmp_path, str(report), **job).stdout == f"unchanged  #7  {place}\n"
    assert [one.method for one in fake.seen if one.path != "/graphql"] == ["GET", "POST", "GET", "PATCH", "GET"]
    assert {one.headers["x-github-api-version"] for one in fake.seen} == {"2022-11-28"}


def test_gitlab_made_then_replaced(fake: Fake, tmp_path: Path, report: Path) -> None:
    job = gitlab_job(fake, GITLAB_TOKEN=TOKEN)
    first = asked(tmp_path, str(report), **job)
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"created  !12  {fake.base}/group/model/-/merge_requests/12#note_1001\n"
    again = tmp_path / "ours.md"
    again.write_text("**3% slower**\n/merge\n")
    second = asked(tmp_path, "--markdown", str(again), "--link", "https://host/x", **job)
    assert second.stdout.startswith("updated  !12")
    assert fake.bodies(12, GITLAB_BOT) == [f"{MARKER}\n**3% slower**\n&#47;merge\n\n[full report](https://host/x)\n"]


def test_a_note_goes_to_the_project_that_is_merged_into(fake: Fake, tmp_path: Path, report: Path) -> None:
    job = gitlab_job(fake, GITLAB_TOKEN=TOKEN, CI_PROJECT_ID="99", CI_MERGE_REQUEST_PROJECT_ID="7")
    done = asked(tmp_path, str(report), **job)
    assert done.returncode == 0, done.stderr
    assert len(fake.bodies(12, GITLAB_BOT)) == 1


class TestForks:
    """A fork's own job posts nothing; the following job finds the pull request from GitHub's data."""

    def test_a_fork_is_left_to_the_second_job(self, fake: Fake, tmp_path: Path, report: Path) -> None:
        path = event(tmp_path, pull_request({"full_name": "someone/model"}))
        done = asked(tmp_path, str(report), "--unless-fork", **github_job(fake, GITHUB_EVENT_PATH=path))
        assert (done.returncode, done.stdout, fake.seen) == (0, "", [])
        assert "not posted: the change comes from a fork" in done.stderr
        merge = gitlab_job(fake, CI_MERGE_REQUEST_PROJECT_ID="7", CI_MERGE_REQUEST_SOURCE_PROJECT_ID="8")
        assert "from a fork" in asked(tmp_path, str(report), "--unless-fork", **merge).stderr

    def test_the_second_job(self, fake: Fake, tmp_path: Path, report: Path) -> None:
        fake.pulls = [pull(41, "a" * 40, branch="other"), pull(42, "a" * 40)]
        job = github_job(fake, GITHUB_EVENT_PATH=event(tmp_path, workflow_run()), GITHUB_TOKEN=TOKEN)
        done = asked(tmp_path, str(report), **job)
        assert done.returncode == 0, done.stderr
        assert (len(fake.bodies(41, BOT)), len(fake.bodies(42, BOT))) == (0, 1)

    def test_a_report_on_older_commits_does_not_replace_a_newer_one(
        self, fake: Fake, tmp_path: Path, report: Path
    ) -> None:
        fake.pulls = [pull(42, "b" * 40)]
        job = github_job(fake, GITHUB_EVENT_PATH=event(tmp_path, workflow_run()), GITHUB_TOKEN=TOKEN)
        done = asked(tmp_path, str(report), **job)
        assert done.returncode == 0
        assert "not posted: no open pull request ends with aaaaaaaaaaaa" in done.stderr
        assert fake.asked("POST") == []

    def test_a_run_of_a_push(self, fake: Fake, tmp_path: Path, report: Path) -> None:
        path = event(tmp_path, workflow_run(kind="push"))
        done = asked(tmp_path, str(report), **github_job(fake, GITHUB_EVENT_PATH=path, GITHUB_TOKEN=TOKEN))
        assert (done.returncode, fake.seen) == (0, [])
        assert "was not of a pull request" in done.stderr


def test_a_hostile_comparison_stays_words(fake: Fake, tmp_path: Path, report: Path) -> None:
    """Another job wrote it, and maybe not perfscope."""
    held = json.loads(report.read_text())
    bad = "@octocat <img src=x onerror=1> [a](javascript:1) `|` ![x](https://evil.example/p.png)\n/merge\n::error::x"
    held["summary"] = held["base"]["paths"][0] = bad
    for one in held["metrics"]:
        one["name"] = bad
    for one in held["causes"]:
        one["place"] = bad
    report.write_text(json.dumps(held))
    done = asked(tmp_path, str(report), "--pr", "7", **github_job(fake, GITHUB_TOKEN=TOKEN))
    assert done.returncode == 0, done.stderr
    (body,) = fake.bodies(7, BOT)
    assert body.startswith(MARKER)
    for live in ("@octocat", "<img", r"(?<!\\)\]\(javascript", r"(?<!\\)\]\(https:", r"\n\s*/merge", r"\n\s*::error"):
        assert re.search(live, body) is None


def test_a_dry_run_needs_no_token_and_no_host(tmp_path: Path, report: Path) -> None:
    done = asked(tmp_path, str(report), "--host", "github", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{MARKER}\n")


@pytest.mark.parametrize(
    ("arguments", "job", "code", "said"),
    [
        ((), {}, 2, "--host github|gitlab"),
        (("--pr", "7"), {"GITHUB_REPOSITORY": "octo/model"}, 2, "GITHUB_TOKEN is not set"),
        (("--pr", "7", "--host", "github"), {"GITHUB_TOKEN": "x"}, 2, "GITHUB_REPOSITORY is not set"),
        (("--pr", "7"), {"GITHUB_REPOSITORY": "octo", "GITHUB_TOKEN": "x"}, 2, "OWNER/NAME"),
        ((), {"GITHUB_REPOSITORY": "octo/model", "GITHUB_TOKEN": "x"}, 2, "names no pull request"),
        (("--pr", "0"), {}, 2, "--pr"),
        (("--key", "a b"), {"GITLAB_CI": "true"}, 2, "key"),
        (("--link", "javascript:alert(1)"), {"GITLAB_CI": "true"}, 2, "--link"),
        ((), {"GITLAB_CI": "true", "CI_PROJECT_ID": "7"}, 2, "not a merge request pipeline"),
        (("--pr", "7"), {"GITLAB_CI": "true"}, 2, "CI_PROJECT_ID is not set"),
        (("--pr", "7"), {"GITLAB_CI": "true", "CI_PROJECT_ID": "7"}, 2, "GITLAB_TOKEN is not set"),
        (
            ("--pr", "7", "--token-variable", "OURS"),
            {"GITHUB_REPOSITORY": "octo/model", "GITHUB_TOKEN": "x"},
            2,
            "OURS is not set",
        ),
        (
            ("--pr", "7"),
            {"GITHUB_REPOSITORY": "octo/model", "GITHUB_TOKEN": "x", "GITHUB_API_URL": "http://api.example"},
            2,
            "over https only",
        ),
    ],
)
def test_what_is_missing_is_one_line(
    tmp_path: Path, report: Path, arguments: tuple[str, ...], job: dict[str, str], code: int, said: str
) -> None:
    done = asked(tmp_path, str(report), *arguments, **job)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("content", "option"),
    [(b"", ()), (b"{", ()), (b'{"schema": "perfscope.compare/1"}', ()), (None, ()), (b" \n", ("--markdown",))],
    ids=["empty", "cut", "hollow", "missing", "empty markdown"],
)
def test_a_report_that_is_none(fake: Fake, tmp_path: Path, content: bytes | None, option: tuple[str, ...]) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    done = asked(tmp_path, *option, str(path), "--pr", "7", **github_job(fake, GITHUB_TOKEN=TOKEN))
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith(f"perfscope: {path}: ")
    assert fake.seen == []
    both = asked(tmp_path, str(path), "--markdown", str(path), "--pr", "7", **github_job(fake, GITHUB_TOKEN=TOKEN))
    assert (both.returncode, "COMPARISON.json, or --markdown" in both.stderr) == (2, True)
