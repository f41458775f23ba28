"""Run directories that lie elsewhere: their manifests are fetched to divide them, then each part's files to read it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from perfscope.analyzers.load import Skipped, Unit
from perfscope.analyzers.readers._run_parts import DividedRun, RunPart, divide
from perfscope.analyzers.scale.remote import fetch_all, files_below, remote_files
from perfscope.analyzers.scale.urls import shown_url
from perfscope.profiler.errors import DataError
from perfscope.profiler.store import LATEST

_MANIFEST = re.compile(r"run(-task\d+)?\.json$")
_OF_PROCESS = re.compile(r"rank[^/]*/process\.json$")


def remote_units(url: str) -> tuple[tuple[Unit, ...], bool]:
    """What lies at or below ``url``, and whether it is a folder of several things (a run alone is not one).

    ``DataError`` if there is nothing, too much, or several runs.
    """
    files, folder = remote_files(url)
    if not folder:
        return files, False
    roots = sorted({file.rpartition("/")[0] for file in files if _MANIFEST.match(file.rpartition("/")[2])})
    copies = [root for root in roots if len(roots) > 1 and root.rpartition("/")[2] == LATEST]  # a link, copied along
    runs = [root for root in roots if root not in copies]
    if len(runs) > 1:
        named = ", ".join(root.rpartition("/")[2] for root in runs[:2])
        raise DataError(f"{shown_url(url)}: holds several runs ({named} ...); name one")
    others: list[Unit] = [file for file in files if not any(file.startswith(f"{root}/") for root in roots)]
    if not runs:
        return tuple(others), True
    (root,) = runs
    divided = _divided(root, [file.removeprefix(f"{root}/") for file in files if file.startswith(f"{root}/")])
    if isinstance(divided, DividedRun) and not others and root.rstrip("/").endswith(url.partition("://")[2].strip("/")):
        return (divided,), False
    return (*others, divided), True


def _divided(root: str, names: Sequence[str]) -> DividedRun | Skipped:
    shown = shown_url(root)
    manifests = [name for name in names if _MANIFEST.match(name) or _OF_PROCESS.match(name)]
    with tempfile.TemporaryDirectory(prefix="perfscope-") as folder:
        try:
            fetch_all(root, manifests, Path(folder))
            found = divide(Path(folder))
        except DataError as error:
            reason = str(error).removeprefix(f"{shown}: ").removeprefix(f"{folder}/")
            return Skipped(path=shown, reason=reason, broken=True)
    return replace(found, path=shown, parts=tuple(replace(part, path=root) for part in found.parts))


@contextmanager
def fetched_part(part: RunPart) -> Iterator[RunPart]:
    """The part with its files in a temporary folder; ``DataError`` if they cannot be had."""
    artifacts = part.artifacts()
    tops = sorted({artifact.partition("/")[0] for artifact in artifacts})
    with tempfile.TemporaryDirectory(prefix="perfscope-") as folder:
        names = [
            name
            for name in files_below(part.path, tops)
            if any(name == artifact or name.startswith(f"{artifact}/") for artifact in artifacts)
        ]
        fetch_all(part.path, names, Path(folder))
        yield replace(part, path=folder)
