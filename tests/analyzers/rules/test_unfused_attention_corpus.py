"""unfused_attention on programs of others, and on ours compiled for an H100 and a TPU."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.load import load_all
from perfscope.analyzers.rules import load_rule

RULE = load_rule("unfused_attention")

SCORES = 4 * 8 * 256 * 256
"""Bytes of the scores of ``attn_naive``."""


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("file", "label", "times", "moved", "phases"),
    [
        # Scores 2 MiB: eleven times through memory, forward and backward.
        ("aot/attn_naive.hlo.pb.gz", "wl.py:9", 1, 11 * SCORES, {"forward": 1}),
        ("aot/gpu_attn_naive.hlo.txt.gz", "wl.py:9", 1, 11 * SCORES, {"forward": 1}),
        # MaxText with its own dot product attention: 8 layers in bfloat16, scores recomputed by the backward.
        ("hlo_pb/JAX-Toolbox__module_0016.jit_train_step.sm_9.0_gpu_after_optimizations.hlo.pb.xz", "attentions.py:340",
         8, (6 + 16) * 8 * 16 * 2048 * 2048 * 2, {"forward": 8, "recompute": 8}),
    ],
)  # fmt: skip
def test_programs_that_write_attention_out(
    file: str, label: str, times: int, moved: int, phases: dict[str, int], corpus: Path
) -> None:
    (trace,) = load_all(corpus / file)
    (finding,) = judge(RULE, trace).findings
    assert (finding.cost_bytes, finding.where.label().rpartition("/")[2]) == (moved, label)
    assert finding.basis == "modelled"
    assert ("once" if times == 1 else f"{times} times") in finding.title
    found: Counter[str] = Counter()
    for row in finding.evidence:
        found[str(row["phase"])] += int(row["times"] or 0)
    assert found == phases


@pytest.mark.corpus
@pytest.mark.parametrize(
    "file",
    [
        "aot/attn_blocked.hlo.pb.gz", "aot/gpu_attn_blocked.hlo.txt.gz", "aot/synth_attn_blocked.xplane.pb.gz",
        # No attention in these: mixtures of experts, scans, and layers of matrix products.
        "aot/gpu_moe_einsum.hlo.txt.gz", "aot/gpu_ssm_assoc.hlo.txt.gz", "aot/gpu_md_fsdp.hlo.txt.gz",
        "aot/tpu_md_tp.hlo.txt.gz", "aot/gpu_remat_h100.hlo.txt.gz",
        # Transformer Engine's kernels, beside the softmax of a router and of the loss.
        "hlo_text/Primus__moe_dp1_pp2_ep8.gfx950_after_opt.txt.gz",
    ],
)  # fmt: skip
def test_programs_without_written_out_attention_are_clean(file: str, corpus: Path) -> None:
    assert [judge(RULE, trace).status for trace in load_all(corpus / file)] == ["clean"]
