"""excess_remat on compiled graphs: products made again, elementwise ops left alone, names that only look alike."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.readers.load import load_one
from perfscope.analyzers.registry import load_rule
from perfscope.model.compile_log import CodeLine, CompiledKernel, CompileLog, Graph, GraphNode
from perfscope.model.finding import Outcome
from perfscope.model.trace import RECORDED, Trace
from perfscope.plugins.memory_advice.rules.excess_remat.compiled import compiled_bargain, graph_recompute
from tests import warm
from tests.build import TraceBuilder, replace
from tests.conftest import REPOSITORY
from tests.memory.build import MemoryBuilder
from tests.torch_compile.logs import compiled, log_trace

LINE = CodeLine(file="/home/user/train.py", line=30, function="forward")
RULE = load_rule("excess_remat")


def sized_node(name: str, op: str, *inputs: str, kib: int = 100) -> GraphNode:
    return GraphNode(name=name, op=op, inputs=inputs, dtype="float32", shape=(kib, 256), place=LINE)


def recompute_log(*again: GraphNode) -> CompileLog:
    """A frame whose backward computes ``again``."""
    inputs = (sized_node("x", "placeholder"), sized_node("w", "placeholder"))
    first = (sized_node("h", "aten.gelu.default", "x"), *again)
    forward = Graph(compile_id="0/0", direction="forward", nodes=first, inputs=inputs)
    backward = Graph(compile_id="0/0", direction="backward", nodes=again, inputs=inputs,
                     recomputed=tuple(one.name for one in again))  # fmt: skip
    return CompileLog(path="x.log", compiles=(compiled(),), graphs=(forward, backward))


def step(
    *again: GraphNode,
    forward: int = 200,
    backward: int = 300,
    optimizer: int = 0,
    capacity_kib: int | None = None,
    reserved_kib: int = 0,
    region: str = "Torch-Compiled Region: 0/0",
) -> Trace:
    """Forward at 100-300 us with that many KiB in use, backward at 400-700 us, then an optimizer."""
    b = MemoryBuilder(rank=None, recorded=frozenset({"host_ops", "autograd", "memory", "steps"}))
    b.device(0)
    if capacity_kib is not None:
        b.tables["devices"][-1]["memory_bytes"] = capacity_kib << 10
    b.step(1, 0, 1000)
    b.annotation(region, 100, 300)
    b.op("CompiledFunction", 110, 290, sequence=5)
    b.op("CompiledFunctionBackward", 400, 700, sequence=5, forward_thread=1)
    most = {"reserved_bytes": reserved_kib << 10} if reserved_kib else {}
    for number, (size, begin, end) in enumerate(((forward, 120, 390), (backward, 480, 690), (optimizer, 800, 900))):
        if size:
            b.make(number + 1, size << 10, begin, **most)
            b.free(number + 1, end, **most)
    trace = b.build()
    trace = replace(trace, recorded=trace.recorded | {"compile_log"})
    return replace(trace, compile_log=recompute_log(*again))


MM = sized_node("mm", "aten.mm.default", "h", "w")
SMALL = sized_node("mm_1", "aten.mm.default", "h", "w", kib=10)


@pytest.mark.parametrize(
    ("nodes", "asked", "verdict", "bound_kib"),
    [
        ((MM,), {}, "capacity unknown", 400),  # held at 110-700: 300 in the forward, 400 in the backward
        ((MM,), {"optimizer": 900}, "elsewhere", 900),
        ((SMALL,), {"forward": 5000, "backward": 100}, "not lowered", 5010),  # within what counts as the same peak
        ((MM,), {"capacity_kib": 1000}, "headroom", 400),
        ((MM, SMALL), {"capacity_kib": 450}, "may not fit", 410),
    ],
)
def test_what_saving_the_results_would_take(
    nodes: tuple[GraphNode, ...], asked: dict[str, int], verdict: str, bound_kib: int
) -> None:
    trace = step(*nodes, **asked)
    found = trace.fact(compiled_bargain)
    assert (found.verdict, found.saved_peak_bytes) == (verdict, bound_kib << 10)
    flagged = [one for one in judge(RULE, trace).findings if one.subject == "recomputed by the compiled backward"]
    assert len(flagged) == (verdict != "may not fit")


def test_what_the_allocator_holds_beyond_the_peak_is_not_to_use() -> None:
    assert step(MM, capacity_kib=1000).fact(compiled_bargain).room_bytes == 900 << 10
    assert step(MM, capacity_kib=1000, reserved_kib=750).fact(compiled_bargain).room_bytes == 360 << 10


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (step(MM, region="Torch-Compiled Region"), "no call of these graphs"),
        (step(MM, region="Torch-Compiled Region: 7/0"), "no call of these graphs"),
        (step(MM, forward=0, backward=0), "allocator events were not recorded"),
        (step(replace(MM, shape=("s0", 256))), "a size that the log does not contain"),
        (step(), "nothing is computed again"),
    ],
)
def test_what_is_not_known_is_said(trace: Trace, said: str) -> None:
    found = trace.fact(compiled_bargain)
    assert found.verdict == "not known"
    assert said in found.reason


PROGRAM = """
import functools
import sys

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

torch.manual_seed(0)
D = 128
KEEP = sys.argv[1] == "saved"


def policy(ctx, op, *args, **kwargs):
    if op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
        return CheckpointPolicy.MUST_SAVE if KEEP else CheckpointPolicy.MUST_RECOMPUTE
    return CheckpointPolicy.PREFER_RECOMPUTE


contexts = functools.partial(create_selective_checkpoint_contexts, policy)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(D, 4 * D), torch.nn.Linear(4 * D, D), torch.nn.LayerNorm(D)

    def inner(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False, context_fn=contexts)


model = torch.nn.Sequential(Block(), Block())
step = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(9):
    step(torch.randn(1024, D)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.torch
@pytest.mark.slow
def test_the_bound_holds_for_the_program_that_saves_them(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(PROGRAM)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    traces = {}
    for policy in ("again", "saved"):
        command = [sys.executable, "-m", "perfscope", "run", "--no-report", "-q", "-o", policy, "train.py", policy]
        ended = warm.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert ended.returncode == 0, ended.stderr
        traces[policy] = load_one(tmp_path / policy / "latest")
    (again,) = traces["again"].fact(graph_recompute)
    assert {one.op for one in again.heavy} == {"aten.addmm.default"}
    found = traces["again"].fact(compiled_bargain)
    peaks = {name: max(one.peak()[1] for one in trace.fact(memory_timelines)) for name, trace in traces.items()}
    assert found.verdict == "capacity unknown", "of the host's memory"
    assert found.peak_bytes == peaks["again"] < peaks["saved"]
    assert peaks["saved"] <= found.saved_peak_bytes <= 1.35 * peaks["saved"]


KERNEL = CompiledKernel(
    name="extern_kernels.mm", backend="extern", compile_id="0/0", direction="backward", nodes=("mm",), places=(LINE,),
    handle="extern_kernels.mm:1",
)  # fmt: skip


def shaped_node(name: str, op: str, *inputs: str, shape: tuple[int | str, ...] = (64, 256)) -> GraphNode:
    return GraphNode(name=name, op=op, inputs=inputs, dtype="bfloat16", shape=shape, place=LINE)


PRODUCT = shaped_node("mm", "aten.mm.default", "x", "w")
GELU = shaped_node("gelu", "aten.gelu.default", "mm")


def backward_log(*again: GraphNode, first: tuple[GraphNode, ...] = (PRODUCT, GELU)) -> CompileLog:
    """A backward graph that computes ``again``."""
    inputs = (shaped_node("x", "placeholder", shape=(64, 128)), shaped_node("w", "placeholder", shape=(128, 256)))
    forward = Graph(compile_id="0/0", direction="forward", nodes=first, inputs=inputs)
    backward = Graph(
        compile_id="0/0", direction="backward", nodes=again, inputs=inputs, recomputed=tuple(one.name for one in again)
    )
    return CompileLog(path="x.log", compiles=(compiled(),), graphs=(forward, backward))


def judge_log(found: CompileLog) -> Outcome:
    return judge(RULE, log_trace(found))


def test_a_product_made_again_is_flagged_with_its_flops() -> None:
    (finding,) = judge_log(backward_log(PRODUCT, GELU)).findings
    assert (finding.basis, finding.cost_ns, finding.where.line) == ("structural", None, 30)
    row = finding.evidence[0]
    assert (row["flops"], row["result_bytes"]) == (2 * 64 * 128 * 256, 64 * 256 * 2)
    assert (row["recomputed_in_graph"], row["recomputed_in_graph_bytes"]) == (2, 2 * 64 * 256 * 2)
    assert "4.19 MFLOPs per run" in finding.detail


@pytest.mark.parametrize("op", ["aten.gelu.default", "aten.permute.default", "aten.mm_scaled.default"])
def test_cheap_ops_are_rightly_made_again(op: str) -> None:
    cheap = shaped_node("gelu", op, "mm")
    assert judge_log(backward_log(cheap, first=(PRODUCT, cheap))).status == "clean"


@pytest.mark.parametrize(
    "other",
    [
        shaped_node("mm", "aten.mm.default", "tangents", "w"),
        shaped_node("mm", "aten.mm.default", "x", "w", shape=(8, 8)),
    ],
)
def test_a_name_given_twice_is_not_the_same_product(other: GraphNode) -> None:
    assert judge_log(backward_log(other)).status == "clean"


def test_dynamic_sizes_have_no_flops() -> None:
    dynamic = shaped_node("mm", "aten.mm.default", "x", "w", shape=("s0", 256))
    (finding,) = judge_log(backward_log(dynamic, first=(dynamic,))).findings
    assert finding.evidence[0]["flops"] is None


def recorded(product_us: float) -> Trace:
    """A step of 1 ms whose backward calls the product for so long."""
    build = TraceBuilder(recorded=frozenset({"host_ops", "autograd", "steps"}))
    build.step(1, 0, 1000)
    build.annotation("## Call CompiledFxGraph fabc ##", 100, 900)
    build.op("aten::mm", 200, 200 + product_us)
    trace = build.build()
    return replace(trace, compile_log=replace(backward_log(PRODUCT), kernels=(KERNEL,)))


def test_its_time_is_that_of_its_kernel() -> None:
    (finding,) = judge(RULE, recorded(60)).findings
    assert (finding.basis, finding.cost_ns, finding.cost_ns_per_step) == ("measured", 60_000, 60_000)
    assert finding.severity == "high"


def test_below_the_threshold_it_is_clean() -> None:
    assert judge(RULE, recorded(9.9)).status == "clean"
    assert judge(RULE, recorded(10)).status == "flagged"


def test_a_log_without_a_backward_abstains() -> None:
    found = backward_log(PRODUCT)
    outcome = judge_log(replace(found, graphs=found.graphs[:1]))
    assert outcome.reason == f"not recorded: {RECORDED['host_ops']}; {RECORDED['autograd']}"
    assert log_trace(replace(found, graphs=found.graphs[:1])).fact(graph_recompute) == ()
