"""Names, depths and texts designed to be slow: the cost of each must be proportional to its length."""

from __future__ import annotations

import re
from collections.abc import Callable
from time import process_time

import pytest

from perfscope.analyzers.compare.runs import keys
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.ops.kernel_names import short_kernel_name
from perfscope.analyzers.ops.kernels import matmul_precision, uses_tensor_cores
from perfscope.analyzers.readers.torch_log import graph_text
from perfscope.analyzers.time import frame_kinds, phases, steps
from perfscope.dashboards.report.compare import json as comparison_json
from perfscope.model.frames import parse_frame, parse_module
from perfscope.model.trace import SliceKind, Trace
from perfscope.model.untrusted_text import clean, scrub
from perfscope.profiler.session import steps as session_steps
from tests.build import TraceBuilder

SHORT, LONG, LONGEST = 1_000, 16_000, 100_000
SLACK = 6
"""Times as much as in proportion; a square would be 16 times as much, or 100 times."""
LEAST_S = 2e-4
"""Least seconds for the short text: below it the clock is too coarse."""

UNITS = (
    "a", "1", "_", "1.", ".1", "_1", "a_1", " ", ":", "/", "./", "/(", "(", "<", "a(", "f(x)", "x1", "1x", "key",
    "token=", "z.", "://", "+a", "Cijk_1_1_F81_A", "_A", "triton_poi_fused_a1", "a_kernel_cuda", "a_functor", "Functor",
    "forward(", "(backward", "context generation", "queue.py(", "PjRta", "nvrtc", "aZ", "1]", "\\\"", "::", "~",
)  # fmt: skip


FUNCTIONS: tuple[Callable[[str], object], ...] = (
    short_kernel_name.__wrapped__,
    matmul_precision.__wrapped__,
    uses_tensor_cores,
    keys.without_counters.__wrapped__,
    keys.without_tiles.__wrapped__,
    keys.work_class.__wrapped__,
    frame_kinds.frame_kind.__wrapped__,
    parse_frame.__wrapped__,
    parse_module,
    clean,
    scrub,
    steps._is_engine_step,
)
WORK: dict[str, Callable[[str], object]] = {
    **{f"{function.__module__}.{function.__name__}": function for function in FUNCTIONS},
    "inputs of a graph": graph_text._INPUT.findall,
    "worktrees": lambda text: comparison_json._WORKTREE.sub("", text),
    "families of steps": lambda text: session_steps._NUMBER.sub("", text),
    **{f"phase {phase}": pattern.search for phase, pattern in phases._NAMED.items()},
}


def _seconds(work: Callable[[], object]) -> float:
    """The least processor time of three turns."""
    times = []
    for _ in range(3):
        begin = process_time()
        work()
        times.append(process_time() - begin)
    return min(times)


def check(work: Callable[[str], object], length: int) -> None:
    for unit in UNITS:
        for prefix in ("", "Cijk_a_b_"):
            short, long = (f"{prefix}{unit * (most // len(unit))}!\n" for most in (SHORT, length))
            before = max(_seconds(lambda text=short: work(text)), LEAST_S)
            begin = process_time()
            work(long)
            assert process_time() - begin < SLACK * length / SHORT * before, unit


@pytest.mark.parametrize("length", [LONG, pytest.param(LONGEST, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WORK)
def test_long_names_cost_in_proportion(name: str, length: int) -> None:
    check(WORK[name], length)


def test_a_square_is_noticed() -> None:
    with pytest.raises(AssertionError):
        check(re.compile(r"(.*?)_?(\d+)").fullmatch, LONG)


def _deep(depth: int) -> Trace:
    builder = TraceBuilder()
    builder.step(1, 0, 10 * depth)
    for level in range(depth):
        builder.python(f"f.py({level}): f", level, 10 * depth - level)
    return builder.build()


def test_deep_stacks_cost_in_proportion() -> None:
    before = _seconds(lambda: analyze(_deep(1_000)))
    deep = _deep(4_000)
    assert (deep.rows["slices"]["kind"] == SliceKind.PYTHON).sum() == 4_000
    begin = process_time()
    analyze(deep)
    assert process_time() - begin < SLACK * 4 * before  # a square would be 16 times as much, and was
