"""Recordings of GPUs and files of this repository, and what the report of each must say first."""

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
        rules=("small_kernels", "launch_bound"),
        fix=("graph|compile",),
    ),
    _case(
        "host",
        "a model that is dispatched too slowly",
        "python_between_launches",
        "huggingface/transformers and vllm, eager mode",
        rules=("launch_bound",),
        fix=("graph|compile",),
    ),
    _case(
        "memory",
        "activations offloaded on the stream that computes",
        "offload_without_overlap",
        "pytorch/torchtune, activation offloading",
        rules=("exposed_copy",),
        fix=("stream",),
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
    _case(
        "ranks",
        "gradients reduced one by one",
        "gradient_by_gradient",
        "HRNet/HRNet-Object-Detection 9, deepspeedai/DeepSpeed 3151",
        rules=("small_collectives",),
        fix=(r"train\.py:31", "one buffer"),
    ),
    _case(
        "ranks",
        "one rank has the hot experts",
        "full_expert",
        "databricks/megablocks 100, baidu-baige/LoongForge 28 (2026)",
        rules=("expert_imbalance",),
        fix=("rank 2", "router"),
        forbidden=("nccl-tests",),
    ),
    _case(
        "ranks",
        "two groups that share the links",
        "two_groups_on_one_link",
        "pytorch/pytorch 179937 (2026), NVIDIA/nccl 491",
        rules=("link_contention",),
        fix=("all_reduce", "reduce_scatter", "is_high_priority_stream"),
    ),
    _case(
        "ranks",
        "reductions at a tenth of NVLink",
        "slow_links",
        "NVIDIA/nccl 1511 and 324",
        rules=("nvlink_stall",),
        fix=("all_reduce", "of 450 GB/s", "nccl-tests"),
        forbidden=("Give the traces of all ranks",),
    ),
    _case(
        "ranks",
        "a rank without a batch",
        "rank_without_a_batch",
        "pytorch/pytorch 118369, NVIDIA/nccl 1260",
        rules=("hung_collective",),
        fix=("rank 5", r"train\.py:33"),
    ),
    _case(
        "memory",
        "a batch that does not fit",
        "batch_too_large",
        "pytorch/pytorch 35901 and 29554",
        rules=("oom_near",),
        fix=(r"model\.py:41", "advise memory"),
        forbidden=("held as parameter", "expandable_segments"),
    ),
    _case(
        "memory",
        "prompts that become longer and longer",
        "ever_longer_prompts",
        "sgl-project/SpecForge 739 (2026), facebookresearch/fairchem 775",
        rules=("memory_fragmentation",),
        fix=(r"model\.py:73", "expandable_segments"),
    ),
    AdviceCase(
        name="activations that fill the device", framework="jax", kind="memory", program="no_checkpoints",
        thread="AI-Hypercomputer/maxtext, remat policies", how="analyze", everyday=True, rules=("missing_remat",),
        fix=(r"training\.py", r"jax\.checkpoint"),
    ),
    AdviceCase(
        name="a data set that is compiled into the step", framework="jax", kind="compile",
        program="data_set_as_constant", thread="ryan112358/mbi 179 (2026), jax-ml/jax 36305 (2026)", how="analyze",
        everyday=True, rules=("compile_time",), fix=(r"train\.py:14", "argument"),
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
    _fixture("jax", "sharding", "reductions of tensor parallelism, compiled", "programs-v5e/transformer",
             "blocking_collective", r"attention\.py:92(?s:.*)(half|unroll)"),
    _fixture("jax", "ops", "attention written out, compiled", "programs-v5e/attention-naive", "unfused_attention",
             "attention"),
)  # fmt: skip
