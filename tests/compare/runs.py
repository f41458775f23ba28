"""Properties of every comparison, and of a program compared with itself."""

from __future__ import annotations

from perfscope.analyzers.compare.runs.comparison import Comparison
from perfscope.model.trace import CallKind, SliceKind, Trace
from tests.build import TraceBuilder


def assert_sums(found: Comparison) -> None:
    """The parts of the step sum to it, on both sides and in their differences."""
    assert found.time is not None
    for step in filter(None, (found.time.median, found.time.worst)):
        step.check()
        assert sum(part.delta_ns for part in step.parts) == step.head_ns - step.base_ns
        assert sum(head for _, head in step.by_kind().values()) == step.head_ns
        assert all(part.count_ns + part.each_ns == part.delta_ns for part in step.parts)


def assert_silent(found: Comparison) -> None:
    """Nothing that can be counted changed, and no gate of it fails; a finding may come or go by its time alone."""
    assert {one.result.verdict for one in found.exact} <= {"no change"}
    assert not any(cause.exact for cause in found.causes)
    assert not any(one.is_worse for one in found.findings)
    assert found.headline in ("no change", "not judged")
    assert found.gates(["regression", "finding:low"]) == ()


def assert_quiet(found: Comparison) -> None:
    """As ``assert_silent``, and every finding is the same: both sides are one recording."""
    assert_silent(found)
    assert {one.change for one in found.findings} <= {"unchanged"}


def gpu_run(
    *,
    steps: int = 2,
    file: str = "train.py",
    line: int = 10,
    slow_us: float = 0.0,
    item: bool = False,
    fused: bool = False,
    kernel: str = "gemm_128x64_tn",
    device: str = "Test GPU",
    rank: int | None = 0,
    extra: bool = False,
) -> Trace:
    """Steps of 1000 us: a product of 100 us, three pointwise kernels of 20 us or a fused one of 25.

    ``slow_us``: extra duration of the product and the step. ``item``: the host reads a value after the product, and the
    device waits. ``extra``: one more small kernel.
    """
    made = TraceBuilder(path=f"{file}.json", rank=rank)
    made.device(0, device)
    correlation = 0

    def op(name: str, at: float, ran: float, took: float, work: str, source_line: int) -> None:
        nonlocal correlation
        correlation += 1
        made.python(f"{file}({source_line}): loss", at - 1, at + 9)
        made.op(name, at, at + 8, external_id=correlation, shapes="[[4, 4], [4, 4]]", dtypes='["float", "float"]')
        made.launched(work, at + 1, ran, ran + took, correlation=correlation)

    for step in range(steps):
        start = step * (1000.0 + slow_us)
        made.step(step, start, start + 1000 + slow_us)
        op("aten::mm", start + 10, start + 20, 100 + slow_us, kernel, line)
        ready = start + 120 + slow_us
        if item:
            made.python(f"{file}({line + 1}): read", start + 30, ready + 200)
            made.op("aten::item", start + 31, ready + 190)
            made.call("cudaStreamSynchronize", start + 40, ready + 1, kind=CallKind.SYNC)
            ready += 250
        later = start + 40 if not item else ready - 20
        if fused:
            op("triton_poi_fused_add_mul_silu_0", later, ready + 10, 25, "triton_poi_fused_add_mul_silu_0", line + 2)
        else:
            for number, name in enumerate(("aten::add", "aten::mul", "aten::silu")):
                at = later + 12 * number
                op(name, at, ready + 10 + 20 * number, 20, f"{name[6:]}_kernel", line + 2)
        if extra:
            op("aten::neg", later + 40, ready + 90, 5, "neg_kernel", line + 3)
        made.annotation(f"ProfilerStep#{step}", start, start + 1000 + slow_us)
    return made.build()


def host_run(*, steps: int = 3, item: bool = False, line: int = 10, scale: float = 1.0) -> Trace:
    """Steps of 100 us on the host alone: a product of 40 us, an add of 10; ``item``: a read of 5 us between them."""
    made = TraceBuilder(recorded=frozenset({"host_ops", "python_stack", "steps", "autograd"}), path="host.json")
    for step in range(steps):
        start = step * 100.0
        made.step(step, start, start + 100)
        made.annotation(f"ProfilerStep#{step}", start, start + 100)
        made.python(f"model.py({line}): forward", start + 1, start + 95)
        made.op("aten::mm", start + 5, start + 5 + 40 * scale)
        if item:
            made.slice(f"model.py({line + 3}): log", start + 60, start + 70, kind=SliceKind.PYTHON)
            made.op("aten::item", start + 61, start + 66)
        made.op("aten::add", start + 80, start + 90)
    return made.build()
