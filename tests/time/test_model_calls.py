"""Calls of the model as steps, and prefill and decode of a generation loop."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfscope.analyzers.time import situation, step_windows
from perfscope.analyzers.time.model_calls import generation
from tests.build import TraceBuilder


def a_loop(lengths: list[int], *, shapes: bool = True) -> TraceBuilder:
    """A call each 100 us that lasts 50; two sequences."""
    builder = TraceBuilder()
    for index, length in enumerate(lengths):
        start = 100 * index
        builder.python("nn.Module: Llama_0", start, start + 50)
        builder.python("nn.Module: Embedding_0", start + 1, start + 20)
        builder.op("aten::embedding", start + 5, start + 15, shapes=f"[[99, 8], [2, {length}]]" if shapes else None)
    return builder


def test_calls_of_the_outermost_module_are_the_steps() -> None:
    steps = step_windows(a_loop([7, 1, 1, 1]).build())
    assert steps.how == "model"
    assert (steps.ends - steps.starts).tolist() == [100_000, 100_000, 100_000, 50_000]


@pytest.mark.parametrize("calls", [1, 2])
def test_few_calls_are_no_loop(calls: int) -> None:
    assert step_windows(a_loop([1] * calls).build()).how == "none"


def test_calls_in_a_training_step_are_no_steps() -> None:
    builder = a_loop([7, 7, 7])
    builder.op("autograd::engine::evaluate_function: AddmmBackward0", 320, 330, tid=2)
    assert step_windows(builder.build()).how == "none"


def test_shapes_tell_prefill_from_decode() -> None:
    loop = generation(a_loop([7, 1, 1, 9, 1, 1]).build())
    assert loop is not None
    assert [call.tokens for call in loop.prefills] == [14, 18]
    assert len(loop.decodes) == 4
    assert (loop.first_token_ns, loop.output_token_ns) == (100_000, 100_000)
    assert loop.tokens_per_s == pytest.approx(8 / 350e-6)


def test_steps_without_a_profiler_go_before_traced_ones() -> None:
    trace = replace(
        a_loop([7, 1, 1]).build(),
        step_times_ns=(5_000, 1_000, 1_200, 6_000, 1_100),
        step_tokens=((2, 9), (2, 1), (2, 1), (2, 9), (2, 1)),
    )
    loop = generation(trace)
    assert loop is not None
    assert (loop.traced, loop.first_token_ns, loop.output_token_ns) == (False, 5_500, 1_100)
    assert loop.tokens_per_s == pytest.approx(6 / 3.3e-6)


@pytest.mark.parametrize("trace", [a_loop([7, 7, 7]), a_loop([1, 1, 1]), a_loop([7, 1, 1], shapes=False)])
def test_without_both_kinds_of_calls_nothing_is_said(trace: TraceBuilder) -> None:
    assert generation(trace.build()) is None


@pytest.mark.parametrize(("lengths", "phase"), [([1] * 12, "generation"), ([7] * 12, "unknown")])
def test_a_loop_of_single_tokens_generates_also_if_its_prefill_was_not_recorded(lengths: list[int], phase: str) -> None:
    assert situation(a_loop(lengths).build()).phase == phase
