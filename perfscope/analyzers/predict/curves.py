"""Curves of kernel times, fitted on 2026-11-27 by ``python -m tools.calibration --fit``.

To these recordings of others:

* kineto/TraceLens__h100_bert-small.json.gz
* calibration/TraceLens__mi300_bert-small-uncased.json.gz
* kineto/HolisticTraceAnalysis__trace_diff_control.json.gz
* kineto/HolisticTraceAnalysis__trace_diff_test.json.gz
* calibration/facebookresearch-param__dlrm_worker0.json.gz
* kineto/torchrec__sst_sleep_pl_dense_after_backward_2_19488__rank0.json.gz
* calibration/TraceLens__h100_nsfw_image_detection.json.gz
* calibration/TraceLens__mi300_nsfw_image_detection.json.gz
* kineto/TraceLens__torch_compile_triton.json.gz
* kineto/astra-sim__megatron_kineto_0.json.gz
* calibration/pytorch-ao__ref_ep_moe_fwd.json.gz
* calibration/pytorch-ao__syncless_ep_moe_fwd.json.gz
* calibration/TraceLens__normalization_layers.json.gz
* calibration/TraceLens__h100_owlv2-large-patch14-ensemble.json.gz
* calibration/TraceLens__mi300_owlv2-large-patch14-ensemble.json.gz
* calibration/harryjmoss-particle_transformer__batch_2.json.gz
* calibration/harryjmoss-particle_transformer__batch_512.json.gz
* kineto/TraceLens__h100_qwen1.5-0.5b.json.gz
* kineto/TraceLens__mi300_qwen1.5-0.5b.json.gz
* kineto/TraceLens__sglang_qwen3-8b_decode.json.gz
* calibration/AMD-AGI-TraceLens__sglang_qwen3-8b_prefilldecode.json.gz
* calibration/facebookresearch-HolisticTraceAnalysis__negative_queue_rank0.json.gz
* kineto/TraceLens__resnet_act_checkpoint.json.gz
* kineto/HolisticTraceAnalysis__nccl_data.json.gz
* kineto/HolisticTraceAnalysis__ns_resolution_rank0.json.gz
* calibration/pytorch-kineto__resnet50.json.gz
* calibration/AMD-AGI-TraceLens__resnet18.json.gz
* calibration/pytorch-labs-segment-anything-fast__eager.json.gz
* calibration/pytorch-labs-segment-anything-fast__compiled.json.gz
* calibration/TraceLens__xdit_sd3.5_rank0.json.gz
* calibration/AMD-AGI-TraceLens__xdit_flux_aiter_sage.json.gz
* calibration/CodingPlatelets-SwitchTransformers__trace.json.gz
* calibration/CodingPlatelets-SwitchTransformers__seq_1024.json.gz
* calibration/TraceLens__h100_timesformer-base-finetuned-k400.json.gz
* calibration/TraceLens__mi300_timesformer-base-finetuned-k400.json.gz
* kineto/ao__quantize_vit_bfloat16.json.gz
* kineto/TraceLens__b200_eager.json.gz
* kineto/TraceLens__vllm_decode_full_graph.json.gz
* calibration/AMD-AGI-TraceLens__vllm_prefilldecode_piecewise.json.gz

Never changed by hand: a test holds the table to what the fit gives.
"""

from __future__ import annotations

from perfscope.analyzers.predict.curve import Curve

CURVES: tuple[Curve, ...] = (
    Curve(devices="AMD", category="attention", float32=False, floor=16000, matrix=0.25, memory=0.8,
          elements=0.0, half=256, small=(0.608, 1.055), large=(0.969, 2.213), shapes=9, kernels=295),
    Curve(devices="AMD", category="batch norm", float32=False, floor=14000, matrix=1.0, memory=0.1,
          elements=0.0, half=0, small=(0.949, 1.592), large=(0.78, 1.992), shapes=14, kernels=187),
    Curve(devices="AMD", category="batch norm backward", float32=False, floor=5250, matrix=1.0, memory=0.2,
          elements=0.4, half=0, small=(0.631, 1.681), large=(0.679, 1.86), shapes=10, kernels=115),
    Curve(devices="AMD", category="convolution", float32=False, floor=34000, matrix=0.3, memory=0.06,
          elements=0.0, half=0, small=(0.396, 1.288), large=(0.358, 1.197), shapes=49, kernels=256),
    Curve(devices="AMD", category="convolution backward", float32=False, floor=60000, matrix=0.1, memory=0.15,
          elements=0.0, half=0, small=(0.359, 1.157), large=(0.359, 1.118), shapes=12, kernels=103),
    Curve(devices="AMD", category="copy", float32=False, floor=4000, matrix=1.0, memory=1.2,
          elements=0.0, half=0, small=(0.8, 1.58), large=(0.8, 1.58), shapes=44, kernels=423),
    Curve(devices="AMD", category="elementwise", float32=False, floor=4000, matrix=1.0, memory=0.65,
          elements=0.0, half=0, small=(0.479, 1.499), large=(0.585, 1.404), shapes=219, kernels=5487),
    Curve(devices="AMD", category="gather", float32=False, floor=4000, matrix=1.0, memory=0.4,
          elements=0.0, half=0, small=(0.636, 1.631), large=(0.52, 1.273), shapes=13, kernels=96),
    Curve(devices="AMD", category="join", float32=False, floor=5250, matrix=1.0, memory=0.3,
          elements=0.0, half=0, small=(0.58, 1.166), large=(0.565, 1.044), shapes=14, kernels=107),
    Curve(devices="AMD", category="norm", float32=False, floor=4000, matrix=1.0, memory=0.25,
          elements=0.0, half=0, small=(0.825, 2.597), large=(0.313, 2.016), shapes=30, kernels=885),
    Curve(devices="AMD", category="norm backward", float32=False, floor=6250, matrix=1.0, memory=0.03,
          elements=0.0, half=0, small=(0.34, 1.962), large=(0.34, 1.962), shapes=6, kernels=18),
    Curve(devices="AMD", category="product", float32=False, floor=5500, matrix=0.45, memory=0.65,
          elements=1.6, half=0, small=(0.717, 1.344), large=(0.745, 1.431), shapes=94, kernels=5486),
    Curve(devices="AMD", category="product", float32=True, floor=28000, matrix=0.95, memory=0.9,
          elements=0.0, half=0, small=(0.772, 1.234), large=(0.772, 1.234), shapes=1, kernels=1),
    Curve(devices="AMD", category="reduction", float32=False, floor=5250, matrix=1.0, memory=0.7,
          elements=0.0, half=0, small=(0.647, 3.785), large=(0.746, 2.124), shapes=45, kernels=1527),
    Curve(devices="AMD", category="softmax", float32=False, floor=4750, matrix=1.0, memory=0.5,
          elements=1.0, half=0, small=(0.607, 1.165), large=(0.604, 1.165), shapes=6, kernels=276),
    Curve(devices="AMD", category="strided", float32=False, floor=4750, matrix=1.0, memory=0.7,
          elements=2.0, half=0, small=(0.695, 1.45), large=(0.68, 1.939), shapes=97, kernels=2189),
    Curve(devices="NVIDIA", category="attention", float32=False, floor=2000, matrix=0.15, memory=0.8,
          elements=0.0, half=128, small=(0.32, 1.135), large=(0.32, 1.135), shapes=6, kernels=54),
    Curve(devices="NVIDIA", category="attention", float32=True, floor=26000, matrix=0.95, memory=0.8,
          elements=0.0, half=128, small=(0.532, 1.402), large=(0.532, 1.402), shapes=5, kernels=144),
    Curve(devices="NVIDIA", category="batch norm", float32=False, floor=8250, matrix=1.0, memory=0.6,
          elements=2.0, half=0, small=(0.753, 1.205), large=(0.687, 1.151), shapes=20, kernels=330),
    Curve(devices="NVIDIA", category="batch norm backward", float32=False, floor=2000, matrix=1.0, memory=0.5,
          elements=0.9, half=0, small=(0.793, 1.334), large=(0.793, 1.334), shapes=12, kernels=318),
    Curve(devices="NVIDIA", category="convolution", float32=False, floor=60000, matrix=0.04, memory=0.3,
          elements=0.0, half=0, small=(0.195, 1.378), large=(0.05, 1.066), shapes=14, kernels=22),
    Curve(devices="NVIDIA", category="convolution", float32=True, floor=2000, matrix=0.95, memory=0.25,
          elements=0.0, half=0, small=(0.685, 1.095), large=(0.685, 1.095), shapes=2, kernels=32),
    Curve(devices="NVIDIA", category="copy", float32=False, floor=2000, matrix=1.0, memory=0.8,
          elements=0.0, half=0, small=(0.64, 2.5), large=(0.868, 1.389), shapes=201, kernels=7581),
    Curve(devices="NVIDIA", category="elementwise", float32=False, floor=2000, matrix=1.0, memory=0.95,
          elements=0.0, half=0, small=(0.479, 2.0), large=(0.486, 1.178), shapes=1228, kernels=16139),
    Curve(devices="NVIDIA", category="gather", float32=False, floor=4000, matrix=1.0, memory=0.3,
          elements=1.4, half=0, small=(0.74, 1.615), large=(0.876, 1.402), shapes=38, kernels=133),
    Curve(devices="NVIDIA", category="join", float32=False, floor=4000, matrix=1.0, memory=0.25,
          elements=0.0, half=0, small=(0.633, 1.012), large=(0.235, 1.49), shapes=94, kernels=341),
    Curve(devices="NVIDIA", category="norm", float32=False, floor=3000, matrix=1.0, memory=0.5,
          elements=0.0, half=0, small=(0.956, 3.29), large=(0.65, 1.825), shapes=36, kernels=1020),
    Curve(devices="NVIDIA", category="norm backward", float32=False, floor=12000, matrix=1.0, memory=0.5,
          elements=0.0, half=0, small=(0.705, 1.128), large=(0.705, 1.128), shapes=5, kernels=82),
    Curve(devices="NVIDIA", category="product", float32=False, floor=4750, matrix=0.8, memory=0.4,
          elements=2.0, half=0, small=(0.571, 1.584), large=(0.599, 1.695), shapes=212, kernels=3575),
    Curve(devices="NVIDIA", category="product", float32=True, floor=3500, matrix=0.9, memory=0.45,
          elements=0.0, half=0, small=(0.764, 1.487), large=(0.409, 2.319), shapes=80, kernels=1425),
    Curve(devices="NVIDIA", category="reduction", float32=False, floor=5000, matrix=1.0, memory=0.5,
          elements=3.0, half=0, small=(0.595, 2.361), large=(0.566, 2.369), shapes=303, kernels=1667),
    Curve(devices="NVIDIA", category="softmax", float32=False, floor=6250, matrix=1.0, memory=0.45,
          elements=0.0, half=0, small=(0.297, 1.278), large=(0.504, 2.277), shapes=16, kernels=318),
    Curve(devices="NVIDIA", category="strided", float32=False, floor=3000, matrix=1.0, memory=0.85,
          elements=3.0, half=0, small=(0.661, 3.154), large=(0.794, 2.043), shapes=745, kernels=7036),
    Curve(devices="gfx942", category="attention", float32=False, floor=16000, matrix=0.25, memory=0.8,
          elements=0.0, half=256, small=(0.608, 1.055), large=(0.969, 2.213), shapes=9, kernels=295),
    Curve(devices="gfx942", category="batch norm", float32=False, floor=14000, matrix=1.0, memory=0.1,
          elements=0.0, half=0, small=(0.949, 1.592), large=(0.78, 1.992), shapes=14, kernels=187),
    Curve(devices="gfx942", category="batch norm backward", float32=False, floor=5250, matrix=1.0, memory=0.2,
          elements=0.4, half=0, small=(0.631, 1.681), large=(0.679, 1.86), shapes=10, kernels=115),
    Curve(devices="gfx942", category="convolution", float32=False, floor=34000, matrix=0.3, memory=0.06,
          elements=0.0, half=0, small=(0.396, 1.288), large=(0.358, 1.197), shapes=49, kernels=256),
    Curve(devices="gfx942", category="convolution backward", float32=False, floor=60000, matrix=0.1, memory=0.15,
          elements=0.0, half=0, small=(0.359, 1.157), large=(0.359, 1.118), shapes=12, kernels=103),
    Curve(devices="gfx942", category="copy", float32=False, floor=4000, matrix=1.0, memory=1.2,
          elements=0.0, half=0, small=(0.8, 1.58), large=(0.8, 1.58), shapes=44, kernels=423),
    Curve(devices="gfx942", category="elementwise", float32=False, floor=4000, matrix=1.0, memory=0.65,
          elements=0.0, half=0, small=(0.479, 1.499), large=(0.585, 1.404), shapes=219, kernels=5487),
    Curve(devices="gfx942", category="gather", float32=False, floor=4000, matrix=1.0, memory=0.4,
          elements=0.0, half=0, small=(0.636, 1.631), large=(0.52, 1.273), shapes=13, kernels=96),
    Curve(devices="gfx942", category="join", float32=False, floor=5250, matrix=1.0, memory=0.3,
          elements=0.0, half=0, small=(0.58, 1.166), large=(0.565, 1.044), shapes=14, kernels=107),
    Curve(devices="gfx942", category="norm", float32=False, floor=4000, matrix=1.0, memory=0.25,
          elements=0.0, half=0, small=(0.825, 2.597), large=(0.313, 2.016), shapes=30, kernels=885),
    Curve(devices="gfx942", category="product", float32=False, floor=5500, matrix=0.45, memory=0.65,
          elements=1.6, half=0, small=(0.717, 1.344), large=(0.745, 1.431), shapes=94, kernels=5486),
    Curve(devices="gfx942", category="reduction", float32=False, floor=5250, matrix=1.0, memory=0.7,
          elements=0.0, half=0, small=(0.647, 3.785), large=(0.746, 2.124), shapes=45, kernels=1527),
    Curve(devices="gfx942", category="softmax", float32=False, floor=4750, matrix=1.0, memory=0.5,
          elements=1.0, half=0, small=(0.607, 1.165), large=(0.604, 1.165), shapes=6, kernels=276),
    Curve(devices="gfx942", category="strided", float32=False, floor=4750, matrix=1.0, memory=0.7,
          elements=2.0, half=0, small=(0.695, 1.45), large=(0.68, 1.939), shapes=97, kernels=2189),
    Curve(devices="sm_100a", category="copy", float32=False, floor=2000, matrix=1.0, memory=1.0,
          elements=0.0, half=0, small=(0.768, 2.355), large=(0.768, 2.355), shapes=4, kernels=176),
    Curve(devices="sm_100a", category="elementwise", float32=False, floor=2000, matrix=1.0, memory=0.6,
          elements=0.0, half=0, small=(0.527, 1.263), large=(0.632, 1.142), shapes=25, kernels=373),
    Curve(devices="sm_100a", category="product", float32=False, floor=5250, matrix=0.95, memory=0.7,
          elements=0.0, half=0, small=(0.811, 1.519), large=(0.811, 1.561), shapes=7, kernels=169),
    Curve(devices="sm_100a", category="strided", float32=False, floor=2500, matrix=1.0, memory=0.3,
          elements=0.0, half=0, small=(0.64, 1.85), large=(0.708, 1.134), shapes=19, kernels=311),
    Curve(devices="sm_70", category="copy", float32=False, floor=3000, matrix=1.0, memory=0.9,
          elements=0.0, half=0, small=(0.427, 1.666), large=(0.859, 1.374), shapes=108, kernels=5262),
    Curve(devices="sm_70", category="elementwise", float32=False, floor=3000, matrix=1.0, memory=0.95,
          elements=0.0, half=0, small=(0.255, 1.333), large=(0.35, 1.109), shapes=266, kernels=6489),
    Curve(devices="sm_70", category="product", float32=True, floor=5500, matrix=0.95, memory=0.45,
          elements=0.3, half=0, small=(0.684, 1.776), large=(0.629, 1.273), shapes=22, kernels=37),
    Curve(devices="sm_70", category="reduction", float32=False, floor=6500, matrix=1.0, memory=0.7,
          elements=0.6, half=0, small=(0.614, 1.153), large=(0.614, 1.153), shapes=11, kernels=49),
    Curve(devices="sm_70", category="strided", float32=False, floor=4000, matrix=1.0, memory=1.4,
          elements=3.0, half=0, small=(0.734, 1.527), large=(1.174, 1.879), shapes=61, kernels=432),
    Curve(devices="sm_80", category="convolution", float32=False, floor=12000, matrix=0.8, memory=0.3,
          elements=0.0, half=0, small=(0.512, 1.107), large=(0.512, 1.107), shapes=11, kernels=15),
    Curve(devices="sm_80", category="copy", float32=False, floor=2250, matrix=1.0, memory=0.8,
          elements=0.0, half=0, small=(0.444, 1.777), large=(0.76, 1.215), shapes=88, kernels=2138),
    Curve(devices="sm_80", category="elementwise", float32=False, floor=2000, matrix=1.0, memory=0.9,
          elements=0.0, half=0, small=(0.499, 1.989), large=(0.546, 1.074), shapes=885, kernels=7658),
    Curve(devices="sm_80", category="gather", float32=False, floor=3750, matrix=1.0, memory=0.4,
          elements=1.0, half=0, small=(0.725, 1.16), large=(0.725, 1.16), shapes=6, kernels=12),
    Curve(devices="sm_80", category="join", float32=False, floor=3000, matrix=1.0, memory=0.55,
          elements=0.7, half=0, small=(0.83, 1.328), large=(0.265, 1.432), shapes=86, kernels=238),
    Curve(devices="sm_80", category="norm", float32=False, floor=4750, matrix=1.0, memory=0.5,
          elements=0.0, half=0, small=(0.674, 2.12), large=(0.647, 3.259), shapes=25, kernels=490),
    Curve(devices="sm_80", category="product", float32=False, floor=7750, matrix=0.85, memory=0.5,
          elements=0.9, half=0, small=(0.615, 1.462), large=(0.532, 1.603), shapes=164, kernels=1501),
    Curve(devices="sm_80", category="product", float32=True, floor=3750, matrix=0.9, memory=0.5,
          elements=0.0, half=0, small=(0.253, 1.555), large=(0.406, 2.539), shapes=57, kernels=1387),
    Curve(devices="sm_80", category="reduction", float32=False, floor=7250, matrix=1.0, memory=0.7,
          elements=4.0, half=0, small=(0.549, 1.574), large=(0.706, 2.139), shapes=280, kernels=1420),
    Curve(devices="sm_80", category="softmax", float32=False, floor=8000, matrix=1.0, memory=0.95,
          elements=3.0, half=0, small=(0.246, 1.026), large=(0.84, 1.345), shapes=10, kernels=102),
    Curve(devices="sm_80", category="strided", float32=False, floor=4000, matrix=1.0, memory=0.75,
          elements=3.0, half=0, small=(0.498, 2.302), large=(0.686, 2.026), shapes=633, kernels=4824),
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
          elements=3.0, half=0, small=(0.717, 1.429), large=(0.768, 1.229), shapes=32, kernels=1469),
)  # fmt: skip
