"""Recordings of others whose kernels the model of kernel times is fitted to and held against, by program.

A program is held out whole, on all of its devices: the same kernels on two devices are no independent evidence, nor are
two programs with layers in common. Of ranks that run the same shapes there is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the corpus, and where it is from. All are under permissive licences; only times of kernels are used."""

    file: str
    """Below the corpus. Where the original is not compressed, this is."""
    repository: str
    """On GitHub."""
    commit: str
    path: str
    member: str = ""
    """Of the archive at ``path``."""


def _tracelens(file: str, path: str) -> Source:
    return Source(file, "AMD-AGI/TraceLens", "171dd74721ca1ec45709e5805b68ae1f65e27811", f"tests/traces/{path}")


def _hta(file: str, path: str) -> Source:
    commit = "f4d0062c382f42bd8a74838bcdad1916c7d5d2da"
    return Source(file, "facebookresearch/HolisticTraceAnalysis", commit, f"tests/data/{path}")


def _moe(name: str) -> Source:
    file = f"calibration/pytorch-ao__{name}.json.gz"
    return Source(file, "pytorch/ao", "654dd8cb4546fbd8038bd09dfc37fc3e5a27240f", f"{name}.json")


def _switch(file: str, path: str) -> Source:
    repository = "CodingPlatelets/SwitchTransformers"
    return Source(f"calibration/{file}", repository, "8b421f1efc4f711443f4597458fd57b4ce8dd9a7", f"result/{path}")


def _particles(batch: int) -> Source:
    return Source(
        f"calibration/harryjmoss-particle_transformer__batch_{batch}.json.gz",
        "harryjmoss/particle_transformer",
        "2c91c4d69d845d89c5eb0b3c6d1f353fbb1d1e18",
        f"run1_chrome_traces/single_epoch_forward_pass_batch_size_{batch}.json",
    )


def _segment(form: str, commit: str, path: str) -> Source:
    file = f"calibration/pytorch-labs-segment-anything-fast__{form}.json.gz"
    return Source(file, "pytorch-labs/segment-anything-fast", commit, f"amg_example/{path}")


PROGRAMS: dict[str, tuple[Source, ...]] = {
    "BERT": (
        _tracelens("kineto/TraceLens__h100_bert-small.json.gz", "h100/gaunernst_bert-small-uncased__1016001.json.gz"),
        _tracelens(
            "calibration/TraceLens__mi300_bert-small-uncased.json.gz",
            "mi300/gaunernst_bert-small-uncased__1016001.json.gz",
        ),
    ),
    "DLRM": (
        _hta(
            "kineto/HolisticTraceAnalysis__trace_diff_control.json.gz", "trace_diff/control/control.json.gz"
        ),  # A100 40GB
        _hta("kineto/HolisticTraceAnalysis__trace_diff_test.json.gz", "trace_diff/test/test.json.gz"),  # V100
    ),
    "DLRM of PARAM": (
        Source(
            "calibration/facebookresearch-param__dlrm_worker0.json.gz",
            "facebookresearch/param",
            "9b1946f62b67c5b9a0357803a02803ac4527b750",
            "et_replay/tests/inputs/dlrm_kineto.tar.gz",
            "dlrm_kineto/worker0_step_12.1694128201545.pt.trace.json",
        ),  # V100
    ),
    "DLRM of torchrec": (
        Source(
            "kineto/torchrec__sst_sleep_pl_dense_after_backward_2_19488__rank0.json.gz",
            "pytorch/torchrec",
            "a7fe7b887c023e17522d4ad025c8158334a02392",
            "examples/golden_training/trace/sst_sleep_pl_dense_after_backward_2/"
            "ip-172-31-16-248.us-east-2.compute.internal_19488.1698954910154219890.pt.trace.json",
        ),  # V100
    ),
    "image classifier": (
        _tracelens(
            "calibration/TraceLens__h100_nsfw_image_detection.json.gz",
            "h100/Falconsai_nsfw_image_detection__1016002.json.gz",
        ),
        _tracelens(
            "calibration/TraceLens__mi300_nsfw_image_detection.json.gz",
            "mi300/Falconsai_nsfw_image_detection__1016002.json.gz",
        ),
    ),
    "Llama": (  # MI300X, torch.compile
        _tracelens("kineto/TraceLens__torch_compile_triton.json.gz", "torch_compile_triton/trace.json.gz"),
    ),
    "Megatron": (
        Source(
            "kineto/astra-sim__megatron_kineto_0.json.gz",
            "astra-sim/astra-sim",
            "ab5d3e629c9d28257cf9d2b367474f0cbfdf450e",
            "my_test/inputs/workload/megatron-tp8/megatron_kineto_0.json",
        ),  # A100 80GB, float16
    ),
    "mixture of experts": (_moe("ref_ep_moe_fwd"), _moe("syncless_ep_moe_fwd")),  # B200
    "normalization layers": (  # MI300X
        _tracelens(
            "calibration/TraceLens__normalization_layers.json.gz",
            "perf_model/normalization/normalization_layer_test.json.gz",
        ),
    ),
    "OWLv2": (
        _tracelens(
            "calibration/TraceLens__h100_owlv2-large-patch14-ensemble.json.gz",
            "h100/google_owlv2-large-patch14-ensemble__1016001.json.gz",
        ),
        _tracelens(
            "calibration/TraceLens__mi300_owlv2-large-patch14-ensemble.json.gz",
            "mi300/google_owlv2-large-patch14-ensemble__1016001.json.gz",
        ),
    ),
    "particle transformer": (_particles(2), _particles(512)),  # A100 40GB
    "Qwen1.5": (
        _tracelens("kineto/TraceLens__h100_qwen1.5-0.5b.json.gz", "h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"),
        _tracelens("kineto/TraceLens__mi300_qwen1.5-0.5b.json.gz", "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"),
    ),
    "Qwen3": (  # MI300X, SGLang
        _tracelens(
            "kineto/TraceLens__sglang_qwen3-8b_decode.json.gz",
            "inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
        ),
        _tracelens(
            "calibration/AMD-AGI-TraceLens__sglang_qwen3-8b_prefilldecode.json.gz",
            "inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz",
        ),
    ),
    "ranking model": (
        Source(
            "calibration/facebookresearch-HolisticTraceAnalysis__negative_queue_rank0.json.gz",
            "facebookresearch/HolisticTraceAnalysis",
            "d54e43fdbf03ea5c7569dd6534f4984db3894c53",
            "tests/data/negative_queue_length_values_check/rank0.json.gz",
        ),  # A100 80GB
    ),
    "ResNet": (  # MI300X, training
        _tracelens("kineto/TraceLens__resnet_act_checkpoint.json.gz", "mi300/resnet_act_checkpoint.json.gz"),
    ),
    "ResNet of HTA": (
        _hta("kineto/HolisticTraceAnalysis__nccl_data.json.gz", "nccl_parser_config/nccl_data.json.gz"),  # A100 40GB
        _hta(
            "kineto/HolisticTraceAnalysis__ns_resolution_rank0.json.gz",
            "ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
        ),  # V100
    ),
    "ResNet of Kineto": (
        Source(
            "calibration/pytorch-kineto__resnet50.json.gz",
            "pytorch/kineto",
            "be239c044d2f4b62982e1ff64144097acd69f59a",
            "tb_plugin/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
        ),  # V100
    ),
    "ResNet-18": (
        Source(
            "calibration/AMD-AGI-TraceLens__resnet18.json.gz",
            "AMD-AGI/TraceLens",
            "86d615a3d574cdc95aa211374d31a9a5ee9b72e1",
            "tests/traces/mi300/ddp_resnet18_no_pool/train_resnet18.json.gz",
        ),  # MI300X, training
    ),
    "Segment Anything": (  # A100 40GB
        _segment("eager", "9566500c700aadca27606d4427758b9e0e1182c3", "asdf_False.json.gz"),
        _segment("compiled", "97a69cf169366b841bdc5f79e2bd8cf0b47fba2e", "amg_example_trace.json.gz"),
    ),
    "Stable Diffusion, FLUX": (  # MI300X; in part the same layers
        _tracelens(
            "calibration/TraceLens__xdit_sd3.5_rank0.json.gz", "inference/xdit_sd_3.5/profile_trace_rank_0.json.gz"
        ),
        _tracelens(
            "calibration/AMD-AGI-TraceLens__xdit_flux_aiter_sage.json.gz",
            "inference/xdit_flux.1_aiter_sage/profile_trace_rank_0.json.gz",
        ),
    ),
    "switch transformer": (  # A100 PCIe 80GB
        _switch("CodingPlatelets-SwitchTransformers__trace.json.gz", "trace.json"),
        _switch("CodingPlatelets-SwitchTransformers__seq_1024.json.gz", "trace_100Kpar_4exp_8batch_128seq_1024.json"),
    ),
    "TimeSformer": (
        _tracelens(
            "calibration/TraceLens__h100_timesformer-base-finetuned-k400.json.gz",
            "h100/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
        ),
        _tracelens(
            "calibration/TraceLens__mi300_timesformer-base-finetuned-k400.json.gz",
            "mi300/facebook_timesformer-base-finetuned-k400__1016002.json.gz",
        ),
    ),
    "ViT": (
        Source(
            "kineto/ao__quantize_vit_bfloat16.json.gz",
            "pytorch/ao",
            "057ef81fd55155290222df1d332a076fd85dce25",
            "tutorials/quantize_vit/bfloat16.json.gz",
        ),  # A100 40GB
    ),
    "vLLM eager": (_tracelens("kineto/TraceLens__b200_eager.json.gz", "b200/eager_trace.json.gz"),),  # fp8
    "vLLM graphs": (  # MI300X
        _tracelens(
            "kineto/TraceLens__vllm_decode_full_graph.json.gz", "inference/vllm_decode_full/graph_execution.json.gz"
        ),
        _tracelens(
            "calibration/AMD-AGI-TraceLens__vllm_prefilldecode_piecewise.json.gz",
            "inference/vllm_prefilldecode_piecewise/graph_execution.json.gz",
        ),
    ),
}

SOURCES: tuple[Source, ...] = tuple(source for sources in PROGRAMS.values() for source in sources)


def absent(corpus: Path) -> list[Source]:
    """Files that are not there."""
    return [source for source in SOURCES if not (corpus / source.file).exists()]


def commands(sources: Iterable[Source]) -> str:
    """Shell commands that fetch files into the corpus, in whose folder they are to run."""
    lines = ["mkdir -p kineto calibration"]
    for source in sorted(sources, key=lambda one: (one.repository, one.commit, one.file)):
        clone = f"sources/{source.repository}"
        for line in (
            f"git clone -q --bare --filter=blob:none https://github.com/{source.repository} {clone}",
            f"git -C {clone} fetch -q origin {source.commit}",
        ):
            if line not in lines:
                lines.append(line)
        unpack = f" | tar xzO {source.member}" if source.member else ""
        pack = "" if not source.member and source.path.endswith(".gz") else " | gzip -n"
        lines.append(f"git -C {clone} show {source.commit}:{source.path}{unpack}{pack} > {source.file}")
    return "\n".join(lines)
