"""Keeps this machine's paths and secrets out of artifacts: cut from file names, replaced by stars in bytes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

MIN_SECRET_LENGTH = 8
"""Fewest characters of a variable's value to search for: ``1`` and ``true`` are everywhere."""
SHORT_HOME = 6
"""Longest home folder, such as ``/root``, that may also be a name of a scope in the program."""

_SECRET = re.compile(r"token|secret|passw|credential|api_?key|access_?key|private_?key", re.IGNORECASE)


def source_pattern(folder: Path, path: Iterable[str]) -> str:
    """A regular expression over names of source files: matches are removed.

    ``/home/me/project/train.py`` becomes ``train.py``, a library's file begins at its package, and any other file keeps
    its last two parts.
    """
    roots = {str(folder), *(str(Path(folder).resolve()) for folder in path if folder)}
    known = [re.escape(root.rstrip("/") + "/") for root in sorted(roots, key=len, reverse=True) if root.strip("/")]
    return f"^(?:{'|'.join((*known, '/.*/(?=[^/]+/[^/]+$)'))})"


def package_roots() -> set[str]:
    """Folders of the packages of all loaded modules, whatever finder found them."""
    roots = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            parents = Path(file).parents
            depth = name.count(".") + file.endswith("/__init__.py")
            if depth < len(parents):
                roots.add(str(parents[depth]))
    return roots - {"/"}


def private_texts(folder: Path) -> tuple[bytes, ...]:
    """Texts banned from artifacts: folders of this machine, and values of variables that look like secrets."""
    folders = {str(folder), str(Path.home()), sys.prefix, sys.base_prefix, str(Path(sys.executable).parent)}
    texts = {folder for folder in folders if folder.count("/") > 1 or folder == str(Path.home())} - {"", "/", "/usr"}
    texts |= {value for name, value in os.environ.items() if _SECRET.search(name) and len(value) >= MIN_SECRET_LENGTH}
    return tuple(text.encode() for text in sorted(texts, key=len, reverse=True))


def masked(data: bytes, private: Iterable[bytes]) -> bytes:
    """``data`` with private texts replaced by stars of equal length, which keeps the lengths in a proto valid."""
    for text in private:
        if text not in data:
            continue
        if text.startswith(b"/") and len(text) <= SHORT_HOME:
            pattern = rb"(?<![\w)\]}>.-])" + re.escape(text) + rb"(?=/)"
            data = re.sub(pattern, b"*" * len(text), data)
        else:
            data = data.replace(text, b"*" * len(text))
    return data
