"""Programs in files: functions lowered in the user's own process for another machine, and artifacts of other tools.

Lowering gives StableHLO for the target's platform, with scopes, lines, donation and shardings; the child compiles it
unchanged. Nothing else leaves the user's process, so that any function can be compiled, also a local one.
"""

from __future__ import annotations

import functools
import gzip
import inspect
import io
import json
import lzma
import re
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.model.documents.program_files import HEAD_BYTES, MAX_BYTES, program_file
from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.ahead.common import scrub
from perfscope.plugins.ahead.jax import plugin_devices
from perfscope.plugins.ahead.request import CheckpointRequest

if TYPE_CHECKING:
    from perfscope.plugins.ahead.jax.checkpoint.rewrite import Checkpoints

MAGIC = b"perfscope.exported/1\n"


def export(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    platform: str,
    checkpoint: CheckpointRequest | None = None,
) -> tuple[bytes, str]:
    """The file of a function with arguments lowered for ``cuda``, ``rocm`` or ``tpu``, and the function's name.

    Only shape, dtype and sharding of array arguments count. ``checkpoint``: policy for its layers, for this call only:
    functions jitted in this process are traced again for it. ``UsageError`` if it is not a JAX function, or the
    arguments do not fit; ``DataError`` if nothing in it could be checkpointed.
    """
    import jax

    if not callable(fn):
        raise UsageError("compile_for takes a function and its arguments; for a script there is perfscope compile")
    plain = inspect.unwrap(fn)
    while isinstance(plain, functools.partial):
        plain = inspect.unwrap(plain.func)
    name = getattr(plain, "__name__", type(plain).__name__)
    jitted = fn if hasattr(fn, "trace") else jax.jit(fn)
    shapes = jax.tree.map(_abstract, (tuple(args), dict(kwargs)))
    pattern = scrub.source_pattern(Path.cwd(), [*sys.path, *scrub.package_roots()])
    with _short_names(pattern), _checkpointed_apart(checkpoint) as book:
        try:
            lowered = jitted.trace(*shapes[0], **shapes[1]).lower(lowering_platforms=(platform,))
        except (AttributeError, TypeError) as error:
            if "lowering_platforms" in str(error) or "trace" in str(error):
                raise DataError(f"this jax cannot lower for {platform} from here: {error}") from error
            raise
        module = lowered.compiler_ir("stablehlo")
        code = io.BytesIO()
        module.operation.write_bytecode(code)
    header = {"function": name, "place": _place(plain, re.compile(pattern))}
    if book is not None:
        header |= {"notes": book.notes(), "checkpoint": book.as_data()}
    head = json.dumps(header).encode()
    return MAGIC + head + b"\n" + code.getvalue(), name


def is_ours(path: Path) -> bool:
    """Whether `export` wrote the file, rather than a tool of the user."""
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def load(path: Path, devices: Sequence[Any]) -> Any:
    """The program in such a file as the child compiles it."""
    data = path.read_bytes()
    head, _, code = data[len(MAGIC) :].partition(b"\n")
    header = json.loads(head)
    return plugin_devices.ExportedProgram(code, header["function"], header["place"], devices)


def load_checkpoint(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The outcome for the layers of an exported program, for the manifest, and notes; None if not requested."""
    header = json.loads(path.read_bytes()[len(MAGIC) :].partition(b"\n")[0])
    return header.get("checkpoint"), header.get("notes", [])


def _abstract(leaf: Any) -> Any:
    """The shape of an array, with its sharding if it is divided; other values unchanged."""
    import jax
    import numpy as np

    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if isinstance(leaf, jax.Array):
        sharding = leaf.sharding if len(leaf.sharding.device_set) > 1 else None
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=leaf.aval.weak_type)
    if isinstance(leaf, np.ndarray):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return leaf


def _place(plain: Any, shorter: re.Pattern[str]) -> tuple[str, int] | None:
    code = getattr(plain, "__code__", None)
    return None if code is None else (shorter.sub("", code.co_filename), int(code.co_firstlineno))


@contextmanager
def _checkpointed_apart(request: CheckpointRequest | None) -> Iterator[Checkpoints | None]:
    """Inside, functions differentiated by this thread have the policy, and traces are not shared."""
    if request is None:
        yield None
        return
    from perfscope.plugins.ahead.jax import compat as compat
    from perfscope.plugins.ahead.jax.checkpoint.rewrite import checkpointed

    compat.exclude_own_frames()
    with checkpointed(request, thread=threading.get_ident()) as book, compat.separate_trace_cache():
        yield book


@contextmanager
def _short_names(pattern: str) -> Iterator[None]:
    """Inside, jax omits this machine's folders from file names."""
    import jax

    name = "jax_hlo_source_file_canonicalization_regex"
    before = getattr(jax.config, name, None)
    jax.config.update(name, pattern)
    try:
        yield
    finally:
        jax.config.update(name, before)


# A file with a program before optimization: StableHLO, HLO, or an artifact of jax.export.


def load_artifact(path: Path, devices: Sequence[Any]) -> tuple[Any, list[str]]:
    """The program in a file, and remarks on it. ``DataError`` with one line if it cannot be compiled."""
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
    """The file's bytes, decompressed from gzip or xz. ``DataError`` if larger than any serialized program."""
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
    """StableHLO bytecode and name of an exported function."""
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
