"""Two commits, each compiled in its own worktree for an absent machine: `perfscope compile` on both."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from perfscope.model.documents import run_folders
from perfscope.model.documents.ab import Arm
from perfscope.model.errors import USAGE_ERROR, DataError, UsageError
from perfscope.profiler.ab.launch import TIMED_OUT, ArmFolder, log_tail, python_path, run_and_wait
from perfscope.profiler.ab.launch import run_build as build_in
from perfscope.profiler.ab.worktrees import Checkout, remove_left, terminated_by_signals, worktrees

ARMS: tuple[Arm, ...] = ("base", "head")
SPARE_S = 120.0
"""Seconds beyond the limit of `perfscope compile`: to start, to judge, to write."""


class Compilation(Struct, frozen=True, kw_only=True):
    """What to compile at both commits. ``options``: of `perfscope compile`, before the program."""

    options: tuple[str, ...]
    program: tuple[str, ...]
    """``train.py --lr 3e-4`` or ``-m train``."""
    limit_s: float
    links: tuple[str, ...] = ()
    build: str | None = None


def compile_both(
    wanted: Compilation,
    repository: Checkout,
    commits: Mapping[Arm, str],
    directory: Path,
    *,
    announce: Callable[[str], None],
) -> dict[Arm, Path]:
    """The run folder of each commit, below ``directory``. The checkout is not touched; worktrees are removed.

    ``UsageError`` or ``DataError``, one line with the end of the log, if a commit could not be compiled.
    """
    with terminated_by_signals():
        remove_left(repository)
        with worktrees(repository, dict(commits), links=wanted.links) as folders:
            if wanted.build is not None:
                build_in(wanted.build, folders, logs=directory, checkout=repository.top, announce=announce)
            return {arm: _compiled(wanted, arm, folders[arm], repository, directory, announce) for arm in ARMS}


def _compiled(
    wanted: Compilation,
    arm: Arm,
    arm_folder: ArmFolder,
    repository: Checkout,
    directory: Path,
    announce: Callable[[str], None],
) -> Path:
    announce(f"compiling {arm}")
    root, log = directory / arm, directory / f"compile-{arm}.log"
    line = [
        sys.executable, "-P", "-m", "perfscope", "compile", "--quiet", "--output", str(root.resolve()), *wanted.options,
        *wanted.program,
    ]  # fmt: skip
    variables = {"PYTHONPATH": python_path(arm_folder, repository.top)}
    code = run_and_wait(line, arm_folder, variables, log, wanted.limit_s + SPARE_S)
    if code == USAGE_ERROR:
        raise UsageError(f"{arm}: {_last(log)}")
    if code == TIMED_OUT:
        raise DataError(f"{log}: {arm} was not compiled within {wanted.limit_s + SPARE_S:.0f} s (--limit)")
    if code:
        raise DataError(f"{log}: {arm} was not compiled, exit code {code}: {log_tail(log)}")
    return _folder(root, arm)


def _folder(root: Path, arm: Arm) -> Path:
    folders = sorted(path for path in root.iterdir() if not path.is_symlink() and run_folders.is_compiled(path))
    if len(folders) > 1:
        raise UsageError(f"{arm}: it uses jax and torch: choose one with --framework")
    if not folders:
        raise DataError(f"{root}: {arm} was compiled, but no result was kept")
    return folders[0]


def _last(log: Path) -> str:
    """The last line of the log without the command's name."""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("perfscope: ") if lines else "no reason was given"


def refused(commits: Mapping[Arm, str]) -> Sequence[str]:
    """Raise for problems that are known before compiling."""
    return ("base and head are one commit",) if len(set(commits.values())) == 1 else ()
