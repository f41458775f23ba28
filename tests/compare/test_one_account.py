"""One account of the step: what a comparison says of a side is what the report of that side says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.compare.runs.change import account_change, time_change
from perfscope.analyzers.compare.runs.comparison import compare
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.savings import step_time
from perfscope.analyzers.time import StepAccount, least_computing, warm_accounts
from perfscope.dashboards.report.compare.json import document
from perfscope.dashboards.report.json_report import render as report_json
from perfscope.dashboards.report.sections.account import account_sections
from perfscope.model.documents.causes import CAUSES, cause_words
from perfscope.model.documents.comparison import Document
from perfscope.model.errors import DataError
from perfscope.model.trace import MISSING, CallKind, Trace
from tests.build import TraceBuilder
from tests.compare.runs import gpu_run, host_run
from tests.conftest import corpus_files, every_file

FILES = [
    *corpus_files("kineto", "*.json.gz"), *corpus_files("xplane"), *corpus_files("jax_trace_json"),
    *corpus_files("nsys_sqlite"), *corpus_files("nsys_jax"), *corpus_files("nsys_rep"), *corpus_files("perfetto"),
    *corpus_files("ascend"),
]  # fmt: skip


def of_report(trace: Trace) -> StepAccount | None:
    """The account that the report of a trace shows."""
    return least_computing(trace.fact(warm_accounts))


def assert_equal_to_reports(base: Trace, head: Trace) -> None:
    """Every cause of both sides is that of the report, and the parts of each cause sum to it."""
    accounts = of_report(base), of_report(head)
    change = time_change([base], [head])
    if change is None:
        assert not any(accounts)
        return
    step, account = change.median, account_change(change.median)
    step.check()
    if not all(accounts) or len({report.device == MISSING for report in accounts if report is not None}) > 1:
        assert account is None
        return
    assert account is not None
    for side, report in enumerate(accounts):
        assert report is not None
        name = ("base_ns", "head_ns")[side]
        means = {cause: ns for cause, ns in report.mean_ns.items() if ns}
        assert {cause: ns for cause, amount in account.causes.items() if (ns := getattr(amount, name))} == means
        parts: Counter[str] = Counter()
        for part in step.parts:
            parts[part.cause] += (part.base, part.head)[side].ns
        assert +parts == Counter(means)
        (shown,) = account_sections([report])
        rows = {row[0]: row[1] for row in shown.blocks[0].rows}  # type: ignore[union-attr]
        names = {cause_words(cause, on_host=account.on_host): ns for cause, ns in means.items()}
        assert rows.items() <= names.items()
        assert getattr(account, name) == getattr(step, name) == sum(means.values())
        steps = max(1, len(report.numbers))
        assert abs(sum(means.values()) * steps - report.whole_ns) <= steps / 2


WORK = st.tuples(
    st.integers(0, 95),  # launch
    st.integers(0, 30),  # delay of the work
    st.integers(1, 25),  # its length
    st.sampled_from(["gemm", "nccl", "copy"]),
    st.integers(1, 2),  # thread
    st.booleans(),  # launch recorded
)
HOST = st.tuples(
    st.integers(0, 95),
    st.integers(1, 40),
    st.sampled_from(["aten::mm", "enumerate(DataLoader)#x", "cudaStreamSynchronize", "cudaMalloc", "torch.save"]),
)
STEP = st.tuples(st.lists(WORK, max_size=6), st.lists(HOST, max_size=5), st.integers(0, 20))
STEPS = st.lists(STEP, min_size=1, max_size=4)


def trace_of(steps: list[tuple[list[tuple[int, int, int, str, int, bool]], list[tuple[int, int, str]], int]]) -> Trace:
    """Steps of 100 us and a pause after each. Spans of the host follow each other; some end after their step."""
    made, correlation, at = TraceBuilder(), 0, 0.0
    for number, (works, spans, pause) in enumerate(steps):
        made.step(number, at, at + 100)
        for launch, delay, length, kind, tid, known in works:
            correlation += 1
            if known:
                made.call("cudaLaunchKernel", at + launch, at + launch + 1, correlation=correlation, tid=tid)
            begin = at + launch + delay
            if kind == "copy":
                made.copy("Memcpy HtoD", begin, begin + length, correlation=correlation)
            else:
                made.kernel(kind, begin, begin + length, correlation=correlation, communication=kind == "nccl")
        busy = at
        for start, length, name in sorted(spans):
            begin = max(busy, at + start)
            busy = begin + length
            if name == "cudaStreamSynchronize":
                made.call(name, begin, busy, kind=CallKind.SYNC)
            elif name == "cudaMalloc":
                made.call(name, begin, busy, kind=CallKind.MEMORY)
            elif name.startswith("aten"):
                made.op(name, begin, busy)
            else:
                made.annotation(name, begin, busy)
        at += 100 + pause
    return made.build()


@settings(max_examples=40, deadline=None)
@given(STEPS, STEPS)
def test_built_traces(base: list, head: list) -> None:
    assert_equal_to_reports(trace_of(base), trace_of(head))


@pytest.mark.parametrize("base", [gpu_run(), gpu_run(item=True, steps=3), host_run(steps=7)])
@pytest.mark.parametrize("head", [gpu_run(slow_us=30), gpu_run(fused=True), host_run(item=True)])
def test_runs_of_known_programs(base: Trace, head: Trace) -> None:
    if (base.source.path == "host.json") == (head.source.path == "host.json"):
        assert_equal_to_reports(base, head)


def test_the_documents_say_the_same() -> None:
    """The JSON of a comparison and the JSON reports of its sides."""
    base, head = gpu_run(steps=3), gpu_run(item=True)
    found = msgspec.convert(document(compare([base], [head])), Document)
    assert found.account is not None
    assert found.step is not None
    for side, trace in (("base_ns", base), ("head_ns", head)):
        report = msgspec.json.decode(report_json(analyze([trace])))
        (account,) = report["accounts"]
        steps = len(account["steps"])
        assert {cause: ns / steps for cause, ns in account["total_ns"].items() if ns} == {
            cause: ns for cause, amount in found.account.causes.items() if (ns := getattr(amount, side))
        }
        assert getattr(found.step, side) == account["whole_ns"] / steps
        timed = step_time(analyze([trace]))
        assert timed is not None
        assert getattr(found.step, side) == timed.ns


@pytest.mark.corpus
@pytest.mark.parametrize("path", every_file(FILES), ids=lambda path: path.name.split(".")[0])
def test_every_file_of_the_corpus(path: Path) -> None:
    try:
        traces = load_all(path)
    except DataError as error:
        pytest.skip(str(error))
    for trace in traces:
        if not trace.source.events_only:
            assert_equal_to_reports(trace, trace)


def test_causes_have_one_order() -> None:
    (account,) = gpu_run().fact(warm_accounts)
    assert tuple(account.mean_ns) == CAUSES
