"""A function of the user's own process, lowered there for another machine and handed to the child as a file.

StableHLO as jax writes it for the target's platform, with scopes, lines, donation and shardings: the child compiles it
as it is. Nothing of the user's process but this travels, so that any function can be compiled, also a local one.
"""

from __future__ import annotations

import functools
import inspect
import io
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.model.documents.compile_request import CheckpointRequest
from perfscope.model.errors import DataError, UsageError
from perfscope.profiler.ahead.common import scrub

if TYPE_CHECKING:
    from perfscope.profiler.ahead.jax.checkpoint.rewrite import Checkpoints

MAGIC = b"perfscope.exported/1\n"


def export(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    platform: str,
    checkpoint: CheckpointRequest | None = None,
) -> tuple[bytes, str]:
    """The file of a function with arguments lowered for ``cuda``, ``rocm`` or ``tpu``, and the function's name.

    Of arrays among the arguments only shape, dtype and sharding count. ``checkpoint``: the policy that its layers get,
    here and nowhere else: what is jitted in this process is traced again for it. ``UsageError`` if it is no
    function of JAX, or these are not its arguments; ``DataError`` where nothing of it could be checkpointed.
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
    """Whether `export` wrote the file, and no tool of the user's."""
    with path.open("rb") as stream:
        return stream.read(len(MAGIC)) == MAGIC


def load(path: Path, devices: Sequence[Any]) -> Any:
    """The program in such a file as the child compiles it."""
    from perfscope.profiler.ahead.jax.plugin_devices import ExportedProgram

    data = path.read_bytes()
    head, _, code = data[len(MAGIC) :].partition(b"\n")
    header = json.loads(head)
    return ExportedProgram(code, header["function"], header["place"], devices)


def load_checkpoint(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """What became of the layers of an exported program, for the manifest, and notes; None if not requested."""
    header = json.loads(path.read_bytes()[len(MAGIC) :].partition(b"\n")[0])
    return header.get("checkpoint"), header.get("notes", [])


def _abstract(leaf: Any) -> Any:
    """The shape of an array, with its sharding where it is divided; anything else as it is."""
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
def _checkpointed_apart(asked: CheckpointRequest | None) -> Iterator[Checkpoints | None]:
    """While it is held, what this thread differentiates has the policy, and traces are shared with nothing else."""
    if asked is None:
        yield None
        return
    from perfscope.profiler.ahead.jax import compat as compat
    from perfscope.profiler.ahead.jax.checkpoint.rewrite import checkpointed

    compat.exclude_own_frames()
    with checkpointed(asked, thread=threading.get_ident()) as book, compat.separate_trace_cache():
        yield book


@contextmanager
def _short_names(pattern: str) -> Iterator[None]:
    """While it is held, jax leaves this machine's folders out of the names of files."""
    import jax

    name = "jax_hlo_source_file_canonicalization_regex"
    before = getattr(jax.config, name, None)
    jax.config.update(name, pattern)
    try:
        yield
    finally:
        jax.config.update(name, before)
