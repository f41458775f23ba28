from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.ops.kernel_names import LONGEST, short_kernel_name
from perfscope.analyzers.ops.top_work import NOT_KNOWN, merge_top_work, top_work
from perfscope.analyzers.readers.load import load_all
from perfscope.model.trace import CopyKind, HostMemory
from tests.build import TraceBuilder
from tests.conftest import corpus_files, every_file

VECTORIZED = (
    "void at::native::vectorized_elementwise_kernel<4, {}, std::array<char*, 2ul> >(int, {}, std::array<char*, 2ul>)"
)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (VECTORIZED.format(*["at::native::CUDAFunctor_add<float>"] * 2), "vectorized_elementwise: add"),
        (
            VECTORIZED.format(*["at::native::(anonymous namespace)::silu_kernel(at::Iterator&)::{lambda()#1}"] * 2),
            "vectorized_elementwise: silu",
        ),
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::AUnaryFunctor<float, "
            "float, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)::{lambda(int)#1}>(int)",
            "elementwise: Mul",
        ),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, "
            "unsigned int, long, 4, 4> >(at::native::ReduceOp<float>)",
            "reduce: ArgMax",
        ),
        ("triton_red_fused_add_mean_mul_pow_rsqrt_0", "triton reduction: add mean mul pow rsqrt"),
        ("triton_poi_fused_3", "triton pointwise: unnamed"),
        ("Cijk_Ailk_Bjlk_BBS_BH_MT32x32x64_MI16x16x16x1_SN_1LDSB0", "Tensile gemm NT BBS MT32x32x64"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs<4096ul>)", "nccl AllReduce Sum bf16 RING LL"),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x128_32x3_tn_align4>(cutlass_80_tensorop::Params)",
            "cutlass: 80_tensorop_s1688gemm_256x128_32x3_tn_align4",
        ),
        ("void flash::flash_fwd_kernel<flash::Flash_fwd_traits<64, 128> >(flash::p)", "flash::flash_fwd_kernel"),
        ("void (anonymous namespace)::softmax_warp_forward<float, 4>(float*)", "softmax_warp_forward"),
        ("ampere_sgemm_64x64_nn", "ampere_sgemm_64x64_nn"),
        ("_ZN2ck16tensor_operation6device12_GLOBAL__N_111kernel_gemmINS_3FooEEEvPT_", "ck::kernel_gemm"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_3FooEEEJEEEvT0_", "ck_tile: Rmsnorm2dFwd"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64EEEvPT0_", "aiter::add_rmsnorm_quant_kernel"),
        ("void clover::par_ranged1d_kernel<build_field(globals &)::[lambda(int) (instance 2)]>(clover::Range1d)",
         "par_ranged1d: build_field 2"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
         "TensorListMetadata<2>, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<float, 2, 2, 0>, "
         "std::plus<float>, float>(int)", "multi_tensor_apply: BinaryOpListAlpha plus"),
        (VECTORIZED.format(*["at::native::GeluCUDAKernelImpl(at::Iterator&, at::native::GeluType)::{lambda()#2}"] * 2),
         "vectorized_elementwise: Gelu"),
        ("std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
         "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)", "vllm::fused_add_rms_norm_kernel"),
        ("void at::native::<unnamed>::CatArrayBatchedCopy<int>(int)", "CatArrayBatchedCopy"),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage4_warpsize4x2x1_tensor16x8x16_kernel",
         "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_192x128x32~2af8"),
        ("loop_add_fusion.3", "loop_add_fusion.3"),
        ("", ""),
        ("<<<", "<<<"),
    ],
)  # fmt: skip
def test_short_names(name: str, short: str) -> None:
    assert short_kernel_name(name) == short


@given(st.text(max_size=200), st.text(max_size=200))
def test_long_names_are_cut_and_stay_different(first: str, second: str) -> None:
    one, two = (f"sm80_xmma_gemm_{'x' * 60}_{text}" for text in ("stage4", "stage5"))
    assert short_kernel_name(one) != short_kernel_name(two)
    assert all(len(short_kernel_name(name)) <= LONGEST for name in (one, two, first, second, first + second))


@pytest.mark.corpus
@pytest.mark.parametrize(
    "path", every_file(corpus_files("kineto", "*.json.gz")), ids=lambda path: path.name.split(".json")[0]
)
def test_every_kernel_of_a_real_trace_has_a_readable_name(path: Path) -> None:
    (trace,) = load_all(path)
    codes = set(trace.rows["kernels"]["name"].tolist())
    if not codes:
        pytest.skip("no kernels in it")
    for code in codes:
        short = short_kernel_name(trace.text(code))
        assert 0 < len(short) <= LONGEST
        assert not re.search(r"[<>{}()]|_ZN", short), short


def _two_steps() -> TraceBuilder:
    b = TraceBuilder()
    for number in range(2):
        begin = 1_000 * number
        b.step(number, begin, begin + 1_000)
        b.python("nn.Module: Mlp_0", begin, begin + 90)
        b.python("train.py(12): forward", begin, begin + 80)
        b.op("aten::mm", begin + 1, begin + 20, external_id=10 * number + 1)
        b.kernel("gemm", begin + 100, begin + 700, external_id=10 * number + 1)
        b.op("aten::copy_", begin + 21, begin + 40, external_id=10 * number + 2)
        b.copy("Memcpy DtoD", begin + 700, begin + 800, external_id=10 * number + 2,
               kind=CopyKind.DEVICE_TO_DEVICE, host_memory=HostMemory.NONE)  # fmt: skip
    b.kernel("after the last step", 2_500, 2_600)
    return b


def test_work_of_the_steps_by_kernel_op_module_and_line() -> None:
    top = top_work(_two_steps().build())
    assert top is not None
    assert (top.total_ns, top.steps, top.on_host) == (1_400_000, 2, False)
    assert [(row.name, row.total_ns, row.calls, row.op) for row in top.kernels] == [
        ("gemm", 1_200_000, 2, "aten::mm"), ("Memcpy DtoD", 200_000, 2, "aten::copy_"),
    ]  # fmt: skip
    assert [(row.name, row.total_ns) for row in top.ops] == [("aten::mm", 1_200_000), ("aten::copy_", 200_000)]
    assert [(row.name, row.total_ns) for row in top.lines] == [("train.py:12", 1_400_000)]
    for kind in (top.kernels, top.ops, top.modules, top.lines):
        assert sum(row.total_ns for row in kind) == top.total_ns


def test_without_an_accelerator_ops_of_the_host_count() -> None:
    b = TraceBuilder()
    b.step(1, 0, 100)
    b.op("aten::linear", 0, 50)
    b.op("aten::mm", 10, 40)
    top = top_work(b.build())
    assert top is not None
    assert top.on_host
    assert [(row.name, row.total_ns) for row in top.ops] == [("aten::mm", 30_000), ("aten::linear", 20_000)]
    assert top.kernels == ()


def test_several_traces_are_summed_by_name() -> None:
    parts = [top for _ in range(2) if (top := top_work(_two_steps().build())) is not None]
    merged = merge_top_work(parts)
    assert merged is not None
    assert (merged.total_ns, merged.steps) == (2_800_000, 4)
    assert (merged.kernels[0].name, merged.kernels[0].calls) == ("gemm", 4)
    assert merge_top_work([]) is None


def test_what_is_not_linked_is_not_known() -> None:
    b = TraceBuilder()
    b.kernel("gemm", 0, 10)
    top = analyze(b.build()).top
    assert top is not None
    assert [row.name for row in top.lines] == [NOT_KNOWN]
    assert top_work(TraceBuilder().build()) is None
