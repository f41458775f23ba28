"""Folders that a server may read: names of recordings become paths inside them, or an error."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfscope.model.documents import run_folders
from perfscope.model.errors import DataError, UsageError, did_you_mean

MOST_ENTRIES = 20_000
"""Most files below a recording; as many as `analyze` reads."""


class Folders:
    """The folders given at start."""

    def __init__(self, folders: Sequence[str]) -> None:
        """``DataError`` for a folder that does not exist."""
        for folder in folders:
            if not Path(folder).is_dir():
                raise DataError(f"{folder}: no such folder")
        self.roots = tuple(dict.fromkeys(Path(folder).resolve() for folder in folders))

    def run_roots(self) -> tuple[Path, ...]:
        """Folders that may contain runs: the given ones, and ``perfscope-runs`` in each."""
        below = ((root, root / run_folders.RUNS_FOLDER) for root in self.roots)
        return tuple(folder for pair in below for folder in pair if folder.is_dir() and self._contains(folder))

    def find(self, name: str) -> Path:
        """Return the recording with this name: a path, a run's id or its unique beginning, a tag, or latest.

        ``UsageError``: outside the folders, or ambiguous; ``DataError``: missing.
        """
        if not name.strip():
            raise UsageError("an empty name; list_runs has the names of recordings")
        try:
            path = self._find(name)
        except (OSError, ValueError) as error:  # too long, a null byte, a loop of links
            raise DataError(f"{name}: not a name of a recording") from error
        self._refuse_links(path)
        return path

    def _find(self, name: str) -> Path:
        bases = self.run_roots()
        paths = [(base / name).resolve() for base in bases]
        inside = [path for path in paths if self._contains(path)]
        existing = next((path for path in inside if path.exists()), None)
        if existing is not None:
            return existing
        for base in bases:
            if run_folders.is_named(name, base) and name != run_folders.LATEST:
                found = run_folders.find(name, base).resolve()
                if not self._contains(found):
                    raise self._outside(name)
                return found
        if len(inside) < len(paths):
            raise self._outside(name)
        known = [path.name for base in bases for path in run_folders.kept_directories(base)]
        raise DataError(f"{name}: no such recording; list_runs has the names{did_you_mean(name, known)}")

    def _contains(self, path: Path) -> bool:
        resolved = path.resolve()
        return any(resolved.is_relative_to(root) for root in self.roots)

    def _outside(self, name: str) -> UsageError:
        return UsageError(f"{name}: outside the folders of this server; list_runs has the names of recordings")

    def _refuse_links(self, path: Path) -> None:
        """``UsageError`` if a link in the recording leads outside; ``DataError`` if it has too many files."""
        for count, entry in enumerate(_entries(path), 1):
            if count > MOST_ENTRIES:
                raise DataError(f"{path.name}: more than {MOST_ENTRIES:,} files below it; name a narrower folder")
            if entry.is_symlink() and not self._contains(entry):
                raise UsageError(f"{path.name}: the link {entry.name} in it leads outside the folders of this server")


def _entries(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        yield from (Path(root, name) for name in (*folders, *files))
