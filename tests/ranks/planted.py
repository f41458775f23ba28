"""Real recordings of the corpus with a planted defect: written as files again, and read by the reader.

Slowing a collective shifts whatever came later on that rank by as much, on the host and on the device, and lengthens
what went on meanwhile: everything around it stays as it was recorded.
"""

from __future__ import annotations

import gzip
import json
import pickle
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.model.trace import Trace

Event = dict[str, Any]
Recording = dict[str, Any]
Plant = Callable[[list[Event], int], list[Event]]
"""(events of a rank, its number) -> events with the defect in them."""


@cache
def _recording(path: Path) -> Recording:
    with gzip.open(path, "rt") as file:
        result: Recording = json.load(file)
    return result


@cache
def _pickled(path: Path) -> bytes:
    """The events of a recording: a copy by pickle takes a tenth of a deep copy."""
    return pickle.dumps(_recording(path)["traceEvents"], protocol=5)


def planted(files: Sequence[Path], folder: Path, plant: Plant) -> list[Trace]:
    """Traces of the ranks of ``files``, in their order, with what ``plant`` changes."""
    traces = []
    folder.mkdir(exist_ok=True)
    for rank, path in enumerate(files):
        recording = dict(_recording(path))
        told = {"rank": rank, "world_size": len(files)}
        recording["distributedInfo"] = {**recording["distributedInfo"], **told}
        recording["traceEvents"] = plant(pickle.loads(_pickled(path)), rank)
        written = folder / f"rank{rank}_{path.name.removesuffix('.gz')}"
        written.write_text(json.dumps(recording))
        traces += load_all(written)
    return traces


@cache
def job_of(corpus: Path, pattern: str) -> tuple[Trace, ...]:
    """The ranks of a recorded job of the corpus, read once."""
    files = sorted((corpus / "kineto").glob(pattern))
    assert files
    return tuple(trace for file in files for trace in load_all(file))


def recorded_events(path: Path) -> list[Event]:
    """The events of a recording as they are; not to be changed."""
    result: list[Event] = _recording(path)["traceEvents"]
    return result


def communication(events: Sequence[Event], name: str) -> list[Event]:
    """Kernels of NCCL whose name holds ``name``, by start."""
    found = [event for event in events if event.get("cat") == "kernel" and name in event["name"]]
    return sorted(found, key=lambda event: event["ts"])


def slowed(events: list[Event], kernels: Sequence[Event], by: Sequence[float]) -> list[Event]:
    """The events with each of ``kernels`` lasting ``by`` us longer, and all that follows later by as much."""
    more = {id(kernel): extra for kernel, extra in zip(kernels, by, strict=True)}
    ends = sorted((kernel["ts"] + kernel["dur"], extra) for kernel, extra in zip(kernels, by, strict=True))
    moments = [end for end, _ in ends]
    behind = [0.0, *accumulate(extra for _, extra in ends)]
    for event in events:
        if "ts" not in event:
            continue
        start = event["ts"]
        later = start + behind[bisect_right(moments, start)]
        if "dur" in event:
            end = start + event["dur"]
            moved = end + behind[bisect_left(moments, end)] + more.get(id(event), 0.0)
            event["dur"] = max(0.0, moved - later)
        event["ts"] = later
    return events


def cores(files: Sequence[Path], name: str) -> list[float]:
    """us that each collective of that name took on the rank that came last to it, in their order."""
    found = [[event["dur"] for event in communication(recorded_events(path), name)] for path in files]
    return [min(each) for each in zip(*found, strict=True)]


def subjects(traces: Sequence[Trace], rules: Sequence[str]) -> set[tuple[str, str]]:
    """(rule, subject) of all that these rules find."""
    result: Analysis = analyze(traces, rules)
    return {(rule, finding.subject) for rule, finding in result.findings()}
