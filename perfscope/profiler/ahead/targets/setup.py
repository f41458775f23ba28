"""Installs a compiler for a machine that is not there, with pip (or uv), into a folder of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from perfscope.model.errors import DataError
from perfscope.profiler.ahead.targets.plugins import MEGABYTES, Kind, MissingPlugin, Plugin, find, setup_folder

STDERR = 2


def install(kind: Kind, *, tell: Callable[[str], None]) -> Plugin:
    """The compiler of a kind, installed if it is not there. What the installer prints goes to stderr.

    ``tell`` gets a line before a download. ``DataError``: jax or torch is missing, or it cannot be installed.
    """
    missing = find(kind)
    if isinstance(missing, Plugin):
        return missing
    folder = setup_folder(kind)
    if not missing.packages or folder is None:
        raise DataError(f"{missing.reason}; {missing.install}")
    tell(f"installing {' '.join(missing.packages)} (about {MEGABYTES[kind]} MB) into {folder}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".setup-", dir=folder.parent) as scratch:
            draft = Path(scratch, "plugin")
            done = subprocess.run([*installer(), "--no-deps", "--target", str(draft), *missing.packages], stdout=STDERR)
            if done.returncode or not draft.is_dir():
                raise DataError(f"{' '.join(missing.packages)}: could not be installed: the lines above say why")
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be written: {error.strerror or error}") from error
    installed = find(kind)
    if isinstance(installed, MissingPlugin):
        raise DataError(f"{folder}: installed, and still not usable: {installed.reason}")
    return installed


def remove(kind: Kind) -> Path | None:
    """Remove what ``install`` made for the installed framework; its folder, ``None`` if there was none."""
    folder = setup_folder(kind)
    if folder is None or not folder.is_dir():
        return None
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be removed: {error.strerror or error}") from error
    return folder


def installer() -> list[str]:
    """The command that installs for this Python. ``DataError``: neither pip nor uv is here."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    uv = shutil.which("uv")
    if uv is None:
        raise DataError("neither pip nor uv is here to install with: `python -m ensurepip` brings pip")
    return [uv, "pip", "install", "--python", sys.executable]
