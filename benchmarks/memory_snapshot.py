"""Reads one large CUDA memory snapshot with perfscope, with plain ``pickle.load`` and as torch's own trace of it.

    python benchmarks/memory_snapshot.py [--source FILE.pickle.gz] [--megabytes 1000] [--repeat 1] [--torch]

The snapshot is a real one whose history is repeated until the file is large enough: each copy begins with the memory
held when the first one began, so the peak stays that of the source. It is written by ``pickle.dump``, as torch does.
Every reader is a separate process on the same file, in turn; of ``--repeat`` runs the one with the least processor time
counts, because the machine may be shared. Memory is the largest resident set of the process less that of the same
process before it opened the file, mapped pages included.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("PERFSCOPE_CORPUS", REPOSITORY.parent / "shared" / "data"))
SOURCE = CORPUS / "torch_mem" / "assignment2-systems__medium512_train.pickle.gz"

_MEASURE = """
import json, sys, time
def memory():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
{before}
held, t, used = memory(), time.perf_counter(), time.process_time()
{work}
took, used = time.perf_counter() - t, time.process_time() - used
print(json.dumps(dict(wall=took, seconds=used, bytes=memory() - held, entries=entries, peak=peak)))
"""
_REPLAY = """
def replay(found):
    events = found["device_traces"][0]
    now = sum(b["requested_size"] for s in found["segments"] for b in s["blocks"] if b["state"] != "inactive")
    most = now
    for event in reversed(events):
        if event["action"] == "alloc":
            now -= event["size"]
        elif event["action"] == "free_completed":
            now += event["size"]
        most = max(most, now)
    return most
"""
READERS = {
    "perfscope, read": (
        "from pathlib import Path\nfrom perfscope.analyzers.readers.torch_memory.reader import read",
        "trace = read(Path(sys.argv[1]))\n"
        "entries, peak = trace.source.events_read, int(trace.rows['memory']['allocated_bytes'].max())",
    ),
    "pickle.load": (
        "import pickle",
        "found = pickle.load(open(sys.argv[1], 'rb'))\nentries, peak = len(found['device_traces'][0]), None",
    ),
    "pickle.load and a loop over the entries": (
        "import pickle" + _REPLAY,
        "found = pickle.load(open(sys.argv[1], 'rb'))\nentries, peak = len(found['device_traces'][0]), replay(found)",
    ),
}
TORCH = {
    "torch.cuda._memory_viz.trace": (
        "import pickle\nfrom torch.cuda._memory_viz import trace",
        "found = pickle.load(open(sys.argv[1], 'rb'))\ntrace(found)\n"
        "entries, peak = len(found['device_traces'][0]), None",
    ),
}
"""torch's own walk over a snapshot; its HTML is drawn by the browser, which needs the whole file as text."""


def replicate(source: Path, out: Path, megabytes: int) -> int:
    """Write a snapshot of ``megabytes`` whose history is that of ``source`` over and over; the number of copies."""
    packed = source.read_bytes()
    raw = gzip.decompress(packed) if packed.startswith(b"\x1f\x8b") else packed
    snapshot = pickle.loads(raw)
    events = snapshot["device_traces"][0]
    back = list(_back(events))
    period = events[-1]["time_us"] - events[0]["time_us"] + 1000
    copies = max(round(megabytes * 1e6 / len(pickle.dumps([*events, *back]))), 1)
    gc.disable()
    written = snapshot["device_traces"][0] = []
    for copy in range(copies):
        lists: dict[int, list[Any]] = {}
        once = events if copy == copies - 1 else (*events, *back)
        written.extend(_copied(event, copy * period, lists) for event in once)
    with out.open("wb") as file:
        pickle.dump(snapshot, file)
    return copies


def _back(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Events that lead from the end of the history to what was held when it began."""
    first: dict[tuple[str, int], dict[str, Any]] = {}
    last: dict[tuple[str, int], dict[str, Any]] = {}
    for event in events:
        if event["action"] in ("alloc", "free_completed", "segment_alloc", "segment_free"):
            place = (event["action"].partition("_")[0] * (event["action"][0] == "s"), event["addr"])
            first.setdefault(place, event)
            last[place] = event
    for place, event in last.items():
        moment = {"time_us": events[-1]["time_us"] + 1}
        if event["action"] == "segment_alloc" == first[place]["action"]:
            yield {**event, **moment, "action": "segment_free"}
        if event["action"] == "alloc":
            yield {**event, **moment, "action": "free_requested"}
            yield {**event, **moment, "action": "free_completed"}
        if first[place]["action"] == "free_completed":
            yield {**first[place], **moment, "action": "alloc"}


def _copied(event: dict[str, Any], later: int, lists: dict[int, list[Any]]) -> dict[str, Any]:
    """As made by torch: words and lists of frames are separate objects, frames are shared."""
    frames = event.get("frames", [])
    shared = lists.setdefault(id(frames), list(frames))
    return {
        name: shared if name == "frames" else "".join(list(value)) if name == "compile_context" else value
        for name, value in {**event, "time_us": event["time_us"] + later}.items()
    }


def measure(code: tuple[str, str], file: Path) -> dict[str, Any]:
    """One reader's result for the file, in a separate process."""
    script = _MEASURE.format(before=code[0], work=code[1])
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(file)], env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--torch", action="store_true", help="torch.cuda._memory_viz.trace too (slow)")
    parser.add_argument("--keep", type=Path, help="a file to use, made if it is not there, and kept")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perfscope-") as folder:
        file = asked.keep or Path(folder) / "snapshot.pickle"
        if not file.exists():
            replicate(asked.source, file, asked.megabytes)
        size = file.stat().st_size
        readers = {**READERS, **(TORCH if asked.torch else {})}
        best: dict[str, dict[str, Any]] = {}
        for _ in range(asked.repeat):
            for name, code in readers.items():
                found = measure(code, file)
                if name not in best or found["seconds"] < best[name]["seconds"]:
                    best[name] = found
    ours = best["perfscope, read"]
    print(f"{size / 1e9:.2f} GB, {ours['entries']:,} entries\n")
    print("| reader | wall | CPU | of pickle.load | memory | of the file | peak of the history |")
    print("|-|-:|-:|-:|-:|-:|-:|")
    for name, found in best.items():
        ratio = found["seconds"] / best["pickle.load"]["seconds"]
        peak = "" if found["peak"] is None else f"{found['peak']:,} B"
        print(
            f"| {name} | {found['wall']:.1f} s | {found['seconds']:.1f} s | {ratio:.2f} "
            f"| {found['bytes'] / 1e9:.2f} GB | {found['bytes'] / size:.2f} | {peak} |"
        )


if __name__ == "__main__":
    main()
