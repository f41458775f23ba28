"""Kineto through the native library equals the reader in Python, to the nanosecond and the last text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from perfscope import native
from perfscope.analyzers.readers.kineto import decode, native_decode, reader
from tests.conftest import corpus_files, every_file
from tests.fuzz.mutate import json_text as changed
from tests.fuzz.mutate import mutated
from tests.native.twins import assert_equal, both, needs_library
from tests.readers.test_kineto import events, span, text

SEEDS = range(int(os.environ.get("TWIN_SEEDS", "150")))
"""Mutated files; a long search takes 20,000 and more."""

ODD = [
    span("cpu_op", 'names \u00e4\U0001f600 \\ " \n \u2028', 2000, 1),
    span("cpu_op", "c10d::send", 2001, 1, args={"Concrete Inputs": ["", "", "3", "0"], "Input Dims": [[1], []]}),
    span("cpu_op", "triton_poi", 2002, 1, args={"grid": "grid(100,)", "Input Dims": [[1, 2]], "Sequence number": 3}),
    span("Operator", "old", 2003.5, 1, args={"external id": 3}),
    span("Kernel", "old kernel", 2004, 1, pid=0, tid="stream 7", args={"grid": [1, 2], "block": [3]}),
    span("kernel", "numbers", 2005, 1, pid=0, tid=7, args={"stream": None, "device": "1", "grid": [], "block": None}),
    span("kernel", "shares", 2006, 1, pid=0, tid=7, args={"est. achieved occupancy %": 33.3, "device": -1}),
    span("cpu_op", "long decimals", 2007.123456, 0.0005),
    span("cpu_op", "epoch", 1_713_887_261_998_877.125, 3.5),
    span("cpu_op", "no length", 2008, -1),
    span("unheard of", "elsewhere", 2009, 1),
    span("python_function", "same", 2010, 1),
    span("cpu_op", "same", 2010, 1),
    span("python_function", "same again", 2010, 1),
    span("gpu_user_annotation", "ProfilerStep#3", 2011, 1, pid=0, tid=7),
    span("gpu_user_annotation", "forward", 2011, 1, pid=0, tid=7),
    span("cuda_profiler_range", "sgemm", 2012, 1, pid=0, args={"dram__bytes_read.sum": 4096}),
    span("gpu_memcpy", "Memcpy", 2013, 1, pid=0, tid=7, args={"bytes": "2048", "correlation": 2**70}),
    {"ph": "X", "cat": None, "name": "MEMCPY_ASYNC", "ts": 2014, "dur": 1, "args": {"Task Type": "MEMCPY_ASYNC"}},
    {"ph": "X", "name": "nothing else"},
    {"ph": "I", "name": "[memory]", "ts": 5, "args": {}},
    {"ph": "i", "name": "[memory]", "ts": 2015, "pid": 1, "tid": 1, "args": {"Addr": 1, "Bytes": None}},
    {},
]


@needs_library
@pytest.mark.parametrize("indent", [None, 1])
def test_usual_and_odd_events_give_the_same_tables(
    tmp_path: Path, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.json").write_text(text(events() + ODD + events(), indent=indent))
    plain, fast = both(reader.read, tmp_path / "t.json", monkeypatch)
    assert not isinstance(fast, str)
    assert len(fast.rows["slices"]) == 6 + 9 + 6
    assert_equal(plain, fast)


@needs_library
def test_mutated_files_give_the_same_tables_or_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, content = tmp_path / "t.json", text(events() + ODD).encode()
    for seed in SEEDS:
        path.write_bytes(mutated(content, changed, Random(seed)))
        plain, fast = both(reader.read, path, monkeypatch)
        if not isinstance(plain, str) and plain.source.repairs:
            assert not isinstance(fast, str)
            continue  # What a repair takes for a name depends on where its chunk begins.
        try:
            assert_equal(plain, fast)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


@needs_library
def test_parts_of_a_file_are_read_by_threads_and_damage_by_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [
        span("cpu_op", f"op {number % 7}", 10 * number, 9.5, args={"External id": number}) for number in range(5_000)
    ]
    for broken in (False, True):
        content = text(made)
        if broken:  # As torch writes names with quotes.
            content = content.replace('"op 3"', '"op "3""', 2)
        (tmp_path / "t.json").write_text(content)
        monkeypatch.setattr(decode, "SHARE", 50_000)
        monkeypatch.setattr(native_decode, "STEP", 10_000)
        assert_equal(*both(reader.read, tmp_path / "t.json", monkeypatch))


@needs_library
def test_where_the_library_fails_python_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.json").write_text(text(events() + ODD))
    plain, _ = both(reader.read, tmp_path / "t.json", monkeypatch)

    def fails(*_: object) -> None:
        raise native.FaultError

    monkeypatch.setattr("perfscope.native.kineto.Scan.read", fails)
    assert_equal(plain, reader.read(tmp_path / "t.json"))


@pytest.mark.corpus
@needs_library
@pytest.mark.parametrize("path", every_file(corpus_files("kineto", "*.json.gz")), ids=lambda path: path.name)
def test_the_corpus_gives_the_same_tables(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_equal(*both(reader.read, path, monkeypatch))


def test_the_library_is_built_where_a_compiler_is() -> None:
    if shutil.which("cargo") is None or os.environ.get(native.SWITCH) == "off":
        pytest.skip("there is no Rust compiler, or the library is turned off")
    assert native.library() is not None, "install perfscope again: a Rust compiler came after it"


def test_the_switch_turns_it_off_and_the_reader_works(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(events()))
    program = (
        "import sys; from pathlib import Path; from perfscope import native;"
        "from perfscope.analyzers.readers.kineto import reader;"
        "print(native.state(), len(reader.read(Path(sys.argv[1])).rows['slices']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "t.json")],
        env={**os.environ, native.SWITCH: "off"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"turned off by {native.SWITCH} 6\n"


def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(native.SWITCH, raising=False)
    monkeypatch.setattr(native, "_VERSION", -5)
    assert native.library.__wrapped__() is None
    monkeypatch.setattr(native, "library", native.library.__wrapped__)
    built = any(Path(native.__file__).parent.glob("_core*"))
    assert native.state().startswith("of another machine or version" if built else "not built")
