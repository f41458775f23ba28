"""The recordings of fingerprints in a run folder, by rank."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from perfscope.model.documents import run_folders
from perfscope.model.errors import DataError, PerfscopeError
from perfscope.plugins.fingerprint.reading import Recording

TOOLS = ("torch_fingerprint", "jax_fingerprint")


class Source(Struct, frozen=True, kw_only=True):
    """A side of a comparison."""

    path: str
    recordings: dict[int, Recording]
    """By rank."""
    packages: dict[str, str]


def has_fingerprints(folder: Path) -> bool:
    """Whether a run folder has any. False for any other folder."""
    try:
        return bool(_files(folder)[0])
    except PerfscopeError:
        return False


def source_at(folder: Path) -> Source:
    """The recordings of a run; ``DataError`` in one line without any, or if one cannot be read."""
    files, packages = _files(folder)
    if not files:
        raise DataError(f"{folder}: it has no fingerprints; perfscope run --fingerprint ... records them")
    recordings = {rank: Recording(path) for rank, path in files.items()}
    return Source(path=str(folder), recordings=recordings, packages=packages)


def _files(folder: Path) -> tuple[dict[int, Path], dict[str, str]]:
    """Files by rank; with two frameworks in a process, that of the first one. Versions of packages."""
    run = run_folders.read(folder)
    files: dict[int, Path] = {}
    packages = dict(run.packages)
    for process in run.processes:
        packages |= process.packages
        for capture in process.captures:
            if capture.tool in TOOLS and capture.artifact is not None:
                files.setdefault(process.rank, folder / capture.artifact)
    return files, packages
