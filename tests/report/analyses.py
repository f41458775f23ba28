"""Analyses built by hand: every number in them is chosen, so that a whole report can be compared."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from perfscope.analyzers.engine import Analysis, Step
from perfscope.analyzers.hlo.roofline import Utilization
from perfscope.analyzers.memory.holders import Holder
from perfscope.analyzers.memory.picture import Band, MemoryPicture
from perfscope.analyzers.memory.trace_memories import Growing, HeldCategory, Holders, Memory, Reserved
from perfscope.analyzers.programs.hot_instructions import HotInstruction, HotPlace, HotSpots
from perfscope.analyzers.programs.programs import Execution, LeastTime, Program
from perfscope.analyzers.sections.compile import CompileSection, RankCompile
from perfscope.analyzers.sections.memory import MemoryEntry, MemorySection, RankMemory
from perfscope.analyzers.sections.programs import ProgramsSection
from perfscope.analyzers.time.device_time import DeviceTime
from perfscope.analyzers.torch_compile.phases import Stage
from perfscope.analyzers.torch_compile.summary import (
    BreakSummary,
    CompileSummary,
    FrameSummary,
    GraphGroup,
    KernelSummary,
    RecompileSummary,
)
from perfscope.model.compile_log import CodeLine
from perfscope.model.finding import Excerpt, Finding, Outcome, Where
from perfscope.model.memory import KnownBy, MemoryPhase, SourceLine
from perfscope.model.trace import Source
from perfscope.model.trace.tables import MemoryCategory

MS = 1_000_000


def device(
    rank: int | None = 0, *, ordinal: int = 0, span: int = 206, compute: int = 160, comm: int = 8, copy: int = 3,
    name: str = "NVIDIA H200",
) -> DeviceTime:  # fmt: skip
    """A device whose parts sum to its span; milliseconds."""
    busy = compute + comm + copy
    built = DeviceTime(
        rank=rank, device=0, ordinal=ordinal, name=name, span_ns=span * MS, busy_ns=busy * MS, compute_ns=compute * MS,
        communication_ns=2 * comm * MS, exposed_communication_ns=comm * MS, exposed_copy_ns=copy * MS,
        idle_ns=(span - busy) * MS, kernel_time_ns=(compute + 2 * comm) * MS, kernels=4321, start_ns=0,
        end_ns=span * MS,
    )  # fmt: skip
    built.check()
    return built


def source(path: str = "trace.json.gz", rank: int | None = 0, **more: object) -> Source:
    return Source(path=path, format="kineto", rank=rank, events_read=120_345, **{"events_unplaced": 0, **more})  # type: ignore[arg-type]


HOST_SYNC = Finding(
    subject=".item() waits",
    title=".item() makes the host wait 40 times; the device is idle 6.90 ms per step for it",
    severity="high",
    basis="measured",
    cost_ns=int(34.5 * MS),
    cost_ns_per_step=int(6.9 * MS),
    where=Where(op="aten::_local_scalar_dense", module="train.Loop", file="/home/alice/proj/train.py", line=88),
    evidence=(
        {"call": "cudaStreamSynchronize", "step": 3, "wait_ns": 1_200_000, "idle_share": 0.91},
        {"call": "cudaStreamSynchronize", "step": 4, "wait_ns": 980_000, "idle_share": 0.4},
    ),
    advice="Keep the loss on the device and read it every 100 steps:\n\n```python\n"
    "if step % 100 == 0:\n    print(loss.item())\n```\n\nOr use `loss.detach()` and sum on the device.",
    ranks=(0,),
    excerpt=Excerpt(
        path="/home/alice/proj/train.py",
        first=86,
        lines=(
            "        loss.backward()",
            "        optimizer.step()",
            "        total += loss.item()",
            "        if total < 0:",
            "            break",
        ),
    ),
)
UNFUSED = Finding(
    subject="add -> mul -> silu",
    title="add -> mul -> silu run as 3 kernels and move 1.90 GiB that one fused kernel would not",
    severity="medium",
    basis="modelled",
    cost_ns=int(5 * 0.8 * MS),
    cost_ns_per_step=int(0.8 * MS),
    cost_bytes=2_040_109_465,
    where=Where(module="model.layers.0.mlp", op="aten::silu"),
    advice="Put `torch.compile` around the module.",
    ranks=(0,),
)
BRANCH = Finding(
    subject="nonzero",
    title="nonzero has an output whose size the host must wait for",
    severity="low",
    basis="structural",
    where=Where(op="aten::nonzero", file="moe.py", line=41),
    evidence=({"op": "aten::nonzero", "calls": 8},),
    advice="Sort the tokens by expert and use a grouped matmul.",
    ranks=(0,),
)

STEPS = (
    *(
        Step(rank=0, number=n, duration_ns=d * MS, traced=True, start_ns=n * 50 * MS)
        for n, d in enumerate((42, 41, 43, 41, 42))
    ),
    *(Step(rank=0, number=n, duration_ns=40 * MS + n * 100_000, traced=False) for n in range(12)),
)

OUTCOMES = (
    Outcome(rule="exposed_communication", status="abstained", reason="not recorded: collectives with their sizes"),
    Outcome(rule="host_sync", status="flagged", findings=(HOST_SYNC, BRANCH)),
    Outcome(rule="input_stall", status="clean"),
    Outcome(rule="launch_bound", status="clean"),
    Outcome(rule="nvlink_stall", status="abstained", reason="not recorded: collectives with their sizes"),
    Outcome(rule="unfused_ops", status="flagged", findings=(UNFUSED,)),
)


def analysis(**changes: object) -> Analysis:
    """One rank with three findings, two clean rules and two that not evaluated."""
    parts: dict[str, object] = {
        "sources": (
            source(
                "/home/alice/traces/trace.json.gz",
                events_unplaced=12,
                unplaced={"kernel without a device": 12},
                repairs={"unescaped quotes": 2},
                notes=("3 kernels were launched before the capture began; they are kept.",),
            ),
        ),
        "devices": (device(),),
        "steps": STEPS,
        "outcomes": OUTCOMES,
    }
    return Analysis(**{**parts, **changes})  # type: ignore[arg-type]


def programs(name: str = "jit_step", file: str = "train.py", scope: str = "mlp/dot_general") -> ProgramsSection:
    """One program that ran 3 times on 8 devices, and its two instructions."""
    hot = HotInstruction(
        program=name, instruction="fusion.3" if name == "jit_step" else name, opcode="fusion", scope=scope,
        phase="backward", file=file, line=88, calls=24, time_ns=30 * MS, bound="memory", roof_ns=400_000.5,
        headroom_ns=20 * MS, flops=1_000_000, bytes=2_000_000,
    )  # fmt: skip
    rest = HotInstruction(
        program=name, instruction="in no recorded program", opcode=None, scope=None, phase=None, file=None, line=None,
        calls=7, time_ns=12 * MS, bound=None, roof_ns=None, headroom_ns=None, flops=None, bytes=None,
    )  # fmt: skip
    line = HotPlace(name=f"{file}:88", phase=None, time_ns=30 * MS, instructions=1, calls=24, mainly=scope)
    none = HotPlace(name="in no recorded program", phase=None, time_ns=12 * MS, instructions=0, calls=7, mainly="")
    place = HotPlace(name=scope, phase="backward", time_ns=30 * MS, instructions=1, calls=24, mainly=scope)
    return ProgramsSection(
        programs=(
            Program(
                name=name, module_index=0, program_id=7, rank=0, platform="gpu", flops=2_000_000_000, bytes=3 << 30,
                execution=Execution(
                    count=24, devices=8, counted=True, instructions_ns=42 * MS, launch_ns=40 * MS, span_ns=48 * MS,
                ),
                exact=False, unknown=1, flops_by_phase={"forward": 1_500_000_000, "recompute": 500_000_000},
                peak_bytes=5 << 30, peak_known_by="assigned",
                least=LeastTime(
                    device="H100 SXM", assumed=False, total_ns=1_100_000.5, exact=True,
                    by_bound={"memory": 1_000_000.5, "link": 100_000.0},
                ),
                utilization=Utilization(mfu=0.123, hfu=0.164, exact=True),
            ),
        ),
        ran=1,
        instructions_ns=42 * MS,
        hot_spots=(
            HotSpots(
                rank=0, program=None, basis="measured", total_ns=42 * MS, unmatched_ns=12 * MS,
                instructions=(hot, rest), lines=(line, none), scopes=(place, none),
            ).top(20),
        ),
    )  # fmt: skip


def compiled(name: str = "forward", file: str = "/home/alice/proj/model/net.py", path: str = "x.log") -> CompileSection:
    """One process: a frame that was compiled three times and broke once, and a kernel of it that ran."""
    line = CodeLine(file=file, line=41, function=name, code=name)
    stages = {Stage.KERNELS: 9_000 * MS, Stage.TRACING: 1_000 * MS}
    frame = FrameSummary(
        function=name, after_line=None, place=line, compiles=3, restarts=1,
        graphs=(
            GraphGroup(direction="forward", count=3, ops_least=20, ops_most=24),
            GraphGroup(direction="backward", count=3, ops_least=31, ops_most=31),
        ),
        dynamo_graphs=3, breaks=1, recompiles=2, caches={"fx_graph": {"hit": 2, "miss": 4}}, cache_reasons=(name,),
        time_ns=10_000 * MS, stages_ns=stages, state="compiled",
    )  # fmt: skip
    held = CompileSummary(
        rank=0, path=path, torch_version="2.13.0", compiles=3, graphs=6, graph_kind="inductor", breaks=1,
        eager_frames=0, limit_frames=0, recompiles=2, caches=frame.caches, total_ns=10_000 * MS,
        in_steps_ns=2_100 * MS, stages_ns=stages, frames=(frame,),
        break_rows=(
            BreakSummary(place=line, reason=name, doc_id="gb0059", count=1, whole_frame=False, hint=name),
        ),
        recompile_rows=(
            RecompileSummary(
                function=name, place=line, guard=f"{name} == 0.1", guard_place=replace(line, line=43),
                values=("0.1", "0.30000000000000004", "0.5"), count=2,
            ),
        ),
        kernels=(
            KernelSummary(
                name=f"triton_poi_fused_{name}_0", backend="triton", calls=3, ops=("aten.mul.Tensor", name),
                places=(line, line), time_ns=5 * MS,
            ),
        ),
        unknown={name: 1},
    )  # fmt: skip
    rank = RankCompile(
        label="rank 0", rank=0, frames=1, compiles=3, graphs=6, breaks=1, recompiles=2, eager_frames=0, limit_frames=0,
        total_ns=10_000 * MS, in_steps_ns=2_100 * MS, caches=frame.caches,
    )  # fmt: skip
    return CompileSection(ranks=(rank,), detail=held, detail_label="rank 0")


HOSTILE_NAMES = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "void k<int, float>(A const&, B*) | @octocat `code` [link](http://x) ![i](http://x)",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J bell\x07",
    "[bold red]markup[/] :smile:",
    "right\u202eto left\u200b zero\ud800 lone",
    "line one\nline two\r\n# heading\u2028x",
    "quote \" ' & amp &amp; <b",
    "k" * 1_000_000,
    "日本語カーネル" * 40,
    "",
)


def hostile(name: str) -> Analysis:
    """An analysis in which everything a trace can name is called ``name``."""
    finding = Finding(
        subject=name,
        title=f"kernel {name} costs",
        severity="high",
        basis="measured",
        cost_ns=5 * MS,
        cost_ns_per_step=MS,
        where=Where(op=name, kernel=name, module=name, file=name or None, line=1),
        evidence=({"kernel": name, "time_ns": 5},),
        advice=f"Do not call it {name}",
    )
    return analysis(
        sources=(source(name, notes=(name,), unplaced={name: 1}, events_unplaced=1, repairs={name: 1}),),
        devices=(device(name=name),),
        outcomes=(
            Outcome(rule="host_sync", status="flagged", findings=(finding,), reason=name),
            Outcome(rule="input_stall", status="abstained", reason=name),
        ),
        run={"command": [name], name: {"deep": name}},
        programs=programs(name, name, name),
        compile=compiled(name, name, name),
        memory=memory(name),
    )


def memory(name: str) -> MemorySection:
    """Two ranks' device memory in which everything is called ``name``: 30 B at the peak, half of them an activation."""
    line = SourceLine(file=name, line=1, function=name)
    held = Holders(rows=(Holder(name=name, bytes=30, blocks=2, members=2, line=line),))
    category = HeldCategory(
        category=MemoryCategory.ACTIVATION, bytes=15, blocks=1, known_by=KnownBy.OP, place=line, name=name,
        place_bytes=15,
    )  # fmt: skip
    picture = MemoryPicture(
        positions=np.array([0, 5, 9]), categories=(MemoryCategory.ACTIVATION, MemoryCategory.UNKNOWN),
        bytes=np.array([[0, 15, 0], [15, 15, 15]]), unseen_bytes=0, reserved=np.array([40, 40, 40]),
        steps=(Band(name=name, start=0, end=10),), phases=(Band(name="forward", start=0, end=9),),
    )  # fmt: skip
    worst = Memory(
        rank=0, space="device", label=name, known_from=name, axis="ns", basis="measured", of_driver=False, first=0,
        last=9, peak_bytes=30, rounded_peak_bytes=1024, peak_position=5, phase=MemoryPhase.FORWARD, step=1, op=name,
        line=line,
        by_category=(category, replace(category, category=MemoryCategory.UNKNOWN, place=None)), by_module=held,
        by_line=held, unseen_bytes=0,
        reserved=Reserved(peak_bytes=40, allocated_bytes=30, as_requested=True, requested_bytes=30, excess_bytes=10,
                          split_bytes=10, largest_free_bytes=10),
        capacity_bytes=50, out_of_memory=1, failed_bytes=20, unmatched=1,
        growth=Growing(steps=9, growing=True, bytes_per_step=3.0, steps_left=3), notes=(name,), picture=picture,
    )  # fmt: skip
    rows = [
        RankMemory(rank=rank, source=rank, label=name, peak_bytes=30, reserved_bytes=40, headroom_bytes=10,
                   phase=MemoryPhase.FORWARD, step=1, out_of_memory=1)
        for rank in (0, 1)
    ]  # fmt: skip
    return MemorySection(entries=(MemoryEntry(worst=worst, source=0, others=tuple(rows)),), problems=(name,))
