"""Cost of sampling stacks: bare and sampled periods of one process in turn, in pairs.

    python benchmarks/sampling_overhead.py [--pairs 300] [--seconds 0.1] [--only torch-small]

One row per workload, each in a separate process. The result of a pair is the ratio of sampled to bare time per step, by
the clock and by processor time of the process and its workers; medians with the 95 % interval of the median (order
statistics). ``sampler``: processor time of the sampling thread over the clock, as counted by the sampler itself.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from perfscope.profiler.sampling import workers
from perfscope.profiler.sampling.sampler import StackSampler
from perfscope.profiler.source_files import SourceFiles

Step = Callable[[], object]

LOADER_STEPS = 50
"""Steps of an iteration with its own workers: each is a period, and there are a tenth as many pairs of these."""


def torch_steps(width: int, layers: int) -> Step:
    import torch

    torch.set_num_threads(1)
    blocks = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(layers)]
    model = torch.nn.Sequential(*blocks)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(32, width)

    def step() -> None:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Numbers:
    """A data set whose items take a millisecond of plain Python."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> float:
        return float(sum(hash(str(number)) % 7 for number in range(3_000)))


def torch_loader() -> Step:
    from torch.utils.data import DataLoader

    step = torch_steps(256, 4)
    loader: DataLoader[float] = DataLoader(Numbers(), batch_size=4, num_workers=2)  # type: ignore[arg-type]

    def epoch() -> None:
        for count, _ in enumerate(loader):
            step()
            if count == LOADER_STEPS - 1:
                break

    return epoch


def jax_steps(width: int, layers: int, words: int) -> Step:
    import jax
    import jax.numpy as jnp

    @jax.jit
    def train(weights: jax.Array, batch: jax.Array) -> jax.Array:
        def loss(weights: jax.Array) -> jax.Array:
            out = batch
            for layer in range(layers):
                out = jnp.tanh(out @ weights[layer])
            return jnp.mean(out**2)

        return weights - 0.1 * jax.grad(loss)(weights)

    weights, batch = jnp.ones((layers, width, width)), jnp.ones((32, width))

    def step() -> None:
        nonlocal weights
        sum(hash(str(number)) for number in range(words))
        weights = train(weights, batch)
        weights.block_until_ready()

    return step


WORKLOADS: dict[str, Callable[[], Step]] = {
    "torch-small": lambda: torch_steps(64, 6),
    "torch-large": lambda: torch_steps(768, 8),
    "torch-loader": torch_loader,
    "jax-small": lambda: jax_steps(128, 4, 200),
    "jax-large": lambda: jax_steps(512, 8, 20_000),
}


def processor_s() -> float:
    """Processor time of this process and of children that ended."""
    usage = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(item.ru_utime + item.ru_stime for item in usage)


def measure(workload: str, pairs: int, seconds: float) -> dict[str, object]:
    step = WORKLOADS[workload]()
    pairs = pairs // 10 if workload == "torch-loader" else pairs
    sampling = False
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        os.register_at_fork(after_in_child=lambda: workers.sample_forked(run) if sampling else None)
        sampler = StackSampler(SourceFiles(Path.cwd(), ()))
        for _ in range(5):
            step()
        begin = time.perf_counter()
        step()
        count = max(1, round(seconds / (time.perf_counter() - begin)))

        def stretch(*, sampled: bool) -> tuple[float, float]:
            nonlocal sampling
            sampling = sampled
            if sampled:
                sampler.resume(traced=False)
            wall, cpu = time.perf_counter(), processor_s()
            for _ in range(count):
                step()
            took = time.perf_counter() - wall, processor_s() - cpu
            sampler.pause()
            return took

        for _ in range(4):  # until the period has settled
            stretch(sampled=True)
        ratios: list[tuple[float, float]] = []
        bare_s: list[float] = []
        for pair in range(pairs):
            first = stretch(sampled=pair % 2 == 0)
            second = stretch(sampled=pair % 2 == 1)
            on, off = (first, second) if pair % 2 == 0 else (second, first)
            ratios.append((on[0] / off[0], on[1] / off[1]))
            bare_s.append(off[0] / count)
        sampler.stop()
        samples = sampler.document()
    units = LOADER_STEPS if workload == "torch-loader" else 1
    return {
        "step_ms": 1e3 * statistics.median(bare_s) / units,
        "wall": median_with_interval([wall for wall, _ in ratios]),
        "cpu": median_with_interval([cpu for _, cpu in ratios]),
        "sampler": samples.cpu_ns / max(samples.wall_ns, 1),
        "period_ms": samples.period_ns / 1e6,
        "stopped": samples.stopped,
    }


def median_with_interval(values: list[float]) -> tuple[float, float, float]:
    """Median, and the order statistics between which it lies with 95 %."""
    ordered, count = sorted(values), len(values)
    low = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)) - 1)
    return statistics.median(ordered), ordered[low], ordered[count - 1 - low]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--only", choices=WORKLOADS)
    parser.add_argument("--child", choices=WORKLOADS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.pairs, options.seconds)))
        return
    print("| workload | bare step | by the clock | processor time | sampling thread | period |")
    print("|---|---|---|---|---|---|")
    for workload in [options.only] if options.only else WORKLOADS:
        command = [sys.executable, __file__, "--child", workload, "--pairs", str(options.pairs)]
        command += ["--seconds", str(options.seconds)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        row = json.loads(done.stdout)
        shown = [
            f"{100 * (m - 1):+.1f}% [{100 * (a - 1):+.1f}, {100 * (b - 1):+.1f}]"
            for m, a, b in (row["wall"], row["cpu"])
        ]
        note = f" ({row['stopped']})" if row["stopped"] else ""
        print(
            f"| {workload} | {row['step_ms']:.2f} ms | {shown[0]} | {shown[1]} | {100 * row['sampler']:.2f}% | "
            f"{row['period_ms']:.0f} ms{note} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
