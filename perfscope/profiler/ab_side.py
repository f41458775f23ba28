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
    return None if seen is None else observe.with_memory_after(seen)


def strays(checkout: Path) -> list[str]:
    """Modules that were loaded from below ``checkout``, by name; not ours, not of an environment in it."""
    root = checkout.resolve()
    found = []
    for name, module in sorted(sys.modules.copy().items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name.partition(".")[0] == "perfscope":
            continue
        path = Path(file)
        if path.is_relative_to(root) and not {"site-packages", "dist-packages"} & set(path.parts):
            found.append(name)
    return found


def read(run: Path) -> tuple[str, ...]:
    """What the processes of the launch in ``run`` wrote down, each module once."""
    path = run / STRAYS_FILE
    if not path.is_file():
        return ()
    return tuple(dict.fromkeys(path.read_text(encoding="utf-8", errors="replace").split()))
