"""Jobs of pull requests for the tests: their checkouts, events and artifacts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.ab.repositories import commit, git, repository
from tests.plugins.code_hosts.ci.runner import Job, job
from tests.plugins.code_hosts.fake_api import TOKEN, Fake, github_job

PLACE = "https://github.com/octo/model/actions/runs/1/artifacts/2"
CHEAP_WORK = "def more():\n    pass\n"
EXPENSIVE_WORK = """
import torch

HELD = torch.randn(300, 300)

def more():
    for _ in range(20):
        held = HELD @ HELD
    return held.sum().item()
"""


def payload(repository: str = "octo/model") -> dict[str, Any]:
    base = {"sha": "0" * 40, "repo": {"full_name": "octo/model"}}
    return {"pull_request": {"number": 7, "head": {"repo": {"full_name": repository}}, "base": base}}


def of_pull_request(
    folder: Path, checkout: Path, fake: Fake, repository: str = "octo/model", token: str = TOKEN
) -> Job:
    """The job of a pull request; the artifact it uploads is kept in ``folder/artifact``."""

    def uses(step: dict[str, Any]) -> dict[str, str]:
        shutil.copytree(step["with"]["path"], folder / "artifact")
        return {"artifact-url": PLACE}

    made = job(folder, checkout, "pull_request", payload(repository), **github_job(fake, token=token))
    made.uses = uses
    return made


def merge_checkout(folder: Path, base: str, head: str, train: str | None = None) -> None:
    """A checkout as GitHub makes it for a pull request: HEAD is the merge of the branch into its base."""
    first, _ = repository(folder, base, base)
    if train is not None:
        commit(folder, train=train)
    git(folder, "switch", "-q", "-c", "faster")
    commit(folder, work=head)
    git(folder, "switch", "-q", "main")
    commit(folder, other="# what others did meanwhile\n")
    git(folder, "merge", "-q", "--no-ff", "-m", "a merge", "faster")
    assert first != git(folder, "rev-parse", "HEAD^1").strip()
