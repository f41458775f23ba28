"""Source lines of the user's code: the one running now, and display names of files."""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path
from types import FrameType

from msgspec import Struct

from perfscope.plugins.ahead.jax import compat as compat

_WORKLOADS = "/perfscope/workloads/"
_SITE_PACKAGES = ("/site-packages/", "/dist-packages/")


class SourceLine(Struct, frozen=True, kw_only=True, order=True):
    """A line of a file, whose path is relative to the start folder if it is below that."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Folders of code that the user did not write."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{folder}/" for folder in sorted(folders))


@functools.cache
def _holds_packages(folder: str) -> bool:
    """Whether packages are installed in a folder: site-packages, or the target of ``pip install --target``."""
    return any(Path(folder).glob("*.dist-info"))


def _package_folder(file: str) -> str | None:
    """The folder on Python's path with installed packages that contains a file."""
    return next(
        (folder for folder in sys.path if folder and file.startswith(f"{folder}/") and _holds_packages(folder)), None
    )


@functools.cache
def is_user_file(file: str) -> bool:
    """Whether a file is the user's own."""
    if _WORKLOADS in file:
        return True
    if file.startswith(("<", *compat.package_folders(), *_libraries())):
        return False
    return not any(part in file for part in _SITE_PACKAGES) and _package_folder(file) is None


@functools.cache
def display_path(file: str) -> str:
    """A file name without this machine's folders: relative to the working directory or library, or the name alone."""
    for part in _SITE_PACKAGES:
        if part in file:
            return file.rpartition(part)[2]
    folder = _package_folder(file)
    if folder is not None:
        return file[len(folder) + 1 :]
    try:
        return Path(file).relative_to(Path.cwd()).as_posix()
    except ValueError:
        pass
    for folder in (*_libraries(), *(f"{folder}/" for folder in sorted(sys.path, key=len, reverse=True) if folder)):
        if file.startswith(folder):
            return file[len(folder) :]
    return _module_path(file) or Path(file).name


def _module_path(file: str) -> str | None:
    """``package/module.py`` for a loaded module, wherever its package is."""
    for name, module in list(sys.modules.items()):
        if name != "__main__" and getattr(module, "__file__", None) == file:
            parts = name.split(".")
            return "/".join(parts) + ("/__init__.py" if file.endswith("/__init__.py") else ".py")
    return None


def user_line() -> SourceLine | None:
    """The innermost line of the user's code that is running, else of the innermost library outside jax."""
    frame: FrameType | None = sys._getframe(1)
    library = None
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            return SourceLine(file=display_path(file), line=frame.f_lineno)
        if library is None and not file.startswith(("<", *compat.package_folders())):
            library = SourceLine(file=display_path(file), line=frame.f_lineno)
        frame = frame.f_back
    return library
