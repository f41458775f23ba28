"""Analyses built by hand: every number in them is chosen, so that a whole report can be compared."""

from __future__ import annotations

from perfscope.analyzers.engine import Analysis, Step
from perfscope.analyzers.facts.device_time import DeviceTime
from perfscope.analyzers.finding import Finding, Outcome, Where
from perfscope.analyzers.trace import Source

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
    title=".item() makes the host wait 40 times; the device is idle 6.90 ms a step for it",
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
    """One rank with three findings, two clean rules and two that could not look."""
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
    )
