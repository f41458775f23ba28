"""What capture costs a JAX program: traced steps, a blocking read under the interceptor, marks, and the whole run.

    python benchmarks/jax_overhead.py [--rounds 3] [--turns 40]

Steps: median of the traced ones over the median of the untraced ones of the same process, the runs
captured and plain in turns. Reads and marks: each against the same loop without us, medians of rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from perfscope.analyzers.readers.xspace import reader as xspace_reader
from perfscope.model.documents import run_folders

PROGRAM = """
import sys
import jax
import jax.numpy as jnp

def dense(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return (x ** 2).mean()

def scan(weights, x):
    def body(h, row):
        h = jnp.tanh(h @ weights[0] + row)
        return h, h.sum()
    return jax.lax.scan(body, jnp.zeros(x.shape[1]), x)[1].sum()

loss_of = {"dense": dense, "scan": scan}[sys.argv[1]]
size, rows = {"dense": (256, 512), "scan": (64, 512)}[sys.argv[1]]

@jax.jit
def train_step(weights, x):
    loss, gradients = jax.value_and_grad(loss_of)(weights, x)
    return [w - 1e-3 * g for w, g in zip(weights, gradients)], loss

key = jax.random.key(0)
weights = [jax.random.normal(jax.random.fold_in(key, at), (size, size)) / size for at in range(4)]
x = jax.random.normal(key, (rows, size))
for _ in range(int(sys.argv[2])):
    weights, loss = train_step(weights, x)
    float(loss)
"""

LOOP = 20_000
"""Reads and marks in a round."""


def seconds(command: list[str], folder: Path) -> float:
    """Wall time of a command that must succeed."""
    begin = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    return time.perf_counter() - begin


def measure(kind: str, turns: int, folder: Path) -> dict[str, float]:
    """One round: the program plain, then captured."""
    (folder / "train.py").write_text(PROGRAM)
    program = ["train.py", kind, str(turns)]
    plain = seconds([sys.executable, *program], folder)
    captured = seconds([sys.executable, "-m", "perfscope", "run", "-q", "--no-report", *program], folder)
    directory = folder / "perfscope-runs" / "latest"
    (process,) = run_folders.read(directory).processes
    trace = directory / process.directory / "timing.xplane.pb"
    steps = xspace_reader.read_file(trace).rows["steps"]
    untraced = statistics.median(process.untraced_step_ns)
    return {
        "untraced_ms": untraced / 1e6,
        "traced_over_untraced": statistics.median(steps["end_ns"] - steps["start_ns"]) / untraced,
        "traced_steps": len(steps),
        "trace_kb": trace.stat().st_size / 1e3,
        "plain_s": plain,
        "captured_s": captured,
    }


def each_us(call: object) -> float:
    """Microseconds a call, over a loop of calls."""
    assert callable(call)
    begin = time.perf_counter()
    for _ in range(LOOP):
        call()
    return (time.perf_counter() - begin) / LOOP * 1e6


def calls() -> dict[str, float]:
    """One round of a read with and without the interceptor, of a jitted call with and without the hook, of marks."""
    import jax
    import jax.numpy as jnp

    import perfscope
    from perfscope.profiler.jax import compat, host_syncs
    from perfscope.profiler.jax.record_log import CallSites

    value = jnp.float32(1)
    function = jax.jit(lambda x: x + 1)
    function(value)
    row = {"read_us": each_us(value.block_until_ready), "call_us": each_us(lambda: function(value))}
    syncs = host_syncs.SyncLog(CallSites(Path.cwd()), lambda: 0)
    syncs.start()
    row["read_intercepted_us"] = each_us(value.block_until_ready)
    syncs.stop()
    undo = compat.on_fast_call(lambda called: None)
    assert undo is not None
    row["call_hooked_us"] = each_us(lambda: function(value))
    undo()
    row["step_us"] = each_us(perfscope.step)
    return row


def shown(rounds: list[dict[str, float]]) -> str:
    return "  ".join(f"{key} {statistics.median(row[key] for row in rounds):.2f}" for key in rounds[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=40)
    asked = parser.parse_args()
    print("calls:", shown([calls() for _ in range(asked.rounds)]), flush=True)
    for kind in ("dense", "scan"):
        with tempfile.TemporaryDirectory() as folder:
            rounds = [measure(kind, asked.turns, Path(folder)) for _ in range(asked.rounds)]
        print(f"{kind}:", shown(rounds), flush=True)


if __name__ == "__main__":
    main()
