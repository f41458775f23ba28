from __future__ import annotations

from perfscope.model.trace import CallKind, CopyKind, HostMemory
from tests.build import EVERYTHING, TraceBuilder
from tests.rules import judged_by

_judge = judged_by("pageable_copy")


def _copy(exposed: float, memory: HostMemory = HostMemory.PAGEABLE, **more) -> TraceBuilder:
    """A step of 1 ms: work until 500 us, a copy from 400 us that runs ``exposed`` us longer, then work."""
    b = TraceBuilder()
    b.step(1, 0, 1000)
    b.python("train.py(5): load", 0, 1000)
    b.launched("a", 0, 5, 500, correlation=1)
    b.op("aten::copy_", 1, 20)
    b.call("cudaMemcpyAsync", 2, 19, kind=CallKind.COPY, correlation=2)
    b.copy("Memcpy HtoD (Pageable -> Device)", 400, 500 + exposed, stream=9, correlation=2, host_memory=memory, **more)
    b.launched("b", 21, 500 + exposed, 1000, correlation=3)
    return b


def test_flagged_with_the_time_no_kernel_covers():
    outcome = _judge(_copy(100, size=1 << 20))
    (finding,) = outcome.findings
    assert (outcome.status, finding.basis, finding.cost_ns, finding.cost_bytes) == (
        "flagged", "measured", 100_000, 1 << 20,
    )  # fmt: skip
    assert (finding.where.op, finding.where.file, finding.where.line) == ("aten::copy_", "train.py", 5)
    assert "1.00 MiB" in finding.title
    assert "pin_memory" in finding.advice


def test_the_threshold_is_one_percent_of_the_step():
    assert _judge(_copy(10)).status == "flagged"
    assert _judge(_copy(9.9)).status == "clean"


def test_a_pinned_copy_is_clean():
    assert _judge(_copy(100, memory=HostMemory.PINNED)).status == "clean"


def test_a_copy_within_a_device_is_none_that_it_looks_at():
    assert _judge(_copy(100, kind=CopyKind.DEVICE_TO_DEVICE)).status == "abstained"


def test_idle_time_after_waiting_for_the_copy_counts_and_says_that_host_sync_names_it():
    b = TraceBuilder()
    b.step(1, 0, 1000)
    b.launched("a", 0, 5, 300, correlation=1)
    b.op("aten::copy_", 1, 330)
    b.call("cudaMemcpyAsync", 2, 10, kind=CallKind.COPY, correlation=2)
    b.copy("Memcpy HtoD", 300, 310, correlation=2, size=100)
    b.call("cudaStreamSynchronize", 11, 315, kind=CallKind.SYNC)
    b.launched("b", 398, 400, 1000, correlation=3)
    (finding,) = _judge(b).findings
    assert finding.cost_ns == 10_000 + 88_000
    assert "88.0 us idle after waiting for them, which host_sync names too" in finding.detail


def test_two_copies_of_one_op_share_its_wait():
    b = TraceBuilder()
    b.step(1, 0, 1000)
    b.launched("a", 0, 5, 300, correlation=1)
    b.op("aten::copy_", 1, 330)
    for number, start in ((2, 300), (3, 310)):
        b.call("cudaMemcpyAsync", 2 * number, 2 * number + 1, kind=CallKind.COPY, correlation=number)
        b.copy("Memcpy HtoD", start, start + 10, correlation=number, size=100)
    b.call("cudaStreamSynchronize", 11, 325, kind=CallKind.SYNC)
    b.launched("b", 398, 400, 1000, correlation=4)
    assert [finding.cost_ns for finding in _judge(b).findings] == [20_000 + 78_000]


def test_a_wait_of_another_op_is_not_the_copys():
    b = TraceBuilder()
    b.step(1, 0, 1000)
    b.launched("a", 0, 5, 300, correlation=1)
    b.op("aten::copy_", 1, 10)
    b.call("cudaMemcpyAsync", 2, 9, kind=CallKind.COPY, correlation=2)
    b.copy("Memcpy HtoD", 100, 110, stream=9, correlation=2, size=100)
    b.op("aten::item", 11, 330)
    b.call("cudaStreamSynchronize", 12, 315, kind=CallKind.SYNC)
    b.launched("b", 398, 400, 1000, correlation=3)
    assert _judge(b).status == "clean"


def test_reading_one_number_is_host_syncs_business():
    b = TraceBuilder()
    b.step(1, 0, 1000)
    b.launched("a", 0, 5, 300, correlation=1)
    b.op("aten::_local_scalar_dense", 1, 330)
    b.call("cudaMemcpyAsync", 2, 315, kind=CallKind.COPY, correlation=2)
    b.copy("Memcpy DtoH", 300, 310, correlation=2, size=4, kind=CopyKind.DEVICE_TO_HOST)
    b.launched("b", 398, 400, 1000, correlation=3)
    assert _judge(b).status == "clean"


def test_directions_are_apart():
    b = _copy(50)
    b.op("aten::copy_", 601, 620)
    b.call("cudaMemcpyAsync", 602, 619, kind=CallKind.COPY, correlation=7)
    b.copy("Memcpy DtoH", 1000, 1020, correlation=7, kind=CopyKind.DEVICE_TO_HOST, size=8)
    b.step(2, 1000, 1020)
    assert {f.subject: f.cost_ns for f in _judge(b).findings} == {
        "pageable host to device": 50_000,
        "pageable device to host": 20_000,
    }


def test_abstains_where_the_kind_of_memory_is_unknown_and_matters():
    assert _judge(_copy(100, memory=HostMemory.UNKNOWN)).status == "abstained"
    assert _judge(_copy(9, memory=HostMemory.UNKNOWN)).status == "clean"


def test_abstains_without_a_device():
    b = TraceBuilder(recorded=EVERYTHING - {"device_work"})
    b.op("aten::copy_", 0, 10)
    assert _judge(b).status == "abstained"
