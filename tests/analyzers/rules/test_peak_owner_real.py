"""What a peak need not hold: real programs against their fixed twins, and snapshots of the corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.facts.memory_timelines import memory_timelines
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.load import load
from perfscope.analyzers.trace import Trace
from tests.analyzers.rules.test_peak_owner import RULE, kinds, the


def recorded(folder: Path, attention: Any, optimizer_of: Any) -> Trace:
    """Two steps of one attention layer under torch's profiler, on the CPU."""
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 192)
    head = torch.nn.Linear(64, 32)
    steps = optimizer_of([*layer.parameters(), *head.parameters()])
    data = torch.randn(2, 4, 256, 64)
    path = folder / "trace.json"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=2, active=2, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        profile_memory=True, record_shapes=True, with_stack=True,
    ) as profiler:  # fmt: skip
        for _ in range(4):
            q, k, v = layer(data).split(64, -1)
            loss = head(attention(q, k, v)).pow(2).mean()
            loss.backward()
            steps.step()
            steps.zero_grad()
            del loss, q, k, v
            profiler.step()
    (trace,) = load(path)
    return trace


def written_out(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.mT / 8).softmax(-1) @ v


@pytest.mark.torch
def test_attention_of_a_real_program(tmp_path: Path) -> None:
    """The peak that is told to remain, at best, is no higher than that of the fused form, which is clean."""
    torch = pytest.importorskip("torch")
    defective = recorded(tmp_path, written_out, lambda tensors: torch.optim.SGD(tensors, lr=0.1))
    finding = the(judge(RULE, defective), "attention scores")
    (timeline,) = defective.fact(memory_timelines)
    saved = finding.cost_bytes or 0
    assert saved > 2 * 4 * 256 * 256 * 4  # the weights that are kept; the backward pass has their gradients beside
    twin = recorded(
        tmp_path, torch.nn.functional.scaled_dot_product_attention, lambda tensors: torch.optim.SGD(tensors, lr=0.1)
    )
    (fused,) = twin.fact(memory_timelines)
    assert timeline.peak()[1] - saved <= fused.peak()[1] <= 1.1 * (timeline.peak()[1] - saved)
    assert "attention scores" not in kinds(judge(RULE, twin))


@pytest.mark.torch
def test_a_foreach_optimizer_of_a_real_program(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def peaks(**how: bool) -> tuple[Outcome, int]:
        path = tmp_path / "trace.json"
        tensors = [torch.randn(512, 512, requires_grad=True) for _ in range(8)]
        steps = torch.optim.AdamW(tensors, **how)
        with torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
            profile_memory=True,
        ) as profiler:
            for _ in range(3):
                sum(tensor.sum() for tensor in tensors).backward()
                steps.step()
                steps.zero_grad()
                profiler.step()
        (trace,) = load(path)
        (timeline,) = trace.fact(memory_timelines)
        return judge(RULE, trace), timeline.peak()[1]

    defective, peak = peaks(foreach=True)
    twin, fused = peaks(fused=True)
    finding = the(defective, "temporaries of the optimizer")
    assert kinds(twin) == set()
    # predicted from the defective program alone, against the run of the other one
    assert peak - (finding.cost_bytes or 0) == pytest.approx(fused, rel=0.01)


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("fragmented", {"attention scores", "logits and their copies"}),
        ("medium512_train", {"attention scores"}),
        ("medium512_infer", {"attention scores"}),
        ("tiny", {"attention scores"}),
        ("fwd_bf16_128", set()),
        ("fwd_fp32_128", set()),
    ],
)
def test_snapshots_of_the_corpus(corpus: Path, name: str, found: set[str]) -> None:
    (trace,) = load(corpus / "torch_mem" / f"assignment2-systems__{name}.pickle.gz")
    outcome = judge(RULE, trace)
    assert outcome.status == ("flagged" if found else "clean")
    assert kinds(outcome) == found
    (timeline,) = trace.fact(memory_timelines)
    for finding in outcome.findings:
        held = sum(int(row["held_bytes"] or 0) for row in finding.evidence)
        assert 0 < (finding.cost_bytes or 0) <= held <= timeline.peak()[1]


@pytest.mark.corpus
def test_scores_of_every_layer_are_counted(corpus: Path) -> None:
    """24 layers of 16 heads and 512 x 512 scores for a batch of 4, in float32."""
    (trace,) = load(corpus / "torch_mem" / "assignment2-systems__medium512_train.pickle.gz")
    finding = the(judge(RULE, trace), "attention scores")
    assert finding.evidence[0]["held_bytes"] == 24 * 4 * 16 * 512 * 512 * 4
    assert finding.evidence[0]["blocks"] == 24


@pytest.mark.corpus
def test_a_snapshot_of_one_moment_abstains(corpus: Path) -> None:
    (trace,) = load(corpus / "torch_mem" / "LLM-inference__oom_nohistory.pickle.gz")
    outcome = judge(RULE, trace)
    assert outcome.status == "abstained"
    assert "one moment" in (outcome.reason or "")
