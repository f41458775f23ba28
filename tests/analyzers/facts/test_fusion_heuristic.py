"""Chains guessed from shapes and order, and the known answer of a real trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.analyzers.facts.fusion_heuristic import forward_chains
from tests.build import TraceBuilder

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::f>"
Op = tuple[str, list[list[int]], list[str]]
BIG, ROW = [64, 128], [64, 1]


def trace_of(ops: list[Op], *, kernel: str = ELEMENTWISE, around: str | None = None, streams: list[int] | None = None):
    t = TraceBuilder()
    if around:
        t.op(around, 0, 10 * len(ops) + 5)
    for number, (name, shapes, dtypes) in enumerate(ops):
        t.op(name, 10 * number + 1, 10 * number + 9, external_id=number, shapes=json.dumps(shapes),
             dtypes=json.dumps(dtypes))  # fmt: skip
        t.kernel(kernel, 100 + 10 * number, 110 + 10 * number, external_id=number,
                 stream=streams[number] if streams else 7)  # fmt: skip
    return t.build()


NORM: list[Op] = [
    ("aten::rsqrt", [ROW], ["float"]),
    ("aten::mul", [BIG, ROW], ["float", "float"]),
    ("aten::copy_", [BIG, BIG, []], ["c10::BFloat16", "float", "Scalar"]),
    ("aten::mul", [[128], BIG], ["c10::BFloat16", "c10::BFloat16"]),
]


def test_a_norm_is_one_chain_and_its_links_are_the_saving():
    (chain,) = forward_chains(trace_of(NORM))
    big, row = 64 * 128, 64
    assert chain.names == ("rsqrt", "mul", "copy_", "mul")
    assert chain.eager_bytes == 4 * (row + row) + 4 * (2 * big + row) + (4 + 2) * big + 2 * (128 + 2 * big)
    assert chain.eager_bytes - chain.fused_bytes == 2 * (4 * row + 4 * big + 2 * big)
    assert chain.saved_ns == round(40_000 * (1 - chain.fused_bytes / chain.eager_bytes))


@pytest.mark.parametrize(
    "ops",
    [
        [("aten::mul", [BIG], ["float"]), ("aten::mul", [[64, 64]], ["float"])],
        [("aten::mul", [BIG], ["float"]), ("aten::mul", [BIG], ["c10::Half"])],
        [("aten::eq", [BIG, BIG], ["float", "float"]), ("aten::mul", [BIG], ["float"])],
        [("aten::mul", [], []), ("aten::mul", [BIG], ["float"])],
    ],
    ids=["other shape", "other dtype", "a comparison makes bool", "no shapes"],
)
def test_what_does_not_fit_is_no_chain(ops: list[Op]):
    assert forward_chains(trace_of(ops)) == ()


def test_other_kernels_streams_and_the_backward_are_no_chain():
    assert forward_chains(trace_of(NORM, kernel="reduce_kernel<512, 1>")) == ()
    assert forward_chains(trace_of(NORM[:2], streams=[7, 9])) == ()
    assert forward_chains(trace_of(NORM, around="autograd::engine::evaluate_function: MulBackward0")) == ()
    assert forward_chains(trace_of(NORM, around="Optimizer.step#AdamW.step")) == ()


def test_between_two_layout_copies_nothing_is_saved():
    copies: list[Op] = [("aten::copy_", [BIG, BIG], ["float", "float"])] * 2
    (chain,) = forward_chains(trace_of(copies))
    assert chain.fused_bytes == chain.eager_bytes
    assert chain.saved_ns == 0


@pytest.mark.corpus
def test_qwen_shows_its_norms_and_rotary_embeddings(corpus: Path):
    from perfscope.analyzers.readers.kineto import read

    trace = read(corpus / "kineto" / "TraceLens__h100_qwen1.5-0.5b.json.gz")
    chains = forward_chains(trace)
    kernels = trace.rows["kernels"]
    total = int((kernels["end_ns"] - kernels["start_ns"]).sum())
    assert len(chains) == 147
    assert sum(chain.names == ("add", "rsqrt", "mul", "copy_", "mul") for chain in chains) == 49
    assert sum(chain.duration_ns for chain in chains) / total == pytest.approx(0.29, abs=0.005)
    assert sum(chain.saved_ns for chain in chains) / total == pytest.approx(0.178, abs=0.01)
