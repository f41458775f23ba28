"""Kernels that communicate, by names of public libraries; and kernels whose names only look like it."""

from __future__ import annotations

import pytest

from perfscope.analyzers.readers.communication import collective_name, is_communication


@pytest.mark.parametrize(
    ("kernel", "operation"),
    [
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "unknown"),
        ("rccl_main_kernel", "unknown"),
        ("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)", "all_to_all"),
        ("void dpsk::ep::internode::notify_dispatch<false, 4>(int const*)", "all_to_all"),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)", "all_to_all"),
        ("void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(mori::moe::EpDispatchCombineArgs)", "all_to_all"),
        ("EpCombineInterNodeV1Kernel_bf16", "all_to_all"),
        ("void pplx::dispatchKernel<true>(float*)", "all_to_all"),
        ("moeA2ADispatchKernel(int const*, tensorrt_llm::kernels::MoeA2ADispatchParams)", "all_to_all"),
        ("kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", "send_recv"),
        ("kuserbuffers_pushrecv(int, int, int*, int*)", "send_recv"),
        ("kuserbuffers_alltoall(void**, void**)", "all_to_all"),
        ("void userbuffers_fp16_sum_inplace_gpu_rw_ag<4>(int, int)", "all_gather"),
        ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<8>(int, int)", "reduce_scatter"),
        ("void userbuffers_fp16_sum_inplace_gpu_mc<8>(int, int)", "all_reduce"),
        ("void vllm::cross_device_reduce_2stage<__half, 8>(vllm::RankData*)", "all_reduce"),
        ("void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half> >(__half const*)", "all_reduce"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<4>(x)", "all_reduce"),
        ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>(AllReduceParams)", "all_reduce"),
        ("multimem_one_shot_all_reduce_kernel", "all_reduce"),
        ("mscclpp::executionKernel", "unknown"),
        ("nvshmemi_transfer_rma", "unknown"),
        ("hcom_allReduce__338_0", "all_reduce"),
        ("void oneccl::reduce_scatter_kernel(int)", "reduce_scatter"),
    ],
)
def test_names_of_libraries(kernel: str, operation: str) -> None:
    assert is_communication(kernel)
    assert collective_name(kernel) == operation


@pytest.mark.parametrize(
    "kernel",
    [
        "void at::native::elementwise_kernel<128, at::native::nccl_like_functor>(int)",
        "void cdpsk::ep::CUB_200700::DeviceScanKernel<int>(int)",
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
        "moeA2ASanitizeExpertIdsKernel(int*)",
        "void at::native::reduce_kernel<512, 1>(float)",
        "reduce_scatter_grad_kernel",
        "triton_poi_fused_add_0",
        "StepCombineKernel",
    ],
)
def test_names_that_only_look_like_it(kernel: str) -> None:
    assert not is_communication(kernel)
