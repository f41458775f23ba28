"""Real programs planned by the real inductor, in the child that the command starts. Nothing is compiled or run."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.devices.target_text import parse_target
from perfscope.analyzers.plans.time import launches
from perfscope.analyzers.readers.compiled import read_plan_folder
from perfscope.analyzers.registry import load_rule
from perfscope.model.documents.torch_plan import ALL_STEPS, PlanMemory, StepMemory
from perfscope.model.torch_plan import LoadedPlan, PlannedGraph
from perfscope.model.trace import Trace
from perfscope.plugins.ahead.command import request_of
from perfscope.plugins.ahead.common.compile import compile_program
from perfscope.plugins.ahead.targets import plugins
from tests.plugins.ahead import torch_programs

pytestmark = [pytest.mark.aot, pytest.mark.slow]

TABLE = {
    # (launches, Triton kernels, MB) planned by inductor for an H100 device, and over plain CPU tensors
    "mlp forward": ((5, 3, 1812.1), (5, 3, 1812.0)),
    "mlp backward": ((11, 6, 3291.6), (9, 5, 3422.7)),
    "attention forward": ((12, 8, 497.3), (12, 8, 497.3)),
    "attention backward": ((19, 10, 858.6), (15, 7, 857.0)),
}
ROUNDED = 0.1
"""MB: the table has one decimal."""


def planned(folder: Path, text: str, name: str = "train") -> Trace:
    """The plan of a program, for one H100."""
    found = plugins.find("torch")
    if isinstance(found, plugins.MissingPlugin):
        pytest.skip(f"{found.reason}: PERFSCOPE_PLUGINS names no folder with triton")
    script = folder / f"{name}.py"
    script.write_text(text)
    target = parse_target("h100", None)
    request = request_of((str(script),), module=False, framework="torch", target=target, seconds=500)
    trace = read_plan_folder(compile_program(request, root=folder / "runs"))
    return replace(trace, target=target)


def only(trace: Trace) -> LoadedPlan:
    """Its one plan."""
    (held,) = trace.torch_plans
    return held


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return planned(tmp_path_factory.mktemp("table"), torch_programs.TABLE)


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return planned(tmp_path_factory.mktemp("eager"), torch_programs.EAGER)


def test_counts_are_those_of_the_table(table: Trace) -> None:
    graphs = only(table).plan.graphs
    assert [graph.direction for graph in graphs] == ["forward", "backward", "forward", "backward"]
    for name, graph in zip(TABLE, graphs, strict=True):
        moved = sum(kernel.bytes for kernel in graph.kernels) / 1e6
        found = (len(graph.kernels), len({kernel.name for kernel in graph.kernels} & _triton(graph)), moved)
        for counted, on_device, plain in zip(found, *TABLE[name], strict=True):
            # within the difference of the two reference plans
            assert abs(counted - on_device) <= abs(on_device - plain) + ROUNDED, (name, found)
        assert graph.calls == 1


def _triton(graph: PlannedGraph) -> set[str]:
    return {kernel.name for kernel in graph.kernels if kernel.name.startswith("triton_")}


def test_products_have_their_flops_and_kernels_their_lines(table: Trace) -> None:
    forward, _, attention, _ = only(table).plan.graphs
    products = [kernel for kernel in forward.kernels if kernel.kind == "product"]
    assert [kernel.flops for kernel in products] == [2 * 8192 * 4096 * 16384] * 2
    assert {kernel.dtype for kernel in products} == {"bfloat16"}
    lines = torch_programs.TABLE.splitlines()
    softmax = next(kernel for kernel in attention.kernels if "aten._softmax" in kernel.ops)
    assert len(softmax.members) > 1
    assert any("torch.softmax(scores" in lines[place.line - 1] for place in softmax.places)
    assert {place.file for kernel in attention.kernels for place in kernel.places} == {"train.py"}


def test_a_second_build_has_the_same_fingerprint(table: Trace, tmp_path: Path) -> None:
    again = only(planned(tmp_path, torch_programs.TABLE)).plan
    first = only(table).plan
    assert again.fingerprint == first.fingerprint
    assert again.graphs == first.graphs
    assert again.breaks == first.breaks == ()


def test_attention_of_a_compiled_program_is_found_in_its_plan(table: Trace) -> None:
    rule = load_rule("unfused_attention")
    assert rule.plan is not None
    (finding,) = rule.plan(table)
    assert finding.basis == "modelled"
    assert finding.where.line is not None
    assert "q @ k" in torch_programs.TABLE.splitlines()[finding.where.line - 1]
    assert finding.cost_bytes is not None
    assert finding.cost_bytes > 2 * 2 * 16 * 1024 * 1024 * 2  # scores are written and read, in the backward too


def test_an_eager_program_is_planned_as_if_compiled(eager: Trace) -> None:
    plan = only(eager).plan
    assert plan.complete
    assert plan.failure is None
    assert plan.compiled_by == "perfscope"
    assert plan.optimizers == ("AdamW",)
    assert plan.steps_from == "optimizer.step"
    assert {graph.direction for graph in plan.graphs} == {"forward", "backward"}
    assert sum(kernel.kind == "product" for graph in plan.graphs for kernel in graph.kernels) == 59  # 20 + 2 * 20 - 1
    assert any("autocast" in note for note in plan.notes)


def test_what_was_read_is_named_with_its_line(eager: Trace) -> None:
    lines = torch_programs.EAGER.splitlines()
    read = [(one.what, lines[one.place.line - 1]) for one in only(eager).plan.made_up if one.place is not None]
    assert any(what == "nonzero" and "y[y > 0]" in line for what, line in read)
    assert any(what == "item" and "loss.item()" in line for what, line in read)


def test_eager_ops_are_kept_with_their_phases(eager: Trace) -> None:
    held = only(eager)
    assert held.eager is not None
    assert held.outside is not None
    assert {"forward", "backward", "optimizer"} <= {op.phase for op in held.eager.ops}
    inside = {op.name for op in held.outside.ops if op.phase == "forward"}
    assert "aten.addmm.default" not in inside  # the model's are in its graphs
    assert {op.name for op in held.eager.ops} >= {"aten.addmm.default", "aten.addcdiv_.default"}


def test_the_optimizer_s_loop_is_found(eager: Trace) -> None:
    rule = load_rule("unfused_optimizer")
    assert rule.plan is not None
    (finding,) = rule.plan(eager)
    assert finding.subject == "AdamW in a loop"
    assert finding.cost_ns is not None
    assert "fused=True" in finding.advice


def test_defaults_are_those_of_a_gpu(tmp_path: Path) -> None:
    trace = planned(tmp_path, torch_programs.DEFAULTS)
    held = only(trace)
    assert held.eager is not None
    updates = [op.name for op in held.eager.ops if op.phase == "optimizer" and launches(op)]
    assert updates
    assert not [name for name in updates if "_foreach_" not in name and name != "aten.lift_fresh.default"]
    assert "aten._foreach_norm.Scalar" in {op.name for op in held.eager.ops}
    (optimizer,) = load_rule("unfused_optimizer").plan(trace)  # type: ignore[misc]
    assert optimizer.subject == "AdamW with foreach"
    assert [read.times for read in held.plan.made_up if read.what == "item"] == [1]
    assert list(load_rule("host_sync").plan(trace)) == []  # type: ignore[misc]


def test_a_graph_that_is_compiled_again_and_a_module_of_fx(tmp_path: Path) -> None:
    plan = only(planned(tmp_path, torch_programs.TWO_MODES)).plan
    assert plan.failure is None
    assert plan.complete
    assert {"forward", "backward"} <= {graph.direction for graph in plan.graphs}
    assert any("autocast" in reason for one in plan.recompiles for reason in one.reasons)


def test_no_folder_of_this_machine_is_in_what_is_kept(eager: Trace, table: Trace) -> None:
    for trace in (eager, table):
        kept = [path.read_text() for path in (Path(trace.source.path) / "plans").glob("*.json")]
        assert kept
        for text in kept:
            assert str(Path(trace.source.path).parent) not in text
            assert "site-packages" not in text
            assert str(Path.home()) not in text


def test_a_program_that_raises_keeps_what_was_planned(tmp_path: Path) -> None:
    plan = only(planned(tmp_path, torch_programs.BROKEN)).plan
    assert not plan.complete
    assert plan.failure is not None
    assert plan.failure.startswith("ValueError at train.py:9")
    assert plan.graphs


def test_a_model_that_no_machine_holds_is_planned(tmp_path: Path) -> None:
    plan = only(planned(tmp_path, torch_programs.LARGE)).plan
    assert plan.complete
    products = [kernel for graph in plan.graphs for kernel in graph.kernels if kernel.kind == "product"]
    assert len(products) == 26 + 2 * 26 - 1
    assert sum(kernel.flops or 0 for kernel in products) == (26 * 3 - 1) * 2 * 1024 * 16384**2


def test_a_forward_loop_without_an_optimizer_is_planned_step_by_step(tmp_path: Path) -> None:
    """Eager and planned are one call each of the same model, not the rest of the program."""
    plan = only(planned(tmp_path, FORWARD)).plan
    assert (plan.compiled_by, plan.stopped) == ("perfscope", ALL_STEPS)
    (graph,) = plan.graphs
    assert (graph.direction, graph.calls, plan.steps_from) == ("inference", 1, "calls of Model")
    assert graph.place is not None
    assert (graph.function, graph.place.file, graph.place.line) == ("forward", "train.py", 9)


FORWARD = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))

    def forward(self, value):
        return self.layers(value)

model = Model().cuda().eval()
value = torch.randn(8, 64, device="cuda")
with torch.no_grad():
    for _ in range(12):
        value = model(value)
"""


EVALUATES = """
import numpy
import torch

data = numpy.arange(4096)
model = torch.nn.Sequential(torch.nn.Embedding(4096, 64), torch.nn.Linear(64, 4096)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
compiled = torch.compile(model)


def loss_of_batch():
    starts = torch.randint(len(data) - 32, (4,))
    rows = torch.stack([torch.from_numpy(data[start : start + 32]) for start in starts]).cuda()
    return torch.nn.functional.cross_entropy(compiled(rows).flatten(0, 1), rows.flatten())


with torch.no_grad():
    losses = torch.zeros(20)
    for k in range(20):
        losses[k] = loss_of_batch().item()
    print(f"{losses.mean():.4f}")
for step in range(8):
    loss_of_batch().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_program_that_evaluates_first_is_planned_while_it_trains(tmp_path: Path) -> None:
    """Rows of its data are picked by numbers that are drawn on the host, which launch nothing."""
    trace = only(planned(tmp_path, EVALUATES))
    plan = trace.plan
    assert (plan.steps_from, plan.stopped, plan.failure) == ("optimizer.step", ALL_STEPS, None)
    assert not [text for text in plan.not_covered if "evaluation" in text]
    calls = {graph.direction: graph.calls for graph in plan.graphs}
    assert calls == {"inference": 0, "forward": 1, "backward": 1}
    flops = [kernel.flops for graph in plan.graphs if graph.direction == "forward" for kernel in graph.kernels]
    assert 2 * 4 * 32 * 64 * 4096 in flops
    assert [value.what for value in plan.made_up] == ["item", "item"]


def test_an_evaluation_that_no_training_follows_is_said(tmp_path: Path) -> None:
    """An optimizer that never steps is awaited, and the plan is one of the evaluation."""
    never = (
        EVALUATES.replace("range(8)", "range(0)")
        .replace("range(20)", "range(1100)")
        .replace("zeros(20)", "zeros(1100)")
    )
    plan = only(planned(tmp_path, never)).plan
    assert plan.stopped == ALL_STEPS
    assert any("the steps are those of an evaluation" in text for text in plan.not_covered)


AFTER_THE_FIRST = """
import torch

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 100 == 0:
        with torch.no_grad():
            for _ in range(10):
                model(torch.randn(8, 64, device="cuda"))
        torch.save(model.state_dict(), "CHECKPOINT")
"""


def test_what_a_program_does_after_its_first_step_is_not_of_the_step_that_is_kept(tmp_path: Path) -> None:
    checkpoint = tmp_path / "model.pt"
    checkpoint.write_text("of a real run")
    plan = only(planned(tmp_path, AFTER_THE_FIRST.replace("CHECKPOINT", str(checkpoint))))
    assert plan.eager is not None
    assert [op.name for op in plan.eager.ops].count("aten.addmm.default") == 1
    assert checkpoint.read_text() == "of a real run"
    assert [(value.what, value.times) for value in plan.plan.made_up] == [("torch.save", 1)]


def test_a_generating_loop_is_planned_and_its_graphs_are_said_not_to_be_replayed(tmp_path: Path) -> None:
    plan = only(planned(tmp_path, torch_programs.GENERATES)).plan
    assert plan.failure is None
    assert {graph.direction for graph in plan.graphs} == {"inference"}
    assert sum(graph.calls for graph in plan.graphs) == 1  # a step is a token
    assert any("CUDA graphs" in text for text in plan.not_covered)


MIB = 1 << 20
SMALL = 256 << 10
"""Bytes: under 1 % of each peak here, the tolerance of a predicted peak."""

BY_HAND = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 1024, bias=False)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(64, 1024, 1024)
for number in range(8):
    x = data[number].to("cuda")
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
"""Every matrix has 4 MiB: two of weights, the input, what the layers make."""

INSIDE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 1024, bias=False)

    def forward(self, x):
        return torch.relu(self.second(torch.sin(self.first(x)))).pow(2).sum()


model = torch.compile(Model().to("cuda"))
optimizer = torch.optim.Adam(model.parameters(), fused=True)
x = torch.randn(1024, 1024, device="cuda")
for _ in range(8):
    model(x).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

FUSED_ATTENTION = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(1024, 1024, bias=False) for _ in range(3))

    def forward(self, x):
        split = (one(x).view(1, 1024, 8, 128).transpose(1, 2) for one in (self.query, self.key, self.value))
        return scaled_dot_product_attention(*split).pow(2).sum()


model = torch.compile(Model().to("cuda"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(1024, 1024, device="cuda")
for _ in range(8):
    model(x).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

DECORATED = INSIDE.replace("    def forward", "    @of_a_library\n    def forward").replace(
    "class Model",
    """
def of_a_library(method):
    def wrapper(*arguments):
        return method(*arguments)
    return wrapper


class Model""",
)
"""The same, where the line that runs its graphs is in no function called ``forward``."""


def memory_of(folder: Path, text: str) -> tuple[PlanMemory, StepMemory, StepMemory]:
    memory = only(planned(folder, text)).plan.memory
    assert memory is not None
    assert memory.eager is not None
    assert memory.planned is not None
    assert not memory.uncounted
    return memory, memory.eager, memory.planned


def matrices(step: StepMemory) -> dict[str, int]:
    """Matrices by category."""
    sums: dict[str, int] = {}
    for one in step.holders:
        sums[one.category] = sums.get(one.category, 0) + one.bytes // (4 * MIB)
    return {category: count for category, count in sums.items() if count}


def test_an_eager_step_by_hand(tmp_path: Path) -> None:
    _, eager, _ = memory_of(tmp_path, BY_HAND)
    # the backward of relu: two weights, the input, what relu gave (kept), the gradient of the second weight, that of
    # what relu gave, and what is made of it
    assert 0 <= eager.peak_bytes - 7 * 4 * MIB < SMALL
    assert eager.phase == "backward"
    assert eager.op == "aten.threshold_backward.default"
    assert (eager.file, eager.line) == ("train.py", 10)
    assert matrices(eager) == {"parameter": 2, "input": 1, "gradient": 1, "activation": 1, "temporary": 2}
    # it begins after the optimizer's step: with the gradients and the input of the previous step
    assert 0 <= eager.start_bytes - 5 * 4 * MIB < SMALL


def test_a_compiled_step_frees_and_takes_over_inside_its_graphs(tmp_path: Path) -> None:
    _, eager, compiled = memory_of(tmp_path, INSIDE)
    weights, state, given = 2, 4, 1
    least = weights + state + given
    assert compiled.graph is not None
    assert least * 4 * MIB < compiled.peak_bytes <= eager.peak_bytes
    held = matrices(compiled)
    assert (held["parameter"], held["optimizer_state"], held["input"]) == (2, 4, 1)
    assert held["activation"] > 0
    _, _, decorated = memory_of(tmp_path, DECORATED)
    assert matrices(decorated) == held
    assert decorated.phase == compiled.phase == "backward"


def test_the_results_of_one_call_are_all_there_when_it_returns(tmp_path: Path) -> None:
    _, _, compiled = memory_of(tmp_path, FUSED_ATTENTION)
    # the backward of attention: three weights, the input, queries, keys, values, what attention gave, the gradient of
    # that; and the gradients of queries, keys and values, before any of what it read is freed
    assert compiled.op is not None
    assert compiled.op.startswith("aten._scaled_dot_product_flash_attention")
    assert 0 <= compiled.peak_bytes - 12 * 4 * MIB < SMALL


def test_a_compiled_program_that_names_no_device_has_all_of_it_there(tmp_path: Path) -> None:
    _, eager, compiled = memory_of(tmp_path, INSIDE)
    without = INSIDE.replace('.to("cuda")', "").replace(', device="cuda"', "")
    assert "cuda" not in without
    _, eager_too, compiled_too = memory_of(tmp_path, without)
    assert eager_too.peak_bytes == eager.peak_bytes
    assert compiled_too.peak_bytes == compiled.peak_bytes
    assert matrices(compiled_too) == matrices(compiled)


def test_a_device_can_be_given_by_its_number(tmp_path: Path) -> None:
    numbered = INSIDE.replace('"cuda"', "0").replace("sin(self", "sin(torch.zeros(1024, device=x.device) + self")
    assert "cuda" not in numbered
    named = numbered.replace("to(0)", 'to("cuda")').replace("=0)", '="cuda")')
    assert "cuda" in named
    _, eager, compiled = memory_of(tmp_path, numbered)
    _, eager_too, compiled_too = memory_of(tmp_path, named)
    assert (eager.peak_bytes, matrices(eager)) == (eager_too.peak_bytes, matrices(eager_too))
    assert (compiled.peak_bytes, matrices(compiled)) == (compiled_too.peak_bytes, matrices(compiled_too))


def test_both_ways_agree_before_anything_runs(tmp_path: Path) -> None:
    memory, eager, compiled = memory_of(tmp_path, INSIDE)
    for step in (eager, compiled):
        assert 0 <= step.given_bytes - 3 * 4 * MIB < SMALL
    assert memory.eager is eager
    assert abs(compiled.start_bytes - eager.start_bytes) < SMALL


def test_declared_costs_of_own_kernels_are_in_the_plan(tmp_path: Path) -> None:
    held = only(planned(tmp_path, torch_programs.OWN_KERNELS))
    size = 1024 * 256
    (kernel,) = (kernel for kernel in held.plan.graphs[0].kernels if "mine" in kernel.name)
    assert (kernel.flops, kernel.bytes, kernel.dtype) == (1000 * size, 7 * 2 * size, "bfloat16")
    assert held.outside is not None
    launched = [op for op in held.outside.ops if op.name.startswith("triton.")]
    assert [(op.name, op.flops, op.declared_bytes) for op in launched] == [("triton.doubled", size, 4 * size)]
