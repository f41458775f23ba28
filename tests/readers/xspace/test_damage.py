"""The XSpace reader on damaged and hostile files: read, or refused in one line that names the file."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.readers.xspace import planes
from perfscope.analyzers.readers.xspace import reader as xspace_reader
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from tests.readers.refusals import refused
from tests.readers.wire import SpaceWriter, field
from tests.readers.xspace.profiles import CALLS, GPU, TPU_OPS, US, op

CUT = "its end is cut off"
"""Note of a trace if an older profiler's file cannot be distinguished from a truncated one."""


def space(*, environment: bool = True) -> SpaceWriter:
    writer = SpaceWriter().metadata(**{"jit_f(7)": b"not a module"})
    writer.plane("/device:GPU:0", GPU, core_count=132).plane("/device:TPU:0", {"XLA Ops": TPU_OPS})
    writer.plane("/host:CPU", {**CALLS, "pool": [op("dot", 1, 2, 1), ("end: dot", 3 * US, 3 * US, {"_c": 1})]})
    return writer.plane("Task Environment", {}, profile_start_time=1 << 60) if environment else writer


def said_of(folder: Path, content: bytes) -> str:
    return refused(xspace_reader.read, folder / "bad.xplane.pb", content)


def read(folder: Path, content: bytes) -> Trace:
    path = folder / "bad.xplane.pb"
    path.write_bytes(content)
    trace = xspace_reader.read(path)
    assert isinstance(trace, Trace)
    trace.check()
    return trace


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty file"),
        (b"hello", "cut off or corrupt: not an XSpace (unknown field at byte 0)"),
        (b"\x0a", "cut off or corrupt: truncated varint at byte 1"),
        (b"\x0a" + b"\x80" * 10 + b"\x01", "cut off or corrupt: varint of more than 10 bytes at byte 1"),
        (b"\x0f", "cut off or corrupt: field of unknown wire type 7 at byte 0"),
        (b"\x2a\x00", "cut off or corrupt: not an XSpace (unknown field at byte 0)"),
        (b"\x22\x01h", "no planes: not an XSpace, or cut off"),
        (field(1, field(2, "/host:CPU")) + b"\x22\x01h", "0 events in 1 planes, but none of a program"),
        (field(1, field(2, b"\xff\xfe")), "cut off or corrupt: not a XPlane"),
        (b"\x1f\x8b\x08\x00broken", "gzip is cut off within the first 4 MiB of its content"),
    ],
)
def test_bad_files_get_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    assert said_of(tmp_path, content) == said


def test_a_claimed_size_is_not_allocated(tmp_path: Path) -> None:
    plane = b"\x0a" + b"\xff" * 8 + b"\x0f" + b"xyz"
    assert "field of 1,152,921,504,606,846,975 bytes where 3 are left" in said_of(tmp_path, plane)
    line = b"\x1a" + b"\xff" * 8 + b"\x0f"
    assert "bytes where 0 are left" in said_of(tmp_path, field(1, field(2, "/host:CPU") + line) + b"\x22\x01h")


@pytest.mark.parametrize(("offset", "duration"), [(1 << 62, 1), (0, 1 << 62), (0, (1 << 64) - 5), (1 << 63, 0)])
def test_impossible_times_are_refused(tmp_path: Path, offset: int, duration: int) -> None:
    event = field(4, field(1, 1) + field(2, offset) + field(3, duration))
    plane = field(2, "/host:CPU") + field(3, field(2, "python") + event)
    assert said_of(tmp_path, field(1, plane) + b"\x22\x01h") == "corrupt: line 'python' has impossible times"


@pytest.mark.parametrize("start", [(1 << 64) - 5, 1 << 63, 1 << 61, "soon"])
def test_an_impossible_start_of_the_profile_moves_nothing(tmp_path: Path, start: int | str) -> None:
    trace = read(tmp_path, space(environment=False).plane("Task Environment", {}, profile_start_time=start).bytes())
    assert int(trace.rows["kernels"]["end_ns"].max()) < 1 << 40


def test_limits_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planes, "MAX_LINE_BYTES", 10)
    assert said_of(tmp_path, space().bytes()).endswith("bytes: refused")
    monkeypatch.undo()
    monkeypatch.setattr(planes, "MAX_METADATA", 3)
    assert said_of(tmp_path, space().bytes()) == "a plane of more than 3 names: refused"
    monkeypatch.undo()
    monkeypatch.setattr(xspace_reader, "MAX_BYTES", 100)
    assert said_of(tmp_path, space().bytes()).endswith("refused")
    assert said_of(tmp_path, gzip.compress(space().bytes())).endswith("refused")


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    deep = b""
    for _ in range(200):
        deep = field(6, deep) if len(deep) < 100 else field(15, deep)
    trace_or_line = field(1, field(2, "/host:CPU") + deep) + b"\x22\x01h"
    assert said_of(tmp_path, trace_or_line)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_cut_anywhere_is_one_line_or_said(tmp_path: Path, data: st.DataObject) -> None:
    """A cut between two planes leaves a valid smaller space: refused, or noted as possibly truncated."""
    whole = space().bytes()
    packed = data.draw(st.booleans())
    place = data.draw(st.integers(0, len(whole) - 1))
    cut = gzip.compress(whole, mtime=0)[: place // 2] if packed else whole[:place]
    try:
        trace = read(tmp_path, cut)
    except DataError:
        said_of(tmp_path, cut)
        return
    complete = whole[: -len(b"\x22\x06a-host")]
    assert cut == complete or any(CUT in note for note in trace.source.notes)
    assert len(trace.rows["kernels"]) == len(read(tmp_path, whole).rows["kernels"])


def test_every_cut_between_planes(tmp_path: Path) -> None:
    frames = [field(1, plane) for plane in space().planes]
    for count in range(len(frames)):
        cut = b"".join(frames[:count])
        if count < 4:
            said_of(tmp_path, cut)
        else:
            assert any(CUT in note for note in read(tmp_path, cut).source.notes)
    assert not any(CUT in note for note in read(tmp_path, b"".join(frames)).source.notes)


def test_a_damaged_program_is_left_out_and_said(tmp_path: Path) -> None:
    trace = read(tmp_path, space().bytes())
    assert trace.hlo == ()
    assert "hlo" not in trace.recorded
    assert any(note.startswith("the program jit_f(7) was not read: ") for note in trace.source.notes)
