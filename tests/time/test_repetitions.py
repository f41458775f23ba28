"""Steps of recordings without step marks: engine steps, repeated ranges, executions of a compiled program."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.analyzers.readers.load import load_one
from perfscope.analyzers.time import step_windows
from perfscope.model.trace import SliceKind
from tests.build import TraceBuilder

NOTHING = 0


def ranges(names: list[str], starts_us: list[float], lasts_us: float, work_until_us: float = NOTHING) -> TraceBuilder:
    build = TraceBuilder()
    for name, start in zip(names, starts_us, strict=True):
        build.slice(name, start, start + lasts_us, kind=SliceKind.ANNOTATION)
    build.kernel("gemm", starts_us[0], max(work_until_us, starts_us[-1] + lasts_us))
    return build


def test_a_range_that_repeats_over_the_capture_is_the_step() -> None:
    steps = step_windows(ranges([f"iteration {number}" for number in range(4)], [0, 100, 200, 300], 90, 420).build())
    assert (steps.how, steps.what) == ("repeated", "ranges named iteration #")
    assert steps.starts.tolist() == [0, 100_000, 200_000, 300_000]
    assert steps.ends.tolist() == [100_000, 200_000, 300_000, 420_000], "the last one ends with its device work"


def test_ranges_that_take_less_than_half_are_no_steps() -> None:
    assert step_windows(ranges(["copy"] * 4, [0, 100, 200, 300], 10, 400).build()).how == "none"
    assert step_windows(ranges(["iteration"] * 2, [0, 100], 90).build()).how == "none"


@pytest.mark.parametrize("name", ["execute_context_0(0)_generation_1(1)", "step[DECODE bs=32]"])
def test_one_engine_step_is_a_step(name: str) -> None:
    steps = step_windows(ranges([name], [50], 20, 90).build())
    assert (steps.starts.tolist(), steps.ends.tolist()) == ([50_000], [90_000])


def test_a_pause_is_no_part_of_the_step_before_it() -> None:
    build = ranges(["iteration"] * 6, [0, 100, 200, 700, 800, 900], 90)
    steps = step_windows(build.build())
    assert [(end - start) // 1000 for start, end in zip(steps.starts, steps.ends, strict=True)] == [
        100, 100, 90, 100, 100, 90,
    ]  # fmt: skip


def test_long_first_ones_are_warm_up() -> None:
    build = ranges(["iteration"] * 5, [1_000, 1_100, 1_200, 1_300, 1_400], 90)
    build.slice("iteration", 0, 990, kind=SliceKind.ANNOTATION)
    steps = step_windows(build.build())
    assert (steps.what, steps.count) == ("ranges named iteration after 1 of warm-up", 5)
    assert steps.starts[0] == 1_000_000


def test_executions_of_the_program_with_most_time() -> None:
    build = TraceBuilder()
    train, small = build.code("jit_train_step"), build.code("jit_multiply")
    for run in range(4):
        for module, start, end in ((train, 0, 80), (small, 85, 90)):
            build.row(
                "hlo_ops",
                start_ns=1000 * (100 * run + start),
                end_ns=1000 * (100 * run + end),
                name=build.code("fusion"),
                module=module,
                run_id=10 * run + (module == small),
                encloses=False,
                asynchronous=False,
            )
    steps = step_windows(build.build())
    assert (steps.how, steps.what) == ("repeated", "executions of jit_train_step")
    assert np.diff(steps.starts).tolist() == [100_000] * 3
    assert steps.ends[-1] == 380_000


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("path", "what", "count"),
    [
        ("xplane/xprof__tpu_inference_2.xplane.pb.gz", "executions of jit_f", 100),
        ("kineto/ao__quantize_vit_bfloat16.json.gz", "ranges named timed region", 5),
        ("kineto/TraceLens__sglang_qwen3-8b_decode.json.gz", "ranges of engine steps", 1),
        ("kineto/TraceLens__vllm_decode_full_graph.json.gz", "ranges of engine steps", 1),
        ("kineto/TraceLens__b200_eager.json.gz", "ranges of engine steps", 1),
    ],
)
def test_public_traces_without_step_marks(corpus, path: str, what: str, count: int) -> None:
    steps = step_windows(load_one(corpus / path))
    assert (steps.what, steps.count) == (what, count)
