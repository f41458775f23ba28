"""Collectives of the compiled JAX transformer on eight devices: kind, bytes, number and group by a closed formula."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.plugins.plan.candidate import Mesh
from perfscope.plugins.plan.document import PlannedCandidate, load
from tests.plugins.ahead.compilers import require

BATCH, LENGTH, DIM, LAYERS, VOCAB, FLOAT = 8, 128, 128, 2, 256, 4
"""``--size cpu`` of the workload; float32."""


def expected(mesh: Mesh) -> dict[tuple[str, int, int], int]:
    """(kind, bytes, devices) -> number, without the one all-reduce of all that is small.

    Per layer 12 D^2 weights, divided by ``tensor``: gathered along fsdp for the forward pass and kept for the backward
    pass; their gradients are summed over all devices with sequences of their own: a reduce-scatter along fsdp alone,
    an all-reduce if replicas take part. Tensor parallelism sums activations twice forward and twice backward. The
    embedding and the head are gathered together.
    """
    weights = 12 * DIM * DIM * FLOAT // mesh.tensor
    batches = mesh.data * mesh.fsdp
    found: dict[tuple[str, int, int], int] = {}
    if mesh.fsdp > 1:
        found["all-gather", weights, mesh.fsdp] = LAYERS
        found["all-gather", 2 * VOCAB * DIM * FLOAT, mesh.fsdp] = 1
    if batches > 1:
        kind = "reduce-scatter" if mesh.data == 1 else "all-reduce"
        found[kind, weights, batches] = LAYERS
    if mesh.tensor > 1:
        found["all-reduce", BATCH // batches * LENGTH * DIM * FLOAT, mesh.tensor] = 4 * LAYERS
    return found


def compiled(row: PlannedCandidate) -> dict[tuple[str, int, int], int]:
    """The same of a compiled mesh."""
    found: Counter[tuple[str, int, int]] = Counter()
    for one in row.exchanges:
        found[one.exchange.kind, one.exchange.bytes, one.devices] += one.exchange.times
    return dict(found)


@pytest.mark.slow
@pytest.mark.jax
def test_transformer_on_eight_devices(tmp_path: Path) -> None:
    require("gpu-nvidia")
    words = ["plan", "-q", "--target", "h100x8", "--mesh-flag", "--data {data} --fsdp {fsdp} --tensor {tensor}", "-o",
             str(tmp_path / "runs"), "--json", str(tmp_path / "plan.json"), "-m",
             "perfscope.workloads.jax.transformer", "--device", "gpu", "--size", "cpu"]  # fmt: skip
    assert run(words) == 0
    rows = load(tmp_path).candidates
    assert len(rows) == 9  # all meshes of 8 but tensor 8: the workload has 4 heads
    for row in rows:
        mesh, found = row.candidate.mesh, compiled(row)
        wanted = expected(mesh)
        assert {key: found.get(key) for key in wanted} == wanted, mesh.words
        rest = set(found) - set(wanted)
        small = 2 * VOCAB * DIM * FLOAT + 4 * (2 * LAYERS + 16) * DIM * FLOAT
        assert all(kind == "all-reduce" and size <= small for kind, size, _ in rest), (mesh.words, rest)
        assert len(rest) <= 1
