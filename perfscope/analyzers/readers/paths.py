"""Paths as users name them: files, folders, and runs by name. Imports no reader, so that commands start at once."""

from __future__ import annotations

from pathlib import Path

from perfscope.model.documents import run_folders
from perfscope.model.errors import DataError, UsageError


def resolve(path: str | Path) -> Path:
    """Return ``path`` itself, or the run of that name (`latest`, or a prefix of its id). It exists."""
    folder = Path(path)
    if not str(path):
        raise UsageError("an empty path; `.` is the current folder")
    try:
        if folder.exists():
            return folder
        named = run_folders.is_named(str(path), Path(run_folders.RUNS_FOLDER))
    except (OSError, ValueError) as error:  # A name that is too long, or contains a null byte.
        raise DataError(f"{path}: {error_text(error)}") from error
    if named and folder.name:
        return run_folders.find(str(path))
    raise run_folders.missing(path)


def error_text(error: OSError | ValueError) -> str:
    """Return the reason alone, because the path is in front of it already."""
    text = error.strerror if isinstance(error, OSError) else str(error)
    return (text or type(error).__name__).lower()
