"""The JAX workloads as compiled for an H100 and for TPU v5e: defects are named, twins are clean."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import pytest

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.hlo.collective import by_size, collectives
from perfscope.analyzers.programs.collectives import collective_time
from perfscope.analyzers.readers.load import load_all, load_one
from perfscope.model.documents import compile_manifest
from perfscope.model.finding import Finding
from tests.conftest import REPOSITORY

FIXTURES = REPOSITORY / "fixtures"
H100: dict[str, set[str]] = {
    "attention-naive": {"unfused_attention"},
    "attention-naive-fp32": {"unfused_attention", "full_precision_matmul"},
    "attention-blocked": set(),
    "attention-pallas": set(),
    "attention-policy-none": set(),
    "attention-policy-dots": set(),
    "attention-policy-full": {"excess_remat"},
    "attention-policy-names": {"excess_remat"},
    "moe-einsum": {"dense_expert_compute"},
    "moe-ragged": {"dense_expert_compute", "unfused_ops"},
    "moe-scatter": set(),
    "ssm-scan": {"sequential_scan"},
    "ssm-associative": set(),
    "transformer": set(),
    "transformer-sharding": {"blocking_collective", "resharding_collective"},
}
"""Findings in each; the twins of the defects have none."""
OFTEN = {"attention-naive", "attention-blocked", "attention-policy-dots", "attention-policy-names"}
"""Programs whose defect or twin another program of the everyday tests has too."""
V5E: dict[str, set[str]] = {
    "attention-naive": {"unfused_attention"},
    "attention-naive-fp32": {"unfused_attention", "full_precision_matmul"},
    "attention-blocked": set(),
    "attention-pallas": set(),
    "attention-policy-none": set(),
    "attention-policy-dots": set(),
    "attention-policy-full": {"excess_remat"},
    "attention-policy-names": {"excess_remat"},
    "moe-einsum": {"dense_expert_compute"},
    "moe-ragged": {"dense_expert_compute"},
    "moe-scatter": set(),
    "ssm-scan": {"sequential_scan"},
    "ssm-associative": set(),
    "transformer": {"blocking_collective"},
    "transformer-sharding": {"blocking_collective", "resharding_collective"},
}
"""The same for TPU v5e, where all-reduces of the sharded twin are synchronous ops of the program, too."""


def _judged(folder: Path) -> Analysis:
    return analyze(load_one(folder))


def _findings(analysis: Analysis) -> list[tuple[str, Finding]]:
    return list(analysis.findings())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in OFTEN else name for name in H100]
)
def test_defects_are_named_on_an_h100_and_twins_are_clean(name: str) -> None:
    found = _findings(_judged(FIXTURES / "programs-h100" / name))
    assert {rule for rule, _ in found} == H100[name]
    for _, finding in found:
        if finding.basis == "modelled" and finding.cost_ns:
            assert "on H100 SXM" in finding.detail
            assert "assumed" not in finding.detail


@pytest.mark.slow
@pytest.mark.parametrize("name", V5E)
def test_defects_are_named_on_a_v5e_and_twins_are_clean(name: str) -> None:
    assert {rule for rule, _ in _findings(_judged(FIXTURES / "programs-v5e" / name))} == V5E[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", V5E)
def test_no_rule_fails_on_a_v5e(name: str) -> None:
    outcomes = _judged(FIXTURES / "programs-v5e" / name).outcomes
    assert not [outcome.reason for outcome in outcomes if "the rule failed" in (outcome.reason or "")]


def test_scores_within_a_chip_have_no_traffic_and_no_time() -> None:
    analysis = analyze(load_one(FIXTURES / "programs-v5e" / "attention-naive"), rules=["unfused_attention"])
    ((_, finding),) = _findings(analysis)
    assert (finding.basis, finding.severity, finding.cost_bytes) == ("structural", "low", None)
    (row,) = finding.evidence
    assert row["between_kernels_bytes"] == 0
    assert row["vmem_bytes"]
    assert row["score_shape"] == "2x4x512x512"


def test_ragged_products_of_a_v5e_are_grouped_kernels_but_for_the_gradients_of_the_matrices() -> None:
    analysis = analyze(load_one(FIXTURES / "programs-v5e" / "moe-ragged"), rules=["dense_expert_compute"])
    ((_, finding),) = _findings(analysis)
    assert "all 4 matrices" in finding.detail


def test_a_selection_by_a_convolution_counts_like_one_by_a_dot() -> None:
    """Two choices of one expert per token in 256 places: at most 1 in 128 elements is not zero."""
    analysis = analyze(load_one(FIXTURES / "programs-v5e" / "moe-einsum"), rules=["dense_expert_compute"])
    found = _findings(analysis)
    assert found
    assert all("at most 1 in 128 elements" in finding.detail for _, finding in found)


def test_a_collective_along_one_axis_of_a_torus_does_not_use_all_links() -> None:
    trace = load_one(FIXTURES / "programs-v5e" / "transformer")
    assert trace.target is not None
    rate = trace.target.device.link_bandwidth
    assert rate
    (worst, *_) = by_size(one for one in trace.fact(collectives) if one.kind == "all-reduce")
    sent = collective_time(trace, worst).transfer_ns
    assert sent is not None
    assert sent > 1e9 * worst.bytes_a_run / rate


def test_the_sharded_twin_moves_nothing_on_a_v5e_that_no_line_asks_for() -> None:
    found = {rule for rule, _ in _findings(_judged(FIXTURES / "programs-v5e" / "transformer"))}
    assert "resharding_collective" not in found


def test_what_is_not_fused_has_xlas_own_reason() -> None:
    analysis = _judged(FIXTURES / "programs-h100" / "moe-ragged")
    (finding,) = (finding for rule, finding in _findings(analysis) if rule == "unfused_ops")
    reasons = {row["writes"]: row["xla_says"] for row in finding.evidence}
    assert reasons["loop_select_fusion"] == "the consumer is not fusible"


@pytest.mark.parametrize("target", ["h100", "v5e"])
def test_what_is_recorded_is_what_lies_there(target: str) -> None:
    folder = FIXTURES / f"programs-{target}"
    provenance = tomllib.loads((folder / "provenance.toml").read_text())
    listed = {one["name"]: one for one in provenance["programs"]}
    assert set(listed) == {path.name for path in folder.iterdir() if path.is_dir()}
    for name, told in listed.items():
        manifest = compile_manifest.load(folder / name)
        (program,) = manifest.programs
        assert manifest.complete
        assert manifest.target.asked in told["command"]
        assert hashlib.sha256((folder / name / program.file).read_bytes()).hexdigest() == told["sha256"]
        assert program.fingerprint == told["fingerprint"]


def test_a_folder_of_several_is_judged_for_their_target() -> None:
    traces = load_all(FIXTURES / "programs-h100" / "attention-blocked")
    assert [trace.source.format for trace in traces] == ["compiled"]
    assert traces[0].target is not None
    assert traces[0].target.memory_bytes == 84_942_979_072
