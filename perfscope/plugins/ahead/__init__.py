"""Ahead: programs compiled for machines that are not here (`perfscope compile`), in sweeps and at two commits too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.model.plugins import Checks, Plugin, load

if TYPE_CHECKING:
    from perfscope.plugins.ahead.command import request_of as request_of
    from perfscope.plugins.ahead.common.build_key import sources_digest as sources_digest
    from perfscope.plugins.ahead.request import PolicyName as PolicyName
    from perfscope.plugins.ahead.request import Request as Request
    from perfscope.plugins.ahead.sweep.document import SweptVariant as SweptVariant
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
    "Job": f"{_HERE}.sweep.pool:Job",
    "PolicyName": f"{_HERE}.request:PolicyName",
    "Request": f"{_HERE}.request:Request",
    "SweptVariant": f"{_HERE}.sweep.document:SweptVariant",
    "request_of": f"{_HERE}.command:request_of",
    "run_jobs": f"{_HERE}.sweep.pool:run_jobs",
    "sources_digest": f"{_HERE}.common.build_key:sources_digest",
}
"""Names used by other plug-ins."""


def __getattr__(name: str) -> Any:
    if name not in _FOR_OTHERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(_FOR_OTHERS[name])
