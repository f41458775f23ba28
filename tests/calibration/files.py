"""Recordings of others whose kernels the model of kernel times is held against: those it is fitted to, and the others.

The split is by program: none of the unseen ones is fitted on any device. It was declared before the first fit; one file
was moved to the fitted ones afterwards (``xdit_sd3.5``: without it no convolution of more than a batch of images).
"""

from __future__ import annotations

FITTED = (
    "kineto/HolisticTraceAnalysis__trace_diff_control.json.gz",  # A100 40GB: DLRM
    "kineto/HolisticTraceAnalysis__trace_diff_test.json.gz",  # V100: DLRM
    "kineto/TraceLens__h100_bert-small.json.gz",
    "kineto/TraceLens__h100_qwen1.5-0.5b.json.gz",
    "kineto/TraceLens__mi300_qwen1.5-0.5b.json.gz",
    "kineto/TraceLens__resnet_act_checkpoint.json.gz",  # MI300X: training
    "kineto/TraceLens__torch_compile_triton.json.gz",  # MI300X: Llama
    "calibration/TraceLens__h100_timesformer-base-finetuned-k400.json.gz",
    "calibration/TraceLens__mi300_bert-small-uncased.json.gz",
    "calibration/TraceLens__mi300_timesformer-base-finetuned-k400.json.gz",
    "calibration/TraceLens__normalization_layers.json.gz",  # MI300X
    "calibration/TraceLens__xdit_sd3.5_rank0.json.gz",  # MI300X: diffusion, the one file with large convolutions
)

UNSEEN = (
    "kineto/HolisticTraceAnalysis__mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "kineto/TraceLens__b200_eager.json.gz",  # vLLM, fp8
    "kineto/ao__quantize_vit_bfloat16.json.gz",  # A100 40GB
    "kineto/astra-sim__megatron_kineto_0.json.gz",  # A100 80GB; the other ranks run the same shapes
    "calibration/TraceLens__h100_nsfw_image_detection.json.gz",
    "calibration/TraceLens__h100_owlv2-large-patch14-ensemble.json.gz",
    "calibration/TraceLens__mi300_nsfw_image_detection.json.gz",
    "calibration/TraceLens__mi300_owlv2-large-patch14-ensemble.json.gz",
)
