"""Repositories of two commits, and programs in them, for the tests of A/B."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PROGRAM = """
import sys, time
import perfscope
import work

for turn in range(int(sys.argv[1]) if len(sys.argv) > 1 else 12):
    work.turn()
    perfscope.step()
"""
"""Has neither torch nor jax."""


def git(folder: Path, *arguments: str) -> str:
    identity = {f"GIT_{who}_{what}": "t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        ("git", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always", *arguments),
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def commit(folder: Path, **files: str) -> str:
    """Write ``name=text`` as ``name.py`` and commit; its full name."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "a step")
    return git(folder, "rev-parse", "HEAD").strip()


def sleeps(seconds: float) -> str:
    return f"import time\n\ndef turn():\n    time.sleep({seconds})\n"


def repository(folder: Path, base: str = sleeps(0.004), head: str = sleeps(0.012)) -> tuple[str, str]:
    """A repository in ``folder`` whose two commits differ in ``work.py``: both commits' names."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    first = commit(folder, train=PROGRAM, work=base)
    return first, commit(folder, work=head)
