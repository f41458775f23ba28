"""The table of labelled cases: a program or recording with a known defect, and its twin without it.

A defect is one line of a program, which ends in ``# defect: RULE[, RULE]`` (`tests/accuracy/labels.py`). A case names
the rules that should find it, and a text that identifies its line among the labelled ones. Recordings by others have no
source: their story, from their authors or from other tools, is in the case.

``make accuracy`` judges all of them and writes docs/accuracy.md; `test_cases.py` compares each with the table.
"""

from __future__ import annotations

from tests.accuracy.case import (
    Case,
    Framework,
    Mode,
    Program,
    Recorded,
    Source,
    jax_program,
    torch_program,
)
from tests.accuracy.inference_cases import INFERENCE
from tests.accuracy.model_cases import MODELS
from tests.accuracy.pipeline_cases import PIPELINES

__all__ = ["CASES", "Case", "Framework", "Mode", "Program", "Recorded", "Source", "jax_program", "torch_program"]

SCORES = "q_BHLK @ k_BHMK"
HOST_LINES = {
    "tokenize": "zlib.crc32",
    "sleep": "time.sleep(NAP_S)",
    "log": "json.dump(",
    "save": "path",
    "thread": "value * 31",
    "collect": "gc.collect()",
}


def _eager() -> list[Case]:
    sdpa = torch_program("attention", "--variant", "sdpa")
    small_model = ("--variant", "sdpa", "--batch", "16", "--seq", "64", "--dim", "16", "--layers", "1")
    steady = torch_program("attention", "--variant", "sdpa", size="cpu", steps=14)
    cases = [
        Case(
            name="loss read in each step",
            framework="torch",
            mode="eager",
            source=torch_program("attention", "--variant", "sdpa", "--defect", "item"),
            twin=sdpa,
            expects={"host_sync": "total += loss.item()"},
        ),
        Case(
            name="samples made in the training process",
            framework="torch",
            mode="eager",
            source=torch_program("attention", *small_model, "--defect", "loader"),
            twin=torch_program("attention", *small_model),
            expects={"input_stall": "num_workers=0"},
            measured=True,
        ),
        Case(
            name="optimizer in a loop",
            framework="torch",
            mode="eager",
            source=torch_program("attention", "--variant", "sdpa", "--defect", "adam-loop"),
            twin=sdpa,
            expects={"unfused_optimizer": "foreach=False"},
            measured=True,
        ),
        Case(
            name="naive attention",
            framework="torch",
            mode="eager",
            source=torch_program("attention", "--variant", "naive", size="cpu", steps=14),
            twin=steady,
            expects={"unfused_attention": SCORES},
            measured=True,
        ),
        Case(
            name="expert loop",
            framework="torch",
            mode="eager",
            source=torch_program("moe", "--variant", "loop"),
            twin=torch_program("moe", "--variant", "index_add"),
            expects={"host_sync": "torch.where(expert_TK"},
        ),
        Case(
            name="scan over time",
            framework="torch",
            mode="eager",
            source=torch_program("ssm", "--variant", "scan"),
            twin=torch_program("ssm", "--variant", "parallel"),
            expects={"unfused_ops": "a_BDN * h_BDN"},
        ),
        Case(
            name="metric that keeps its graph",
            framework="torch",
            mode="eager",
            source=torch_program("transformer", "--defect", "leak", level="deep"),
            twin=torch_program("transformer", "--twin", "leak", level="deep"),
            expects={"memory_leak": "entropy_of(logits_BLV))"},
        ),
        Case(
            name="generation, item",
            framework="torch",
            mode="eager",
            source=torch_program("generate", "--variant", "parallel", "--defect", "item"),
            twin=torch_program("generate", "--variant", "parallel"),
            expects={"host_sync": "token_B[0].item()"},
        ),
    ]
    expects = {
        "host_bound": HOST_LINES["tokenize"],
        "host_sync": "self.total += loss.item()",
        "eager_fallback": None,  # after eight compilations
        "recompilation": "kept = torch.rand",
        "unfused_optimizer": "parameters, lr=3e-3, foreach=False",
    }
    demo = [Program(module="perfscope.workloads.demo", arguments=twin) for twin in ((), ("--twin",))]
    cases.append(
        Case(name="demo, five defects", framework="torch", mode="eager", source=demo[0], twin=demo[1], expects=expects)
    )
    for name, flag, text in (
        ("recomputation without need", "checkpoint", "checkpoint(block, x_BLD, use_reentrant=False)"),
        (
            "recomputation without need, reentrant",
            "checkpoint-reentrant",
            "checkpoint(block, x_BLD, use_reentrant=True)",
        ),
        ("recomputation twice", "checkpoint-nested", "checkpoint(inner"),
    ):
        cases.append(
            Case(
                name=name,
                framework="torch",
                mode="eager",
                source=torch_program("attention", "--variant", "sdpa", "--defect", flag, size="cpu", steps=14),
                twin=steady,
                expects={"excess_remat": text},
                measured=flag == "checkpoint",
            )
        )
    for name, text in HOST_LINES.items():
        cases.append(
            Case(
                name=f"host: {name}",
                framework="torch",
                mode="eager",
                source=torch_program("loop", "--defect", name),
                twin=torch_program("loop", "--twin", name),
                expects={"checkpoint_stall" if name == "save" else "host_bound": text},
                measured=True,
            )
        )
    cases.append(
        Case(
            name="host: evaluate",
            framework="torch",
            mode="eager",
            source=torch_program("loop", "--defect", "evaluate", steps=100),
            twin=torch_program("loop", "--twin", "evaluate", steps=100),
            expects={"slow_steps": "host(step)"},
        )
    )
    return cases


def _compiled() -> list[Case]:
    lines: list[tuple[str, str, dict[str, str | None]]] = [
        ("print in a compiled model", "print", {"eager_fallback": "print(", "host_sync": "print("}),
        ("branch on a value", "branch", {"graph_break": "> LIMIT:", "host_sync": "> LIMIT:"}),
        ("index by a mask", "unsupported", {"eager_fallback": "loud_ND = "}),
        ("rate as a Python float", "float-arg", {"recompilation": "p=rate)"}),
        ("ever new lengths", "shapes", {"dynamic_shape_churn": "dynamic=False"}),
    ]
    return [
        Case(
            name=name,
            framework="torch",
            mode="compiled",
            source=torch_program(
                "attention", "--variant", "sdpa", "--compile-defect", flag, "--compile-backend", "aot_eager"
            ),
            twin=torch_program(
                "attention", "--variant", "sdpa", "--compile-twin", flag, "--compile-backend", "aot_eager"
            ),
            expects=expects,
        )
        for name, flag, expects in lines
    ]


def _jit() -> list[Case]:
    blocked = jax_program("attention", "--variant", "blocked")
    naive = ("--variant", "naive")
    rows: list[tuple[str, Program, Program, dict[str, str | None], bool]] = [
        (
            "naive attention",
            jax_program("attention", *naive, size="cpu", steps=14),
            jax_program("attention", "--variant", "blocked", size="cpu", steps=14),
            {"unfused_attention": SCORES},
            False,
        ),
        (
            "loss read in each step",
            jax_program("attention", *naive, "--defect", "float"),
            jax_program("attention", *naive),
            {"host_sync": "float(loss)"},
            False,
        ),
        (
            "step number as a Python int",
            jax_program("attention", *naive, "--defect", "retrace", steps=9),
            jax_program("attention", *naive, steps=9),
            {"recompilation": "number + 1"},
            False,
        ),
        (
            "recomputation without need",
            jax_program("attention", *naive, "--defect", "checkpoint", size="cpu", steps=14),
            jax_program("attention", *naive, size="cpu", steps=14),
            {"excess_remat": "jax.checkpoint(self.block"},
            True,
        ),
        (
            "recomputation twice",
            jax_program("attention", *naive, "--defect", "checkpoint-nested", size="cpu", steps=14),
            jax_program("attention", *naive, "--defect", "checkpoint", size="cpu", steps=14),
            {"excess_remat": "jax.checkpoint(self._layers)"},
            False,
        ),
        (
            "optimizer outside of jit",
            jax_program("attention", *naive, "--defect", "eager-update"),
            jax_program("attention", *naive),
            {"unfused_optimizer": "updated(state, gradients), loss"},
            False,
        ),
        (
            "logits kept in a list",
            jax_program("attention", *naive, "--defect", "leak"),
            jax_program("attention", *naive),
            {"memory_leak": "kept.append"},
            False,
        ),
        (
            "state that is not donated",
            jax_program("attention", *naive, "--defect", "no-donation", "--batch", "1", "--seq", "64", size="cpu"),
            jax_program("attention", *naive, "--batch", "1", "--seq", "64", size="cpu"),
            {"donation_missed": "no-donation"},
            False,
        ),
        (
            "einsum dispatch",
            jax_program("moe", "--variant", "einsum", size="cpu", steps=14),
            jax_program("moe", "--variant", "scatter", size="cpu", steps=14),
            {"dense_expert_compute": "jnp.einsum("},
            False,
        ),
        (
            "ragged",
            jax_program("moe", "--variant", "ragged", size="cpu", steps=14),
            jax_program("moe", "--variant", "scatter", size="cpu", steps=14),
            {"dense_expert_compute": "ragged_dot"},
            False,
        ),
        (
            "scan over time",
            jax_program("ssm", "--variant", "scan"),
            jax_program("ssm", "--variant", "associative"),
            {"sequential_scan": "_, h_LBDN = jax.lax.scan(advance"},
            False,
        ),
        (
            "scan over time, Mamba-2",
            jax_program("ssm", "--variant", "ssd-scan"),
            jax_program("ssm", "--variant", "ssd-chunked"),
            {"sequential_scan": "_, y_LBHP = jax.lax.scan(advance"},
            False,
        ),
        (
            "generation, item",
            jax_program("generate", "--variant", "associative", "--defect", "item"),
            jax_program("generate", "--variant", "associative"),
            {"host_sync": "int(token) == END"},
            False,
        ),
        (
            "ever new lengths",
            jax_program("loop", *naive, "--layers", "1", "--defect", "shapes", steps=9),
            jax_program("loop", *naive, "--layers", "1", "--twin", "shapes", steps=9),
            {"recompilation": "update(state, batch_BM)"},
            False,
        ),
        (
            "callback from inside the step",
            jax_program("loop", "--defect", "callback"),
            jax_program("loop", "--twin", "callback"),
            {"host_callback": "jax.debug.callback(report_norms"},
            True,
        ),
        *(
            (
                f"host: {name}",
                jax_program("loop", "--defect", name),
                jax_program("loop", "--twin", name),
                {"checkpoint_stall" if name == "save" else "host_bound": text},
                True,
            )
            for name, text in HOST_LINES.items()
        ),
    ]
    return [
        Case(name=name, framework="jax", mode="jit", source=source, twin=twin, expects=expects, measured=measured)
        for name, source, twin, expects, measured in rows
    ] + [Case(name="blocked attention", framework="jax", mode="jit", source=blocked)]


def _several() -> list[Case]:
    def ranks(*arguments: str) -> Program:
        return Program(module="perfscope.workloads.ranks", arguments=arguments, processes=4, level="light")

    def devices(*arguments: str) -> Program:
        return Program(module="perfscope.workloads.jax.devices", arguments=arguments, devices=8)

    def mesh(*arguments: str) -> Program:
        return jax_program("transformer", "--data", "2", "--fsdp", "2", "--tensor", "2", *arguments, devices=8)

    cases = []
    for parallel in ("ddp", "fsdp2"):
        twin = ranks("--parallel", parallel)
        for defect, expects in (
            ("straggler", {"straggler": "# defect: straggler"}),
            ("input", {"input_stall": "time.sleep(DEFECT_S)", "straggler": None}),
        ):
            cases.append(
                Case(
                    name=f"{parallel}: {defect}",
                    framework="torch",
                    mode="4 gloo processes",
                    source=ranks("--parallel", parallel, "--defect", defect),
                    twin=twin,
                    expects=expects,
                )
            )
    cases.append(
        Case(
            name="context in contiguous pieces",
            framework="torch",
            mode="4 gloo processes",
            source=Program(module="perfscope.workloads.context", processes=4),
            twin=Program(module="perfscope.workloads.context", arguments=("--split", "zigzag"), processes=4),
            expects={"context_parallel_imbalance": None},
        )
    )
    sharded = ("--steps", "14")
    cases.append(
        Case(
            name="weights in four parts, reduced in every pass",
            framework="torch",
            mode="4 gloo processes",
            source=Program(
                module="perfscope.workloads.parallel.fsdp", arguments=(*sharded, "--defect", "accumulate"), processes=4
            ),
            twin=Program(module="perfscope.workloads.parallel.fsdp", arguments=sharded, processes=4),
            expects={"repeated_reductions": "loss.backward()"},
        )
    )
    experts = ("--variant", "exact")
    cases.append(
        Case(
            name="most tokens to the first experts",
            framework="torch",
            mode="4 gloo processes",
            source=Program(module="perfscope.workloads.experts", arguments=(*experts, "--skew", "4"), processes=4),
            twin=Program(module="perfscope.workloads.experts", arguments=experts, processes=4),
            expects={"expert_imbalance": None},
        )
    )
    for defect, text in (("straggler", "work(y, late_rounds)"), ("input", "time.sleep(INPUT_S)")):
        cases.append(
            Case(
                name=defect,
                framework="jax",
                mode="8 devices",
                source=devices("--defect", defect),
                twin=devices(),
                expects={"straggler" if defect == "straggler" else "input_stall": text},
            )
        )
    cases.append(
        Case(
            name="resharding",
            framework="jax",
            mode="8 devices",
            source=mesh("--defect", "sharding"),
            twin=mesh(),
            expects={"resharding_collective": "with_sharding_constraint(x_BLD + y_BLD"},
        )
    )
    return cases


def _targets() -> list[Case]:
    compiled: list[tuple[str, str, dict[str, str | None]]] = [
        ("attention-naive", "attention-blocked", {"unfused_attention": SCORES}),
        (
            "attention-naive-fp32",
            "attention-blocked",
            {"unfused_attention": SCORES, "full_precision_matmul": 'precision="highest"'},
        ),
        ("attention-policy-full", "attention-policy-none", {"excess_remat": "jax.checkpoint(self.block"}),
        ("attention-policy-names", "attention-policy-dots", {"excess_remat": '"hidden")'}),
        ("moe-einsum", "moe-scatter", {"dense_expert_compute": "jnp.einsum("}),
        ("moe-ragged", "moe-scatter", {"dense_expert_compute": "ragged_dot"}),
        ("ssm-scan", "ssm-associative", {"sequential_scan": "_, h_LBDN = jax.lax.scan(advance"}),
        ("transformer-sharding", "transformer", {"resharding_collective": "with_sharding_constraint(x_BLD + y_BLD"}),
    ]
    cases = [
        Case(
            name=name,
            framework="jax",
            mode=mode,
            source=Recorded(paths=(f"fixtures/{folder}/{name}",)),
            twin=Recorded(paths=(f"fixtures/{folder}/{twin}",)),
            expects=expects,
        )
        for mode, folder in (("H100", "programs-h100"), ("v5e", "programs-v5e"))
        for name, twin, expects in compiled
    ]  # type: list[Case]
    planned: list[tuple[str, str, dict[str, str | None]]] = [
        ("attention-naive", "attention-sdpa", {"unfused_attention": SCORES}),
        ("attention-naive-compiled", "attention-sdpa", {"unfused_attention": SCORES}),
        ("moe-loop", "moe-index-add", {"graph_break": "torch.where(expert_TK", "host_sync": "torch.where(expert_TK"}),
        ("ssm-scan", "ssm-parallel", {"sequential_scan": "a_BDN * h_BDN"}),
        ("attention-sdpa-adam-loop", "attention-sdpa", {"unfused_optimizer": "foreach=False"}),
        ("attention-sdpa-item", "attention-sdpa", {"host_sync": "total += loss.item()"}),
        ("attention-branch", "attention-branch-twin", {"graph_break": "> LIMIT:", "host_sync": "> LIMIT:"}),
    ]
    cases += [
        Case(
            name=name,
            framework="torch",
            mode="H100",
            source=Recorded(paths=(f"fixtures/plans-h100/{name}",)),
            twin=Recorded(paths=(f"fixtures/plans-h100/{twin}",)),
            expects=expects,
        )
        for name, twin, expects in planned
    ]
    return cases


def _of_others() -> list[Case]:
    def kineto(*names: str) -> Recorded:
        return Recorded(paths=tuple(f"corpus/kineto/{name}.json.gz" for name in names))

    def ranks(name: str, first: int = 0, count: int = 4) -> Recorded:
        return kineto(*(f"{name}__rank{rank}" for rank in range(first, first + count)))

    idle = ("host_bound", "host_sync", "input_stall", "launch_bound", "unexplained_idle", "exposed_copy")
    traces: list[tuple[str, Recorded, str | None, str]] = [
        (
            "a sync a kernel",
            Recorded(paths=("corpus/nsys_sqlite/pipit__perlmutter-cloverleaf-cuda.sqlite.gz",)),
            "host_sync",
            "CloverLeaf on an A100: 1,312 kernels, 1,312 calls of cudaDeviceSynchronize",
        ),
        (
            "streamed weights",
            Recorded(paths=("corpus/nsys_sqlite/nsys-ai__h100_2gpu_1s.sqlite.gz",)),
            "exposed_copy",
            "two H100: 51 GB from host to device, 97% of the time nothing else runs",
        ),
        (
            "compiler in the step",
            Recorded(paths=("corpus/nsys_sqlite/Fuser__report1.sqlite.gz",)),
            "warmup_compile",
            "nvFuser on an H200: 0.3% busy, the rest compiles kernels",
        ),
        (
            "first call of a Triton kernel",
            kineto("HolisticTraceAnalysis__triton_example"),
            "host_bound",
            "a step of 13.3 s in which an A100 works 1.8 us",
        ),
        (
            "launches",
            kineto("HolisticTraceAnalysis__nccl_data"),
            "launch_bound",
            "DDP on an A100: busy 23%, 2,700 kernels in between",
        ),
        (
            "sends of a pipeline",
            kineto("HolisticTraceAnalysis__sampled_rank-0"),
            "exposed_communication",
            "128 ranks: 28% of the time is exposed NCCL by HTA's overlap",
        ),
        (
            "sends of a pipeline, A100",
            kineto("HolisticTraceAnalysis__trace_diff_control"),
            "exposed_communication",
            "19% of the time is exposed NCCL by HTA's overlap",
        ),
        (
            "activation checkpointing",
            kineto("TraceLens__resnet_act_checkpoint"),
            "excess_remat",
            "TraceLens counts 267 recomputed ops of a ResNet on an MI300X",
        ),
        (
            "a rank that sleeps",
            ranks("torchrec__sst_sleep_pl_dense_after_backward_2_19488"),
            "straggler",
            "TorchRec's golden training: one rank was made to sleep a second, three times",
        ),
        (
            "ranks that hold the lock",
            Recorded(paths=("corpus/nccl_fr/nvidia-resiliency-ext__lock_gil_1st.tar.gz",)),
            "hung_collective",
            "a fault was injected: ranks 9 and 14 hold the interpreter's lock",
        ),
        (
            "ranks with a GPU error",
            Recorded(paths=("corpus/nccl_fr/nvidia-resiliency-ext__gpu_error_1st.tar.gz",)),
            "hung_collective",
            "a fault was injected: GPU errors on ranks 12 and 14",
        ),
    ]
    cases = [
        Case(
            name=name,
            framework="torch",
            mode="GPU trace",
            source=source,
            expects={} if rule is None else {rule: None},
            story=story,
        )
        for name, source, rule, story in traces
    ]
    cases += [
        Case(
            name="weights on the host",
            framework="jax",
            mode="TPU trace",
            source=Recorded(paths=("corpus/xplane/xprof__tpu_inference_2.xplane.pb.gz",)),
            expects={"exposed_copy": None},
            story="a stress test of host offloading on four v6e chips: copies take 84% of the time alone",
        ),
        Case(
            name="a healthy baseline",
            framework="torch",
            mode="GPU trace",
            source=kineto("HolisticTraceAnalysis__ns_resolution_rank0"),
            clean=(*idle, "small_kernels", "exposed_communication", "excess_remat"),
            story="a V100 that is busy 98% of the time",
        ),
        Case(
            name="the same job without the sleep",
            framework="torch",
            mode="GPU trace",
            source=ranks("torchrec__sst_long_a2a_optimizer_4_44237"),
            clean=("straggler",),
            story="TorchRec's golden training without a planted rank",
        ),
        Case(
            name="decoding by whole graphs",
            framework="torch",
            mode="GPU trace",
            source=kineto("TraceLens__vllm_decode_full_graph"),
            clean=("small_kernels", "exposed_copy", "exposed_communication"),
            story="vLLM on AMD: every kernel comes from a HIP graph",
        ),
    ]
    return cases


CASES: tuple[Case, ...] = (
    *_eager(),
    *_compiled(),
    *_jit(),
    *INFERENCE,
    *MODELS,
    *PIPELINES,
    *_several(),
    *_targets(),
    *_of_others(),
)
