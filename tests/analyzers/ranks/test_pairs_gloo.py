"""Two real processes that send over gloo: sends and receives are paired, and who kept whom waiting is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.analyzers.collectives_section import collectives_section
from perfscope.analyzers.load import load
from perfscope.analyzers.ranks.local import locals_of

PROGRAM = """
import sys, time, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

dist.init_process_group("gloo")
rank = dist.get_rank()
message = torch.ones(1 << 18)
dist.barrier()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
    for _ in range(4):
        if rank == 0:
            dist.isend(message, dst=1).wait()
        else:
            time.sleep(0.25)
            dist.irecv(message, src=0).wait()
recorded.export_chrome_trace(f"{sys.argv[1]}/rank{rank}.json")
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_the_receiver_that_sleeps_keeps_the_sender_waiting(tmp_path: Path) -> None:
    script = tmp_path / "send.py"
    script.write_text(PROGRAM)
    traces = tmp_path / "traces"
    traces.mkdir()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, str(script), str(traces)], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    held = load(traces)
    # gloo names no group; the head lists one that runs gloo. The ops tell the peer by its number in the group
    assert {(one.operation, one.ranks, one.peer) for trace in held for one in trace.fact(locals_of)} == {
        ("send", (0, 1), 1), ("recv", (0, 1), 0),
    }  # fmt: skip
    (job,) = collectives_section(held).jobs
    (kind,) = job.pairs
    assert (kind.source, kind.destination, kind.count, kind.message_bytes) == (0, 1, 4, 1 << 20)
    assert kind.send_wait_ns > kind.receive_wait_ns
    assert job.unmatched == 0
