"""Pipelines over gloo: waits from sends and receives on the host, and a real one of four processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfscope.analyzers.collectives_section import collectives_section
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.load import load
from perfscope.analyzers.ranks.local import locals_of
from perfscope.analyzers.readers._run_peers import CARRIED
from perfscope.analyzers.scale.slim import slim
from perfscope.analyzers.trace import Trace
from tests.analyzers.ranks.build import named
from tests.build import TraceBuilder
from tests.conftest import REPOSITORY

Message = tuple[str, float, float, int]
"""Operation, start and end in us, peer."""
STEP_US = 1_000.0


def stage(
    rank: int, messages: Sequence[Message], ops: Sequence[tuple[float, float]] = (), *, told: bool = True
) -> Trace:
    build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
    build.step(0, 0, STEP_US)
    for operation, start, end, _ in messages:
        build.annotation(f"gloo:{operation}", start, end)
    for start, end in ops:
        build.op("aten::mm", start, end)
    order = sorted([start for _, start, _, _ in messages] + [start for start, _ in ops])
    for operation, start, end, peer in messages:
        build.row(
            "collectives", start_ns=int(1000 * start), end_ns=int(1000 * end), name=build.code(operation), kernel=-1,
            slice=order.index(start), ranks=build.code("[0, 1, 2]"), group_size=3, peer=peer if told else -1,
        )  # fmt: skip
    return named(build.build(), world=3)


def stages(*, beside: Sequence[tuple[float, float]] = (), told: bool = True) -> list[Trace]:
    """Stage 1 is busy for 500 us, between its receive and its send; the others for 100 us."""
    return [
        stage(0, [("send", 100, 110, 1)]),
        stage(1, [("recv", 0, 110, 0), ("send", 610, 620, 2)]),
        stage(2, [("recv", 0, 620, 1)], beside, told=told),
    ]


def findings(traces: Sequence[Trace]) -> dict[int, dict[str, object]]:
    (finding,) = analyze(traces, ["pipeline_bubble"])["pipeline_bubble"].findings
    assert finding.cost_ns == sum(int(row["wait_ns"] or 0) for row in finding.evidence) // 3
    return {int(row["rank"] or 0): dict(row) for row in finding.evidence}


def test_what_a_receive_takes_beyond_its_send_is_waiting() -> None:
    rows = findings(stages())
    assert [(rows[rank]["wait_ns"], rows[rank]["mostly_for"]) for rank in range(3)] == [
        (0, None), (100_000, 0), (610_000, 1),
    ]  # fmt: skip
    for row in rows.values():
        assert int(str(row["wait_ns"])) + int(str(row["busy_ns"])) == 1000 * STEP_US


def test_an_op_beside_a_receive_is_no_waiting() -> None:
    assert findings(stages(beside=[(50, 250)]))[2]["wait_ns"] == 410_000


def test_with_a_message_whose_other_side_is_not_known_the_rule_abstains() -> None:
    outcome = analyze(stages(told=False), ["pipeline_bubble"])["pipeline_bubble"]
    assert (outcome.status, outcome.findings) == ("abstained", ())
    assert "with whom is not recorded of all" in str(outcome.reason)


def test_slim_traces_say_the_same() -> None:
    traces = stages(beside=[(50, 250)])
    assert findings([slim(trace) for trace in traces]) == findings(traces)


PROGRAM = """
import sys, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, size, slow = dist.get_rank(), dist.get_world_size(), int(sys.argv[1])
layer = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
for step in range(16):
    held = []
    for _ in range(4):
        x = torch.randn(16, 64)
        if rank:
            dist.recv(x, rank - 1)
            x.requires_grad_()
        time.sleep(0.08 if rank == slow else 0.01)
        y = layer(x)
        if rank < size - 1:
            dist.send(y.detach(), rank + 1)
        held.append((x, y))
    for x, y in held:
        gradient = torch.ones_like(y)
        if rank < size - 1:
            dist.recv(gradient, rank + 1)
        y.backward(gradient)
        if rank:
            dist.send(x.grad, rank - 1)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.parametrize("slow", [2, pytest.param(-1, marks=pytest.mark.slow)])
def test_the_slow_stage_of_four_real_processes_is_named(tmp_path: Path, slow: int) -> None:
    script = tmp_path / "pipeline.py"
    script.write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    done = subprocess.run(
        [sys.executable, "-m", "perfscope", "run", "--no-report", "-o", str(tmp_path / "runs"), "--", *torchrun,
         str(script), str(slow)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}, cwd=tmp_path, capture_output=True,
        text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder,) = [one for one in (tmp_path / "runs").iterdir() if one.is_dir() and not one.is_symlink()]
    traces = load(folder)
    assert all(CARRIED in trace.source.notes for trace in traces)
    neighbours = {(trace.source.rank, one.peer) for trace in traces for one in trace.fact(locals_of)}
    assert neighbours == {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)}
    (job,) = collectives_section(traces).jobs
    assert (job.unmatched, {(one.source, one.destination) for one in job.pairs}) == (0, neighbours)
    (finding,) = analyze(traces, ["pipeline_bubble"])["pipeline_bubble"].findings
    if slow < 0:  # even stages: what is left is the bubble that four microbatches cannot do without
        assert finding.subject == "bubble of the schedule"
    else:
        assert finding.subject == "stages of uneven size"
        assert f"rank {slow} is busy longest" in finding.title
