from __future__ import annotations

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.model.trace import CopyKind, HostMemory
from tests.build import EVERYTHING, TraceBuilder

RULE = load_rule("exposed_copy")


def _streamed(copy_us: float, *, start: float = 0, kernel_us: float = 9_000, **more: HostMemory) -> TraceBuilder:
    """A step of 10 ms with a copy of ``copy_us`` from the host, and a kernel at its end."""
    b = TraceBuilder()
    b.step(1, 0, 10_000)
    b.copy("Memcpy HtoD (Pinned -> Device)", start, start + copy_us, stream=9, size=50_000_000,
           **{"host_memory": HostMemory.PINNED, **more})  # fmt: skip
    b.kernel("gemm", 10_000 - kernel_us, 10_000)
    return b


def test_weights_streamed_from_the_host_are_flagged_with_bytes_and_rate() -> None:
    (finding,) = judge(RULE, _streamed(1_000).build()).findings
    assert (finding.subject, finding.cost_ns, finding.cost_bytes) == ("host-to-device copies", 1_000_000, 50_000_000)
    assert finding.evidence[0]["gb_per_s"] == 50.0
    assert finding.evidence[0]["host_memory"] == "pinned"


def test_the_threshold_is_a_twentieth_of_the_step() -> None:
    assert judge(RULE, _streamed(500).build()).status == "flagged"
    assert judge(RULE, _streamed(499).build()).status == "clean"


def test_a_copy_beside_a_kernel_costs_nothing() -> None:
    assert judge(RULE, _streamed(8_000, start=1_000).build()).status == "clean"


def test_pageable_copies_are_left_to_their_own_rule() -> None:
    assert judge(RULE, _streamed(1_000, host_memory=HostMemory.PAGEABLE).build()).status == "clean"


def test_copies_within_the_device_count() -> None:
    b = TraceBuilder()
    b.step(1, 0, 1_000)
    b.kernel("gemm", 0, 800)
    b.copy("Memcpy DtoD", 800, 1_000, kind=CopyKind.DEVICE_TO_DEVICE, host_memory=HostMemory.NONE)
    (finding,) = judge(RULE, b.build()).findings
    assert (finding.subject, finding.cost_ns) == ("copies within the device", 200_000)


def test_without_device_work_it_abstains() -> None:
    assert judge(RULE, TraceBuilder(recorded=EVERYTHING - {"device_work"}).build()).status == "abstained"
