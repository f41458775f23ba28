"""The folder of nsys-jax: instructions of compiled programs with the time of their work, on each device."""

from __future__ import annotations

import lzma
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.facts.device_time import device_times
from perfscope.analyzers.load import load, load_path
from perfscope.analyzers.readers import nsys_jax
from perfscope.profiler.errors import DataError

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
    (folder / nsys_jax.TRACE).parent.mkdir(parents=True)
    pd.DataFrame(rows, columns=COLUMNS).to_parquet(folder / nsys_jax.TRACE)
    return folder


def test_instructions_have_their_program_run_and_device(tmp_path: Path) -> None:
    (trace,) = load(write(tmp_path / "set", two_devices()))
    trace.check()
    ops = trace.hlo_ops.sort_values(["ordinal", "start_ns"])
    assert ops["name"].tolist() == ["while.2", "loop_fusion.3", "all-gather-start.4"] * 4
    assert ops["ordinal"].tolist() == [0] * 6 + [1] * 6
    assert ops["run_id"].tolist() == [0, 0, 0, 1, 1, 1] * 2
    assert set(ops["module"]) == {"jit_step"}
    assert set(ops["program_id"]) == {16}
    assert ops["encloses"].tolist() == [True, False, False] * 4
    assert len(trace.rows["kernels"]) == 8  # what encloses others is no work of its own
    assert trace.collectives["name"].tolist() == ["all_gather"] * 4
    assert [device.busy_ns for device in trace.fact(device_times)] == [600, 600]
    assert dict(trace.source.unplaced) == {
        "range that is no instruction (a program as a whole, NCCL, others)": 6,
    }
    assert "4 of them launched several kernels" in trace.source.notes[0]


def test_devices_are_what_the_programs_were_compiled_for(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", two_devices())
    (folder / "dump").mkdir()
    text = (
        b"gpu_device_info {\n  core_count: 132\n  device_memory_size: 84929478656\n}\n"
        b'device_description_str: "Test 80GB"\n'
    )
    (folder / "dump" / "module_0016.jit_step.gpu_target_config.pbtxt.xz").write_bytes(lzma.compress(text))
    trace = nsys_jax.read(folder)
    assert [trace.text(int(code)) for code in trace.rows["devices"]["name"]] == ["Test 80GB"] * 2
    assert trace.rows["devices"]["cores"].tolist() == [132, 132]
    (folder / "dump" / "module_0017.jit_step.gpu_target_config.pbtxt").write_bytes(text.replace(b"132", b"80"))
    assert trace.rows["devices"]["memory_bytes"].tolist() == [84929478656] * 2
    assert nsys_jax.read(folder).rows["devices"]["cores"].tolist() == [-1, -1]  # they do not agree


def test_copies_that_cannot_be_told_apart_are_not_called_clean(tmp_path: Path) -> None:
    outcome = analyze(load(write(tmp_path / "set", two_devices())), ["pageable_copy"])["pageable_copy"]
    assert outcome.status == "abstained"


def test_rows_without_a_sound_time_are_left_out(tmp_path: Path) -> None:
    rows = two_devices()
    rows.append(row("TSL:Thunk:#hlo_op=late.1#", -(2**62), 5, 50, 3000))
    rows.append(row("TSL:Thunk:#hlo_op=late.2#", 5, -5, 50, 3001))
    trace = nsys_jax.read(write(tmp_path / "set", rows))
    assert len(trace.rows["hlo_ops"]) == 12
    assert trace.source.events_unplaced == 8


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\x00" * 100 + b"PAR1"])
def test_damaged_parquet_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path / "set", two_devices())
    (folder / nsys_jax.TRACE).write_bytes(content)
    with pytest.raises(DataError) as caught:
        nsys_jax.read(folder)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)


def test_a_projection_of_something_else_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", [row("epoch", 0, 5, 1, 1)])
    with pytest.raises(DataError, match="no instruction of a compiled program"):
        nsys_jax.read(folder)


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise ImportError("no pyarrow")

    monkeypatch.setattr(pd, "read_parquet", absent)
    with pytest.raises(DataError, match="pip install pyarrow"):
        nsys_jax.read(write(tmp_path / "set", two_devices()))


@pytest.mark.corpus
def test_maxtext_on_four_devices(corpus: Path, tmp_path: Path) -> None:
    (archive,) = (corpus / "nsys_jax").glob("*.zip")
    with zipfile.ZipFile(archive) as packed:
        members = [name for name in packed.namelist() if name.startswith(("dump/", "nvtx_gpu_proj_trace/"))]
        packed.extractall(tmp_path, members)
    loaded = load_path(tmp_path)
    (trace,) = loaded.traces
    trace.check()
    projected = pd.read_parquet(tmp_path / nsys_jax.TRACE)
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
