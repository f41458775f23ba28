"""Whose line a call into jax came from: the innermost frame that is not of jax, numpy, stdlib or perfscope."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import FrameType

from perfscope.profiler import jax_compat

OURS = Path(__file__).resolve().parents[2]


class Sites:
    """Finds the user's line, and names files from the working folder or the import path."""

    def __init__(self, working_folder: Path) -> None:
        """``working_folder``: that of the beginning; a program that moves later does not rename its files."""
        paths = sysconfig.get_paths()
        numpy = getattr(sys.modules.get("numpy"), "__file__", None)
        self._packages = (f"{paths['purelib']}/", f"{paths['platlib']}/")
        self._hidden = (*jax_compat.package_folders(), *([f"{Path(numpy).parent}/"] if numpy else []), f"{OURS}/")
        self._workloads = f"{OURS}/workloads/"
        self._stdlib = (f"{paths['stdlib']}/", f"{paths['platstdlib']}/")
        below = sorted({f"{Path(path).resolve()}/" for path in (*sys.path, *self._packages) if path}, key=len)
        self._roots = (f"{working_folder}/", *reversed(below))
        self._names: dict[str, str] = {}

    def here(self, frame: FrameType | None) -> tuple[str, int, str] | None:
        """File, line and function of the user's frame at or outside of ``frame``; ``None`` if there is none."""
        while frame is not None:
            path = frame.f_code.co_filename
            if not self._is_hidden(path):
                return self.name(path), frame.f_lineno, frame.f_code.co_qualname
            frame = frame.f_back
        return None

    def name(self, path: str) -> str:
        """The file as the user would name it."""
        name = self._names.get(path)
        if name is None:
            name = path
            if not path.startswith("<"):
                absolute = str(Path(path).absolute())
                root = next((root for root in self._roots if absolute.startswith(root)), "")
                name = absolute[len(root) :]
            self._names[path] = name
        return name

    def _is_hidden(self, path: str) -> bool:
        if path.startswith("<"):
            return not path.startswith("<ipython")
        if path.startswith(self._workloads):
            return False
        return path.startswith(self._hidden) or (path.startswith(self._stdlib) and not path.startswith(self._packages))
