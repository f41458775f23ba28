"""Makes a large Kineto trace out of a real one: copies shifted in time, with new ids.

    python benchmarks/replicate.py SOURCE.json.gz OUT.json --megabytes 500

Every copy keeps the source's kernels, ops and flows; times, correlation, external ids, flow ids and sequence numbers
are shifted so that no copy collides with another. The string dictionary stays as small as the source's, which flatters
every reader alike.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from pathlib import Path
from typing import Any

ID_ARGS = (
    "External id",
    "correlation",
    "Ev Idx",
    "Record function id",
    "Sequence number",
    "Python id",
    "Python parent id",
)
STEP = re.compile(r"ProfilerStep#(\d+)")
PAUSE_PS = 1_000_000
"""Between copies of an XSpace."""


def replicate(source: Path, out: Path, megabytes: int) -> int:
    """Write copies of ``source`` to ``out`` until it holds ``megabytes``; the number of copies."""
    with gzip.open(source) if source.suffix == ".gz" else source.open("rb") as file:
        document = json.load(file)
    events = [event for event in document.pop("traceEvents") if event.get("ph") != "M"]
    shown = [event for event in events if "ts" in event]
    start = min(event["ts"] for event in shown)
    period = max(event["ts"] + event.get("dur", 0) for event in shown) - start + 1000
    stride = 1 + max(
        max((abs(value) for key in ID_ARGS if isinstance(value := event.get("args", {}).get(key), int)), default=0)
        for event in events
    )
    stride = max(stride, 1 + max(event["id"] for event in events if isinstance(event.get("id"), int)))
    copies = 0
    with out.open("w") as file:
        file.write(json.dumps(document)[:-1] + ', "traceEvents": [\n')
        while file.tell() < megabytes * 1_000_000:
            lines = [json.dumps(_shifted(event, copies, period, stride)) for event in events]
            file.write((",\n" if copies else "") + ",\n".join(lines))
            copies += 1
        file.write("\n]}\n")
    return copies


def _shifted(event: dict[str, Any], copy: int, period: float, stride: int) -> dict[str, Any]:
    moved = dict(event)
    if "ts" in moved:
        moved["ts"] = round(moved["ts"] + copy * period, 3)
    if isinstance(moved.get("id"), int):
        moved["id"] += copy * stride
    if "args" in moved:
        args = dict(moved["args"])
        for key in ID_ARGS:
            if isinstance(args.get(key), int) and args[key] >= 0:
                args[key] += copy * stride
        moved["args"] = args
    found = STEP.fullmatch(moved.get("name", ""))
    if found:
        moved["name"] = f"ProfilerStep#{int(found[1]) + 1000 * copy}"
    return moved


def replicate_xspace(source: Path, target: Path, copies: int) -> int:
    """Write ``source`` with the events of each line ``copies`` times; the number of events."""
    from perfscope.analyzers.hlo.protos import decode

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=int, default=500)
    options = parser.parse_args()
    copies = replicate(options.source, options.out, options.megabytes)
    print(f"{options.out}: {copies} copies, {options.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
