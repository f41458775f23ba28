"""Recordings of others whose kernels the model of kernel times is fitted to and held against, by program.

A program is held out whole, on all of its devices: the same kernels on two devices are no independent evidence.
Of ranks that run the same shapes there is one.

Those below ``kineto/`` are in the corpus; those below ``calibration/`` are of AMD-AGI/TraceLens (MIT) at 171dd74721, by
their names in its folder ``tests/traces``.
"""

from __future__ import annotations

PROGRAMS: dict[str, tuple[str, ...]] = {
    "BERT": (
        "kineto/TraceLens__h100_bert-small.json.gz",
        "calibration/TraceLens__mi300_bert-small-uncased.json.gz",
    ),
    "DLRM": (
        "kineto/HolisticTraceAnalysis__trace_diff_control.json.gz",  # A100 40GB
        "kineto/HolisticTraceAnalysis__trace_diff_test.json.gz",  # V100
    ),
    "DLRM of torchrec": ("kineto/torchrec__sst_sleep_pl_dense_after_backward_2_19488__rank0.json.gz",),  # V100
    "image classifier": (
        "calibration/TraceLens__h100_nsfw_image_detection.json.gz",
        "calibration/TraceLens__mi300_nsfw_image_detection.json.gz",
    ),
    "Llama": ("kineto/TraceLens__torch_compile_triton.json.gz",),  # MI300X, torch.compile
    "Megatron": ("kineto/astra-sim__megatron_kineto_0.json.gz",),  # A100 80GB, float16
    "normalization layers": ("calibration/TraceLens__normalization_layers.json.gz",),  # MI300X
    "OWLv2": (
        "calibration/TraceLens__h100_owlv2-large-patch14-ensemble.json.gz",
        "calibration/TraceLens__mi300_owlv2-large-patch14-ensemble.json.gz",
    ),
    "Qwen1.5": ("kineto/TraceLens__h100_qwen1.5-0.5b.json.gz", "kineto/TraceLens__mi300_qwen1.5-0.5b.json.gz"),
    "Qwen3": ("kineto/TraceLens__sglang_qwen3-8b_decode.json.gz",),  # MI300X, SGLang
    "ResNet": ("kineto/TraceLens__resnet_act_checkpoint.json.gz",),  # MI300X, training
    "ResNet of HTA": (
        "kineto/HolisticTraceAnalysis__nccl_data.json.gz",  # A100 40GB
        "kineto/HolisticTraceAnalysis__ns_resolution_rank0.json.gz",  # V100
    ),
    "Stable Diffusion": ("calibration/TraceLens__xdit_sd3.5_rank0.json.gz",),  # MI300X
    "TimeSformer": (
        "calibration/TraceLens__h100_timesformer-base-finetuned-k400.json.gz",
        "calibration/TraceLens__mi300_timesformer-base-finetuned-k400.json.gz",
    ),
    "ViT": ("kineto/ao__quantize_vit_bfloat16.json.gz",),  # A100 40GB
    "vLLM eager": ("kineto/TraceLens__b200_eager.json.gz",),  # fp8
    "vLLM decode": ("kineto/TraceLens__vllm_decode_full_graph.json.gz",),  # MI300X
}
