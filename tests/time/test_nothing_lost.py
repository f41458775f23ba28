"""Time of the step that is neither compute nor covered by a finding is in a finding: drawn traces and all files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.time.account import StepAccount, check_step_accounts, step_accounts
from perfscope.analyzers.time.rules.unexplained_idle import LEAST_SHARE, LEAST_SHARE_ON_HOST
from perfscope.model.documents.causes import Cause
from perfscope.model.errors import DataError
from perfscope.model.finding import Finding
from perfscope.model.trace import MISSING, CallKind, CopyKind, HostMemory, Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.conftest import corpus_files, every_file

UNIT = 100.0
"""us: times of the drawn traces are multiples of it."""


def _covered(found: Sequence[tuple[str, Finding]], rank: int | None) -> dict[tuple[str, str], int]:
    """(cause, rule) -> ns that the findings of a rank explain."""
    result: dict[tuple[str, str], int] = defaultdict(int)
    for rule, finding in found:
        if not finding.ranks or rank is None or rank in finding.ranks:
            for cause, value in finding.covers_ns.items():
                result[cause, rule] += value
    return result


def _lost(account: StepAccount, covered: dict[tuple[str, str], int]) -> int:
    """The part of the host's time that every step has."""
    left: dict[Cause, int] = {}
    for cause, value in account.total_ns.items():
        named = max((named for (key, _), named in covered.items() if key == cause), default=0)
        if cause != "compute" and not (account.device == MISSING and cause == "launch") and value > named:
            left[cause] = value - named
    return min(sum(left.values()), account.steady_ns(left)) if account.device == MISSING else sum(left.values())


def _nothing_is_lost(trace: Trace) -> None:
    """The account sums; findings name no more of a cause than some device has; what they leave is in a finding."""
    check_step_accounts(trace)
    analysis = analyze(trace)
    accounts = trace.fact(step_accounts)
    covered = _covered((*analysis.findings(), *analysis.of_recording()), None)
    for (cause, rule), value in covered.items():
        assert value <= max(account.total_ns[cause] for account in accounts), (rule, cause)  # type: ignore[index]
    for account in accounts:
        least = (LEAST_SHARE_ON_HOST if account.device == MISSING else LEAST_SHARE) * account.whole_ns
        lost = _lost(account, covered)
        assert analysis["unexplained_idle"].status == "flagged" or lost < max(1, least), (lost, account.total_ns)


HOST = ["launch", "lost", "sync", "malloc", "loader", "dynamo", "sleep", "op", "nothing", "pinned", "pageable", "free"]
ITEM = st.tuples(
    st.sampled_from(HOST), st.integers(0, 6), st.integers(1, 30), st.integers(0, 12), st.integers(0, 20),
    st.integers(0, 2),
)  # fmt: skip
Item = tuple[str, int, int, int, int, int]
"""(what the host does, pause before, its length, delay of its work, length of its work, device or communication)"""


def _torch_thread(b: TraceBuilder, tid: int, items: list[Item], number: int, begin: float) -> float:
    """Host work of a thread in a row, and what it launches on up to two devices; returns when all of it is over."""
    now, last = begin, begin
    for index, (kind, pause, length, delay, run, which) in enumerate(items):
        start = now + pause * UNIT
        now = start + length * UNIT
        if kind in ("launch", "lost", "pinned", "pageable"):
            b.op("aten::mm", start, now, tid=tid)
            correlation = -1 if kind == "lost" else 1000 * number + index
            begins, ends = start + delay * UNIT, start + (delay + run) * UNIT
            name = "cudaMemcpyAsync" if kind in ("pinned", "pageable") else "cudaLaunchKernel"
            b.call(name, start, start + UNIT, tid=tid, correlation=correlation,
                   kind=CallKind.COPY if name == "cudaMemcpyAsync" else CallKind.KERNEL)  # fmt: skip
            if name == "cudaMemcpyAsync":
                memory = HostMemory.PINNED if kind == "pinned" else HostMemory.PAGEABLE
                b.copy("Memcpy", begins, ends, correlation=correlation, kind=CopyKind.DEVICE_TO_HOST, size=1000,
                       host_memory=memory, device=which % 2, stream=20 + tid)  # fmt: skip
            else:
                b.kernel("k", begins, ends, correlation=correlation, communication=which == 2, device=which % 2,
                         stream=7 + tid)  # fmt: skip
            last = max(last, ends)
        elif kind in ("sync", "free"):
            calls = {"sync": ("cudaStreamSynchronize", CallKind.SYNC), "free": ("cudaFree", CallKind.MEMORY)}
            b.call(calls[kind][0], start, now, kind=calls[kind][1], tid=tid)
        elif kind == "malloc":
            b.call("cudaMalloc", start, now, kind=CallKind.MEMORY, tid=tid)
        elif kind in ("loader", "dynamo"):
            names = {"loader": "enumerate(DataLoader)#Loader.__next__", "dynamo": "compile_inner (dynamo_timed)"}
            b.annotation(names[kind], start, now, tid=tid)
        elif kind == "sleep":
            b.python("<built-in function sleep>", start, now, tid=tid)
        elif kind == "op":
            b.op("aten::sort", start, now, tid=tid)
    return max(now, last)


def _steps(b: TraceBuilder, end: float, count: int, cut: int) -> None:
    """``count`` steps of equal length, the last of which ends ``cut`` units before everything does."""
    length = max(1, (end - cut * UNIT) // UNIT // max(count, 1)) * UNIT
    for number in range(count):
        b.step(number, number * length, (number + 1) * length)


EVERYDAY = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@EVERYDAY
@given(st.lists(ITEM, min_size=1, max_size=10), st.lists(ITEM, max_size=5), st.integers(0, 3), st.integers(0, 10))
def test_of_a_torch_program(first: list[Item], second: list[Item], steps: int, cut: int) -> None:
    b = TraceBuilder()
    b.launched("warm", 0, 0, UNIT, correlation=999_999, cost=UNIT)
    end = max(_torch_thread(b, 1, first, 1, UNIT), _torch_thread(b, 2, second, 2, UNIT), 4 * UNIT)
    _steps(b, end, steps, cut)
    _nothing_is_lost(b.build())


@EVERYDAY
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.booleans()), min_size=1,
             max_size=8),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_of_a_jax_program(runs: list[tuple[int, int, int, bool]], marked: bool, linked: bool) -> None:
    """The host dispatches and goes on; executions of the program run one after another, late or in their steps."""
    b = TraceBuilder(recorded=EVERYTHING - {"waiting_calls"})
    host, device = 0.0, 0.0
    for number, (work, pause, run, communicates) in enumerate(runs):
        begin, host = host, host + (work + 1) * UNIT
        b.annotation("PjitFunction(step)", host - UNIT, host)
        if linked:
            b.call("cuLaunchKernel", host - UNIT, host, correlation=number + 1)
        device = max(device + pause * UNIT, host)
        b.kernel("fusion", device, device + run * UNIT, correlation=number + 1 if linked else -1,
                 communication=communicates)  # fmt: skip
        b.row("hlo_ops", name=b.code("fusion.1"), module=b.code("jit_step"), start_ns=round(device * 1000),
              end_ns=round((device + run * UNIT) * 1000), run_id=number, program_id=1, ordinal=0,
              kernel=number, encloses=False)  # fmt: skip
        device += run * UNIT
        if marked:
            b.step(number, begin, host)
    _nothing_is_lost(b.build())


@EVERYDAY
@given(st.lists(ITEM, min_size=1, max_size=10), st.integers(0, 3))
def test_without_an_accelerator(items: list[Item], steps: int) -> None:
    host_only = [(kind if kind in ("loader", "dynamo", "sleep", "op") else "nothing", *rest) for kind, *rest in items]
    b = TraceBuilder(recorded=EVERYTHING - {"device_work", "launch_links", "runtime_calls", "waiting_calls"})
    b.op("aten::mm", 0, UNIT)
    _steps(b, _torch_thread(b, 1, host_only, 1, UNIT), steps, 0)  # type: ignore[arg-type]
    _nothing_is_lost(b.build())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(ITEM, min_size=1, max_size=6), min_size=2, max_size=3), st.integers(0, 2))
def test_of_ranks_side_by_side(ranks: list[list[Item]], steps: int) -> None:
    traces = []
    for rank, items in enumerate(ranks):
        b = TraceBuilder(rank=rank)
        b.launched("warm", 0, 0, UNIT, correlation=999_999, cost=UNIT)
        _steps(b, max(_torch_thread(b, 1, items, 1, UNIT), 4 * UNIT), steps, 0)
        traces.append(b.build())
    together = analyze(traces)
    for rank, trace in enumerate(traces):
        _nothing_is_lost(trace)
        if analyze(trace)["unexplained_idle"].findings:
            assert _ranks(together, "unexplained_idle") >= {rank}


def _ranks(analysis: Analysis, rule: str) -> set[int]:
    return {rank for finding in analysis[rule].findings for rank in finding.ranks}


def test_exposed_communication_of_one_rank_is_not_lost() -> None:
    """30 % of the step, of which a rule with its own thresholds names only a part."""
    b = TraceBuilder()
    b.step(1, 0, 10_000)
    b.launched("gemm", 0, 0, 7_000, correlation=1)
    for number in range(100):  # too little of each kind of collective
        kind = f"ncclDevKernel_Kind{chr(65 + number // 10)}{'abcdefghij'[number % 10]}_RING"
        b.launched(kind, 10, 7_000 + 30 * number, 7_030 + 30 * number, correlation=2 + number, communication=True)
    trace = b.build()
    assert trace.fact(step_accounts)[0].total_ns["exposed_communication"] == 3_000_000
    _nothing_is_lost(trace)


FILES = [
    *corpus_files("kineto", "*.json.gz"), *corpus_files("nsys_sqlite", "*.sqlite.gz"),
    *corpus_files("xplane", "*.pb.gz"), *corpus_files("ascend", "*trace_view*"),
]  # fmt: skip


@pytest.mark.corpus
@pytest.mark.parametrize("path", every_file(FILES), ids=lambda path: path.name.split(".json")[0])
def test_of_every_file(path: Path) -> None:
    try:
        traces = load_all(path)
    except DataError:
        assert "CORRUPT" in path.name
        return
    for trace in traces:
        _nothing_is_lost(trace)
