"""The rules on structure against real PyTorch: capture a step and its times, and find what was planted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.ops.attention import graph_attentions
from perfscope.analyzers.ops.fusion import fusion_groups
from perfscope.analyzers.ops.graph_time import graph_time
from perfscope.analyzers.ops.rules import unfused_optimizer
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from perfscope.model.trace import Trace

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

LENGTH, WIDTH, HEADS = 256, 32, 2  # steps long enough that a pause by other programs is not most of them


def norm(x: Any, weight: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight  # the line that is looked for


def written_out(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1) @ v


def fused(q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def captured(folder: Path, attend: Any, *, checkpointed: bool = False, **optimizer: Any) -> Trace:
    """Six timed steps and one of structure of: norm, attention, projection."""
    from torch.utils.checkpoint import checkpoint

    from perfscope.analyzers.readers.kineto.reader import read
    from perfscope.analyzers.readers.op_graph import read_op_graph
    from perfscope.profiler.torch.op_graph.capture import OpGraphCapture

    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, WIDTH)
    weight = torch.nn.Parameter(torch.ones(WIDTH))
    adam = torch.optim.AdamW([*model.parameters(), weight], **optimizer)
    x = torch.randn(4, HEADS, LENGTH, WIDTH)

    def forward(value: Any) -> Any:
        h = norm(model(value), weight)
        return attend(h, h, h)

    def step() -> None:
        adam.zero_grad()
        out = checkpoint(forward, x, use_reentrant=False) if checkpointed else forward(x)
        out.sum().backward()
        adam.step()

    step()
    with torch.profiler.profile(record_shapes=True) as profile:
        for number in range(6):
            with torch.profiler.record_function(f"ProfilerStep#{number}"):
                step()
    profile.export_chrome_trace(str(folder / "trace.json"))
    capture = OpGraphCapture()
    capture.start(4)
    step()
    capture.stop()
    capture.save(folder / "graph.json")
    trace = read(folder / "trace.json")
    trace = replace(trace, op_graph=read_op_graph(folder / "graph.json"))
    return replace(trace, recorded=trace.recorded | {"op_graph"})


def outcome(rule: str, trace: Trace) -> Outcome:
    return judge(load_rule(rule), trace)


def test_the_graph_is_found_in_the_timed_steps_and_the_norm_in_the_graph(tmp_path: Path):
    trace = captured(tmp_path, fused)
    assert trace.fact(graph_time).matched_share == 1.0
    assert trace.op_graph is not None
    ops = trace.op_graph.ops
    chains = [[ops[i].name.split(".")[1] for i in group.ops] for group in trace.fact(fusion_groups)]
    assert ["pow", "mean", "add", "rsqrt", "mul", "mul"] in chains
    assert trace.fact(graph_attentions) == ()


def test_written_out_attention_is_flagged_and_its_twin_is_not(tmp_path: Path):
    (finding,) = outcome("unfused_attention", captured(tmp_path, written_out)).findings
    assert finding.where.file is not None
    assert finding.where.file.endswith("test_live_torch.py")
    assert finding.basis == "modelled"
    assert finding.evidence[0]["ops"] == "div -> _softmax -> _softmax_backward_data -> div"
    twin = tmp_path / "twin"
    twin.mkdir()
    assert outcome("unfused_attention", captured(twin, fused)).status == "clean"


@pytest.mark.parametrize(
    ("form", "subject"),
    [({"foreach": False}, "AdamW in a loop"), ({"fused": True}, None)],
    ids=["loop", "fused"],
)
def test_the_form_of_the_optimizer_is_seen(
    tmp_path: Path, form: dict[str, bool], subject: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(unfused_optimizer, "MIN_SHARE", 0)  # on a busy machine the step is longer, the saving is not
    found = outcome("unfused_optimizer", captured(tmp_path, fused, **form)).findings
    assert [finding.subject for finding in found] == ([subject] if subject else [])


def test_a_checkpointed_forward_is_recomputed_and_another_is_not(tmp_path: Path):
    plain = tmp_path / "plain"
    plain.mkdir()
    (finding,) = outcome("excess_remat", captured(tmp_path, written_out, checkpointed=True)).findings
    recomputed = " ".join(str(row["recomputed"]) for row in finding.evidence)
    assert "linear" in recomputed
    assert "matmul" in recomputed
    assert outcome("excess_remat", captured(plain, written_out)).status == "clean"
