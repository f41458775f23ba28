"""Work in other processes: results, and messages on failure."""

from __future__ import annotations

from types import MappingProxyType

from perfscope.analyzers.readers.workers import LostTask, work_through


def _view(number: int) -> object:
    return MappingProxyType({}) if number == 1 else number


def test_a_result_that_cannot_be_sent_costs_no_other() -> None:
    done = dict(work_through(_view, [0, 1, 2], 2))
    lost = done.pop(1)
    assert done == {0: 0, 2: 2}
    assert isinstance(lost, LostTask)
    assert "cannot be sent between processes" in lost.why
