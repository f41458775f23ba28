"""Block sizes follow from the source; what is no kernel of inductor's says so."""

from __future__ import annotations

import sys

import pytest

from perfscope.profiler.ahead.targets import plugins
from perfscope.profiler.ahead.torch.registers import blocks_of, registers_of, signature_of

POINTWISE = """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics
triton_helpers.set_driver_to_cpu()

@triton_heuristics.pointwise(
    size_hints={'x': 1048576},
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}},
)
@triton.jit
def Placeholder.KERNEL_NAME(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tl.store(out_ptr0 + xindex, tl.load(in_ptr0 + xindex, xmask) * 2.0, xmask)
"""
REDUCTION = """
@triton_heuristics.reduction(size_hints={'x': 8, 'r0_': 512},
    triton_meta={'signature': {'in_ptr0': '*fp32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'}})
"""


def test_blocks_of_kernels_with_and_without_a_reduction() -> None:
    assert blocks_of(POINTWISE, signature_of(POINTWISE)) == ({"XBLOCK": 1024}, 4)
    assert blocks_of(REDUCTION, signature_of(REDUCTION)) == ({"XBLOCK": 1, "R0_BLOCK": 512}, 8)


def test_what_is_not_known_is_said() -> None:
    found = registers_of("def f(): pass", (9, 0))
    assert found.registers is None
    assert found.failure is not None
    assert "no signature" in found.failure


@pytest.mark.aot
@pytest.mark.slow
def test_a_kernel_is_compiled_for_a_device_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = plugins.find("torch")
    if isinstance(plugin, plugins.MissingPlugin):
        pytest.skip(f"{plugin.reason}: PERFSCOPE_PLUGINS names no folder with triton")
    if plugin.own_folder:
        monkeypatch.setattr(sys, "path", [*sys.path, str(plugin.folder)])
    found = registers_of(POINTWISE, (9, 0))
    assert found.failure is None
    assert found.capability == "sm_90a"
    assert found.blocks == "XBLOCK=1024, num_warps=4"
    assert found.registers is not None
    assert 8 <= found.registers <= 64
    assert found.spilled_bytes == 0
