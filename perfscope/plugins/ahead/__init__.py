"""Ahead: programs compiled for machines that are not here (`perfscope compile`), in sweeps and at two commits too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.model.plugins import Checks, Plugin, load

if TYPE_CHECKING:
    from perfscope.plugins.ahead.command import CompileCommand as CompileCommand
    from perfscope.plugins.ahead.command import frameworks_asked as frameworks_asked
    from perfscope.plugins.ahead.command import request_of as request_of
    from perfscope.plugins.ahead.common.build_key import sources_digest as sources_digest
    from perfscope.plugins.ahead.common.build_key import variant_key as variant_key
    from perfscope.plugins.ahead.request import PolicyName as PolicyName
    from perfscope.plugins.ahead.request import Request as Request
    from perfscope.plugins.ahead.setup import need_compilers as need_compilers
    from perfscope.plugins.ahead.sweep.command import keep_variant as keep_variant
    from perfscope.plugins.ahead.sweep.command import kept_variants as kept_variants
    from perfscope.plugins.ahead.sweep.document import SweptVariant as SweptVariant
    from perfscope.plugins.ahead.sweep.evaluate import evaluate_variant as evaluate_variant
    from perfscope.plugins.ahead.sweep.evaluate import exceeds_memory as exceeds_memory
    from perfscope.plugins.ahead.sweep.pool import Job as Job
    from perfscope.plugins.ahead.sweep.pool import run_jobs as run_jobs

_HERE = "perfscope.plugins.ahead"
_TASK = "Compile for a machine that is not here"

PLUGIN = Plugin(
    name="ahead",
    commands={
        "compare programs": f"{_HERE}.compare_programs:programs",
        "compile": f"{_HERE}.command:compile_",
        "setup": f"{_HERE}.setup:setup",
    },
    tasks={"compile": _TASK, "setup": _TASK},
    checks={
        "targets": Checks(
            title="machines that `perfscope compile` can compile for", find=f"{_HERE}.targets.checks:target_checks"
        )
    },
    names={
        "CompiledFor": f"{_HERE}.compile_for:CompiledFor",
        "compile_for": f"{_HERE}.compile_for:compile_for",
        "figures.pareto": f"{_HERE}.sweep.figure:pareto",
    },
)

_FOR_OTHERS = {
    "CompileCommand": f"{_HERE}.command:CompileCommand",
    "Job": f"{_HERE}.sweep.pool:Job",
    "PolicyName": f"{_HERE}.request:PolicyName",
    "Request": f"{_HERE}.request:Request",
    "SweptVariant": f"{_HERE}.sweep.document:SweptVariant",
    "evaluate_variant": f"{_HERE}.sweep.evaluate:evaluate_variant",
    "exceeds_memory": f"{_HERE}.sweep.evaluate:exceeds_memory",
    "frameworks_asked": f"{_HERE}.command:frameworks_asked",
    "keep_variant": f"{_HERE}.sweep.command:keep_variant",
    "kept_variants": f"{_HERE}.sweep.command:kept_variants",
    "need_compilers": f"{_HERE}.setup:need_compilers",
    "request_of": f"{_HERE}.command:request_of",
    "run_jobs": f"{_HERE}.sweep.pool:run_jobs",
    "sources_digest": f"{_HERE}.common.build_key:sources_digest",
    "variant_key": f"{_HERE}.common.build_key:variant_key",
}
"""Names used by other plug-ins."""


def __getattr__(name: str) -> Any:
    if name not in _FOR_OTHERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(_FOR_OTHERS[name])
