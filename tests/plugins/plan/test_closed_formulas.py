"""Collectives of compiled programs, kind, bytes, number and group, by closed formulas.

The JAX transformer and mixture of experts on eight devices, of which the latter also runs on eight of the CPU; blocks
and experts in PyTorch on four, which also run on four gloo ranks.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.hlo import collectives_of
from perfscope.analyzers.readers import load_all, load_one
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


EXPERTS, CHOICES, ROOM = 8, 2, 2
"""The mixture of experts at ``--size cpu``: its experts, those of each token, and capacity over an even share."""


def expected_experts(mesh: Mesh) -> dict[tuple[str, int, int], int]:
    """As `expected`, all collectives of a step.

    Each device sends the whole room that it filled, to the experts and back, forward and backward. A layer has 6 D^2
    weights for each expert, with as many experts on a device as ``expert`` leaves: their gradients are summed over the
    devices that hold the same experts. All else is whole on every device but for fsdp, and summed over all in one.
    """
    tokens = BATCH * LENGTH // 8
    weights = 6 * DIM * DIM * EXPERTS // mesh.expert * FLOAT
    holders = mesh.data * mesh.fsdp
    found: dict[tuple[str, int, int], int] = {}
    if mesh.expert > 1:
        capacity = ROOM * tokens * CHOICES // EXPERTS
        found["all-to-all", EXPERTS * capacity * DIM * FLOAT, mesh.expert] = 4 * LAYERS
    if mesh.fsdp > 1:
        found["all-gather", weights, mesh.fsdp] = LAYERS
        found["all-gather", 2 * VOCAB * DIM * FLOAT, mesh.fsdp] = 1
    if holders > 1:
        found["all-reduce" if mesh.data > 1 else "reduce-scatter", weights, holders] = LAYERS
    norms_and_router = LAYERS * (2 * DIM + DIM * EXPERTS) + 2 * DIM
    found["all-reduce", (2 * VOCAB * DIM + norms_and_router + 1) * FLOAT, 8] = 1  # with the loss
    return found


def run_on_the_cpu(folder: Path, mesh: Mesh) -> dict[tuple[str, int], int]:
    """(kind, devices) -> bytes of one step on a device, of a run whose recorded exchanges are those of its program."""
    words = ["-m", "perfscope.workloads.jax.experts", "--size", "cpu", "--steps", "8", "--data", str(mesh.data)]
    axes = ["--fsdp", str(mesh.fsdp), "--expert", str(mesh.expert)]
    command = [sys.executable, "-m", "perfscope", "run", "-q", "--no-report", "--no-stacks", "-o", str(folder)]
    assert subprocess.run([*command, *words, *axes], check=False).returncode == 0
    trace = load_one(next(folder.iterdir()).resolve())
    (module,) = trace.hlo
    sizes: Counter[tuple[str, int]] = Counter()
    arrays: Counter[tuple[str, int]] = Counter()
    for one in collectives_of(module):
        key = one.kind, one.group_size
        sizes[key] += one.bytes * one.runs.times
        arrays[key] += one.runs.times * (1 if one.kind == "all-to-all" else len(one.op.operands))
    recorded: Counter[tuple[str, int]] = Counter()
    for row in trace.collectives.itertuples():
        recorded[row.name.replace("_", "-"), row.group_size] += 1
    assert recorded == {key: 8 * len(trace.steps) * count for key, count in arrays.items()}
    return dict(sizes)


@pytest.mark.slow
@pytest.mark.jax
def test_experts_on_eight_devices(tmp_path: Path) -> None:
    require("gpu-nvidia")
    words = ["plan", "-q", "--target", "h100x8", "--mesh-flag", "--data {data} --fsdp {fsdp} --expert {expert}", "-o",
             str(tmp_path / "runs"), "--json", str(tmp_path / "plan.json"), "-m",
             "perfscope.workloads.jax.experts", "--device", "gpu", "--size", "cpu"]  # fmt: skip
    assert run(words) == 0
    rows = load(tmp_path).candidates
    assert len(rows) == 10
    for row in rows:
        assert compiled(row) == expected_experts(row.candidate.mesh), row.candidate.mesh.words
        (program,) = json.loads((Path(row.folder) / "compile.json").read_text())["programs"]
        allocated = program["argument_bytes"] + program["output_bytes"] - program["alias_bytes"]
        # The low end is the live bytes at the peak, in an allocation that the compiler may not fill.
        assert allocated < row.memory_low <= row.memory_high
        assert 0 <= row.memory_high - allocated - program["temporary_bytes"] < 1024  # constants
    by_mesh = {row.candidate.mesh: compiled(row) for row in rows}
    for mesh in (Mesh(fsdp=2, expert=4), Mesh(data=2, fsdp=2, expert=2)):
        planned: Counter[tuple[str, int]] = Counter()
        for (kind, size, devices), times in by_mesh[mesh].items():
            # XLA for CPUs has no reduce-scatter and makes it an all-reduce.
            planned["all-reduce" if kind == "reduce-scatter" else kind, devices] += size * times
        assert run_on_the_cpu(tmp_path / mesh.words, mesh) == planned


WIDTH, FEATURES, BLOCKS, ROWS = 256, 1024, 3, 32

TORCH = f"""
import json, os, torch, perfscope
import torch.distributed as dist
from contextlib import nullcontext
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COUNTS = os.environ.get("COUNTS")
dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
sizes = perfscope.mesh(fsdp=4, tensor=1)
mesh = init_device_mesh(DEVICE, (sizes["fsdp"], sizes["tensor"]), mesh_dim_names=("fsdp", "tensor"))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear({WIDTH}, {FEATURES}, bias=False), nn.Linear({FEATURES}, {WIDTH}, bias=False)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))

model = nn.Sequential(*(Block() for _ in range({BLOCKS}))).to(DEVICE)
for block in model:
    if sizes["tensor"] > 1:
        parallelize_module(block, mesh["tensor"], {{"up": ColwiseParallel(), "down": RowwiseParallel()}})
    if sizes["fsdp"] > 1:
        fully_shard(block, mesh=mesh["fsdp"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    counted = CommDebugMode() if COUNTS and step == 5 else nullcontext()
    with counted:
        model(torch.randn({ROWS} // sizes["fsdp"], {WIDTH}, device=DEVICE)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
if COUNTS and dist.get_rank() == 0:
    with open(COUNTS, "w") as file:
        json.dump({{str(name): count for name, count in counted.get_comm_counts().items()}}, file)
dist.destroy_process_group()
"""


def expected_torch(mesh: Mesh) -> dict[tuple[str, int, int], int]:
    """As `expected`: each block is gathered once and kept, its gradients are scattered once.

    Tensor parallelism sums the output of each block forward, and the gradient of its input backward: not of the first
    block, whose input needs none.
    """
    weights = 2 * WIDTH * FEATURES * FLOAT // mesh.tensor
    found: dict[tuple[str, int, int], int] = {}
    if mesh.fsdp > 1:
        found["all-gather", weights, mesh.fsdp] = found["reduce-scatter", weights, mesh.fsdp] = BLOCKS
    if mesh.tensor > 1:
        found["all-reduce", ROWS // mesh.fsdp * WIDTH * FLOAT, mesh.tensor] = 2 * BLOCKS - 1
    return found


KINDS = {"all_gather": "all-gather", "_allgather": "all-gather", "reduce_scatter": "reduce-scatter",
         "_reduce_scatter": "reduce-scatter", "all_reduce": "all-reduce", "allreduce": "all-reduce"}  # fmt: skip


def on_gloo(script: Path, mesh: Mesh) -> dict[str, int]:
    """Collectives of one step by kind on four ranks."""
    with socket.socket() as held:
        held.bind(("localhost", 0))
        port = held.getsockname()[1]
    counts = script.parent / "counts.json"
    environment = {**os.environ, "PERFSCOPE_MESH": f"fsdp={mesh.fsdp},tensor={mesh.tensor}", "COUNTS": str(counts),
                   "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}  # fmt: skip
    ranks = [
        subprocess.Popen([sys.executable, str(script)], env={**environment, "RANK": str(rank)}) for rank in range(4)
    ]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0, 0, 0]
    found: Counter[str] = Counter()
    for name, count in json.loads(counts.read_text()).items():
        last = name.rpartition(".")[2]
        kind = next((kind for start, kind in KINDS.items() if last.startswith(start)), None)
        assert kind is not None, name
        found[kind] += count
    return dict(found)


@pytest.mark.slow
@pytest.mark.torch
def test_blocks_on_four_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("torch")
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(TORCH)
    words = [
        "plan",
        "-q",
        "--target",
        "h100x4",
        "--axes",
        "fsdp,tensor",
        "-o",
        "runs",
        "--json",
        "plan.json",
        "train.py",
    ]
    assert run(words) == 0
    rows = load(tmp_path).candidates
    assert {row.candidate.mesh for row in rows} == {Mesh(fsdp=4), Mesh(fsdp=2, tensor=2), Mesh(tensor=4)}
    for row in rows:
        mesh = row.candidate.mesh
        assert compiled(row) == expected_torch(mesh), mesh.words
        kinds: Counter[str] = Counter()
        for (kind, _, _), times in compiled(row).items():
            kinds[kind] += times
        assert on_gloo(script, mesh) == dict(kinds), mesh.words


def expected_torch_experts(mesh: Mesh) -> dict[tuple[str, int, int], int]:
    """As `expected_experts` for four sequences on four ranks; layers are summed together, and the loss is not."""
    batch, processes = 4, 4
    weights = LAYERS * 6 * DIM * DIM * EXPERTS // mesh.expert * FLOAT
    whole = 2 * VOCAB * DIM + LAYERS * (2 * DIM + DIM * EXPERTS) + 2 * DIM
    found = {("all-reduce", whole * FLOAT, processes): 1}
    if mesh.expert > 1:
        room = ROOM * (batch * LENGTH // processes) * CHOICES
        found["all-to-all", room * DIM * FLOAT, mesh.expert] = 4 * LAYERS
    if mesh.data > 1:
        found["all-reduce", weights, mesh.data] = 1
    return found


def recorded_on_gloo(folder: Path, mesh: Mesh) -> dict[tuple[str, int], int]:
    """(kind, bytes) -> number of the step that ``perfscope run`` recorded with shapes on rank 0 of four."""
    command = [sys.executable, "-m", "perfscope", "run", "-q", "--no-report", "--no-stacks", "-o", str(folder), "--"]
    program = ["torchrun", "--nproc-per-node", "4", "-m", "perfscope.workloads.experts", "--steps", "10"]
    axes = ["--data", str(mesh.data), "--expert", str(mesh.expert)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    assert subprocess.run([*command, *program, *axes], env=environment, check=False).returncode == 0
    first = min(load_all(next(folder.iterdir()).resolve()), key=lambda trace: trace.source.rank or 0)
    assert first.detail is not None
    assert len(first.detail.steps) == 1
    found: Counter[tuple[str, int]] = Counter()
    for row in first.detail.slices.itertuples():
        if str(row.name).startswith("gloo:"):
            ((*shape,),) = json.loads(row.shapes)
            found[row.name.removeprefix("gloo:").replace("_", "-"), math.prod(shape) * FLOAT] += 1
    return dict(found)


@pytest.mark.slow
@pytest.mark.torch
def test_experts_on_four_ranks(tmp_path: Path) -> None:
    require("torch")
    words = ["plan", "-q", "--target", "h100x4", "--mesh-flag", "--data {data} --expert {expert}", "-o",
             str(tmp_path / "runs"), "--json", str(tmp_path / "plan.json"), "-m", "perfscope.workloads.experts",
             "--device", "cuda", "--size", "cpu"]  # fmt: skip
    assert run(words) == 0
    rows = {row.candidate.mesh: row for row in load(tmp_path).candidates}
    assert set(rows) == {Mesh(data=4), Mesh(data=2, expert=2), Mesh(expert=4)}
    for mesh, row in rows.items():
        assert compiled(row) == expected_torch_experts(mesh), mesh.words
    for mesh in (Mesh(data=2, expert=2), Mesh(expert=4)):
        planned: Counter[tuple[str, int]] = Counter()
        for (kind, size, _), times in compiled(rows[mesh]).items():
            planned[kind, size] += times
        assert recorded_on_gloo(tmp_path / mesh.words, mesh) == planned
