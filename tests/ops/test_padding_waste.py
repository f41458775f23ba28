"""Batches with padding: counted when an embedding looks ids up, and judged by the time of the model's ops."""

from __future__ import annotations

import pytest

from perfscope.model.op_graph import TokenBatch
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder, replace
from tests.graphs import GraphBuilder
from tests.rules import judged_by

outcome = judged_by("padding_waste")


def run_of(*, filled: int, longest: int = 64, us: float = 900, kept_rows: int = 512, batches: bool = True) -> Trace:
    """Three steps of 1 ms with an embedding of 8 x 64 ids and a product, which takes most of them."""
    g = GraphBuilder()
    table, weight = g.input((100, 32), parameter=True), g.input((32, 16), parameter=True)
    x = g.op("embedding", [table, g.input((8, 64), "int64")], (512, 32), line=7, module="Tagger.embed")
    g.op("mm", [x, weight], (kept_rows, 16), line=8)
    graph = g.graph()
    if batches:
        graph = replace(graph, batches=(TokenBatch(op=0, rows=8, length=64, filled=filled, longest=longest),))
    t = TraceBuilder(recorded=EVERYTHING - {"device_work", "launch_links"}, op_graph=graph)
    for step in range(3):
        t.step(step, step * 1000, step * 1000 + 1000)
        t.op("aten::embedding", step * 1000, step * 1000 + 10)
        t.op("aten::mm", step * 1000 + 10, step * 1000 + 10 + us)
    return t.build()


def test_a_padded_batch_is_flagged_with_the_time_of_its_padding() -> None:
    (finding,) = outcome(run_of(filled=128, longest=20)).findings
    assert (finding.where.file, finding.where.line) == ("model.py", 7)
    assert finding.cost_ns_per_step == pytest.approx(0.75 * 910_000, abs=2)
    assert finding.basis == "modelled"
    assert "longest text of each batch" in finding.advice
    (sorted_first,) = outcome(run_of(filled=128, longest=64)).findings
    assert "similar length" in sorted_first.advice, "rows are as long as the longest text"


def test_below_the_thresholds_it_is_clean() -> None:
    assert outcome(run_of(filled=512 - 102)).status == "clean"
    assert outcome(run_of(filled=512 - 103)).status == "flagged"
    assert outcome(run_of(filled=256, us=180)).status == "clean", "the model takes little of the step"


def test_a_model_beside_the_padded_one_computes_none() -> None:
    trace = run_of(filled=128)
    assert trace.op_graph is not None
    ops = tuple(
        replace(op, module="Denoiser.head") if op.name.startswith("aten.mm") else op for op in trace.op_graph.ops
    )
    assert outcome(replace(trace, op_graph=replace(trace.op_graph, ops=ops))).status == "clean"


def test_padding_that_is_removed_after_the_embedding_is_clean() -> None:
    assert outcome(run_of(filled=128, kept_rows=128)).status == "clean"


def test_without_counted_ids_it_abstains() -> None:
    assert outcome(run_of(filled=0, batches=False)).status == "abstained"


@pytest.mark.torch
def test_padding_is_counted_by_its_declared_id_or_by_its_form() -> None:
    import torch

    from perfscope.profiler.torch.op_graph.token_ids import counted

    def of(ids: torch.Tensor, padding: int) -> tuple[int, int] | None:
        batch = counted(0, ids, padding)
        return None if batch is None else (batch.filled, batch.longest)

    full = torch.randint(1, 500, (16, 128), generator=torch.Generator().manual_seed(0))
    padded, segments = full.clone(), torch.zeros(16, 128, dtype=torch.int64)
    for row in range(16):
        padded[row, 10 + 3 * row :] = 0
        segments[row, 10 : 20 + 3 * row] = 1
    assert of(padded, 0) == (520, 55)
    assert of(padded, -1) == of(padded.flip(1), -1) == (536, 56), "one more per row: maybe the end"
    empty = padded.clone()
    empty[8:] = 0
    assert of(empty, -1) == (sum(11 + 3 * row for row in range(8)) + 8 * 128, 128), "rows of one value are no padding"
    for ids in (full, segments, torch.zeros_like(full), torch.arange(128).expand(16, 128)):
        assert of(ids, -1) == (2048, 128)
    assert of(full[:1], 0) is None
    assert of(full.to("meta"), 0) is None
