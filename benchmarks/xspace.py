"""Reads one large XSpace with perfscope and with a loop over `jax.profiler.ProfileData`, in turn, and prints a table.

    python benchmarks/xspace.py [--source FILE] [--copies 400] [--repeat 7] [--markdown FILE] [--results FOLDER]

The events of a real profile are repeated, shifted in time, until the file is large. Every reader is a fresh process,
in turn; processor time (user and system, imports included) counts, for the machine may have other work. Ratios are of
medians, with a 95 % interval of the bootstrap over turns. perfscope has all its tables then, stats included; the loops
have nothing but a sum.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

from perfscope.analyzers.hlo.protos import decode

REPOSITORY = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("PERFSCOPE_CORPUS", REPOSITORY.parent / "shared" / "data"))
SOURCE = CORPUS / "xplane" / "TraceLens__mi300_jax_conv_08.xplane.pb.gz"
PAUSE_PS = 1_000_000

NOTHING = "import numpy, jax.profiler"
OURS = """
import sys
from pathlib import Path
from perfscope.analyzers.readers.xspace.reader import read
read(Path(sys.argv[1]))
"""
NAMES = """
import sys
from jax.profiler import ProfileData
total = 0
for plane in ProfileData.from_file(sys.argv[1]).planes:
    for line in plane.lines:
        for event in line.events:
            event.name, event.start_ns
            total += event.duration_ns
"""
STATS = (
    NAMES
    + """            for name, value in event.stats:
                total += value is None
"""
)
READERS = {
    "perfscope, all tables": OURS,
    "ProfileData, names and times": NAMES,
    "ProfileData, names, times and stats": STATS,
}


def replicate(source: Path, target: Path, copies: int) -> int:
    """Write ``source`` with the events of each line ``copies`` times; the number of events."""
    space = decode("xspace.XSpace", gzip.decompress(source.read_bytes()), str(source))
    lines = [line for plane in space.planes for line in plane.lines]
    period = PAUSE_PS + max(event.offset_ps + event.duration_ps for line in lines for event in line.events)
    for line in lines:
        one = type(line)()
        one.events.extend(line.events)
        for _ in range(1, copies):
            for event in one.events:
                event.offset_ps += period
            line.MergeFrom(one)
    target.write_bytes(space.SerializeToString())
    return sum(len(line.events) for line in lines)


def measured(code: str, file: Path) -> tuple[float, int]:
    """(CPU seconds, largest resident set in bytes) of a fresh process."""
    environment = {
        **os.environ, "PYTHONPATH": str(REPOSITORY), "PERFSCOPE_CACHE": "off", "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",  # ProfileData reports every stat without a value
    }  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", code, str(file)], env=environment, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"a reader failed: {code[:200]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def interval(ours: list[float], others: list[float]) -> tuple[float, float]:
    """95 % of the ratio of medians, other to ours, turns drawn again in pairs."""
    random = np.random.default_rng(0)
    drawn = random.integers(0, len(ours), (2000, len(ours)))
    ratios = np.median(np.array(others)[drawn], axis=1) / np.median(np.array(ours)[drawn], axis=1)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return float(low), float(high)


def table(result: dict) -> str:
    """Markdown of what ``main`` measured."""
    runs = result["runs"]
    ours = [second for second, _ in runs["perfscope, all tables"]]
    lines = [
        f"{result['bytes'] / 1e6:.0f} MB, {result['events']:,} events, {result['repeat']} turns, "
        f"load average {result['load'][0]:.0f} to {result['load'][1]:.0f} on {result['cores']} cores",
        "",
        "| reader | CPU s (median) | x perfscope | 95 % | peak memory MB |",
        "|-|-:|-:|-:|-:|",
    ]
    for name, values in runs.items():
        seconds = [second for second, _ in values]
        low, high = interval(ours, seconds)
        peak = max(size for _, size in values) / 1e6
        ratio = float(np.median(seconds) / np.median(ours))
        lines.append(f"| {name} | {np.median(seconds):.2f} | {ratio:.2f} | {low:.2f} to {high:.2f} | {peak:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--copies", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--markdown", type=Path, help="replace the table between the markers of this file")
    parser.add_argument("--results", type=Path, help="folder of results by machine and version")
    options = parser.parse_args()
    loads = [os.getloadavg()[0]]
    runs: dict[str, list[tuple[float, int]]] = {name: [] for name in READERS}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "large.xplane.pb"
        events = replicate(options.source, file, options.copies)
        size = file.stat().st_size
        measured(NOTHING, file)  # bytecode
        for _ in range(options.repeat):
            for name, code in READERS.items():
                runs[name].append(measured(code, file))
            loads.append(os.getloadavg()[0])
    result = {
        "benchmark": "xspace", "version": version("perfscope"), "python": platform.python_version(),
        "packages": {name: version(name) for name in ("jax", "numpy", "protobuf")}, "machine": machine(),
        "cores": os.cpu_count(), "load": [min(loads), max(loads)], "source": options.source.name,
        "bytes": size, "events": events, "repeat": options.repeat, "runs": runs,
    }  # fmt: skip
    print(table(result))
    if options.results:
        target = options.results / machine() / f"{version('perfscope')}-xspace.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(result, indent=1) + "\n")
    if options.markdown:
        text = options.markdown.read_text()
        before, _, rest = text.partition("<!-- xspace -->\n")
        _, _, after = rest.partition("<!-- /xspace -->")
        options.markdown.write_text(f"{before}<!-- xspace -->\n{table(result)}\n<!-- /xspace -->{after}")


def machine() -> str:
    """Processor and cores, as the name of a folder."""
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]  # fmt: skip
    words = "".join(letter if letter.isalnum() else "-" for letter in (names or [platform.machine()])[0])
    return f"{words.strip('-')}-{os.cpu_count()}"


if __name__ == "__main__":
    main()
