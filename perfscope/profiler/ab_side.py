"""What a session does at the end of a launch of an A/B: counters of memory, and where its code came from.

A package that is installed in editable mode points to the checkout: both arms would run the same code, and the
comparison would find, rightly and uselessly, that nothing changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from perfscope.profiler import observe
from perfscope.profiler.observe import Seen
from perfscope.profiler.options import Message

STRAYS_FILE = "strays.txt"
"""In the directory of a launch: one module a line."""
LOADED_FILE = "loaded.txt"
"""Beside it: one file a line, relative to the top of the arm's worktree."""
MOST_STRAYS = 20


def last_look(message: Message, seen: Seen | None) -> Seen | None:
    """``seen`` with the allocators' counters; modules from the checkout are written down, no file if there are none.

    Where more than times was recorded, ``seen`` as it is.
    """
    if not message.options.times_only:
        return seen
    found = [] if message.checkout is None else strays(Path(message.checkout))
    if found:
        with (Path(message.directory) / STRAYS_FILE).open("a", encoding="utf-8") as stream:
            stream.write("".join(f"{name}\n" for name in found[:MOST_STRAYS]))
    if message.tree is not None:
        root = Path(message.tree).resolve()
        with (Path(message.directory) / LOADED_FILE).open("a", encoding="utf-8") as stream:
            stream.write("".join(f"{path.relative_to(root)}\n" for _, path in _below(root)))
    return None if seen is None else observe.with_memory_after(seen)


def strays(checkout: Path) -> list[str]:
    """Modules that were loaded from below ``checkout``, by name; not ours, not of an environment in it."""
    return [
        name
        for name, path in _below(checkout.resolve())
        if name.partition(".")[0] != "perfscope" and not {"site-packages", "dist-packages"} & set(path.parts)
    ]


def _below(root: Path) -> list[tuple[str, Path]]:
    """(name, file) of the modules of this process that were loaded from below ``root``, the program itself too."""
    found = []
    for name, module in sorted(sys.modules.copy().items()):
        # Python takes it from the program itself before exit.
        file = getattr(module, "__file__", sys.argv[0] if name == "__main__" and sys.argv else None)
        if isinstance(file, str) and (path := Path.cwd() / file).is_relative_to(root):
            found.append((name, path))
    return found


def read(run: Path) -> tuple[str, ...]:
    """What the processes of the launch in ``run`` wrote down, each module once."""
    return tuple(_lines(run / STRAYS_FILE))


def read_loaded(run: Path) -> frozenset[str]:
    """Files of the arm's worktree that the processes of the launch in ``run`` imported."""
    return frozenset(_lines(run / LOADED_FILE))


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        return []
    return list(dict.fromkeys(path.read_text(encoding="utf-8", errors="replace").splitlines()))
