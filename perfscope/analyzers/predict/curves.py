"""Curves of kernel times, fitted on 2026-11-27 by ``python -m tests.calibration --fit``.

To these recordings of others:

* kineto/TraceLens__h100_bert-small.json.gz
* calibration/TraceLens__mi300_bert-small-uncased.json.gz
* kineto/HolisticTraceAnalysis__trace_diff_control.json.gz
* kineto/HolisticTraceAnalysis__trace_diff_test.json.gz
* kineto/torchrec__sst_sleep_pl_dense_after_backward_2_19488__rank0.json.gz
* calibration/TraceLens__h100_nsfw_image_detection.json.gz
* calibration/TraceLens__mi300_nsfw_image_detection.json.gz
* kineto/TraceLens__torch_compile_triton.json.gz
* kineto/astra-sim__megatron_kineto_0.json.gz
* calibration/TraceLens__normalization_layers.json.gz
* calibration/TraceLens__h100_owlv2-large-patch14-ensemble.json.gz
* calibration/TraceLens__mi300_owlv2-large-patch14-ensemble.json.gz
* kineto/TraceLens__h100_qwen1.5-0.5b.json.gz
* kineto/TraceLens__mi300_qwen1.5-0.5b.json.gz
* kineto/TraceLens__sglang_qwen3-8b_decode.json.gz
* kineto/TraceLens__resnet_act_checkpoint.json.gz
* kineto/HolisticTraceAnalysis__nccl_data.json.gz
* kineto/HolisticTraceAnalysis__ns_resolution_rank0.json.gz
* calibration/TraceLens__xdit_sd3.5_rank0.json.gz
* calibration/TraceLens__h100_timesformer-base-finetuned-k400.json.gz
* calibration/TraceLens__mi300_timesformer-base-finetuned-k400.json.gz
* kineto/ao__quantize_vit_bfloat16.json.gz
* kineto/TraceLens__b200_eager.json.gz
* kineto/TraceLens__vllm_decode_full_graph.json.gz

Never changed by hand: a test holds the table to what the fit gives.
"""

from __future__ import annotations

from perfscope.analyzers.predict.curve import Curve

CURVES: tuple[Curve, ...] = (
    Curve(devices="AMD", category="attention", float32=False, floor=16000, matrix=0.25, memory=0.8,
          elements=0.0, half=256, small=(0.604, 1.055), large=(0.969, 2.202), shapes=8, kernels=282),
    Curve(devices="AMD", category="batch norm", float32=False, floor=14000, matrix=1.0, memory=0.06,
          elements=0.0, half=0, small=(0.797, 1.275), large=(0.85, 1.498), shapes=9, kernels=87),
    Curve(devices="AMD", category="batch norm backward", float32=False, floor=5250, matrix=1.0, memory=0.2,
          elements=0.4, half=0, small=(0.631, 1.681), large=(0.631, 1.681), shapes=5, kernels=15),
    Curve(devices="AMD", category="convolution", float32=False, floor=34000, matrix=0.3, memory=0.06,
          elements=0.0, half=0, small=(0.391, 1.11), large=(0.267, 1.193), shapes=27, kernels=121),
    Curve(devices="AMD", category="convolution backward", float32=False, floor=60000, matrix=0.1, memory=0.04,
          elements=0.0, half=0, small=(0.816, 1.306), large=(0.816, 1.306), shapes=1, kernels=3),
    Curve(devices="AMD", category="copy", float32=False, floor=4250, matrix=1.0, memory=1.4,
          elements=0.0, half=0, small=(0.828, 1.421), large=(0.828, 1.421), shapes=33, kernels=377),
    Curve(devices="AMD", category="elementwise", float32=False, floor=4000, matrix=1.0, memory=0.7,
          elements=0.0, half=0, small=(0.48, 1.497), large=(0.554, 1.228), shapes=152, kernels=4357),
    Curve(devices="AMD", category="gather", float32=False, floor=4000, matrix=1.0, memory=0.4,
          elements=0.0, half=0, small=(0.636, 1.581), large=(0.636, 1.631), shapes=8, kernels=31),
    Curve(devices="AMD", category="join", float32=False, floor=5250, matrix=1.0, memory=0.3,
          elements=0.0, half=0, small=(0.58, 1.061), large=(0.565, 1.044), shapes=14, kernels=106),
    Curve(devices="AMD", category="norm", float32=False, floor=4000, matrix=1.0, memory=0.25,
          elements=0.0, half=0, small=(0.832, 1.428), large=(0.56, 1.081), shapes=22, kernels=685),
    Curve(devices="AMD", category="norm backward", float32=False, floor=6250, matrix=1.0, memory=0.03,
          elements=0.0, half=0, small=(0.34, 1.962), large=(0.34, 1.962), shapes=6, kernels=18),
    Curve(devices="AMD", category="product", float32=False, floor=5500, matrix=0.45, memory=0.8,
          elements=1.6, half=0, small=(0.713, 1.441), large=(0.738, 1.438), shapes=78, kernels=5033),
    Curve(devices="AMD", category="product", float32=True, floor=28000, matrix=0.95, memory=0.9,
          elements=0.0, half=0, small=(0.772, 1.234), large=(0.772, 1.234), shapes=1, kernels=1),
    Curve(devices="AMD", category="reduction", float32=False, floor=5250, matrix=1.0, memory=0.7,
          elements=0.0, half=0, small=(0.611, 3.659), large=(0.754, 1.92), shapes=33, kernels=1438),
    Curve(devices="AMD", category="softmax", float32=False, floor=4750, matrix=1.0, memory=0.5,
          elements=1.0, half=0, small=(0.636, 1.194), large=(0.614, 1.172), shapes=5, kernels=252),
    Curve(devices="AMD", category="strided", float32=False, floor=5000, matrix=1.0, memory=0.55,
          elements=2.5, half=0, small=(0.696, 1.305), large=(0.774, 2.101), shapes=60, kernels=1847),
    Curve(devices="NVIDIA", category="attention", float32=False, floor=2750, matrix=0.1, memory=0.8,
          elements=0.0, half=0, small=(0.722, 1.156), large=(0.722, 1.156), shapes=3, kernels=40),
    Curve(devices="NVIDIA", category="convolution", float32=False, floor=60000, matrix=0.1, memory=0.02,
          elements=0.0, half=0, small=(0.73, 1.169), large=(0.73, 1.169), shapes=3, kernels=7),
    Curve(devices="NVIDIA", category="copy", float32=False, floor=2000, matrix=1.0, memory=0.85,
          elements=0.0, half=0, small=(0.617, 2.318), large=(0.91, 1.456), shapes=136, kernels=6340),
    Curve(devices="NVIDIA", category="elementwise", float32=False, floor=2000, matrix=1.0, memory=0.95,
          elements=0.0, half=0, small=(0.672, 2.0), large=(0.666, 1.296), shapes=324, kernels=5127),
    Curve(devices="NVIDIA", category="gather", float32=False, floor=4000, matrix=1.0, memory=0.2,
          elements=0.0, half=0, small=(0.735, 1.352), large=(0.594, 1.23), shapes=33, kernels=89),
    Curve(devices="NVIDIA", category="join", float32=False, floor=2500, matrix=1.0, memory=0.15,
          elements=0.0, half=0, small=(0.453, 0.973), large=(0.416, 0.665), shapes=7, kernels=93),
    Curve(devices="NVIDIA", category="norm", float32=False, floor=3000, matrix=1.0, memory=0.5,
          elements=0.0, half=0, small=(0.915, 1.464), large=(0.712, 1.228), shapes=17, kernels=664),
    Curve(devices="NVIDIA", category="norm backward", float32=False, floor=12000, matrix=1.0, memory=0.5,
          elements=0.0, half=0, small=(0.705, 1.128), large=(0.705, 1.128), shapes=5, kernels=82),
    Curve(devices="NVIDIA", category="product", float32=False, floor=5250, matrix=0.8, memory=0.65,
          elements=2.0, half=0, small=(0.571, 1.415), large=(0.64, 1.883), shapes=165, kernels=3273),
    Curve(devices="NVIDIA", category="product", float32=True, floor=3500, matrix=0.95, memory=0.55,
          elements=0.0, half=0, small=(0.501, 1.278), large=(0.501, 1.278), shapes=20, kernels=129),
    Curve(devices="NVIDIA", category="reduction", float32=False, floor=5000, matrix=1.0, memory=0.75,
          elements=12.0, half=0, small=(0.798, 2.429), large=(0.754, 1.293), shapes=41, kernels=612),
    Curve(devices="NVIDIA", category="softmax", float32=False, floor=2000, matrix=1.0, memory=0.45,
          elements=0.0, half=0, small=(0.912, 2.097), large=(0.92, 2.281), shapes=5, kernels=244),
    Curve(devices="NVIDIA", category="strided", float32=False, floor=2750, matrix=1.0, memory=0.75,
          elements=3.0, half=0, small=(0.71, 1.818), large=(0.796, 1.274), shapes=133, kernels=2476),
    Curve(devices="gfx942", category="attention", float32=False, floor=16000, matrix=0.25, memory=0.8,
          elements=0.0, half=256, small=(0.604, 1.055), large=(0.969, 2.202), shapes=8, kernels=282),
    Curve(devices="gfx942", category="batch norm", float32=False, floor=14000, matrix=1.0, memory=0.06,
          elements=0.0, half=0, small=(0.797, 1.275), large=(0.85, 1.498), shapes=9, kernels=87),
    Curve(devices="gfx942", category="batch norm backward", float32=False, floor=5250, matrix=1.0, memory=0.2,
          elements=0.4, half=0, small=(0.631, 1.681), large=(0.631, 1.681), shapes=5, kernels=15),
    Curve(devices="gfx942", category="convolution", float32=False, floor=34000, matrix=0.3, memory=0.06,
          elements=0.0, half=0, small=(0.391, 1.11), large=(0.267, 1.193), shapes=27, kernels=121),
    Curve(devices="gfx942", category="copy", float32=False, floor=4250, matrix=1.0, memory=1.4,
          elements=0.0, half=0, small=(0.828, 1.421), large=(0.828, 1.421), shapes=33, kernels=377),
    Curve(devices="gfx942", category="elementwise", float32=False, floor=4000, matrix=1.0, memory=0.7,
          elements=0.0, half=0, small=(0.48, 1.497), large=(0.554, 1.228), shapes=152, kernels=4357),
    Curve(devices="gfx942", category="gather", float32=False, floor=4000, matrix=1.0, memory=0.4,
          elements=0.0, half=0, small=(0.636, 1.581), large=(0.636, 1.631), shapes=8, kernels=31),
    Curve(devices="gfx942", category="join", float32=False, floor=5250, matrix=1.0, memory=0.3,
          elements=0.0, half=0, small=(0.58, 1.061), large=(0.565, 1.044), shapes=14, kernels=106),
    Curve(devices="gfx942", category="norm", float32=False, floor=4000, matrix=1.0, memory=0.25,
          elements=0.0, half=0, small=(0.832, 1.428), large=(0.56, 1.081), shapes=22, kernels=685),
    Curve(devices="gfx942", category="product", float32=False, floor=5500, matrix=0.45, memory=0.8,
          elements=1.6, half=0, small=(0.713, 1.441), large=(0.738, 1.438), shapes=78, kernels=5033),
    Curve(devices="gfx942", category="reduction", float32=False, floor=5250, matrix=1.0, memory=0.7,
          elements=0.0, half=0, small=(0.611, 3.659), large=(0.754, 1.92), shapes=33, kernels=1438),
    Curve(devices="gfx942", category="softmax", float32=False, floor=4750, matrix=1.0, memory=0.5,
          elements=1.0, half=0, small=(0.636, 1.194), large=(0.614, 1.172), shapes=5, kernels=252),
    Curve(devices="gfx942", category="strided", float32=False, floor=5000, matrix=1.0, memory=0.55,
          elements=2.5, half=0, small=(0.696, 1.305), large=(0.774, 2.101), shapes=60, kernels=1847),
    Curve(devices="sm_70", category="copy", float32=False, floor=2000, matrix=1.0, memory=0.85,
          elements=0.0, half=0, small=(0.64, 2.499), large=(0.91, 1.456), shapes=107, kernels=5261),
    Curve(devices="sm_80", category="copy", float32=False, floor=2000, matrix=1.0, memory=0.85,
          elements=0.0, half=0, small=(0.655, 1.223), large=(0.651, 1.219), shapes=26, kernels=928),
    Curve(devices="sm_80", category="elementwise", float32=False, floor=2000, matrix=1.0, memory=1.0,
          elements=0.0, half=0, small=(1.195, 2.0), large=(0.595, 1.162), shapes=191, kernels=2348),
    Curve(devices="sm_80", category="norm", float32=False, floor=4250, matrix=1.0, memory=0.5,
          elements=0.0, half=0, small=(0.745, 1.192), large=(0.649, 1.039), shapes=6, kernels=134),
    Curve(devices="sm_80", category="product", float32=False, floor=6750, matrix=0.8, memory=0.8,
          elements=1.2, half=0, small=(0.73, 1.284), large=(0.59, 1.918), shapes=120, kernels=1259),
    Curve(devices="sm_80", category="reduction", float32=False, floor=5000, matrix=1.0, memory=0.7,
          elements=0.0, half=0, small=(0.998, 2.418), large=(0.8, 1.28), shapes=32, kernels=500),
    Curve(devices="sm_80", category="strided", float32=False, floor=3000, matrix=1.0, memory=0.75,
          elements=3.0, half=0, small=(0.997, 1.995), large=(0.736, 1.253), shapes=59, kernels=539),
    Curve(devices="sm_90a", category="elementwise", float32=False, floor=1500, matrix=1.0, memory=0.9,
          elements=0.0, half=0, small=(0.787, 1.259), large=(0.825, 1.321), shapes=52, kernels=1619),
    Curve(devices="sm_90a", category="gather", float32=False, floor=3000, matrix=1.0, memory=0.2,
          elements=0.0, half=0, small=(0.914, 1.948), large=(0.914, 1.948), shapes=4, kernels=19),
    Curve(devices="sm_90a", category="join", float32=False, floor=2500, matrix=1.0, memory=0.15,
          elements=0.0, half=0, small=(0.453, 0.973), large=(0.416, 0.665), shapes=7, kernels=93),
    Curve(devices="sm_90a", category="norm", float32=False, floor=2750, matrix=1.0, memory=0.4,
          elements=0.0, half=0, small=(0.898, 1.437), large=(0.689, 1.103), shapes=9, kernels=457),
    Curve(devices="sm_90a", category="product", float32=False, floor=4750, matrix=0.8, memory=0.45,
          elements=2.0, half=0, small=(0.591, 1.212), large=(0.755, 1.288), shapes=41, kernels=1905),
    Curve(devices="sm_90a", category="reduction", float32=False, floor=3750, matrix=1.0, memory=0.95,
          elements=8.0, half=0, small=(0.785, 1.475), large=(0.793, 1.466), shapes=7, kernels=88),
    Curve(devices="sm_90a", category="softmax", float32=False, floor=1750, matrix=1.0, memory=0.25,
          elements=1.6, half=0, small=(0.581, 1.265), large=(0.581, 1.265), shapes=4, kernels=204),
    Curve(devices="sm_90a", category="strided", float32=False, floor=2500, matrix=1.0, memory=0.7,
          elements=3.0, half=0, small=(0.717, 1.429), large=(0.768, 1.229), shapes=31, kernels=1468),
)  # fmt: skip
