"""Names, depths and texts designed to be slow: the work for each must be proportional to its length.

The work is counted, not timed (steps of expressions, lines of Python, elements of arrays), so that the load of the
machine does not matter.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from types import ModuleType

import pytest

from perfscope.analyzers.compare.runs import keys
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.ops import kernel_names
from perfscope.analyzers.ops.kernels import matmul_precision, uses_tensor_cores
from perfscope.analyzers.readers.torch_log import graph_text
from perfscope.analyzers.time import phases, steps
from perfscope.dashboards.report.compare import json as comparison_json
from perfscope.model.frames import kinds, parse_frame, parse_module
from perfscope.model.trace import SliceKind, Trace
from perfscope.model.untrusted_text import clean, scrub
from perfscope.profiler.session import steps as session_steps
from tests.build import TraceBuilder
from tests.growth.regex_steps import regex_steps
from tests.growth.work import counting

SHORT, LONG = 60, 240
MOST = 2 * LONG / SHORT
"""Largest growth from ``SHORT`` to ``LONG`` letters: proportional work grows by 4, a square by 16."""
LEAST = 10 * SHORT
"""Least work assumed for the short text: some expressions are reached by the long text only."""

UNITS = (
    "a", "1", "_", "1.", ".1", "_1", "a_1", " ", ":", "/", "./", "/(", "(", "<", "a(", "f(x)", "x1", "1x", "key",
    "token=", "z.", "://", "+a", "Cijk_1_1_F81_A", "_A", "triton_poi_fused_a1", "a_kernel_cuda", "a_functor", "Functor",
    "forward(", "(backward", "context generation", "queue.py(", "PjRta", "nvrtc", "aZ", "1]", "\\\"", "::", "~",
)  # fmt: skip
PREFIXES = ("", "Cijk_a_b_")

FUNCTIONS: tuple[Callable[[str], object], ...] = (
    kernel_names.short_kernel_name.__wrapped__,
    matmul_precision.__wrapped__,
    uses_tensor_cores,
    keys.without_counters.__wrapped__,
    keys.without_tiles.__wrapped__,
    keys.work_class.__wrapped__,
    kinds.frame_kind.__wrapped__,
    parse_frame.__wrapped__,
    parse_module,
    clean,
    scrub,
    steps._is_engine_step,
)
MODULES = {sys.modules[function.__module__] for function in FUNCTIONS} | {
    graph_text, comparison_json, session_steps, phases
}  # fmt: skip
WORK: dict[str, Callable[[str], object]] = {
    **{f"{function.__module__}.{function.__name__}": function for function in FUNCTIONS},
    "inputs of a graph": lambda text: graph_text._INPUT.findall(text),
    "worktrees": lambda text: comparison_json._WORKTREE.sub("", text),
    "families of steps": lambda text: session_steps._NUMBER.sub("", text),
    "phases": lambda text: [pattern.search(text) for pattern in phases._NAMED.values()],
}


def texts(most: int) -> list[str]:
    """Hostile texts of at most ``most`` letters and a prefix."""
    return [f"{prefix}{unit * (most // len(unit))}!\n" for unit in UNITS for prefix in PREFIXES]


def work_of(work: Callable[[str], object], most: int, modules: Iterable[ModuleType]) -> list[dict[str, int]]:
    """Steps by expression, and lines of Python, for each text."""
    result = []
    with regex_steps(*modules) as steps:
        for text in texts(most):
            steps.clear()
            work(text)
            result.append(dict(steps))
    with counting() as done:
        for text, counts in zip(texts(most), result, strict=True):
            before = sum(done.lines.values())
            work(text)
            counts["lines"] = sum(done.lines.values()) - before
    return result


def check(work: Callable[[str], object], modules: Iterable[ModuleType]) -> None:
    """Fail if the work for a hostile text grows faster than the text."""
    every = zip(texts(LONG), work_of(work, SHORT, modules), work_of(work, LONG, modules), strict=True)
    for text, short, long in every:
        steep = {what: now for what, now in long.items() if now > MOST * max(short.get(what, 0), LEAST)}
        assert not steep, text


@pytest.mark.parametrize("name", WORK)
def test_work_for_long_names_is_proportional(name: str) -> None:
    check(WORK[name], MODULES)


def test_a_square_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_steps, "_NUMBER", re.compile(r"(.*?)_?(\d+)"))
    with pytest.raises(AssertionError):
        check(lambda text: session_steps._NUMBER.fullmatch(text), [session_steps])
    with pytest.raises(AssertionError):
        check(lambda text: [one for one in text for other in text if one is other], [])


def _deep(depth: int) -> Trace:
    builder = TraceBuilder()
    builder.step(1, 0, 10 * depth)
    for level in range(depth):
        builder.python(f"f.py({level}): f", level, 10 * depth - level)
    return builder.build()


def test_work_for_deep_stacks_is_proportional() -> None:
    analyze(_deep(1_000))  # the first analysis of a process loads rules
    lines, elements = [], []
    for depth in (250, 500, 1_000):
        trace = _deep(depth)
        assert (trace.rows["slices"]["kind"] == SliceKind.PYTHON).sum() == depth
        with counting() as work:
            analyze(trace)
        lines.append(sum(work.lines.values()))
        elements.append(sum(work.elements.values()))
    for small, middle, large in (lines, elements):
        assert large - middle < 3 * (middle - small)  # proportional: 2, a square: 4
