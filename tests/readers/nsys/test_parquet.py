"""Exports as folders of parquet files: the same traces as of SQLite; damage is refused in one line."""

from __future__ import annotations

import gzip
import importlib
import lzma
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_all, load_path
from perfscope.analyzers.readers.nsys import jax_toolbox
from perfscope.analyzers.readers.nsys import reader as nsys_reader
from perfscope.analyzers.time.device_time import device_times
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from tests.conftest import corpus_files
from tests.readers.nsys.exports import small, tid_of
from tests.readers.nsys.test_tables import nccl_export

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def converted(database: Path, folder: Path) -> Path:
    """The tables of an export as ``nsys`` writes them to a folder: ids unsigned, one file a table."""
    folder.mkdir()
    connection = sqlite3.connect(database)
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        columns = [(row[1], row[2]) for row in connection.execute(f'PRAGMA table_info("{table}")')]
        rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
        arrays = {}
        for place, (name, kind) in enumerate(columns):
            values = [row[place] for row in rows]
            whole = kind == "INTEGER"
            unsigned = name in ("globalTid", "globalPid", "address")
            if unsigned:
                values = [None if value is None else value % 2**64 for value in values]
            binary = name == "binaryData"
            arrays[name] = pa.array(values, pa.uint64() if unsigned else pa.int64() if whole else pa.binary() if binary
                                    else pa.float64() if kind == "REAL" else pa.string())  # fmt: skip
        pq.write_table(pa.table(arrays), folder / f"{table}.parquet")
    connection.close()
    return folder


def assert_same(first: list[Trace], second: list[Trace]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.recorded == other.recorded
        assert one.source.notes == other.source.notes
        assert one.source.events_read == other.source.events_read
        for table, rows in one.rows.items():
            for column in rows.table.columns:
                here, there = rows[column.name], other.rows[table][column.name]
                if column.text:
                    assert [one.text(int(code)) for code in here] == [other.text(int(code)) for code in there]
                else:
                    np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("kind", ["small", "nccl", "memory"])
def test_a_folder_is_the_same_as_the_database(tmp_path: Path, kind: str) -> None:
    export = nccl_export(group=True) if kind == "nccl" else small()
    if kind == "memory":
        export.add(
            "CUDA_GPU_MEMORY_USAGE_EVENTS", start=85_000, globalPid=tid_of(100), deviceId=0, address=-(1 << 62),
            bytes=2 << 20, memKind=2, memoryOperationType=0, correlationId=8,
        )  # fmt: skip
        export.add("META_DATA_CAPTURE", name="PROCESS_0:COLLECT_CUDA_TRACE", value="true")
    database = export.write(tmp_path / "report.sqlite")
    assert_same(nsys_reader.read(database), load_all(converted(database, tmp_path / "report_pqtdir")))


@pytest.mark.corpus
@pytest.mark.parametrize(
    "path",  # jacobi: half a million sampled frames take long to convert
    [path for path in corpus_files("nsys_sqlite", "*.gz") if "jacobi" not in path.name],
    ids=lambda path: path.name.split(".")[0],
)
def test_real_exports_as_folders(path: Path, tmp_path: Path) -> None:
    database = tmp_path / "report.sqlite"
    database.write_bytes(gzip.decompress(path.read_bytes()))
    assert_same(nsys_reader.read(database), load_all(converted(database, tmp_path / "report_pqtdir")))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\x00" * 64 + b"PAR1"])
def test_a_damaged_table_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    folder = converted(small().write(tmp_path / "report.sqlite"), tmp_path / "report_pqtdir")
    (folder / "NVTX_EVENTS.parquet").write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_all(folder)
    assert "NVTX_EVENTS.parquet: cannot be read as parquet" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_where_numbers_belong_is_refused(tmp_path: Path) -> None:
    folder = converted(small().write(tmp_path / "report.sqlite"), tmp_path / "report_pqtdir")
    pq.write_table(pa.table({"start": ["soon"], "end": ["late"]}), folder / "OSRT_API.parquet")
    with pytest.raises(DataError, match=r"OSRT_API\.parquet: cannot be read as parquet"):
        load_all(folder)


def test_without_pyarrow_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = converted(small().write(tmp_path / "report.sqlite"), tmp_path / "report_pqtdir")

    def absent(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("perfscope.analyzers.readers.nsys.reader.importlib.import_module", absent)
    with pytest.raises(DataError, match="pip install pyarrow"):
        nsys_reader.read(folder)
    assert importlib.import_module is absent


pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

STEP = "TSL:XlaModule:#prefix=jit(step)/jit(main),hlo_module=jit_step,program_id=16#"
COLUMNS = ("Name", "Projected Start", "Projected Duration", "TID", "NumGPUOps", "RangeId", "ParentId")


def row(name: str | None, start: int, took: int, tid: int, number: int, parent: float = np.nan, ops: int = 1) -> Any:
    return (name, start, took, tid, ops, number, parent)


def two_devices() -> list[Any]:
    """Two runs of a program on two devices: a loop with one instruction in it, and a collective."""
    rows = [row("all", 0, 10_000, 1, 999, ops=12), row(None, 0, 5, 1, 998)]
    for run in (0, 1):
        for place, tid in enumerate((50, 40)):
            base, number = 1000 * run, 100 * run + 10 * place
            rows += [
                row(STEP, base, 900, tid, number, ops=4),
                row("TSL:Thunk:#name=a,b(c)/while,hlo_op=while.2#", base, 300, tid, number + 1, number, ops=2),
                row("TSL:Thunk:#hlo_op=loop_fusion.3#", base + 10, 200, tid, number + 2, number + 1),
                row("TSL:Thunk:#hlo_op=all-gather-start.4#", base + 400 + tid, 100, tid, number + 3, number, ops=2),
            ]
    return rows


def write(folder: Path, rows: list[Any]) -> Path:
    (folder / jax_toolbox.TRACE).parent.mkdir(parents=True)
    pd.DataFrame(rows, columns=COLUMNS).to_parquet(folder / jax_toolbox.TRACE)
    return folder


def test_instructions_have_their_program_run_and_device(tmp_path: Path) -> None:
    (trace,) = load_all(write(tmp_path / "set", two_devices()))
    trace.check()
    ops = trace.hlo_ops.sort_values(["ordinal", "start_ns"])
    assert ops["name"].tolist() == ["while.2", "loop_fusion.3", "all-gather-start.4"] * 4
    assert ops["ordinal"].tolist() == [0] * 6 + [1] * 6
    assert ops["run_id"].tolist() == [0, 0, 0, 1, 1, 1] * 2
    assert set(ops["module"]) == {"jit_step"}
    assert set(ops["program_id"]) == {16}
    assert ops["encloses"].tolist() == [True, False, False] * 4
    assert len(trace.rows["kernels"]) == 8  # enclosing work does not count again
    assert trace.collectives["name"].tolist() == ["all_gather"] * 4
    assert [device.busy_ns for device in trace.fact(device_times)] == [600, 600]
    assert dict(trace.source.unplaced) == {
        "range without an instruction (a program as a whole, NCCL, others)": 6,
    }
    assert "4 of them launched several kernels" in trace.source.notes[0]


def named_threads(folder: Path, names: dict[int, str]) -> Path:
    index = pd.MultiIndex.from_tuples([(7, tid) for tid in names], names=["PID", "TID"])
    pd.DataFrame({"Name": list(names.values()), "Priority": 0}, index=index).to_parquet(folder / jax_toolbox.THREADS)
    return folder


def test_names_of_launcher_threads_tell_rank_and_devices(tmp_path: Path) -> None:
    names = {
        40: "XlaLauncher:#global=4,local=0,process=2,slice=0#",
        50: "XlaLauncher:#global=5,local=1,process=2,partition=0#",
        60: "python",
    }
    folder = named_threads(write(tmp_path / "set", two_devices()), names)
    for path in (folder, zipped(folder, tmp_path / "set.zip")):
        (trace,) = load_all(path)
        trace.check()
        assert (trace.source.rank, trace.source.rank_source) == (2, "thread metadata")
        assert set(zip(trace.hlo_ops["ordinal"], trace.hlo_ops["place"], strict=True)) == {(0, 4), (1, 5)}


def test_a_process_with_one_device_launches_from_the_callers_thread(tmp_path: Path) -> None:
    rows = [row for row in two_devices() if row[3] != 40]
    folder = named_threads(
        write(tmp_path / "set", rows), {9: "XlaLauncher:#global=1,local=1,process=1,slice=0#", 50: "main"}
    )
    (trace,) = load_all(folder)
    assert trace.source.rank == 1
    assert set(zip(trace.hlo_ops["ordinal"], trace.hlo_ops["place"], strict=True)) == {(1, 1)}


@pytest.mark.parametrize("content", [b"", b"PAR1" + b"\x00" * 64 + b"PAR1"])
def test_names_of_threads_that_cannot_be_read_cost_only_the_rank(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path / "set", two_devices())
    (folder / jax_toolbox.THREADS).write_bytes(content)
    (trace,) = load_all(folder)
    assert trace.source.rank is None
    assert len(trace.rows["hlo_ops"]) == 12


def test_devices_are_what_the_programs_were_compiled_for(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", two_devices())
    (folder / "dump").mkdir()
    text = (
        b"gpu_device_info {\n  core_count: 132\n  device_memory_size: 84929478656\n}\n"
        b'device_description_str: "Test 80GB"\n'
    )
    (folder / "dump" / "module_0016.jit_step.gpu_target_config.pbtxt.xz").write_bytes(lzma.compress(text))
    trace = jax_toolbox.read(folder)
    assert [trace.text(int(code)) for code in trace.rows["devices"]["name"]] == ["Test 80GB"] * 2
    assert trace.rows["devices"]["cores"].tolist() == [132, 132]
    (folder / "dump" / "module_0017.jit_step.gpu_target_config.pbtxt").write_bytes(text.replace(b"132", b"80"))
    assert trace.rows["devices"]["memory_bytes"].tolist() == [84929478656] * 2
    assert jax_toolbox.read(folder).rows["devices"]["cores"].tolist() == [-1, -1]  # they do not agree


def test_copies_that_cannot_be_told_apart_are_not_called_clean(tmp_path: Path) -> None:
    outcome = analyze(load_all(write(tmp_path / "set", two_devices())), ["pageable_copy"])["pageable_copy"]
    assert outcome.status == "abstained"


def test_rows_without_a_sound_time_are_left_out(tmp_path: Path) -> None:
    rows = two_devices()
    rows.append(row("TSL:Thunk:#hlo_op=late.1#", -(2**62), 5, 50, 3000))
    rows.append(row("TSL:Thunk:#hlo_op=late.2#", 5, -5, 50, 3001))
    trace = jax_toolbox.read(write(tmp_path / "set", rows))
    assert len(trace.rows["hlo_ops"]) == 12
    assert trace.source.events_unplaced == 8


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\x00" * 100 + b"PAR1"])
def test_damaged_parquet_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path / "set", two_devices())
    (folder / jax_toolbox.TRACE).write_bytes(content)
    with pytest.raises(DataError) as caught:
        jax_toolbox.read(folder)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)


def test_a_projection_of_something_else_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", [row("epoch", 0, 5, 1, 1)])
    with pytest.raises(DataError, match="no instruction of a compiled program"):
        jax_toolbox.read(folder)


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise ImportError("no pyarrow")

    monkeypatch.setattr(pd, "read_parquet", absent)
    with pytest.raises(DataError, match="pip install pyarrow"):
        jax_toolbox.read(write(tmp_path / "set", two_devices()))


@pytest.mark.slow
@pytest.mark.corpus
def test_maxtext_on_four_devices(corpus: Path, tmp_path: Path) -> None:
    (archive,) = (corpus / "nsys_jax").glob("*.zip")
    with zipfile.ZipFile(archive) as packed:
        members = [name for name in packed.namelist() if name.startswith(("dump/", "nvtx_gpu_proj_trace/"))]
        packed.extractall(tmp_path, members)
    loaded = load_path(tmp_path)
    (trace,) = loaded.traces
    trace.check()
    projected = pd.read_parquet(tmp_path / jax_toolbox.TRACE)
    thunks = projected[projected["Name"].fillna("").str.startswith("TSL:Thunk:")]
    assert len(trace.rows["hlo_ops"]) == len(thunks)
    took = trace.rows["hlo_ops"]["end_ns"] - trace.rows["hlo_ops"]["start_ns"]
    assert int(took.sum()) == int(thunks["Projected Duration"].sum())
    assert [trace.text(int(code)) for code in trace.rows["devices"]["name"]] == ["NVIDIA H100 80GB HBM3"] * 4
    assert len(trace.hlo) == 13
    step = trace.hlo_ops[trace.hlo_ops["module"] == "jit_train_step"]
    assert step.groupby("ordinal")["run_id"].nunique().tolist() == [5, 5, 5, 5]
    (module,) = [one for one in trace.hlo if one.program_id == 16]
    known = {one.name for computation in module.computations.values() for one in computation.instructions}
    assert step["name"].astype(str).isin(known).all()  # reduce-scatters that XLA made asynchronous among them
    section = analyze(trace, []).programs
    assert section.programs


def zipped(folder: Path, file: Path, **more: bytes) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder).as_posix())
        for name, content in more.items():
            archive.writestr(name, content)
    return file


def test_the_archive_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", two_devices())
    archive = zipped(folder, tmp_path / "set.zip", **{"../outside.txt": b"no", "dump/other.txt": b"no"})
    (unpacked,), (packed,) = load_all(folder), load_all(archive)
    assert packed.source.path == str(archive)
    assert packed.hlo_ops.equals(unpacked.hlo_ops)
    assert packed.kernels.equals(unpacked.kernels)
    assert not (tmp_path / "outside.txt").exists()


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zipped(write(tmp_path / "set", two_devices()), tmp_path / "set.zip")
    monkeypatch.setattr(jax_toolbox, "MAX_UNPACKED", 1000)
    with pytest.raises(DataError, match="refused") as caught:
        load_all(archive)
    assert str(caught.value).startswith(f"{archive}: unpacks to more than")


def test_a_damaged_archive_is_one_line(tmp_path: Path) -> None:
    archive = zipped(write(tmp_path / "set", two_devices()), tmp_path / "set.zip")
    content = bytearray(archive.read_bytes())
    content[60:200] = bytes(140)
    archive.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load_all(archive)
    assert "\n" not in str(caught.value)
