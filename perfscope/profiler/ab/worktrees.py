"""Two commits in git worktrees outside the checkout, which is not touched; they are removed on every exit."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from msgspec import Struct

from perfscope.model.documents import run_folders
from perfscope.model.documents.ab import WORKTREES_PREFIX, Arm
from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.errors import DataError, UsageError
from perfscope.profiler.ab.launch import ArmFolder

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end the process like Ctrl-C, so that worktrees are removed."""
MOST_NAMED = 5


class TerminatedError(KeyboardInterrupt):
    """A signal requested the end of the process. ``number``: of the signal."""

    def __init__(self, number: int) -> None:
        """Keep the signal's number."""
        super().__init__(signal.Signals(number).name)
        self.number = number


class Checkout(Struct, frozen=True, kw_only=True):
    """The current repository. ``below``: current folder, relative to its top."""

    top: Path
    below: Path

    def commit(self, ref: str) -> str:
        """The full hash of the commit ``ref``; ``UsageError`` if it does not exist."""
        process = _git(self.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        if process.returncode != 0:
            raise UsageError(f"{ref}: not a commit of this repository; a shallow clone has only the newest ones")
        return process.stdout.strip()

    def changed(self, base: str, head: str) -> frozenset[str]:
        """Python files that differ between two commits, relative to the top, including files missing in one."""
        listed = _git(self.top, "diff", "--name-only", "--no-renames", "-z", base, head, "--", "*.py").stdout
        return frozenset(filter(None, listed.split("\0")))

    def remarks(self) -> tuple[str, ...]:
        """Content of the folder that the worktrees will lack."""
        listed = _git(self.top, "status", "--porcelain", "-z", "--untracked-files=normal").stdout.split("\0")
        changed = [line[3:] for line in listed if line and not line.startswith("??")]
        untracked = [line[3:] for line in listed if line.startswith("??") and RUNS_FOLDER not in Path(line[3:]).parts]
        lines = []
        if changed:
            lines.append(f"changes that are not committed are in neither arm: {_some(changed)}")
        if untracked:
            lines.append(
                f"files that git does not track are in neither arm (--link PATH puts them there): {_some(untracked)}"
            )
        return tuple(lines)


def checkout() -> Checkout:
    """The repository of the current folder; ``UsageError`` outside of one."""
    here = Path.cwd().resolve()
    process = _git(here, "rev-parse", "--show-toplevel")
    if process.returncode != 0:
        raise UsageError(f"{here.name}: not in a git checkout, and --ab compares two commits of one")
    top = Path(process.stdout.strip()).resolve()
    return Checkout(top=top, below=here.relative_to(top))


@contextlib.contextmanager
def terminated_by_signals() -> Iterator[None]:
    """Raise `TerminatedError` on SIGTERM and SIGHUP, so that every ``finally`` runs. For the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise TerminatedError(number)

    before = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _new_root(repository: Checkout) -> Path:
    """A new folder for worktrees outside the repository: inside it both arms would import the checkout's packages."""
    folders = [Path(tempfile.gettempdir()).resolve(), Path("/tmp"), Path("/var/tmp"), repository.top.parent]  # noqa: S108
    outside = [folder for folder in folders if not folder.is_relative_to(repository.top) and os.access(folder, os.W_OK)]
    return Path(tempfile.mkdtemp(prefix=WORKTREES_PREFIX, dir=outside[0] if outside else None)).resolve()


@contextlib.contextmanager
def worktrees(
    repository: Checkout, commits: dict[Arm, str], *, links: Sequence[str] = ()
) -> Iterator[dict[Arm, ArmFolder]]:
    """A worktree of each commit, with its submodules, and ``links`` of the checkout (relative to its top).

    ``DataError`` if git cannot create one. They are removed when the block is left, however that happens.
    """
    root = _new_root(repository)
    stack = contextlib.ExitStack()
    try:
        stack.enter_context(run_folders.alive(root))
        folders: dict[Arm, ArmFolder] = {}
        for arm, commit in commits.items():
            path = root / arm
            done = _git(
                repository.top, "-c", f"core.hooksPath={os.devnull}", "worktree", "add", "--detach", str(path), commit
            )
            if done.returncode != 0:
                raise DataError(f"{repository.top}: git made no worktree of {commit[:12]}: {_last(done.stderr)}")
            _submodules(repository, path)
            for link in links:
                _link(repository, path, link)
            folder = path / repository.below
            if not folder.is_dir():
                raise UsageError(f"{repository.below}: no such folder in {commit[:12]}; start from one in both")
            folders[arm] = ArmFolder(root=path, folder=folder)
        yield folders
    finally:
        with _undisturbed():
            stack.close()
            remove(repository, root)


def remove(repository: Checkout, root: Path) -> None:
    """Remove the worktrees below ``root``, and nothing else of the repository."""
    for path in [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []:
        _git(repository.top, "worktree", "remove", "--force", "--force", str(path))
    shutil.rmtree(root, ignore_errors=True)
    # Worktrees whose folders rmtree removed are still registered.
    for line in _git(repository.top, "worktree", "list", "--porcelain").stdout.splitlines():
        path = Path(line.removeprefix("worktree "))
        if line.startswith("worktree ") and path.is_relative_to(root):
            _git(repository.top, "worktree", "remove", "--force", "--force", str(path))


def remove_left(repository: Checkout) -> None:
    """Remove our worktrees whose process was killed: registered with git, and not used by a living process."""
    for line in _git(repository.top, "worktree", "list", "--porcelain").stdout.splitlines():
        path = Path(line.removeprefix("worktree "))
        root = path.parent
        if (
            line.startswith("worktree ")
            and root.name.startswith(WORKTREES_PREFIX)
            and run_folders.liveness(root) is False
        ):
            remove(repository, root)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Defer a second Ctrl-C, which would leave half of it in place."""
    signals = (signal.SIGINT, *ENDING)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _submodules(repository: Checkout, path: Path) -> None:
    """Check out the submodules of the checkout from its own copies, without network or password."""
    if not (path / ".gitmodules").is_file():
        return
    listed = _git(path, "config", "--file", ".gitmodules", "--get-regexp", r"^submodule\..*\.path$").stdout
    for line in listed.splitlines():
        key, _, folder = line.partition(" ")
        name = key.removeprefix("submodule.").removesuffix(".path")
        folder_in_top = repository.top / folder
        if not (folder_in_top / ".git").exists():
            continue  # the checkout lacks it too
        done = _git(
            path,
            "-c",
            "protocol.file.allow=always",
            "-c",
            f"submodule.{name}.url={folder_in_top}",
            "submodule",
            "update",
            "--init",
            "--",
            folder,
        )
        if done.returncode != 0:
            raise DataError(
                f"{folder}: this submodule cannot be had at the commit that the arm needs ({_last(done.stderr)}); "
                f"`git -C {folder} fetch` brings it"
            )


def _link(repository: Checkout, path: Path, link: str) -> None:
    source = (repository.top / link).resolve()
    if Path(link).is_absolute() or ".." in Path(link).parts or not (repository.top / link).exists():
        raise UsageError(f"--link {link}: no such file or folder in the checkout (relative to its top)")
    target = path / link
    if target.is_symlink() or target.exists():
        raise UsageError(f"--link {link}: the commit has a file of that name")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source)


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in ``folder`` in a separate process group, so that Ctrl-C does not interrupt a removal."""
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):  # set in hooks; they would refer to another folder
        environment.pop(name, None)
    try:
        return subprocess.run(
            ("git", *arguments),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            process_group=0,
        )
    except FileNotFoundError as error:
        raise UsageError("git: no such command, and --ab compares two commits") from error


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
