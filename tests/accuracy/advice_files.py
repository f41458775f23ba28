"""Recordings of a GPU and files of this repository, and what the report of each must say first."""

from __future__ import annotations

from tests.accuracy.advice import AdviceCase, Kind
from tests.accuracy.cases import Framework


def _case(kind: Kind, name: str, recording: str, thread: str, **more: object) -> AdviceCase:
    return AdviceCase(
        name=name, framework="torch", kind=kind, program=recording, thread=thread, how="analyze", everyday=True, **more
    )  # type: ignore[arg-type]


def _fixture(framework: Framework, kind: Kind, name: str, folder: str, rule: str, fix: str) -> AdviceCase:
    """A recording of one of our workloads, in fixtures."""
    return AdviceCase(
        name=name, framework=framework, kind=kind, program=f"fixtures/{folder}", thread="own", how="analyze",
        everyday=True, rules=(rule,), fix=(fix,),
    )  # fmt: skip


FILES: tuple[AdviceCase, ...] = (
    _case(
        "recording",
        "kernels of one stream that overlap",
        "overlapping_kernels",
        "AMD-AGI/TraceLens 669",
        says=("overlap",),
        forbidden=(r"busy 99",),
    ),
    _case(
        "recording",
        "all device work after the steps",
        "burst_after_the_steps",
        "sgl-project/sglang 31545",
        says=("runs after them|outside", "not judged"),
        forbidden=("busy 0.0%",),
    ),
    _case(
        "recording",
        "a host that runs ahead of its device",
        "host_runs_ahead",
        "asynchronous hosts",
        says=(r"step (5\.[5-9]|6\.[0-5])\d* ms",),
        forbidden=(r"step 1\.20? ms",),
    ),
    _case(
        "recording",
        "launches without kernels",
        "no_device_activity",
        "pytorch/kineto 762 and 996, pytorch 99615",
        says=("no kernel|without (a )?kernel|no device activity", "CUPTI|permission|privilege"),
        forbidden=("100.0% of the time",),
    ),
    _case(
        "recording",
        "a file with two ends",
        "badly_joined",
        "Ascend/pytorch 27",
        says=(r"near byte \d[\d,]{2,}",),
        forbidden=("near byte 1 ",),
    ),
    _case(
        "reads",
        "token counts read in each layer",
        "reads_between_layers",
        "vllm and megatron MoE threads",
        rules=("host_sync",),
        fix=("device",),
    ),
    _case(
        "input",
        "a loader without workers",
        "loader_without_workers",
        "the-database/traiNNer-redux 11",
        rules=("input_stall",),
        fix=("num_workers",),
    ),
    _case(
        "input",
        "batches from pageable memory",
        "pageable_copies",
        "Nerogar/OneTrainer 1608 (2026)",
        rules=("pageable_copy", "exposed_copy"),
        fix=("pin_memory|pinned",),
    ),
    _case(
        "host",
        "decoding that is bound by launches",
        "launch_bound_decode",
        "cactus-compute/needle 44 (2026)",
        rules=("launch_bound", "small_kernels"),
        fix=("graph|compile",),
    ),
    _case(
        "compile",
        "Triton compiles in a step",
        "compiler_in_the_step",
        "vllm-project/vllm 20451",
        rules=("warmup_compile",),
        fix=("warm",),
    ),
    _case(
        "ranks",
        "gradients reduced after the backward pass",
        "exposed_all_reduce",
        "NVIDIA/cosmos-framework 161 (2026)",
        rules=("exposed_communication",),
        fix=("overlap|bucket",),
    ),
    _case(
        "ranks",
        "dispatch and combine of DeepEP",
        "deep_ep_dispatch",
        "deepseek-ai/DeepEP",
        rules=("exposed_communication",),
        fix=("overlap|expert",),
    ),
    _case(
        "ranks",
        "an all-to-all that NCCL calls SendRecv",
        "all_to_all_of_experts",
        "NVIDIA/Megatron-LM 6468",
        rules=("exposed_communication",),
        fix=("all.to.all|expert",),
        forbidden=("send_recv", "stages", "microbatch"),
    ),
    _case("control", "a GPU that is always busy", "busy_gpu", "own"),
    _fixture("torch", "ops", "a recurrence over time, op by op", "cpu-ssm-scan", "unfused_ops", r"torch\.compile"),
    _fixture("torch", "ops", "a recording of checkpoints", "cpu-attention-sdpa-checkpoint", "excess_remat",
             "checkpoint"),
    _fixture("torch", "ops", "a planned step with an optimizer in a loop", "plans-h100/attention-sdpa-adam-loop",
             "unfused_optimizer", "fused=True"),
    _fixture("torch", "reads", "experts picked on the host, planned", "plans-h100/moe-loop", "host_sync",
             "mask|nonzero_static"),
    _fixture("jax", "ops", "a recurrence over time, compiled", "programs-h100/ssm-scan", "sequential_scan",
             "associative_scan"),
    _fixture("jax", "ops", "one-hot dispatch of experts, compiled", "programs-h100/moe-einsum", "dense_expert_compute",
             "Index the rows|batched product|grouped kernel"),
    _fixture("jax", "sharding", "a constraint that gathers, compiled", "programs-v5e/transformer-sharding",
             "resharding_collective", "sharding"),
    _fixture("jax", "ops", "attention written out, compiled", "programs-v5e/attention-naive", "unfused_attention",
             "attention"),
)  # fmt: skip
