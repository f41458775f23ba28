"""From a path to traces: by content, with one clear line for everything that is not a trace."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.readers import FORMAT_WORDS, READERS
from perfscope.analyzers.readers import load as loading
from perfscope.analyzers.readers.file_bytes import read_head
from perfscope.analyzers.readers.load import load_all, load_one, load_path
from perfscope.analyzers.readers.run.parts import RunPart
from perfscope.model.errors import DataError, UsageError, see
from perfscope.model.trace import Source, Trace

FAKE = b"FAKE"


class FakeReader(ModuleType):
    """Reads ``FAKE <rank>``; breaks as a reader may on ``FAKE broken`` and ``FAKE value``."""

    @staticmethod
    def sniff(path: Path, head: bytes) -> bool:
        return head.startswith(FAKE)

    @staticmethod
    def read(path: Path) -> Trace:
        words = read_head(path).split()
        if words[1] == b"broken":
            raise DataError(f"{path}: cut off at byte 7")
        if words[1] == b"value":
            raise ValueError("row 3 has no time")
        if words[1] == b"memory":
            raise MemoryError
        rank = None if words[1] == b"none" else int(words[1])
        source = Source(path=str(path), format="fake", rank=rank, events_read=1, events_unplaced=0)
        return Trace(source=source, strings=[], rows={}, recorded=frozenset())


@pytest.fixture(autouse=True)
def fake_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fake_reader", FakeReader("fake_reader"))
    monkeypatch.setitem(loading.READERS, "fake", "fake_reader")


def fake(path: Path, what: object = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(FAKE + f" {what}".encode())
    return path


def problem(path: str | Path) -> str:
    with pytest.raises(DataError) as caught:
        load_all(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_whatever_its_name(tmp_path: Path) -> None:
    (trace,) = load_all(fake(tmp_path / "anything.bin", 3))
    assert trace.source.rank == 3
    assert load_one(tmp_path / "anything.bin").source.rank == 3


def test_gzip_is_seen_through(tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(b"FAKE 5"))
    assert load_one(packed).source.rank == 5


def test_a_folder_gives_all_ranks_in_order_and_says_what_it_skipped(tmp_path: Path) -> None:
    for rank in (10, 2, 1):
        fake(tmp_path / "deep" / f"r{rank}.json", rank)
    fake(tmp_path / "no_rank", "none")
    fake(tmp_path / ".hidden", 99)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty.json").touch()
    loaded = load_path(tmp_path)
    assert [trace.source.rank for trace in loaded.traces] == [1, 2, 10, None]
    assert [(Path(one.path).name, one.reason, one.broken) for one in loaded.skipped] == [
        ("empty.json", "an empty file", False),
        ("notes.txt", "text", False),
    ]
    assert load_all(tmp_path) != []


def test_a_damaged_rank_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    fake(tmp_path / "r0", 0)
    fake(tmp_path / "r1", "broken")
    fake(tmp_path / "r2", "value")
    loaded = load_path(tmp_path)
    assert [(Path(one.path).name, one.broken) for one in loaded.skipped] == [("r1", True), ("r2", True)]
    assert loaded.traces[0].source.notes == (
        "r1 was not read: cut off at byte 7",
        "r2 was not read: corrupt or unsupported file: row 3 has no time",
    )


def test_several_traces_where_one_is_wanted(tmp_path: Path) -> None:
    fake(tmp_path / "a", 0)
    fake(tmp_path / "b", 1)
    with pytest.raises(UsageError, match=r"holds 2 traces; perfscope\.load_all\(\) gives them all"):
        load_one(tmp_path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "an empty file"),
        (gzip.compress(b"", mtime=0), "an empty gzip file"),
        (lzma.compress(b""), "an empty xz file"),
        (gzip.compress(b"{}", mtime=0)[:10], "gzip data that is cut off before its content"),
        (b"\xfd7zXZ\x00", "xz data that is cut off before its content"),
        (b"\x1f\x8bgarbage", "gzip data that cannot be decompressed"),
        (b"SQLite format 3\x00....", "an SQLite database"),
        (b"\xfd7zXZ\x00garbage", "xz data that cannot be decompressed"),
        (b"PK\x03\x04....", "a zip archive (unpack it first)"),
        (b"\x80\x04\x95", "a pickle"),
        (b"<!DOCTYPE html>", "HTML or XML"),
        (b'{"name": "package"}', "JSON, but of no trace format"),
        (b"\xef\xbb\xbf  [1, 2]", "JSON, but of no trace format"),
        (b"version https://git-lfs.github.com/spec/v1", "a git-lfs pointer, not the file itself"),
        ("naïve text".encode(), "text"),
        (bytes(range(128, 256)) * 9, "binary data of an unknown format"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    error, _, formats = problem(file).partition("; perfscope reads: ")
    assert error == f"{file}: {what}"
    assert {"fake", FORMAT_WORDS["kineto"]} <= set(formats.removesuffix(see("I have a trace")).split(", "))


def test_every_format_has_words() -> None:
    assert set(FORMAT_WORDS) == set(READERS) - {"fake"}


@pytest.mark.parametrize(
    ("content", "what", "instead"),
    [
        (b"NVR\x00\x02\x00", "a report of Nsight Compute", "perfscope analyze TRACE ncu.csv"),
        (
            b'{\n  "schema": "1.0.1", "pid": 7,\n  "nodes": []}',
            "an execution trace of PyTorch (Chakra)",
            "torch.profiler",
        ),
        (b'[\n  {"cols": [', "the output of a tool of XProf", "*.xplane.pb"),
    ],
)
def test_files_of_other_tools_are_named_with_what_to_give_instead(
    tmp_path: Path, content: bytes, what: str, instead: str
) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    assert problem(file).startswith(f"{file}: {what}")
    assert instead in problem(file)


def test_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert problem("no.json") == "no.json: no such file or folder"
    assert problem("latest").startswith("perfscope-runs/latest: no run was captured here yet")
    assert problem("a\0b").startswith("a\0b: ")  # the reason differs between Python versions
    assert problem("x" * 5000).startswith("xxx")
    (tmp_path / "void").mkdir()
    assert problem("void") == "void: an empty folder"
    (tmp_path / "void" / "readme.txt").write_text("x")
    assert problem("void") == "void: no trace in it; readme.txt is text"
    fake(tmp_path / "void" / "r0", "broken")
    assert problem("void") == "void: no readable trace: r0: cut off at byte 7"
    os.mkfifo(tmp_path / "pipe")
    assert problem("pipe").startswith("pipe: not a file")
    assert problem("/dev/zero").startswith("/dev/zero: not a file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path) -> None:
    file = fake(tmp_path / "secret")
    file.chmod(0)
    assert problem(file) == f"{file}: permission denied"


def test_a_file_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = fake(tmp_path / "secret")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    assert problem(file) == f"{file}: permission denied"


def test_what_a_reader_stumbles_over_is_one_line_and_memory_is_not_hidden(tmp_path: Path) -> None:
    file = fake(tmp_path / "t", "value")
    assert problem(file) == f"{file}: corrupt or unsupported file: row 3 has no time"
    with pytest.raises(MemoryError):
        load_all(fake(tmp_path / "m", "memory"))


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MOST_FILES", 3)
    for index in range(4):
        fake(tmp_path / str(index), index)
    assert problem(tmp_path).endswith("more than 3 files below it; name a narrower folder")


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    fake(tmp_path / "real" / "r0", 0)
    (tmp_path / "real" / "loop").symlink_to(tmp_path / "real")
    assert len(load_all(tmp_path)) == 1


def test_readers_of_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(loading.READERS, "fake")
    monkeypatch.setattr(loading, "named", lambda kind: {"theirs": "fake_reader"} if kind == "readers" else {})
    assert load_one(fake(tmp_path / "t", 4)).source.rank == 4
    assert loading.known_formats() == tuple(sorted({*READERS, "theirs"}))


def run_directory(folder: Path, name: str) -> Path:
    run = folder / "perfscope-runs" / name
    run.mkdir(parents=True)
    manifest = {"schema": "perfscope.run/1", "id": name, "name": "n", "created_utc": "2026-01-01T00:00:00Z",
                "command": ["train.py"], "state": "finished",
                "processes": [{"schema": "perfscope.process/1", "rank": rank, "directory": f"rank{rank:05d}",
                               "untraced_step_ns": [5, 6]} for rank in (0, 1)]}  # fmt: skip
    (run / "run.json").write_text(json.dumps(manifest))
    return run


@pytest.fixture
def reads_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class RunReader(ModuleType):
        @staticmethod
        def sniff(path: Path, head: bytes) -> bool:
            return (path / "run.json").is_file()

        @staticmethod
        def read_part(part: RunPart) -> list[Trace]:
            file = fake(Path(part.path, "t"), part.processes[0].rank)
            return [FakeReader.read(file)]

    monkeypatch.setitem(sys.modules, "fake_run_reader", RunReader("fake_run_reader"))
    monkeypatch.setitem(loading.READERS, "run", "fake_run_reader")


@pytest.mark.usefixtures("reads_runs")
def test_a_run_by_its_directory_its_name_and_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_directory(tmp_path, "20261120-174233-train-7f3a")
    (tmp_path / "perfscope-runs" / "latest").symlink_to(run.name)
    for path in (run, run.name, "20261120", "latest", "perfscope-runs", "perfscope-runs/latest"):
        loaded = load_path(path)
        assert {trace.source.rank for trace in loaded.traces} == {0, 1}
        assert loaded.run is not None
        assert loaded.run["command"] == ["train.py"]
        assert "untraced_step_ns" not in loaded.run["processes"][0]


@pytest.mark.usefixtures("reads_runs")
def test_several_runs_are_not_taken_for_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_directory(tmp_path, "20261120-174233-train-7f3a")
    run_directory(tmp_path, "20261121-174233-train-1111")
    os.utime("perfscope-runs/20261120-174233-train-7f3a", (2e9, 2e9))  # the newest by its content
    os.utime("perfscope-runs/20261121-174233-train-1111", (1e9, 1e9))
    assert problem("perfscope-runs") == (
        "perfscope-runs: 2 runs, newest first: 20261120-174233-train-7f3a, 20261121-174233-train-1111; "
        "name one, or `latest`: `perfscope analyze perfscope-runs/20261120-174233-train-7f3a`"
    )
    with pytest.raises(UsageError, match="2 runs begin so"):
        load_all("2026")


@given(content=st.binary(max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
def test_any_bytes_give_a_trace_or_one_line(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "any"
    file.write_bytes(content)
    try:
        load_all(file)
        said = f"{file}: read"
    except DataError as error:
        said = str(error)
    assert said.startswith(f"{file}: ")
    assert "\n" not in said
