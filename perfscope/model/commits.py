"""The history of commits, read from git: their order and the current branch."""

from __future__ import annotations

import re

from perfscope.model.environment import git_branch, tool_output

MOST_BACK = 5_000
"""Commits that are looked at after one: years of most projects, and git lists them in a moment."""

_HASH = re.compile(r"[0-9a-f]{7,64}")


def is_commit_hash(commit: str | None) -> bool:
    """Whether that is a commit's name and nothing else: manifests are untrusted."""
    return commit is not None and _HASH.fullmatch(commit) is not None


def ancestry(commit: str | None) -> dict[str, int]:
    """Commits up to ``commit``, itself first, with their positions in git's list. Empty if git is not available."""
    if commit is None or not is_commit_hash(commit):
        return {}
    text = tool_output("git", "rev-list", f"--max-count={MOST_BACK}", commit, "--")
    return {} if text is None else {text: index for index, text in enumerate(text.split())}


def commits_between(older: str, newer: str) -> int | None:
    """Number of commits in ``newer`` that ``older`` lacks; ``None`` if git is not available."""
    if not (is_commit_hash(older) and is_commit_hash(newer)):
        return None
    text = tool_output("git", "rev-list", "--count", f"{older}..{newer}", "--")
    return None if text is None or not text.strip().isdigit() else int(text)


def current_commit() -> str | None:
    """The commit that is checked out."""
    text = tool_output("git", "rev-parse", "--verify", "--quiet", "HEAD")
    return None if text is None else text.strip() or None


def branch_of(commit: str | None) -> str | None:
    """The branch of a commit that is checked out here; ``None`` for another commit, because git does not store it."""
    if commit is None or commit != current_commit():
        return None
    return git_branch()
