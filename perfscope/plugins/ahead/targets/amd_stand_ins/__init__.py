"""Stubs of the ROCm libraries that AMD's compiler plugin links to but does not need for compiling.

The plugin cannot be loaded without HIP, MIOpen, rocBLAS and others, which are gigabytes and not available as Python
packages. Their functions are not used to compile: XLA, LLVM and its linker are in the plugin itself. So each missing
library is written as a stub with the functions that the plugin looks up, each of which reports that there is no device.
Installed libraries are used.
"""

from __future__ import annotations

import ctypes
import re
import tempfile
from pathlib import Path

from perfscope.model.errors import DataError
from perfscope.plugins.ahead.targets.amd_stand_ins.elf import (
    ElfRequirements,
    StubFunction,
    elf_requirements,
    shared_object,
)

NO_DEVICE = 100
"""``hipErrorNoDevice``; for the other libraries any number that means failure."""

FUNCTIONS = {
    "libMIOpen.so": r"miopen",
    "libamdhip64.so": r"(__)?hip(?!blas|fft|solver|sparse|rand)",
    "libhipblaslt.so": r"(_ZNK?\d+)?hipblaslt",
    "libhipfft.so": r"hipfft",
    "libhipsolver.so": r"hipsolver",
    "libhipsparse.so": r"hipsparse",
    "librccl.so": r"p?nccl",
    "librocblas.so": r"rocblas",
    "librocm_smi64.so": r"rsmi",
    "librocprofiler-sdk.so": r"rocprofiler",
    "librocsolver.so": r"rocsolver",
    "libroctracer64.so": r"roctracer",
}
"""Prefixes of a library's functions, for symbols without a version that names it."""

_TEXTS = re.compile(r"string|name$", re.IGNORECASE)


def load_stand_ins(plugin: Path) -> tuple[str, ...]:
    """Load a stub for every library that the plugin needs and this machine lacks; return their names.

    Only for a process that compiles and ends, because loaded libraries stay. ``DataError`` if a missing library may be
    needed to compile.
    """
    needed = elf_requirements(plugin)
    missing = [name for name in needed.libraries if not _is_available(name)]
    unknown = [name for name in missing if _family(name) is None]
    if unknown:
        raise DataError(f"{plugin.name} needs {', '.join(unknown)}, which this machine lacks")
    with tempfile.TemporaryDirectory(prefix="perfscope-rocm-") as folder:
        for name in missing:
            path = Path(folder) / name
            path.write_bytes(stand_in_library(name, needed))
            try:
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise DataError(f"{name}: its stub cannot be loaded: {error}") from error
    return tuple(missing)


def stand_in_library(name: str, requirements: ElfRequirements) -> bytes:
    """A library with that name and the symbols looked up in it."""
    pattern = re.compile(_family(name) or "$^", re.IGNORECASE)
    answers = [
        StubFunction(
            name=symbol.name, version=symbol.version, number=NO_DEVICE, text=_TEXTS.search(symbol.name) is not None
        )
        for symbol in requirements.symbols
        if symbol.library == name or (not symbol.library and pattern.match(symbol.name) is not None)
    ]
    return shared_object(name, answers)


def _family(name: str) -> str | None:
    return FUNCTIONS.get(name.partition(".so")[0] + ".so")


def _is_available(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
