"""What the capture of torch.compile costs: compiling a transformer block, and its steps behind the warm-up.

    python benchmarks/compile_overhead.py [--rounds 3]

One row a way to run. Three on one cache of inductor's that is empty at first: ``plain, cold``, ``plain, warm`` and
``light, warm`` (the log alone: the cache stays the program's). Two on another: ``default, cold`` (provenance and kernel
names are part of the cache's keys) and ``default, warm``.
``first``: wall time of the first step, ``own`` and
``children``: CPU seconds of it in the process and in the compilers it starts, ``step`` and ``step CPU``: median of the
steps behind all passes, by the clock and of the process. The losses of all ways must be equal to the last bit.
Medians over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = 300
BEHIND = 20
"""Steps not counted: the passes are over by then."""

PROGRAM = f"""
import json, resource, sys, time
import torch
import torch.nn.functional as F

class Block(torch.nn.Module):
    def __init__(self, width=128, heads=4):
        super().__init__()
        self.heads = heads
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))

def cpu():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return [one.ru_utime + one.ru_stime for one in used]

torch.manual_seed(0)
model = torch.compile(Block())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(4, 64, 128)
times, used, losses, before = [], [], [], cpu()
for step in range({STEPS}):
    begin, began = time.perf_counter(), time.process_time()
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - begin)
    used.append(time.process_time() - began)
    losses.append(loss.item().hex())
    if not step:
        own, children = (now - then for now, then in zip(cpu(), before))
step, step_cpu = (sorted(one[{BEHIND}:])[{(STEPS - BEHIND) // 2}] for one in (times, used))
said = dict(first=times[0], own=own, children=children, step=step, step_cpu=step_cpu)
print(json.dumps(said | dict(losses=hash(tuple(losses)))))
"""

RUN = ("-m", "perfscope", "run", "-q", "--no-report", "--level")
WAYS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("plain, cold", "first", ()),
    ("plain, warm", "first", ()),
    ("light, warm", "first", (*RUN, "light")),
    ("default, cold", "second", (*RUN, "default")),
    ("default, warm", "second", (*RUN, "default")),
)
"""How it is called, which cache it uses, and how it is run. An empty cache also has its headers to compile."""


def measure(arguments: tuple[str, ...], cache: str, folder: Path) -> dict[str, float]:
    """Run the program one way."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, *arguments, str(program)],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "TORCHINDUCTOR_CACHE_DIR": str(folder / cache),
        },
    )
    row: dict[str, float] = json.loads(done.stdout)
    logs = list((folder / "perfscope-runs" / "latest").glob("rank*/compile/*")) if arguments else []
    row["kB"] = sum(path.stat().st_size for path in logs) / 1e3
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in WAYS}
    for _ in range(asked.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for name, cache, arguments in WAYS:
                rows[name].append(measure(arguments, cache, Path(folder)))
    assert len({row["losses"] for found in rows.values() for row in found}) == 1, "results differ"
    for name, found in rows.items():
        middle = {key: statistics.median(row[key] for row in found) for key in found[0]}
        print(
            f"{name}: first {middle['first']:.2f} s, own {middle['own']:.2f} s, children {middle['children']:.2f} s, "
            f"step {middle['step'] * 1e3:.2f} ms, step CPU {middle['step_cpu'] * 1e3:.2f} ms, "
            f"files {middle['kB']:.0f} kB",
            flush=True,
        )


if __name__ == "__main__":
    main()
