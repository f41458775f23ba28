"""Makes a job of many ranks out of the real ranks of a small one, and measures what analyzing it takes (`bench.py`).

    python benchmarks/many_ranks.py FOLDER [--ranks 1024] [--dask 4]

The sources must be one job's Kineto traces, by rank. Made rank r is real rank r mod N with its rank and the world's
size rewritten; every N ranks are a host, whose clock is shifted by up to 111 ms against the others. Memory is the
largest resident set: of the process that compares, and of the largest one that reads.
"""

from __future__ import annotations

import argparse
import gzip
import re
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner import tell

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


def measure(folder: Path, ranks: int | None, workers: int) -> dict[str, float]:
    """Analyze the first ``ranks`` in ``folder`` in this process, which does nothing else."""
    start = time.perf_counter()
    from perfscope.analyzers.judge import judge_paths
    from perfscope.analyzers.selection import EVERYTHING, parse_selection
    from perfscope.dashboards.report import render

    selection = EVERYTHING if ranks is None else parse_selection(None, f"0-{ranks - 1}", None)
    with _cluster(workers) as scheduler:
        judged = judge_paths([folder], scheduler=scheduler, selection=selection)
        render(judged.analysis, "json")
        wall = time.perf_counter() - start
    recorded = sum(len(job.recorded) for job in judged.analysis.collectives.jobs)
    if ranks is not None and recorded != ranks:
        raise SystemExit(f"{recorded} of {ranks} ranks were recognized")
    return {
        "ms a rank": 1000 * wall / recorded,
        "comparing MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB,
        "reading MB": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / MB,
    }


@contextmanager
def _cluster(workers: int) -> Iterator[str | None]:
    """A Dask cluster of this machine, a thread a worker; ``None``: no cluster."""
    if not workers:
        yield None
        return
    from distributed import LocalCluster

    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, help="only the first so many")
    parser.add_argument("--dask", type=int, default=0, metavar="WORKERS")
    asked = parser.parse_args()
    tell(measure(asked.folder, asked.ranks, asked.dask))


if __name__ == "__main__":
    main()
