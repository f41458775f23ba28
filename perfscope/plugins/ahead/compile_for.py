"""``perfscope.compile_for``: a function compiled for an absent machine, and its report."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from perfscope.analyzers.engine import Analysis
from perfscope.model.documents.compile_manifest import Compiled
from perfscope.model.trace import Trace

DEFAULT_LIMIT_S = 900.0


class CompiledFor(Struct, frozen=True, kw_only=True):
    """A function compiled for a target: the run folder, its programs as a trace, and the analysis of it."""

    folder: Path
    manifest: Compiled
    trace: Trace
    analysis: Analysis

    def __repr__(self) -> str:
        return f"<perfscope.CompiledFor {self.folder}>"

    def __str__(self) -> str:
        from perfscope.plugins.ahead.page import compiled_page

        return compiled_page(self.manifest, self.trace, self.analysis, str(self.folder))

    def _repr_html_(self) -> str:
        return self.analysis._repr_html_()


def compile_for(
    fn: Callable[..., Any],
    *args: Any,
    target: str = "h100",
    memory: str | None = None,
    checkpoint: str | None = None,
    name: str | None = None,
    folder: str | Path | None = None,
    limit: float = DEFAULT_LIMIT_S,
    **kwargs: Any,
) -> CompiledFor:
    """Compile a function of JAX for ``target`` (``h100``, ``h100x8``, ``v5e:2x4`` ...), which need not be present.

    ``fn``: jitted, or to be jitted as it is. ``args``, ``kwargs``: its arguments; for arrays and
    ``jax.ShapeDtypeStruct`` only shape, dtype and sharding count, static arguments are passed as they are. ``memory``:
    memory of one device, ``40GiB``. ``checkpoint``: policy for its layers, without an edit, as of `perfscope compile`:
    ``none``, ``full``, ``dots``, ``all_dots``, ``names``, ``dots@model.py:35``. ``folder``: place of the run directory
    (``perfscope-runs`` if left out). ``limit``: seconds.

    The function is lowered here and compiled in a separate process, so no compiler is loaded into this process.
    ``UsageError``: unknown target or policy. ``DataError``: no layers were found for the policy.
    ``NothingCompiledError``: it was not compiled, with the reason.
    """
    from perfscope.analyzers.devices import parse_target
    from perfscope.analyzers.judge import judge_paths
    from perfscope.model.documents import compile_manifest
    from perfscope.plugins.ahead.common.compile import compile_program, default_memory_limit
    from perfscope.plugins.ahead.jax import export
    from perfscope.plugins.ahead.request import Limits, Request, parse_checkpoint
    from perfscope.plugins.ahead.target_request import target_request

    policy = None if checkpoint is None else parse_checkpoint(checkpoint, option="checkpoint")
    requested = target_request(parse_target(target, memory), configured=True)
    platform = "tpu" if requested.machine.platform == "tpu" else "rocm" if requested.vendor == "AMD" else "cuda"
    code, function = export.export(fn, args, kwargs, platform, policy)
    with tempfile.TemporaryDirectory(prefix="perfscope-export-") as scratch:
        file = Path(scratch) / "exported"
        file.write_bytes(code)
        request = Request(
            framework="jax",
            arguments=(function,),
            module=False,
            target=requested,
            exported=str(file),
            checkpoint=None if policy is None else str(policy),
            limits=Limits(seconds=limit, memory_bytes=default_memory_limit()),
        )
        kept = compile_program(
            request, root=None if folder is None else Path(folder), name=name or function, command=(function,)
        )
    judged = judge_paths([kept])
    return CompiledFor(
        folder=kept, manifest=compile_manifest.load(kept), trace=judged.loaded.traces[0], analysis=judged.analysis
    )
