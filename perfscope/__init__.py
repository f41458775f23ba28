"""perfscope: where the time and memory of PyTorch and JAX programs go, why, and what fixing it would gain.

    import perfscope

    trace = perfscope.load("trace.json.gz")     # one recording; trace.kernels is a pandas frame
    analysis = perfscope.analyze(trace)         # outcomes of all rules, costliest finding first
    changed = perfscope.compare("base.json.gz", "head.json.gz")     # what changed, and where

Names are loaded when they are first used: importing perfscope loads no framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perfscope.model import hooks
from perfscope.model import plugins as _plugins
from perfscope.model.version import package_version

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis as Analysis
    from perfscope.analyzers.engine import analyze as analyze
    from perfscope.analyzers.readers import load_all as load_all
    from perfscope.analyzers.readers import load_one as load
    from perfscope.dashboards import figures as figures
    from perfscope.dashboards.report.compare.comparison import compare as compare
    from perfscope.model.finding import Finding as Finding
    from perfscope.model.finding import Outcome as Outcome
    from perfscope.model.kernel_cost import Cost as Cost
    from perfscope.model.kernel_cost import kernel_cost as kernel_cost
    from perfscope.model.trace import Trace as Trace
    from perfscope.plugins.ahead.compile_for import CompiledFor as CompiledFor
    from perfscope.plugins.ahead.compile_for import compile_for as compile_for
    from perfscope.profiler.launch.inside import profile as profile
    from perfscope.profiler.launch.inside import trace_handler as trace_handler
    from perfscope.profiler.session.annotate import region as region
    from perfscope.profiler.session.annotate import step as step

    __version__: str

__all__ = [
    "Analysis",
    "CompiledFor",
    "Cost",
    "Finding",
    "Outcome",
    "Trace",
    "__version__",
    "analyze",
    "compare",
    "compile_for",
    "figures",
    "kernel_cost",
    "load",
    "load_all",
    "profile",
    "region",
    "step",
    "trace_handler",
]

_HOMES = {
    "Analysis": "perfscope.analyzers.engine:Analysis",
    "Cost": "perfscope.model.kernel_cost:Cost",
    "Finding": "perfscope.model.finding:Finding",
    "Outcome": "perfscope.model.finding:Outcome",
    "Trace": "perfscope.model.trace:Trace",
    "analyze": "perfscope.analyzers.engine:analyze",
    "compare": "perfscope.dashboards.report.compare.comparison:compare",
    "kernel_cost": "perfscope.model.kernel_cost:kernel_cost",
    "load": "perfscope.analyzers.readers.load:load_one",
    "load_all": "perfscope.analyzers.readers.load:load_all",
    "profile": "perfscope.profiler.launch.inside:profile",
    "region": "perfscope.profiler.session.annotate:region",
    "step": "perfscope.profiler.session.annotate:step",
    "trace_handler": "perfscope.profiler.launch.inside:trace_handler",
}

# Views of a trace and an analysis in a notebook or printed, the analysis of a run of this process, recordings that
# `perfscope attach` requests, and the check that needs the accounting of device time.
hooks.register("trace_html", "perfscope.dashboards.report.html_report:trace_html")
hooks.register("analysis_html", "perfscope.dashboards.report.html_report:analysis_html")
hooks.register("analysis_text", "perfscope.dashboards.report.text:render")
hooks.register("analysis_of_run", "perfscope.analyzers.judge:analysis_of_run")
hooks.register("record_on_request", "perfscope.profiler.session.requested:record_on_request")
hooks.register("check_device_times", "perfscope.analyzers.time.device_time:check_device_times")


def __getattr__(name: str) -> Any:
    """Load a public name from its module at first use and keep it."""
    if name == "__version__":
        value: Any = package_version()
    elif name == "figures":
        value = import_module("perfscope.dashboards.figures")
    elif home := _HOMES.get(name) or _plugins.named("names").get(name):
        value = _plugins.load(home)
    else:
        raise AttributeError(f"module 'perfscope' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
