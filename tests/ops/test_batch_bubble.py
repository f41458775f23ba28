"""Rows of a batch whose text has ended while other requests wait."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder
from tests.rules import judged_by

outcome = judged_by("batch_bubble")


def batches(idle: list[int], *, count: int = 2, rows: int = 8, replaced: str | None = "where") -> Trace:
    """Batches of a prompt of 1 ms and calls of 1 ms, with so many rows idle in each call."""
    g = GraphBuilder()
    token = g.op("argmax", [g.input((rows, 100))], (rows,), "int64", phase="other", line=8)
    if replaced is not None:
        token = g.op(replaced, [token, g.input((rows,), "bool")], (rows,), "int64", phase="other", line=9)
    g.op("embedding", [g.input((100, 64), parameter=True), g.view(token, (rows, 1))], (rows, 1, 64), line=20)
    calls = count * (1 + len(idle))
    t = TraceBuilder(recorded=EVERYTHING - {"device_work"}, step_times_us=(1000,) * calls, op_graph=g.graph())
    t.step(0, 0, 1000)
    t.op("aten::linear", 0, 1000)
    tokens = ((rows, 32), *((rows, 1),) * len(idle)) * count
    return replace(t.build(), step_tokens=tokens, step_idle_rows=(None, *idle) * count)


def test_idle_rows_before_the_last_prompts_are_flagged_with_their_time() -> None:
    (finding,) = outcome(batches([0, 4, 8])).findings
    assert (finding.where.file, finding.where.line) == ("model.py", 9)
    assert finding.untraced_ns_per_step == round(1_000_000 * (4 + 8) / 8 / 8), "of the second batch none counts"
    assert finding.title.startswith("50% of the rows")
    assert finding.basis == "modelled"


def test_below_the_threshold_it_is_clean() -> None:
    assert outcome(batches([0, 0, 0, 7], rows=9)).status == "clean"
    assert outcome(batches([0, 0, 0, 8], rows=9, count=9)).status == "flagged"


@pytest.mark.parametrize(
    "trace",
    [
        batches([0, 8], count=1),
        batches([0, 8], replaced=None),
        replace(batches([0, 8]), step_idle_rows=()),
    ],
    ids=["no request waits", "tokens of ended rows are kept", "unknown rows"],
)
def test_without_evidence_it_abstains(trace: Trace) -> None:
    assert outcome(trace).status == "abstained"


def test_full_batches_are_clean() -> None:
    assert outcome(batches([0, 0, 0])).status == "clean"


@pytest.mark.torch
def test_rows_are_idle_from_the_second_padding_on() -> None:
    import torch

    from perfscope.profiler.torch.idle_rows import IdleRows, idle_of

    ids = torch.tensor([[5, 6, 7], [5, 2, 8], [9, 2, 9], [3, 2, 2], [2, 2, 2]])
    assert idle_of(ids) == idle_of(ids, 2) == [0, 0, 1, 1, 2]
    assert idle_of(ids, 9) == [0] * 5
    text = torch.randint(0, 50, (100, 8), generator=torch.Generator().manual_seed(0))
    assert idle_of(text) == [0] * 100, "a value that follows itself by chance"
    rows = IdleRows()
    buffer = ids[:1].T.clone()
    for call in ids:
        rows.note(buffer.copy_(call[:, None]))
    rows.note(ids)
    assert rows.counts() == (0, 0, 1, 1, 2, None), "the copy is of each call"


@pytest.mark.torch
def test_the_ids_that_are_kept_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from perfscope.profiler.torch import idle_rows

    monkeypatch.setattr(idle_rows, "MOST_BYTES", 3 * 16)
    rows = idle_rows.IdleRows()
    for _ in range(4):
        rows.note(torch.ones((2, 1), dtype=torch.int64))
    assert rows.counts() == (0, 2, 2, None)
