"""XLA's trace as Chrome JSON: the same planes and lines as in the XSpace that it is a copy of."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.programs import programs
from perfscope.analyzers.readers.load import load_one
from perfscope.analyzers.time.device_time import device_times
from perfscope.model.errors import DataError
from perfscope.model.trace import CopyKind, SliceKind, Trace

COPY = "%copy-start.1 = (f32[8]{0}, f32[8]{0:S(5)}, u32[]{:S(2)}) copy-start(f32[8]{0:S(5)} %p)"


def thread(process: int, number: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": number, "name": "thread_name", "args": {"name": name}}


def plane(number: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": number, "name": "process_name", "args": {"name": name}}


def event(process: int, number: int, name: str, start: float, length: float, **args: str) -> dict[str, Any]:
    return {"ph": "X", "pid": process, "tid": number, "name": name, "ts": start, "dur": length, "args": args}


def tpu() -> list[dict[str, Any]]:
    return [
        plane(3, "/device:TPU:0"), thread(3, 2, "XLA Modules"), thread(3, 3, "XLA Ops"), thread(3, 1, "Steps"),
        plane(701, "/host:CPU"), thread(701, 5, "python"),
        event(3, 2, "jit_f(18446744073709551610)", 10, 50, run_id="850"),
        event(3, 2, "jit_f(18446744073709551610)", 70, 50, run_id="851"),
        *(
            one
            for at in (10, 70)
            for one in (
                event(3, 3, "fusion.2", at + 0.25, 20.125, long_name="%fusion.2 = f32[8]{0} fusion(%p)",
                      bytes_accessed="64"),
                event(3, 3, "copy-start.1", at + 21, 4, long_name=COPY),
                event(3, 3, "all-reduce.3", at + 30, 20, long_name="%all-reduce.3 = f32[8]{0} all-reduce(%p)"),
            )
        ),
        event(3, 1, "4", 10, 50), event(3, 1, "5", 70, 50),
        event(701, 5, "$train.py:12 step", 0, 130),
    ]  # fmt: skip


def read(folder: Path, events: list[dict[str, Any]]) -> Trace:
    path = folder / "host.trace.json.gz"
    document = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": [*events, {}]}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    trace = load_one(path)
    trace.check()
    return trace


def test_processes_are_planes_and_threads_are_lines(tmp_path: Path) -> None:
    trace = read(tmp_path, tpu())
    assert trace.source.format == "xla_trace_json"
    assert trace.source.events_unplaced == 0
    kernels, copies, ops = (trace.rows[name] for name in ("kernels", "copies", "hlo_ops"))
    assert [trace.text(code) for code in kernels["name"].tolist()] == ["fusion.2", "all-reduce.3"] * 2
    assert kernels["start_ns"].tolist() == [10_250, 40_000, 70_250, 100_000]
    assert kernels["communication"].tolist() == [False, True, False, True]
    assert copies["kind"].tolist() == [CopyKind.HOST_TO_DEVICE] * 2
    assert ops["run_id"].tolist() == [0, 0, 0, 1, 1, 1]
    assert trace.rows["steps"]["number"].tolist() == [4, 5]
    (program,) = trace.fact(programs)
    assert (program.name, program.execution.count) == ("jit_f", 2)
    (device,) = trace.fact(device_times)
    assert (device.compute_ns, device.exposed_copy_ns, device.exposed_communication_ns) == (40_250, 8_000, 40_000)
    assert trace.rows["slices"]["kind"].tolist() == [SliceKind.PYTHON]


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"ts": 1e300}, "impossible time"), ({"dur": -1}, "impossible time"), ({"ts": "now"}, "impossible time")],
)
def test_an_impossible_time_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        read(tmp_path, [*tpu(), {**event(701, 5, "x", 1, 1), **change}])
    assert str(caught.value).startswith(f"{tmp_path}/host.trace.json.gz: ")


def test_a_file_cut_off_is_refused(tmp_path: Path) -> None:
    read(tmp_path, tpu())
    path = tmp_path / "host.trace.json"
    path.write_bytes(gzip.decompress((tmp_path / "host.trace.json.gz").read_bytes())[:-40])
    with pytest.raises(DataError, match="cut off or corrupt"):
        load_one(path)


@pytest.mark.corpus
def test_device_work_of_a_real_file_equals_its_events(corpus: Path) -> None:
    path = corpus / "jax_trace_json" / "tpu-inference__2026_01_11_trace.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert events[-1] == {}
    planes = {one["pid"]: one["args"]["name"] for one in events if one.get("name") == "process_name"}
    lines = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one.get("name") == "thread_name"}
    ran = Counter(planes[one["pid"]] for one in events
                  if one.get("ph") == "X" and lines.get((one["pid"], one["tid"])) == "XLA Ops")  # fmt: skip
    assert ran == {"/device:TPU:0": 3454, "/device:TPU:1": 3454}
    trace = load_one(path)
    assert Counter(trace.rows["hlo_ops"]["ordinal"].tolist()) == {0: 3454, 1: 3454}
    assert (trace.rows["hlo_ops"]["run_id"] >= 0).all()
    assert trace.source.events_read == sum(one.get("ph") == "X" for one in events)
    modules = [one for one in events if one.get("ph") == "X" and one["name"].startswith("jit_step_fun(")
               and lines.get((one["pid"], one["tid"])) == "XLA Modules"]  # fmt: skip
    program = next(one for one in trace.fact(programs) if one.name == "jit_step_fun")
    assert program.execution is not None
    assert program.execution.count == len(modules)
    whole = sum(one["dur"] for one in modules) * 1000
    np.testing.assert_allclose(program.execution.span_ns, whole, rtol=1e-3)
