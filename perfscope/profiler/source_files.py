"""Distinguishes the user's files from those of libraries, and names them as the user would."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perfscope.model.frames import FRAMEWORK_PACKAGES

_STDLIB = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/"
OURS = Path(os.path.abspath(__file__)).parents[1]


class SourceFiles:
    """The files of a program: the user's, perfscope's workloads included, and those of frameworks and libraries."""

    def __init__(self, working_folder: Path, hidden: Iterable[str | Path]) -> None:
        """``working_folder``: that of the beginning; a program that moves later does not rename its files."""
        self._workloads = folder_prefix(OURS / "workloads")
        self._stdlib = tuple({folder_prefix(sysconfig.get_paths()[key]) for key in ("stdlib", "platstdlib")})
        added = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        self._commands = os.path.abspath(sysconfig.get_paths()["scripts"])
        packages = dict.fromkeys((*site.getsitepackages(), site.getusersitepackages(), *added))
        self._packages = tuple(map(folder_prefix, packages))
        frameworks = [Path(folder, name) for folder in self._packages for name in FRAMEWORK_PACKAGES]
        self._hidden = tuple(map(folder_prefix, (*hidden, *frameworks, OURS)))
        below = {folder_prefix(path) for path in (*sys.path, *packages) if path}
        self._roots = (folder_prefix(working_folder), *sorted(below, key=len, reverse=True))
        self._own = tuple(dict.fromkeys((self._roots[0], *map(folder_prefix, sys.path[:1]))))
        self._users: dict[str, bool] = {}
        self._names: dict[str, str] = {}

    def is_user(self, path: str) -> bool:
        """Whether a file is the user's. Names that are not files count only if they are notebook cells."""
        known = self._users.get(path)
        if known is None:
            known = self._users[path] = self._is_user(path)
        return known

    def is_installed(self, path: str) -> bool:
        """Whether a file is of an installed package, its command included, our workloads aside."""
        absolute = os.path.abspath(path)
        installed = absolute.startswith(self._packages) or absolute.rpartition(os.sep)[0] == self._commands
        return installed and not absolute.startswith(self._workloads)

    def name(self, path: str) -> str:
        """The file as the user would call it: below the working folder, else below the import path."""
        name = self._names.get(path)
        if name is None:
            name = cell(path) or path
            absolute = os.path.abspath(path)
            for root in () if name.startswith(("<", "In[")) else self._roots:
                if absolute.startswith(root):
                    name = absolute[len(root) :].replace(os.sep, "/")
                    break
            self._names[path] = name
        return name

    def spelled_out(self) -> dict[str, Any]:
        """How other tools spell the user's files: ``folders`` before their names, and ``cells`` of a notebook."""
        shell = _shell()
        cells = getattr(getattr(shell, "compile", None), "_filename_map", {})
        return {"folders": self._own, "cells": {path: f"In[{number}]" for path, number in cells.items()}}

    def name_with_owner(self, path: str) -> str:
        """The same, but that of an installed file the path shows whose it is (``frames.owner_of``)."""
        absolute = os.path.abspath(path)
        if path.startswith("<") or absolute.startswith(self._workloads):
            return self.name(path)
        for folders, shown in ((self._packages, "site-packages/"), (self._stdlib, _STDLIB)):
            for folder in folders:
                if absolute.startswith(folder):
                    return shown + absolute[len(folder) :].replace(os.sep, "/")
        return self.name(path)

    def _is_user(self, path: str) -> bool:
        if path.startswith("<"):
            return path.startswith("<ipython")
        absolute = os.path.abspath(path)
        if absolute.startswith(self._workloads):
            return True
        library = absolute.startswith(self._stdlib) and not absolute.startswith(self._packages)
        return not library and not absolute.startswith(self._hidden)


def cell(path: str) -> str | None:
    """The cell of a notebook that IPython compiled under this path, as ``In[3]``; ``None`` for any other file."""
    known = getattr(getattr(_shell(), "compile", None), "format_code_name", None)
    found = None if known is None else known(path)
    return None if found is None else str(found[1])


def _shell() -> Any:
    ipython: Any = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def folder_prefix(path: str | Path) -> str:
    """Absolute, links kept as the code objects spell them, with the separator that ends a prefix."""
    return os.path.abspath(path).rstrip(os.sep) + os.sep
