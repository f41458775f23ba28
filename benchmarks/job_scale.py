"""Writes the ledgers of a job of many ranks over a day, and measures what they take and what reading them takes.

    python benchmarks/job_scale.py FOLDER [--ranks 1024] [--hours 24] [--keep]

Rows are as `plugins/job/recorder.py` writes them, at its intervals, with as many stacks as a sampled training has: 20
of 60 stacks with twelve frames in a row of half a minute. Eight ranks are a node; each hour has an evaluation and two
saves; after ten hours all ranks are restarted; one node is 15 % slower from the fifth hour on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perfscope.dashboards.web.server.shelf import read_view
from perfscope.model.documents.run import RUN_FILE
from perfscope.plugins.job.dashboard.figure import job_figure
from perfscope.plugins.job.dashboard.works import KIND, VIEW
from perfscope.plugins.job.recorder import FOLDER, INSIDE, ROWS_S, SCHEMA, SET_UP

S = 1_000_000_000
BEGAN = 1_700_000_000 * S
NODE = 8
"""Ranks per node."""
SLOW_NODE, SLOWER = 37, 1.15
VARIANTS = 16
"""Different ledgers; each is written for several ranks, with their own heads."""
KILLED_H = 10
STACKS, FRAMES, PER_ROW = 60, 12, 20
KINDS = {0: "evaluate", 1: "save", 2: "next_batch", 3: "all_reduce"}
FILES = {1: "site-packages/torch/serialization.py", 2: "site-packages/torch/utils/data/dataloader.py",
         3: "site-packages/torch/distributed/distributed_c10d.py"}  # fmt: skip
REPOSITORY = Path(__file__).parents[1]


def tree() -> tuple[dict[str, object], list[int]]:
    """Texts and nodes of the stacks, and the innermost node of each stack."""
    texts, nodes, leaves = ["train.py", "main"], [[-1, 0, 90, 1]], []
    for stack in range(STACKS):
        above = 0
        for frame in range(FRAMES):
            file = FILES.get(stack, f"model/layers{frame}.py") if frame == FRAMES - 1 else f"model/block{frame}.py"
            texts += [file, KINDS.get(stack, f"forward{stack % 7}") if frame == FRAMES - 1 else f"call{frame}"]
            nodes.append([above, len(texts) - 2, 10 * stack + frame, len(texts) - 1])
            above = len(nodes) - 1
        leaves.append(above)
    return {"texts": texts, "nodes": nodes}, leaves


def rows(variant: int, hours: float, step_s: float, at_hour: float) -> Iterator[bytes]:
    """The lines after the head of a process that begins ``at_hour`` and runs for ``hours``."""
    dice = random.Random(variant)
    news, leaves = tree()
    begin = 102 * S
    yield json.dumps(news, separators=(",", ":")).encode() + b"\n"
    at, end, first = begin, begin + round(hours * 3600 * S), True
    while at < end:
        length = round(next(every for until, every in ROWS_S if at / 1e9 - 100 < until) * S)
        second = (at - begin) / S + at_hour * 3600
        kind = 0 if 1800 <= second % 3600 < 1860 else 1 if second // 1800 != (second + length / S) // 1800 else None
        chosen = [2, 3, *dice.sample(range(4, STACKS), min(PER_ROW, max(4, length // S)))]
        parts = [leaves[stack] for stack in (chosen if kind is None else [kind])]
        cuts = sorted(dice.randrange(length) for _ in parts[1:])
        spans = [high - low for low, high in zip([0, *cuts], [*cuts, length], strict=True)]
        phase = SET_UP if first else INSIDE
        steps = (
            0 if kind is not None or first else round(length / S / step_s / (SLOWER if slow_at(variant, second) else 1))
        )
        row = {
            "from": at, "to": at + length, "unix": BEGAN + at, "core": 0, "ran": length // 2, "late": [0, 300],
            "at": [[node, phase, ns] for node, ns in zip(parts, spans, strict=True)], "steps": steps,
            "timed": [steps, length, steps, length], "resident": 40 << 30, "tokens": steps * 8192, "loss": 2.5,
            "gpu": [0.97, 650.0, 70 << 30],
        }  # fmt: skip
        if kind == 1:
            row["checkpoints"] = [["save", "save", at, at + length, "train.py:70", True, at + length, "aa"]]
        if first and at_hour:
            row["checkpoints"] = [["restore", "load", at, at + S, "train.py:20", True, at + S, "aa"]]
        yield json.dumps(row, separators=(",", ":")).encode() + b"\n"
        at, first = at + length, False


def slow_at(variant: int, second: float) -> bool:
    """Whether the ranks of a variant are slower at a time of the job."""
    return variant == VARIANTS and second > 5 * 3600


def make(folder: Path, ranks: int, hours: float) -> None:
    """Write a run folder."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / FOLDER).mkdir(parents=True)
    shutil.copy(REPOSITORY / "fixtures" / "cpu-attention-sdpa-item" / RUN_FILE, folder / RUN_FILE)
    parts = [(0.0, min(hours, KILLED_H)), (KILLED_H + 0.1, hours - KILLED_H)] if hours > KILLED_H else [(0.0, hours)]
    for number, (at_hour, length) in enumerate(parts):
        bodies = [b"".join(rows(variant, length, 0.5, at_hour)) for variant in range(VARIANTS + 1)]
        for rank in range(ranks):
            head = {
                "schema": SCHEMA, "host": f"node{rank // NODE:03d}", "pid": 1000 * number + rank, "rank": rank,
                "world": ranks, "restart": number, "program": "train.py", "began_ns": 100 * S, "from_ns": 102 * S,
                "unix_ns": BEGAN + round(at_hour * 3600 * S),
            }  # fmt: skip
            body = bodies[VARIANTS if rank // NODE == SLOW_NODE else rank % VARIANTS]
            name = f"node{rank // NODE:03d}-{1000 * number + rank}-{BEGAN // S + number}.jsonl"
            (folder / FOLDER / name).write_bytes(json.dumps(head).encode() + b"\n" + body)


@contextmanager
def measured(what: str) -> Iterator[None]:
    """Print time, processor time and the largest resident set of a child process."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    yield
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    took = time.perf_counter() - began
    print(
        f"{what}: {took:.1f} s, {cpu:.1f} s of processors, at most {after.ru_maxrss / 1e3:.0f} MB in a process",
        flush=True,
    )


def perfscope(*words: str) -> None:
    """Run a command; its output is not shown."""
    subprocess.run([sys.executable, "-m", "perfscope", *words], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--keep", action="store_true", help="read ledgers that were written before")
    options = parser.parse_args()
    run = options.folder / "day"
    if not options.keep:
        make(run, options.ranks, options.hours)
    size = sum(file.stat().st_size for file in (run / FOLDER).iterdir())
    print(f"{options.ranks:,} ranks, {options.hours:g} hours: {size / 1e9:.2f} GB, "
          f"{size / options.ranks / options.hours / 1e3:.0f} kB per rank and hour", flush=True)  # fmt: skip
    document = options.folder / "job.json"
    os.environ["PERFSCOPE_CACHE"] = str(options.folder / "cache")
    shutil.rmtree(options.folder / "cache", ignore_errors=True)
    for what in ("perfscope job", "perfscope job again"):
        with measured(what):
            perfscope("job", str(run), "-q", "--json", str(document))
    print(f"its JSON has {document.stat().st_size / 1e6:.1f} MB", flush=True)
    made = options.folder / "made"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    with measured("preparing the page"):
        subprocess.run([sys.executable, "-m", "perfscope.dashboards.web.server.child", KIND, run, made], check=True)
    began = time.process_time()
    held = read_view(made, VIEW)
    assert held is not None
    job_figure(held["view"]).to_json()
    took = time.process_time() - began
    print(
        f"the page from {(made / f'{VIEW}.json').stat().st_size / 1e3:.0f} kB: {took:.2f} s of a processor", flush=True
    )


if __name__ == "__main__":
    main()
