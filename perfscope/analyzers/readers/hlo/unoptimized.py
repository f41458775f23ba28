"""The program before XLA optimized it, if it is next to the compiled program.

XLA's dumps name them ``module_0012.jit_step.before_optimizations.txt`` and
``module_0012.jit_step.sm_9.0_gpu_after_optimizations.txt``; ``perfscope compile`` names them
``00.jit_step.before_optimizations.hlo.pb`` and ``00.jit_step.hlo.pb``.
"""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.hlo import HloModule
from perfscope.analyzers.readers.hlo import proto, text
from perfscope.model.errors import DataError

_WORD = ".before_optimizations"
_ENDS = (".hlo.pb", ".txt", ".hlo.txt")
_PACKED = ("", ".xz", ".gz")


def unoptimized_program(source: str) -> HloModule | None:
    """Return the program from which the one in ``source`` was compiled; ``None`` if it is missing or unreadable.

    ``source``: the source of a module, a file or something else.
    """
    path = Path(source)
    try:
        if not path.is_file():
            return None
        parts = path.name.split(".")
        for count in range(len(parts) - 1, 0, -1):
            stem = ".".join(parts[:count])
            for end in (ending + packed for ending in _ENDS for packed in _PACKED):
                result = path.with_name(f"{stem}{_WORD}{end}")
                if result != path and result.is_file():
                    return _read(result)
    except OSError:
        return None
    return None


def _read(path: Path) -> HloModule | None:
    read = proto.read if ".pb" in path.suffixes else text.read
    try:
        (module,) = read(path).hlo
    except (DataError, ValueError):
        return None
    return module
