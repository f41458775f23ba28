"""The Kineto reader on damaged and hostile files: read, or refused in one line that names the file."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.readers import kineto
from perfscope.analyzers.trace import Trace
from perfscope.profiler.errors import DataError
from tests.analyzers.readers.test_kineto import events, read, text


def refused(folder: Path, content: bytes) -> str:
    path = folder / "bad.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        kineto.read(path)
    line = str(caught.value)
    assert line.startswith(str(path))
    assert "\n" not in line
    return line.removeprefix(f"{path}: ")


def read_or_refused(folder: Path, content: bytes) -> Trace | str:
    """The checked trace, or the one line with which it was refused; any other error fails the test."""
    try:
        return read(folder, content)
    except DataError:
        return refused(folder, content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty file"),
        (b"{}", 'no "traceEvents" in it: not a trace of torch.profiler'),
        (b"hello", 'no "traceEvents" in it: not a trace of torch.profiler'),
        (b'{"traceEvents": []}', "0 events, but none of torch.profiler"),
        (b'{"traceEvents": [{"ph": "X"', "cut off or corrupt: the event array does not end (read 27 bytes)"),
        (b'{"traceEvents": [1, 2]}', "cut off or corrupt: the event array does not end (read 23 bytes)"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "tf_op", "name": "x", "ts": 1, "dur": 2}]}',
            "1 events, but none of torch.profiler (1 of category tf_op)",
        ),
        (b"\x1f\x8b\x08\x00broken", "gzip is cut off within the first 4 MiB of its content"),
    ],
)
def test_bad_files_get_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    assert refused(tmp_path, content) == said


@pytest.mark.parametrize("base", [-1, 2**61, 2**63, 10**30])
def test_a_base_that_is_no_time_is_refused(tmp_path: Path, base: int) -> None:
    said = refused(tmp_path, text(events(), baseTimeNanoseconds=base).encode())
    assert said.startswith("baseTimeNanoseconds is ")


def test_hundredfold_nesting_is_read_or_refused(tmp_path: Path) -> None:
    for depth in (100, 100_000):
        deep = b"[" * depth + b"]" * depth
        head = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "x", "ts": 1, "dur": 2, "args": {"deep": '
        content = head + deep + b"}}]}"
        found = read_or_refused(tmp_path, content)
        if isinstance(found, Trace):
            assert found.source.events_read == 1
        else:
            assert depth > 1000


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_cut_anywhere_is_one_line(tmp_path: Path, data: st.DataObject) -> None:
    whole = text(events(), indent=data.draw(st.sampled_from([None, 1]))).encode()
    if data.draw(st.booleans()):
        whole = gzip.compress(whole)
    refused(tmp_path, whole[: data.draw(st.integers(0, len(whole) - 1))])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_flipped_bytes_are_read_or_refused_in_one_line(tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(text(events()).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    read_or_refused(tmp_path, bytes(damaged))


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfscope.analyzers.readers import _bytes

    monkeypatch.setattr(_bytes, "LARGEST", 1 << 20)
    assert "refused" in refused(tmp_path, gzip.compress(b'{"traceEvents": [' + b" " * (64 << 20)))


def test_a_large_gzip_is_mapped_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfscope.analyzers.readers import _bytes

    monkeypatch.setattr(_bytes, "IN_MEMORY", 100)
    assert read(tmp_path, gzip.compress(text(events()).encode())).source.events_read == len(events())


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing.json: No such file"):
        kineto.read(tmp_path / "nothing.json")
    with pytest.raises(DataError, match="directory"):
        kineto.read(tmp_path)
