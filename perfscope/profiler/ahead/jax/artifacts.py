"""A file with a program before optimization, as the child compiles it: StableHLO, HLO, or an artifact of jax.export."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfscope.model.documents.program_files import HEAD_BYTES, MAX_BYTES, program_file
from perfscope.model.errors import DataError
from perfscope.profiler.ahead.jax import plugin_devices


def load_artifact(path: Path, devices: Sequence[Any]) -> tuple[Any, list[str]]:
    """The program in a file, and what its reader must know. ``DataError``, one line, where it cannot be compiled."""
    data = _content(path)
    kind = program_file(path, data[:HEAD_BYTES])
    notes: list[str] = []
    try:
        if kind == "jax_export":
            code, name = _of_jax_export(data, notes)
        else:
            code = data if kind == "stablehlo" else plugin_devices.stablehlo_of_hlo(data)
            name = plugin_devices.module_name(code)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{path.name}: {plugin_devices.first_line(error)}") from error
    return plugin_devices.ExportedProgram(code, name, None, devices), notes


def _content(path: Path) -> bytes:
    """The file's bytes, unpacked if it is gzip or xz. ``DataError`` beyond what any serialized program has."""
    with path.open("rb") as stream:
        head = stream.read(6)
    opener = gzip.open if head.startswith(b"\x1f\x8b") else lzma.open if head == b"\xfd7zXZ\x00" else open
    try:
        with opener(path, "rb") as stream:
            data: bytes = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path.name}: cut off or corrupt: {error}") from error
    if len(data) > MAX_BYTES:
        raise DataError(f"{path.name}: larger than {MAX_BYTES >> 30} GiB, which no serialized program is")
    return data


def _of_jax_export(data: bytes, notes: list[str]) -> tuple[bytes, str]:
    """StableHLO's bytecode and the name of the function that was exported."""
    from jax import export

    exported = export.deserialize(bytearray(data))
    symbolic = [str(value) for value in exported.in_avals if any(not isinstance(side, int) for side in value.shape)]
    if symbolic:
        raise DataError(
            f"exported with symbolic sizes ({symbolic[0]}): a compiler needs numbers; export it with the shapes that "
            "it runs on"
        )
    platforms = ", ".join(exported.platforms)
    if len(exported.platforms) > 1:
        notes.append(f"exported for several platforms ({platforms}): the program picks one when it runs")
    else:
        notes.append(f"exported for {platforms}: what jax lowers differently for another platform stays as it was")
    return exported.mlir_module_serialized, exported.fun_name
