"""Leaks: planted in built recordings, in profiles of JAX, and in real programs; and what only looks like one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.memory.growth import memory_growth, trend
from perfscope.analyzers.memory.rules.memory_leak import LEAST_BYTES
from perfscope.analyzers.memory.trace_memories import trace_memories
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from perfscope.model.memory import AllocatorCounters, SourceLine
from perfscope.model.trace import Trace
from tests.memory.build import MemoryBuilder

RULE = load_rule("memory_leak")
MIB = 1 << 20
ACTIVATIONS = 64 * MIB


def steps(
    kept: list[int],
    *,
    first: int = 5,
    capacity: int = -1,
    cleared: int | None = None,
    replaced: bool = False,
    recorded: bool = True,
) -> MemoryBuilder:
    """Steps of 100 us: each makes and frees activations, and keeps ``kept[step]`` bytes at ``train.py:9``.

    ``cleared``: the step in which all that was kept is let go. ``replaced``: each step lets go what the last one kept.
    ``recorded``: else steps are known by those of the optimizer.
    """
    b = MemoryBuilder()
    b.row("devices", ordinal=0, name=b.code("GPU"), cores=1, memory_bytes=capacity)
    b._devices[0] = 0
    address = 1000
    held: list[int] = []
    for number, size in enumerate(kept):
        at = 100 * number
        if recorded:
            b.step(first + number, at, at + 100)
        else:
            b.annotation("Optimizer.step#SGD.step", at + 80, at + 90)
        b.python("train.py(3): main", at, at + 99)
        b.python("train.py(9): remember", at + 10, at + 20)
        b.op("aten::clone", at + 11, at + 13)
        b.op("aten::mm", at + 30, at + 40)
        if size:
            address += 1
            b.make(address, size, at + 12)
            if replaced and held:
                b.free(held.pop(), at + 15)
            held.append(address)
        b.make(1, ACTIVATIONS, at + 35)
        b.free(1, at + 60)
        if number == cleared:
            while held:
                b.free(held.pop(), at + 70 + len(held))
    return b


def outcome_of(builder: MemoryBuilder, counters: AllocatorCounters | None = None) -> Outcome:
    trace = builder.build()
    trace = replace(trace, allocator_counters=counters)
    return judge(RULE, trace)


def test_a_leak_is_found_with_its_line_and_its_growth() -> None:
    (finding,) = outcome_of(steps([MIB] * 8, capacity=1 << 30)).findings
    assert (finding.where.file, finding.where.line, finding.where.op) == ("train.py", 9, "aten::clone")
    assert "1.00 MiB per step, over 7 steps" in finding.title  # the first one is left out
    assert "train.py:9 holds 1.00 MiB more after each" in finding.detail
    # 1024 MiB hold 64 of activations and 8 kept, at the peak
    assert "full in about 952 steps" in finding.detail
    assert (finding.severity, finding.basis, finding.cost_bytes) == ("high", "measured", 7 * MIB)
    assert finding.evidence[0]["per_step_bytes"] == MIB
    assert finding.evidence[0]["held_bytes"] == 8 * MIB


def test_three_equal_steps_of_a_settled_program_suffice() -> None:
    (finding,) = outcome_of(steps([MIB] * 3)).findings
    assert "over 3 steps" in finding.title
    assert finding.where.line == 9
    assert outcome_of(steps([MIB] * 3, first=0)).status == "abstained"  # things are made for the first time
    assert outcome_of(steps([MIB] * 2)).status == "abstained"


def test_few_steps_that_differ_are_no_evidence() -> None:
    assert outcome_of(steps([MIB, MIB, 2 * MIB])).status == "clean"


def test_scalars_are_no_leak() -> None:
    small = steps([LEAST_BYTES - 1] * 8)
    assert outcome_of(small).status == "clean"
    assert outcome_of(steps([LEAST_BYTES] * 8)).status == "flagged"


def test_what_the_next_step_replaces_is_no_leak() -> None:
    assert outcome_of(steps([MIB] * 8, replaced=True)).status == "clean"
    assert outcome_of(steps([MIB] * 3, replaced=True)).status == "clean"


def test_what_is_replaced_by_something_larger_grows() -> None:
    (finding,) = outcome_of(steps([MIB * (number + 1) for number in range(8)], replaced=True)).findings
    assert "1.00 MiB per step" in finding.title
    assert finding.evidence[0]["blocks"] == 1


def test_a_cache_that_fills_up_is_no_leak() -> None:
    assert outcome_of(steps([MIB, MIB, MIB, 0, 0, 0, 0, 0])).status == "clean"


@pytest.mark.parametrize("kept", [[0] * 8, [64 * MIB, *[0] * 7]])
def test_state_that_is_made_in_the_first_step_is_no_leak(kept: list[int]) -> None:
    assert outcome_of(steps(kept)).status == "clean"


def test_steps_are_known_by_those_of_the_optimizer() -> None:
    trace = steps([MIB] * 8, capacity=1 << 30, recorded=False).build()
    (growth,) = trace.fact(memory_growth)
    assert (growth.steps, growth.judged, growth.slope_bytes) == (7, 6, MIB)
    (place,) = growth.places
    assert (place.op, place.bytes_per_step, place.blocks) == ("aten::clone", MIB, 8)
    assert place.line == SourceLine(file="train.py", line=9, function="remember")
    (memory,) = trace.fact(trace_memories).memories
    assert memory.growth is not None
    assert (memory.growth.growing, memory.growth.steps, memory.growth.steps_left) == (True, 7, 1024 - 64 - 8)


def counted(grown: int, taken: int | None = 6) -> AllocatorCounters:
    key = "allocated_bytes.all.current"
    return AllocatorCounters(before={key: 1000}, after={key: 1000 + grown}, steps=taken)


def test_counters_show_growth_where_one_step_was_recorded() -> None:
    (finding,) = outcome_of(steps([2 * MIB]), counted(12 * MIB)).findings
    assert "2.00 MiB per step, over 6 steps" in finding.title
    assert "12.0 MiB in all" in finding.detail
    assert "the recorded step left 2.00 MiB at train.py:9" in finding.detail
    assert finding.where.line == 9


def test_counters_that_do_not_grow_are_clean() -> None:
    assert outcome_of(steps([2 * MIB]), counted(0)).status == "clean"  # the next step replaces it
    assert outcome_of(steps([2 * MIB]), counted(12 * MIB, None)).status == "abstained"
    assert outcome_of(steps([2 * MIB]), counted(12 * MIB, 2)).status == "abstained"


def test_growth_without_a_place_weighs_little() -> None:
    (finding,) = outcome_of(steps([64 * MIB]), counted(12 * MIB)).findings
    assert (finding.severity, finding.where.line) == ("low", None)


def test_one_step_is_too_few_and_says_what_to_do() -> None:
    outcome = outcome_of(steps([MIB]))
    assert outcome.status == "abstained"
    assert "1 step was recorded" in (outcome.reason or "")
    assert "--level deep" in (outcome.reason or "")


def profile(counts: dict[int, int], *, size: int = MIB) -> Trace:
    """A device memory profile: line of ``loop.py`` -> buffers of ``size`` bytes that it made."""
    b = MemoryBuilder(recorded=frozenset({"memory_state", "steps"}))
    for index, (line, count) in enumerate(counts.items()):
        b.row("frames", file=b.code("loop.py"), line=line, name=b.code("train"), parent=-1)
        b.row("held", on_device=True, ordinal=0, address=0, bytes=size * count, requested_bytes=-1, count=count,
              state=0, kind=b.code("buffer"), frame=index)  # fmt: skip
    for number in range(3):
        b.step(4 + number, 10 * number, 10 * number + 10)
    return b.build()


def of_profiles(before: dict[int, int], after: dict[int, int], *, size: int = MIB) -> Outcome:
    trace = profile(after, size=size)
    trace = replace(trace, held_before=profile(before, size=size))
    return judge(RULE, trace)


def test_arrays_of_a_jax_program_that_nobody_lets_go() -> None:
    (finding,) = of_profiles({12: 20, 30: 5}, {12: 26, 30: 5}).findings
    assert "2.00 MiB per step, over 3 steps" in finding.title
    assert "loop.py:12 makes 2 in each" in finding.detail
    assert (finding.where.file, finding.where.line, finding.cost_bytes) == ("loop.py", 12, 6 * MIB)


def test_arrays_that_are_replaced_or_few_are_no_leak() -> None:
    assert of_profiles({12: 20}, {12: 20}).status == "clean"
    assert of_profiles({12: 20}, {12: 21}).status == "clean"  # one more, after three steps
    assert of_profiles({12: 20}, {12: 23}, size=100).status == "clean"


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["medium512_train", "medium512_infer", "fragmented", "tiny", "fwd_bf16_128"])
def test_single_steps_of_the_corpus_are_not_judged(corpus: Path, name: str) -> None:
    (trace,) = load_all(corpus / "torch_mem" / f"assignment2-systems__{name}.pickle.gz")
    assert judge(RULE, trace).status == "abstained"


def test_a_real_program_that_keeps_a_graph(tmp_path: Path) -> None:
    """torch's own events, on the CPU: the defect is found at its line, the twin is clean."""
    pytest.importorskip("torch")
    for detached in (False, True):
        (trace,) = load_all(_trained(tmp_path / f"{detached}.pt.trace.json", detached))
        outcome = judge(RULE, trace)
        assert len(trace.fact(memory_timelines)) == 1
        if detached:
            assert outcome.status == "clean"
            continue
        (finding,) = outcome.findings
        # 256 KiB of the result of exp, which its backward pass would read
        assert finding.evidence[0]["per_step_bytes"] == pytest.approx(256 * 1024, rel=0.01)
        assert finding.where.op == "aten::exp"


def _trained(path: Path, detached: bool) -> Path:
    import torch

    weight, data = torch.randn(256, 256, requires_grad=True), torch.randn(256, 256)
    kept = []
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=8, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        profile_memory=True,
        with_stack=True,
    ) as profiler:
        for _ in range(9):
            loss = (data @ weight).exp().mean()
            loss.backward()
            weight.grad = None
            metric = weight.exp().mean()
            kept.append(metric.detach() if detached else metric)
            profiler.step()
    return path


def test_noise_does_not_hide_a_leak_and_is_none():
    rng = np.random.default_rng(3)
    noise = rng.integers(-20, 20, 40)
    slope, sure = trend(np.arange(40) * 64 + noise)
    assert slope == pytest.approx(64, abs=3)
    assert sure > 0.98
    slope, sure = trend(noise)
    assert abs(slope) < 1
    assert 0.3 < sure < 0.7


def test_a_list_that_is_cleared_is_no_leak() -> None:
    assert outcome_of(steps([MIB] * 8, cleared=5)).status == "clean"
