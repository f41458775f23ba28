"""Reads of arrays in a JAX run: a line that reads in most steps is named, an occasional log is not."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.analyzers.finding import AbstainError
from perfscope.analyzers.jax_log import HostRead
from perfscope.analyzers.rules import host_sync
from perfscope.analyzers.trace import Source, Trace


def read(step: int | None, *, line: int = 7, ready: bool | None = False, **more: Any) -> HostRead:
    told: dict[str, Any] = {
        "call": "float",
        "begin_ns": 0,
        "duration_ns": 2_000_000,
        "traced": False,
        "main_thread": True,
    }
    return HostRead(**{**told, "step": step, "file": "train.py", "line": line, "ready": ready, "bytes": 4, **more})


def trace(*reads: HostRead, recorded: frozenset[str] = frozenset({"host_reads"})) -> Trace:
    source = Source(path="x", format="run", rank=None, events_read=0, events_unplaced=0)
    return Trace(source=source, strings=[], rows={}, recorded=recorded, host_reads=reads)


def test_a_line_that_reads_in_every_step_is_named_with_its_wait() -> None:
    (found,) = host_sync.check(trace(*(read(step) for step in range(4))))
    assert found.where.label() == "train.py:7"
    assert (found.basis, found.cost_ns, found.severity) == ("structural", None, "medium")
    assert "4 of 4 reads had to wait for it, 2.00 ms a step" in found.title
    assert found.evidence == ({"call": "float", "reads": 4, "not_ready": 4, "wait_ns": 8_000_000, "bytes": 16},)


def test_an_occasional_log_stays_clean() -> None:
    often = [read(step) for step in range(10)]
    assert len(list(host_sync.check(trace(*often, *(read(step, line=9) for step in range(4)))))) == 1
    assert len(list(host_sync.check(trace(*often, *(read(step, line=9) for step in range(5)))))) == 2


def test_reads_of_ready_arrays_are_low_and_other_threads_and_set_up_are_left_out() -> None:
    (found,) = host_sync.check(trace(read(0, ready=True), read(1, ready=True)))
    assert found.severity == "low"
    assert list(host_sync.check(trace(read(None), read(0, main_thread=False)))) == []


def test_without_a_word_of_reads_it_abstains() -> None:
    with pytest.raises(AbstainError, match="nothing else that tells"):
        host_sync.check(trace(recorded=frozenset()))
