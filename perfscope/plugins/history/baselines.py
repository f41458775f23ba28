"""Choice of the run to compare with, if the command line names a baseline and no path."""

from __future__ import annotations

import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.commands.options import Sides
from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.history.options import ANY, opened
from perfscope.plugins.history.stored_run import StoredRun

if TYPE_CHECKING:
    from perfscope.plugins.history.store import RunStore
    from perfscope.plugins.history.stored_run import Baseline

PREFIX = "baseline:"
UNPACKED = ".baselines"
"""Below the folder of runs."""
KEPT_UNPACKED = 8
YOUNG_SECONDS = 3600
"""Unpacked baselines used within the hour stay, because another comparison may be reading them."""


def sides(base: str | None, head: str | None, baseline: str | None, *, store: str | None = None) -> Sides:
    """Resolve ``compare [BASE] [HEAD] [--baseline [NAME]]``.

    With ``--baseline`` one argument is left, which is HEAD. ``UsageError``: too many or too few arguments;
    ``DataError``: no such baseline, or its files are not kept.
    """
    if baseline is not None:
        if base is not None and head is not None:
            raise UsageError("--baseline replaces BASE: give HEAD alone")
        text = base if base is not None else head
        if text is None and baseline == ANY:
            raise UsageError("--baseline needs HEAD: perfscope compare --baseline [NAME] HEAD")
        name, result = (ANY, baseline) if text is None else (baseline, text)
        path, notes = nearest(result, name or None, store=store)
        return Sides(base=path, head=resolved(result, store=store), notes=notes)
    if base is None or head is None:
        raise UsageError("compare needs BASE and HEAD, or --baseline [NAME] HEAD")
    return Sides(base=resolved(base, store=store), head=resolved(head, store=store))


def resolved(argument: str, *, store: str | None = None) -> str:
    """The path of ``baseline:NAME``, the newest of that name; any other argument unchanged.

    ``DataError``: no such baseline, or only its numbers are kept.
    """
    if not argument.startswith(PREFIX) or Path(argument).exists():
        return argument
    run_store = opened(store)
    name = argument.removeprefix(PREFIX)
    baselines = run_store.baselines(name)
    if not baselines or not name:
        raise _none(run_store, name)
    return str(_path_of(run_store, baselines[0]))


def nearest(head: str, name: str | None, *, store: str | None = None) -> tuple[str, tuple[str, ...]]:
    """The path of the baseline nearest to HEAD's code, and remarks on the choice.

    It prefers baselines on HEAD's kind of machine. Among those it takes the one that lacks the fewest commits of
    HEAD, or the newest if git finds no path between them. ``name``: name of the baseline; ``None``: any baseline of the
    same program.
    ``DataError`` without one, so that a requested comparison never passes in silence.
    """
    run_store = opened(store)
    baselines, run = run_store.baselines(name), _head_record(head)
    baselines = tuple(baseline for baseline in baselines if baseline.run.uid != run.uid)
    if name is None:
        baselines = tuple(baseline for baseline in baselines if run.name in ("", baseline.run.name))
    if not baselines:
        raise _none(run_store, name, run.name if name is None else None)
    chosen, notes = _chosen(baselines, run)
    return str(_path_of(run_store, chosen)), notes


def _head_record(head: str) -> StoredRun:
    """The record of HEAD without its numbers; name, command and hardware are empty if perfscope did not record it."""
    from perfscope.analyzers.readers import resolve
    from perfscope.model.commits import current_commit
    from perfscope.model.documents import run_folders as runs
    from perfscope.plugins.history.run_record import hardware_of, uid_of

    path = resolve(head)
    run = runs.read(path) if path.is_dir() and runs.is_run(path) else None
    git = (run.git if run is not None else None) or {}
    commit = git.get("commit")
    return StoredRun(
        uid=uid_of(path),
        id=path.name,
        name="" if run is None else run.name,
        kind="",
        created_utc="" if run is None else run.created_utc,
        command=() if run is None else run.command,
        commit=commit if isinstance(commit, str) else current_commit(),
        dirty=git.get("dirty") is not False,
        hardware={} if run is None else hardware_of(run),
    )


def _chosen(found: Sequence[Baseline], head: StoredRun) -> tuple[Baseline, tuple[str, ...]]:
    from perfscope.model.commits import ancestry, commits_between

    line = ancestry(head.commit)
    baselines = [baseline for baseline in found if baseline.run.commit in line]

    def order(baseline: Baseline) -> tuple[bool, bool, bool, int]:
        again = baseline.run.commit == head.commit and not head.dirty  # of the very code that is in question
        return (
            _other_machine(baseline, head),
            _other_command(baseline, head),
            again,
            line.get(baseline.run.commit or "", 0),
        )

    chosen = min(baselines or found, key=order)  # the newest first, and min keeps the first of equals
    commit = chosen.run.commit
    where = "" if commit is None else f" of {commit[:12]}"
    if not baselines:
        where += "; git finds no path from it to HEAD (no repository, another history, a shallow clone?): the newest"
    elif commit == head.commit:
        where += ", HEAD's own commit"
    elif commit is not None and head.commit is not None:
        count = commits_between(commit, head.commit)
        where += f", {count} commit{'s' * (count != 1)} before HEAD" if count is not None else ""
    notes = [f"baseline {chosen.name}: {chosen.run.id}{where}"]
    if _other_machine(chosen, head):
        mine = ", ".join(head.hardware.values())
        notes.append(
            f"the baseline ran on another machine ({', '.join(chosen.run.hardware.values())}; HEAD on {mine}): its "
            "times say nothing of the program"
        )
    if _other_command(chosen, head):
        notes.append(f"the baseline is of another command: {shlex.join(chosen.run.command)}")
    return chosen, tuple(notes)


def _other_machine(baseline: Baseline, head: StoredRun) -> bool:
    return bool(head.hardware) and baseline.run.hardware != head.hardware


def _other_command(baseline: Baseline, head: StoredRun) -> bool:
    return bool(head.command and baseline.run.command) and baseline.run.command != head.command


def _none(run_store: RunStore, name: str | None, program: str | None = None) -> DataError:
    names = sorted({baseline.name for baseline in run_store.baselines()})
    known = f"; there are {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}" if names else ""
    option = "--baseline" if name is None else f"{PREFIX}{name}"
    of = f" of {program}" if program else ""
    return DataError(
        f"{option}: no such baseline{of} in {run_store.shown}{known}; `perfscope baseline set NAME RUN` keeps one"
    )


def _path_of(run_store: RunStore, baseline: Baseline) -> Path:
    """The run's own folder if it is unchanged, else its files unpacked."""
    from perfscope.plugins.history.store import fetch, unpack

    folder = Path(RUNS_FOLDER)
    own = folder / baseline.run.id
    if _is_whole(own, baseline):
        return own
    if baseline.digest is None:
        raise DataError(
            f"{PREFIX}{baseline.name}: of {baseline.run.id} only the numbers are in {run_store.shown}, and "
            "its folder is gone; "
            "`perfscope history` shows them"
        )
    target = folder / UNPACKED / baseline.digest[:16]
    if not target.is_dir():
        with tempfile.TemporaryDirectory(prefix="perfscope-baseline-") as scratch:
            packed = fetch(run_store.database, baseline.digest, Path(scratch, "pack"))
            unpack(packed.file, target, f"{PREFIX}{baseline.name}")
    target.touch()
    _tidy(target.parent, keep=target)
    inside = [path for path in target.iterdir() if not path.name.startswith(".")]
    if len(inside) != 1:
        raise DataError(f"{target}: not as it was unpacked; remove it, and compare again")
    return inside[0]


def _is_whole(own: Path, baseline: Baseline) -> bool:
    """Whether that folder is the baseline's run with all that it recorded."""
    from perfscope.model.documents import run_folders as runs
    from perfscope.plugins.history.run_record import uid_of

    plain = own.name == baseline.run.id and not own.name.startswith(".")  # an id may come from an untrusted store
    if not plain or not own.is_dir() or not runs.is_run(own) or uid_of(own) != baseline.run.uid:
        return False
    return all(artifact.path.exists() for artifact in runs.read(own).artifacts(own))


def _tidy(folder: Path, *, keep: Path) -> None:
    """Remove the oldest unpacked runs; all can be unpacked again."""
    others = sorted((path for path in folder.iterdir() if path != keep), key=lambda path: -path.stat().st_mtime)
    for path in others[KEPT_UNPACKED - 1 :]:
        if time.time() - path.stat().st_mtime > YOUNG_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
