"""Makes a job of many ranks out of the real ranks of a small one, and measures what analyzing it takes.

    python benchmarks/many_ranks.py RANK0.json.gz RANK1.json.gz ... --ranks 64 256 1024
    python benchmarks/many_ranks.py RANK0.json.gz RANK1.json.gz ... --ranks 64 256 1024 --run

With ``--run`` they lie in one run directory, as ``perfscope run`` leaves it, each rank with its manifest.

The files must be one job's Kineto traces, by rank. Made rank r is real rank r mod N with its rank and the world's size
rewritten; every N ranks are a host, whose clock is shifted by up to 111 ms against the others. Each size runs in a
fresh process without sidecars, and every file is read in full. Memory is the largest resident set: of the process
that compares, and of the largest one that reads.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

SHIFTS_US = (0, 37_000, 74_000, 111_000)
RANK = re.compile(rb'"rank": *\d+')
WORLD = re.compile(rb'"world_size": *\d+')
TIME = re.compile(rb'("ts": *)(\d+)')
EVENTS = b'"traceEvents"'
MB = 1_000_000


def make(sources: Sequence[Path], folder: Path, ranks: int) -> int:
    """Write the files of ``ranks`` ranks; bytes of one when decompressed, as a mean."""
    heads, bodies, size = [], [], 0
    for source in sources:
        text = gzip.decompress(source.read_bytes())
        cut = text.index(EVENTS)
        heads.append(text[:cut])
        size += len(text)
        bodies.append(
            [
                gzip.compress(TIME.sub(lambda found, by=by: found[1] + b"%d" % (int(found[2]) + by), text[cut:]), 6)
                for by in SHIFTS_US
            ]
        )
    for rank in range(ranks):
        host, place = divmod(rank, len(sources))
        head = WORLD.sub(b'"world_size": %d' % ranks, RANK.sub(b'"rank": %d' % rank, heads[place]))
        body = bodies[place][host % len(SHIFTS_US)]
        (folder / f"rank{rank:05}.pt.trace.json.gz").write_bytes(gzip.compress(head, 6) + body)
    return size // len(sources)


def as_run(folder: Path, ranks: int) -> Path:
    """Put the files that ``make`` wrote into a run directory below ``folder``."""
    from perfscope.model.documents.run import PROCESS_FILE, RUN_FILE, Capture, Process, Run, dump

    home = folder / "made"
    home.mkdir()
    run = Run(id="made", name="made", created_utc="2026-01-01T00:00:00+00:00", command=("train.py",), state="finished")
    (home / RUN_FILE).write_bytes(dump(run))
    for rank in range(ranks):
        directory = f"rank{rank:05d}"
        artifact = f"{directory}/timing.pt.trace.json.gz"
        (home / directory).mkdir()
        (folder / f"rank{rank:05}.pt.trace.json.gz").rename(home / artifact)
        capture = Capture(pass_name="timing", tool="torch_profiler", state="recorded", artifact=artifact)
        process = Process(rank=rank, directory=directory, world_size=ranks, captures=(capture,))
        (home / directory / PROCESS_FILE).write_bytes(dump(process))
    return home


def measure(folder: Path, jobs: int) -> dict[str, float]:
    """Analyze ``folder`` in this process, which does nothing else."""
    start = time.perf_counter()
    from perfscope.analyzers.judge import judge_paths
    from perfscope.dashboards.report import render

    judged = judge_paths([folder], jobs=jobs)
    report = render(judged.analysis, "json")
    wall = time.perf_counter() - start
    (job,) = judged.analysis.collectives.jobs
    return {
        "ranks": len(job.recorded),
        "matched": job.matched,
        "clock_ms": job.clock_offset_ns / 1e6,
        "wall_s": wall,
        "here_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB,
        "reader_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / MB,
        "report_kb": len(report) / 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path)
    parser.add_argument("--ranks", nargs="+", type=int, default=[64, 256, 1024])
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--run", action="store_true", help="make a run directory of them")
    parser.add_argument("--measure", type=Path, help="a folder that is made already; prints JSON")
    asked = parser.parse_args()
    if asked.measure is not None:
        print(json.dumps(measure(asked.measure, asked.jobs)))
        return
    if not asked.sources:
        parser.error("name the files of a real job, by rank")
    print("| ranks | wall s | ms a rank | memory of the comparing process | a rank of it | largest reader |")
    print("|-:|-:|-:|-:|-:|-:|")
    first = None
    for ranks in asked.ranks:
        with tempfile.TemporaryDirectory() as folder:
            size = make(asked.sources, Path(folder), ranks)
            place = as_run(Path(folder), ranks) if asked.run else Path(folder)
            line = [sys.executable, __file__, "--measure", str(place), "--jobs", str(asked.jobs)]
            done = subprocess.run(
                line, check=True, capture_output=True, text=True, env={**os.environ, "PERFSCOPE_CACHE": "off"}
            )
        found = json.loads(done.stdout)
        if found["ranks"] != ranks:
            raise SystemExit(f"{found['ranks']} of {ranks} ranks were recognized")
        first = first or found
        more = ranks - first["ranks"]
        each = f"{(found['here_mb'] - first['here_mb']) / more:.2f} MB" if more else "-"
        print(
            f"| {ranks:,} | {found['wall_s']:.1f} | {1000 * found['wall_s'] / ranks:.0f} | {found['here_mb']:.0f} MB "
            f"| {each} | {found['reader_mb']:.0f} MB |",
            flush=True,
        )
    print(
        f"\n{size / MB:.1f} MB of JSON a rank, {asked.jobs} processes, {found['matched']:,} collectives matched over "
        f"{found['ranks']:,} ranks, clocks {found['clock_ms']:.0f} ms apart, report {found['report_kb']:.0f} kB"
    )


if __name__ == "__main__":
    main()
