"""Collectives of a trace of torch.profiler: which description belongs to which kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.model.trace import MISSING
from tests.readers.test_kineto import BASE, events, read, span, text


@pytest.mark.parametrize("later_first", [False, True])
def test_two_collectives_that_begin_in_one_nanosecond_keep_their_groups(tmp_path: Path, later_first: bool) -> None:
    def kernel(stream: int, correlation: int, group: str, elements: int) -> dict[str, Any]:
        described = {"Collective name": "allreduce", "In msg nelems": elements, "Process Group Name": group}
        return span("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1060.5, 10, pid=0, tid=stream, args={
            "device": 0, "stream": stream, "correlation": correlation, **described})  # fmt: skip

    found = [kernel(9, 5, "tp", 256), kernel(11, 6, "dp", 1024)]
    plain = span("kernel", "ncclDevKernel_Broadcast_RING_LL", 1060.5, 10, pid=0, tid=13, args={
        "device": 0, "stream": 13, "correlation": 7})  # fmt: skip
    trace = read(tmp_path, text([*events(), *(found[::-1] if later_first else found), plain]))
    kernels, collectives = trace.rows["kernels"], trace.rows["collectives"]
    seen = {
        int(kernels["stream"][kernel]): (trace.text(int(group)), int(elements))
        for kernel, group, elements in zip(
            collectives["kernel"], collectives["group"], collectives["elements_in"], strict=True
        )
        if kernels["start_ns"][kernel] == BASE + 1_060_500
    }
    assert seen == {9: ("tp", 256), 11: ("dp", 1024), 13: ("", MISSING)}
