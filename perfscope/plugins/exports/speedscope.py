"""speedscope (https://www.speedscope.app): stacks over time of every host thread, and device time by stack and scope.

Three kinds of profiles in one file: a thread's spans in the order they opened and closed; the time of kernels and
copies by the host spans that launched them; the measured time of XLA instructions by scope. The last two are sums,
whose order has no meaning. Times are ns after the first event, as whole numbers.
File format: https://github.com/jlfwong/speedscope/blob/main/src/lib/file-format-spec.ts
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

import numpy as np

from perfscope.analyzers.hlo import hlo_time, scope_of
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from perfscope.model.trace.columns import MISSING
from perfscope.plugins.exports.events import Tracks, fit
from perfscope.plugins.exports.export import Subject
from perfscope.plugins.exports.files import whole_file
from perfscope.plugins.exports.lanes import placed
from perfscope.plugins.exports.perfetto import label_of
from perfscope.plugins.exports.scene import Scene

SUFFIX = ".speedscope.json"
FOLDER = False

SCHEMA = "https://www.speedscope.app/file-format-schema.json"

_BLOCK = 1 << 15
"""Opened and closed frames that are serialised at once."""


def write(subject: Subject, target: Path) -> list[str]:
    """Write ``subject`` to ``target``. ``DataError``: it has no stacks, neither host spans nor measured programs."""
    frames = _Frames()
    with whole_file(target) as stream:
        stream.write(b'{"profiles": [')
        count = sum(_of_trace(subject, index, frames, stream) for index in range(len(subject.traces)))
        if not count:
            raise DataError(f"{subject.traces[0].source.path}: no stacks: neither spans of the host nor timed programs")
        rest = {
            "$schema": SCHEMA,
            "shared": {"frames": frames.frames},
            "name": fit(Path(subject.traces[0].source.path).name),
            "activeProfileIndex": 0,
            "exporter": "perfscope",
        }
        stream.write(b"], " + json.dumps(rest).encode("utf-8", "replace")[1:])
    return ["only what has stacks is in it: memory, counters, steps and single kernels are not"]


class _Frames:
    """The frames shared by all profiles."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self._known: dict[tuple[str, str | None, int | None], int] = {}
        self.profiles = 0

    def number(self, name: str, file: str | None = None, line: int | None = None) -> int:
        """Number of a frame; its texts are sanitised."""
        key = (name, file, line)
        if key not in self._known:
            self._known[key] = len(self.frames)
            frame: dict[str, Any] = {"name": fit(name)}
            if file is not None:
                frame |= {"file": fit(file)} | ({"line": line} if line is not None else {})
            self.frames.append(frame)
        return self._known[key]

    def begun(self) -> bytes:
        """Text before the next profile."""
        self.profiles += 1
        return b",\n" if self.profiles > 1 else b"\n"


def _of_trace(subject: Subject, index: int, frames: _Frames, stream: IO[bytes]) -> int:
    trace = subject.traces[index]
    label = label_of(index, len(subject.traces), trace.source.rank)
    before = frames.profiles
    _threads(trace, index, label, frames, stream)
    for title, stacks in (("device time by host stack", _launched(trace)), ("XLA time by scope", _scoped(trace))):
        if stacks:
            stream.write(frames.begun() + _sampled(f"{label}{title}", stacks, frames))
    return frames.profiles - before


def _threads(trace: Trace, index: int, label: str, frames: _Frames, stream: IO[bytes]) -> None:
    """One evented profile per thread, with a separate profile for spans that overlap without nesting."""
    tracks = Tracks()
    scene = Scene(trace, tracks, index=index, label=label)
    for group in placed(scene.on_host(), tracks):
        events, first = group.events, int(group.events.start_ns.min())
        numbers = {code: frames.number(scene.texts.shown(code)) for code in np.unique(events.name).tolist()}
        entries = events.track[group.rows]
        for uuid in np.unique(entries).tolist():
            mine = np.flatnonzero(entries == uuid)
            rows, ends = group.rows[mine], group.ends[mine]
            positions = np.where(ends, events.end_ns[rows], events.start_ns[rows]) - first
            track = tracks[uuid]
            head = {
                "type": "evented",
                "name": f"{tracks.top(uuid).name} {track.name}",
                "unit": "nanoseconds",
                "startValue": int(positions[0]),
                "endValue": int(positions[-1]),
            }
            stream.write(frames.begun() + json.dumps(head).encode("utf-8", "replace")[:-1] + b', "events": [')
            for low in range(0, len(rows), _BLOCK):
                part = slice(low, low + _BLOCK)
                columns = (events.name[rows[part]].tolist(), ends[part].tolist(), positions[part].tolist())
                text = ",".join(
                    f'{{"type":"{"C" if ending else "O"}","frame":{numbers[code]},"at":{time}}}'
                    for code, ending, time in zip(*columns, strict=True)
                )
                stream.write((b"," if low else b"") + text.encode())
            stream.write(b"]}")


Frame = tuple[str, str | None, int | None]


def _launched(trace: Trace) -> dict[tuple[Frame, ...], int]:
    """Time of kernels and copies by the spans around the op that launched them, outermost first, then by their name."""
    slices = trace.rows["slices"]
    names, parents = slices["name"].tolist(), slices["parent"].tolist()
    paths: dict[int, tuple[Frame, ...]] = {MISSING: ()}

    def path(row: int) -> tuple[Frame, ...]:
        climb = []
        while row not in paths:
            climb.append(row)
            row = parents[row]
        for value in reversed(climb):
            paths[value] = (*paths[parents[value]], (trace.strings[names[value]], None, None))
        return paths[climb[0]] if climb else paths[row]

    result: dict[tuple[Frame, ...], int] = {}
    for table in ("kernels", "copies"):
        rows = trace.rows[table]
        if not len(rows):
            continue
        keys = np.stack((rows["op"].astype(np.int64), rows["name"].astype(np.int64)))
        kinds, positions = np.unique(keys, axis=1, return_inverse=True)
        total = np.zeros(kinds.shape[1], np.int64)
        np.add.at(total, positions.ravel(), rows["end_ns"] - rows["start_ns"])
        for (op, name), ns in zip(kinds.T.tolist(), total.tolist(), strict=True):
            stack = (*path(op), (trace.strings[name], None, None))
            result[stack] = result.get(stack, 0) + ns
    return result


def _scoped(trace: Trace) -> dict[tuple[Frame, ...], int]:
    """Measured time of instructions by program and scope. Enclosing instructions are left out: others cover them."""
    result: dict[tuple[Frame, ...], int] = {}
    if not len(trace.rows["hlo_ops"]):
        return result
    for instruction in trace.fact(hlo_time).instructions:
        if instruction.encloses:
            continue
        stack: list[Frame] = [(instruction.module, None, None)]
        leaf: Frame = (instruction.instruction, None, None)
        if instruction.module_index is not None and instruction.computation is not None:
            held = (
                trace.hlo[instruction.module_index]
                .computations[instruction.computation]
                .by_name[instruction.instruction]
            )
            scope = scope_of(held.op_name)
            stack += [(scope.phase, None, None), *((name, None, None) for name in scope.path)]
            leaf = (instruction.instruction, held.file, held.line)
        key = (*stack, leaf)
        result[key] = result.get(key, 0) + instruction.total_ns
    return result


def _sampled(name: str, stacks: dict[tuple[Frame, ...], int], frames: _Frames) -> bytes:
    """Stacks with their time as a sampled profile, longest first."""
    ordered = sorted(stacks.items(), key=lambda pair: -pair[1])
    profile = {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(ns for _, ns in ordered),
        "samples": [[frames.number(*frame) for frame in stack] for stack, _ in ordered],
        "weights": [ns for _, ns in ordered],
    }
    return json.dumps(profile).encode("utf-8", "replace")
