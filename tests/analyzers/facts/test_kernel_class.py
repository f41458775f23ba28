"""Names of real kernels and the precision they multiply in."""

from __future__ import annotations

import pytest

from perfscope.analyzers.facts.kernel_class import matmul_precision


@pytest.mark.parametrize(
    ("kernel", "precision"),
    [
        ("ampere_sgemm_32x32_sliced1x4_tn", "float32"),
        ("volta_sgemm_128x64_nn", "float32"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(...)", "float32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4", "float32"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "float32"),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN", "float32"),
        ("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1_SN", "float32"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(...)", "tf32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4", "tf32"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16", "tf32"),
        ("ampere_fp16_s1688gemm_fp16_256x64_ldg8_f2f_tn", "float16"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x5_tn_align8>(...)", "float16"),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage4", "float16"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "bfloat16"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_relu_f2f_stages_64x4_tn", "bfloat16"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1", "bfloat16"),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1", "bfloat16"),
        ("Cijk_Alik_Bljk_HHS_BH_MT128x128x32_MI16x16x1", "float16"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128", "fp8"),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>", None),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float>", None),
        ("ampere_gcgemm_64x64_nt", None),
        ("void at::native::vectorized_elementwise_kernel<4>", None),
        ("triton_tem_fused_mm_0", None),
    ],
)
def test_the_name_tells_the_precision(kernel: str, precision: str | None):
    assert matmul_precision(kernel) == precision
