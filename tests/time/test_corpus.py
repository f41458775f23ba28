"""Known answers of real traces for the rules on device time."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.time.account import step_accounts
from perfscope.analyzers.time.calls import blocking_calls
from perfscope.analyzers.time.device_time import device_times
from perfscope.model.trace import Trace
from tests.conftest import corpus_files, every_file
from tests.time.naive_idle_calls import naive_totals
from tests.time.test_idle_calls import totals_of, window

pytestmark = pytest.mark.corpus

FILES = corpus_files("kineto", "*.json.gz")
RULES = ("host_sync", "launch_bound", "small_kernels", "exposed_communication", "input_stall", "pageable_copy")


@lru_cache(maxsize=4)
def _read(path: Path) -> Trace:
    (trace,) = load_all(path)
    return trace


def _trace(corpus: Path, name: str) -> Trace:
    return _read(corpus / "kineto" / f"{name}.json.gz")


def _costs(trace: Trace, rule: str) -> dict[str, int | None]:
    return {finding.subject: finding.cost_ns for finding in judge(load_rule(rule), trace).findings}


@pytest.mark.parametrize("path", every_file(FILES), ids=lambda path: path.name.split(".json")[0])
def test_calls_at_the_ends_of_idle_time_of_every_file_equal_the_naive_attribution(path):
    trace = _read(path)
    for device in trace.fact(device_times):
        if device.kernels <= 1000 and len(trace.rows["slices"]) <= 8000:  # the naive way looks at all spans each time
            assert totals_of(trace, device.device) == naive_totals(trace, device.device, *window(trace))


@pytest.mark.parametrize("path", every_file(FILES), ids=lambda path: path.name.split(".json")[0])
def test_no_rule_breaks_and_no_cost_is_more_than_the_device_has(path):
    trace = _read(path)
    accounts = trace.fact(step_accounts)
    for rule in RULES:
        outcome = judge(load_rule(rule), trace)
        for finding in outcome.findings:
            assert finding.cost_ns is not None
            assert (0 if finding.by_path else 1) <= finding.cost_ns <= max(account.whole_ns for account in accounts)
            assert len(finding.evidence) <= 20
            assert len({tuple(row) for row in finding.evidence}) <= 1
    idle = max((account.whole_ns - account.busy_ns for account in accounts), default=0)
    from_idle = sum(
        cost or 0 for rule in ("host_sync", "launch_bound", "input_stall") for cost in _costs(trace, rule).values()
    )
    assert from_idle <= idle


def test_bert_small_is_launch_bound(corpus):
    trace = _trace(corpus, "TraceLens__h100_bert-small")
    assert round(sum(_costs(trace, "launch_bound").values()) / 1e6, 1) == 4.1
    (account,) = trace.fact(step_accounts)
    assert round(account.whole_ns / 1e6, 1) == 4.4


def test_b200_eager_is_launch_bound(corpus):
    assert round(sum(_costs(_trace(corpus, "TraceLens__b200_eager"), "launch_bound").values()) / 1e6) == 64


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("HolisticTraceAnalysis__ns_resolution_rank0", {"exposed_communication", "pageable_copy"}),
        ("TraceLens__h100_qwen1.5-0.5b", {"exposed_communication"}),
    ],
)
def test_traces_that_keep_the_device_busy_are_clean(corpus, name, absent):
    trace = _trace(corpus, name)
    statuses = {rule: judge(load_rule(rule), trace).status for rule in RULES}
    assert statuses == {rule: "abstained" if rule in absent else "clean" for rule in RULES}


def test_a_sleeping_rank_stalls_and_the_others_wait_for_it(corpus):
    name = "torchrec__sst_sleep_pl_dense_after_backward_2_19488__rank{}"
    assert 2.99e9 < (_costs(_trace(corpus, name.format(2)), "host_bound")["host work"] or 0) < 3.01e9
    for rank in (0, 1, 3):
        trace = _trace(corpus, name.format(rank))
        assert judge(load_rule("launch_bound"), trace).status == "clean"
        assert sum(cost or 0 for cost in _costs(trace, "exposed_communication").values()) > 2.8e9
    assert judge(load_rule("exposed_communication"), _trace(corpus, name.format(2))).status == "clean"


def test_the_hundred_millisecond_gaps_of_the_backward_pass_are_memory_calls(corpus):
    trace = _trace(corpus, "torchrec__sst_long_a2a_optimizer_4_44237__rank0")
    assert (_costs(trace, "launch_bound")["device memory calls"] or 0) > 2 * 108e6


@pytest.mark.slow
def test_waits_of_the_control_trace_are_all_counted(corpus):
    """The calls of the raw file: 60 stream waits and 60 pageable copies to the host, each of which blocks."""
    path = corpus / "kineto" / "HolisticTraceAnalysis__trace_diff_control.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()), strict=False)["traceEvents"]
    raw = Counter(event["name"] for event in events if event.get("ph") == "X")
    assert raw["cudaStreamSynchronize"] == raw["Memcpy DtoH (Device -> Pageable)"] == 60
    assert len(_read(path).fact(blocking_calls)) == 120
