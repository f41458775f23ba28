"""The Nsight Systems reader on damaged and hostile databases: read, or refused in one line that names the file."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.readers import nsys
from perfscope.analyzers.trace import Trace
from perfscope.profiler.errors import DataError
from tests.analyzers.readers.nsys_export import small, tid_of
from tests.analyzers.readers.test_nsys_ranges import nccl_export

SLOW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def read_or_refused(path: Path) -> list[Trace] | str:
    """The checked traces, or the one line with which it was refused; any other error fails the test."""
    try:
        traces = nsys.read(path)
    except DataError as error:
        line = str(error)
        assert line.startswith(str(path))
        assert "\n" not in line
        return line.removeprefix(f"{path}: ")
    for trace in traces:
        trace.check()
    return traces


class Whole(bytes):
    """A sound file; a failing example is not to print all of it."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    export = nccl_export(group=True)
    for place in range(300):
        export.call("cudaLaunchKernel_v7000", 100 + place, 100.5 + place, correlation=10 + place)
        export.kernel(f"kernel {place}", 101 + place, 101.8 + place, correlation=10 + place)
    export.copy(900, 950, kind=1, source=0, target=2, size=1 << 20)
    return Whole(export.write(tmp_path_factory.mktemp("whole") / "whole.sqlite").read_bytes())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read as SQLite"),
        (b"hello", "cannot be read as SQLite"),
        (b"SQLite format 3\x00", "cannot be read as SQLite"),
        (b"\x1f\x8b\x08\x00broken", "gzip is cut off within the first 4 MiB of its content"),
    ],
)
def test_what_is_no_database_gets_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.sqlite"
    path.write_bytes(content)
    found = read_or_refused(path)
    assert isinstance(found, str)
    assert said in found or "no events in it" in found


@SLOW
@given(share=st.floats(0, 1))
def test_a_file_that_is_cut_off_is_refused_or_sound(tmp_path: Path, whole: Whole, share: float) -> None:
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[: int(len(whole) * share)])
    read_or_refused(path)


@SLOW
@given(seed=st.integers(0, 2**32), count=st.integers(1, 200))
def test_flipped_bytes_are_refused_or_sound(tmp_path: Path, whole: Whole, seed: int, count: int) -> None:
    damaged = bytearray(whole)
    source = random.Random(seed)
    for _ in range(count):
        damaged[source.randrange(100, len(damaged))] = source.randrange(256)
    path = tmp_path / "flipped.sqlite"
    path.write_bytes(damaged)
    read_or_refused(path)


@SLOW
@given(
    st.lists(
        st.tuples(*[st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=3), st.floats())] * 8),
        max_size=6,
    )
)
def test_any_value_in_any_column_is_refused_or_sound(tmp_path: Path, rows: list[tuple[object, ...]]) -> None:
    path = tmp_path / "any.sqlite"
    path.unlink(missing_ok=True)
    small().write(path)
    connection = sqlite3.connect(path)
    for row in rows:
        for table, columns in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", "start, end, deviceId, streamId, correlationId, globalPid, gridX, blockX"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "start, end, globalTid, nameId, correlationId"),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", "start, end, bytes, copyKind, srcKind, dstKind, globalPid, deviceId"),
            ("NVTX_EVENTS", "start, end, eventType, text, globalTid, textId, domainId, binaryData"),
            ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "start, end, syncType, deviceId, globalPid, contextId, eventId"),
        ):
            names = columns.replace("end", '"end"').split(", ")
            marks = ", ".join("?" for _ in names)
            connection.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", row[: len(names)])
    connection.commit()
    connection.close()
    read_or_refused(path)


def test_rows_without_a_sound_time_are_counted(tmp_path: Path) -> None:
    export = small()
    where = {"globalTid": tid_of(100, 1), "nameId": 1, "correlationId": 0}
    for start, end in ((50, 40), (2**62, 2**62 + 5), (None, 3), (7, None)):
        export.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, **where)
    (trace,) = nsys.read(export.write(tmp_path / "report.sqlite"))
    trace.check()
    assert len(trace.rows["calls"]) == 3
    assert dict(trace.source.unplaced) == {
        "CUPTI_ACTIVITY_KIND_RUNTIME: a row that ends before it starts": 1,
        "CUPTI_ACTIVITY_KIND_RUNTIME: a row without a sound time": 2,
        "CUPTI_ACTIVITY_KIND_RUNTIME: a row that never ended": 1,
    }


def test_a_generated_column_cannot_call_anything(tmp_path: Path) -> None:
    path = small().write(tmp_path / "report.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    connection.execute(
        'CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, "end" INTEGER AS (length(hex(zeroblob(400000000)))))'
    )
    connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start) VALUES (1)")
    connection.commit()
    connection.close()
    (trace,) = nsys.read(path)  # a column that is computed is no column of the recording
    assert len(trace.rows["kernels"]) == 0
    assert dict(trace.source.unplaced) == {"CUPTI_ACTIVITY_KIND_KERNEL: a row that never ended": 1}


def test_nothing_is_written_beside_the_file(tmp_path: Path) -> None:
    path = small().write(tmp_path / "report.sqlite")
    before = path.read_bytes()
    nsys.read(path)
    assert [place.name for place in tmp_path.iterdir()] == ["report.sqlite"]
    assert path.read_bytes() == before
