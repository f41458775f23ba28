"""The cost stated by the author of a Pallas kernel: in programs for GPUs, and once where the kernel is interpreted."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.model import kernel_cost
from perfscope.profiler.jax.pallas_costs import state_costs
from tests.hlo.modules import cost

jax = pytest.importorskip("jax")
pl = pytest.importorskip("jax.experimental.pallas")
pytestmark = [
    pytest.mark.jax,
    pytest.mark.skipif(jax.__version_info__ < (0, 7), reason="jax 0.6 lowers kernels for GPUs in another way"),
]

N = 64
TRITON = "__gpu$xla.gpu.triton"


def doubling_kernel(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def scaled(x: Any, *, stated: bool, interpret: bool = False) -> Any:
    from jax.experimental.pallas import triton

    estimate = pl.CostEstimate(flops=N * N, bytes_accessed=7, transcendentals=3) if stated else None
    rows, shape = pl.BlockSpec((16, N), lambda i: (i, 0)), jax.ShapeDtypeStruct((N, N), "float32")
    call = pl.pallas_call(
        doubling_kernel, grid=(N // 16,), in_specs=[rows], out_specs=rows, out_shape=shape,
        cost_estimate=estimate, interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(),
    )  # fmt: skip
    return call(x)


def lowered_for_a_gpu(stated: bool) -> str:
    from jax import export

    allowed = [export.DisabledSafetyCheck.custom_call(TRITON)]
    function = jax.jit(lambda x: scaled(x, stated=stated))
    try:
        exported = export.export(function, platforms=["cuda"], disabled_checks=allowed)(
            jax.ShapeDtypeStruct((N, N), "float32")
        )
    except RuntimeError as error:  # jax 0.12 asks the GPU for its kind
        pytest.skip(f"this jax lowers the kernel only where a GPU is: {error}")
    return str(exported.mlir_module())


def test_a_cost_is_written_into_the_program_while_a_capture_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cost, "_FORMULAS", {})
    undo = state_costs()
    assert undo is not None
    try:
        assert f'perfscope_bytes = "7", perfscope_flops = "{N * N}", perfscope_transcendentals = "3"' in (
            lowered_for_a_gpu(stated=True)
        )
        assert "perfscope_" not in lowered_for_a_gpu(stated=False)
        kernel_cost.kernel_cost(doubling_kernel)(lambda x: kernel_cost.Cost(flops=x.numel(), bytes=2 * x.nbytes))
        assert f'perfscope_bytes = "{8 * N * N}", perfscope_flops = "{N * N}"' in lowered_for_a_gpu(stated=False)
    finally:
        undo()
    assert "perfscope_" not in lowered_for_a_gpu(stated=True)


def test_an_interpreted_kernel_is_what_its_loop_does_whatever_its_author_states() -> None:
    shape = jax.ShapeDtypeStruct((N, N), "float32")
    totals = []
    for stated in (True, False):
        compiled = jax.jit(lambda x, stated=stated: scaled(x, stated=stated, interpret=True)).lower(shape).compile()
        totals.append(cost(compiled.as_text()).total)
    assert totals[0] == totals[1]
    assert N * N <= totals[0].flops < 2 * N * N, "one product per element, and the counting of blocks"
