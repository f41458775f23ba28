"""Flagged; just below the threshold; the near miss; abstained; and what the finding says."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import MemoryAction, Trace
from tests.build import EVERYTHING, TraceBuilder

NODE = "autograd::engine::evaluate_function: ReluBackward0"


def outcome(trace: Trace) -> Outcome:
    return judge(load_rule("excess_remat"), trace)


def step(recompute_us: float, *, sequence: int = 9, under_communication: float = 0,
         recorded: frozenset[str] = EVERYTHING) -> TraceBuilder:  # fmt: skip
    """A step of 1,000 us whose backward runs a relu again for ``recompute_us``."""
    t = TraceBuilder(recorded=recorded)
    t.step(0, 0, 1000)
    t.python("train.py(30): block", 0, 12)
    t.op("aten::relu", 1, 10, sequence=1, forward_thread=0, shapes="[[4,8]]", external_id=1)
    t.kernel("relu", 10, 20, external_id=1)
    t.python("model.py(12): forward", 99, 140, tid=2)
    t.op(NODE, 100, 130, tid=2)
    t.op("aten::relu", 101, 120, tid=2, sequence=sequence, forward_thread=0, shapes="[[4,8]]", external_id=2)
    t.kernel("relu", 200, 200 + recompute_us, external_id=2)
    if under_communication:
        t.kernel("ncclAllReduce", 200, 200 + under_communication, stream=9, communication=True)
    return t


def test_flagged_with_time_share_and_line():
    (finding,) = outcome(step(40).build()).findings
    assert finding.cost_ns == finding.cost_ns_per_step == 40_000
    assert finding.basis == "measured"
    assert (finding.where.file, finding.where.line) == ("model.py", 12)
    assert "40.0 us" in finding.title
    assert "4.0%" in finding.title
    assert "was not recorded" in finding.advice
    assert finding.evidence[0]["recompute_ns"] == 40_000


def test_just_below_the_threshold_is_clean():
    assert outcome(step(9.9).build()).status == "clean"
    assert outcome(step(10).build()).status == "flagged"


def test_what_communication_hides_is_said_and_not_charged():
    (finding,) = outcome(step(40, under_communication=25).build()).findings
    assert finding.cost_ns == 15_000
    assert "25.0 us of it hidden" in finding.title


def test_a_backward_without_a_rerun_is_clean():
    assert outcome(step(40, sequence=-1).build()).status == "clean"


def test_free_memory_is_said_where_it_was_recorded():
    t = step(40)
    t.tables["devices"][0]["memory_bytes"] = 80 << 30
    t.row("memory", time_ns=5, thread=t.thread(1), op=-1, on_device=True, ordinal=0, address=1, bytes=1 << 30,
          allocated_bytes=60 << 30, reserved_bytes=64 << 30, action=int(MemoryAction.ALLOCATE))  # fmt: skip
    (finding,) = outcome(t.build()).findings
    assert "20.0 GiB of 80.0 GiB were free" in finding.advice


def test_abstains_without_autograd_numbers():
    told = outcome(step(40, recorded=EVERYTHING - {"autograd"}).build())
    assert told.status == "abstained"
    assert "autograd" in (told.reason or "")


@pytest.mark.corpus
def test_resnet_names_the_recompute_time(corpus: Path):
    from perfscope.analyzers.readers.kineto import read

    found = outcome(read(corpus / "kineto" / "TraceLens__resnet_act_checkpoint.json.gz")).findings
    assert sum(int(row["recompute_ns"] or 0) for finding in found for row in finding.evidence) == 4_209_958
    assert "4.21 ms" in found[0].title
