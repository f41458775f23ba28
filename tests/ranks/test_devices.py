"""Collectives of XLA programs on several devices of one recording: devices take the place of ranks."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.hlo.parse.text import module_of
from perfscope.analyzers.ranks.devices import device_set
from perfscope.analyzers.readers.load import load_path
from perfscope.analyzers.sections.collectives import NO_COLLECTIVES, collectives_section
from perfscope.dashboards.report import json_report, text
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.conftest import REPOSITORY

PROGRAM = """HloModule jit_step, is_scheduled=true, num_partitions=4

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

ENTRY main {
  p = f32[1000]{0} parameter(0)
  all-reduce-start = f32[1000]{0} all-reduce-start(p), channel_id=1, replica_groups=GROUPS, to_apply=add
  all-reduce-done = f32[1000]{0} all-reduce-done(all-reduce-start)
  gathered = f32[4000]{0} all-gather(all-reduce-done), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT moved = f32[4000]{0} collective-permute(gathered), channel_id=3, source_target_pairs={{0,1},{1,0}}
}
"""


def recording(
    spans: Sequence[tuple[str, int, int, float, float]],
    *,
    devices: int = 4,
    groups: str = "{{0,1,2,3}}",
    places: Sequence[int] = (-1, -1, -1, -1),
) -> Trace:
    """``spans``: instruction, device, run, start and end in us. ``places``: of the devices, where recorded."""
    build = TraceBuilder()
    for device in range(devices):
        build.device(device)
    for index, (name, device, run, start, end) in enumerate(spans):
        build.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", start, end, device=device, communication=True)
        build.row(
            "hlo_ops", start_ns=int(start * 1000), end_ns=int(end * 1000), name=build.code(name),
            module=build.code("jit_step"), program_id=5, run_id=run, ordinal=device,
            place=places[device], launch_end_ns=-1, encloses=False,
            kernel=index, copy=-1, slice=-1,
        )  # fmt: skip
    trace = build.build()
    trace = replace(
        trace,
        hlo=(replace(module_of(PROGRAM.replace("GROUPS", groups).splitlines(keepends=True), "step"), program_id=5),),
    )
    return replace(trace, recorded=trace.recorded | {"hlo"})


REDUCED = [
    ("all-reduce-start", device, run, 100 * run, 100 * run + 10 + 5 * device) for run in (0, 1) for device in range(4)
]


def test_the_shortest_of_the_devices_is_the_collective_and_the_rest_is_waiting() -> None:
    found = device_set(recording(REDUCED))
    assert found is not None
    (kind,) = found.kinds
    assert (kind.operation, kind.group, kind.message_bytes, kind.dtype) == ("all_reduce", (0, 1, 2, 3), 4000, "f32")
    assert (kind.algorithm, kind.protocol, kind.count, kind.median_core_ns) == ("RING", "LL", 2, 10_000)
    assert kind.wait_ns == {0: 0, 1: 10_000, 2: 20_000, 3: 30_000}
    assert kind.duration_ns == {0: 20_000, 1: 30_000, 2: 40_000, 3: 50_000}
    assert kind.bus_bandwidth == pytest.approx(1.5 * 4000 / 10e-6)
    for total in found.totals:
        assert total.wait_ns + total.core_ns == total.duration_ns
    assert [total.last for total in found.totals] == [2, 0, 0, 0]
    assert (found.label(), found.unmatched, found.notes) == ("devices 0-3 of 4", 0, ())


def test_an_all_gather_counts_what_a_device_holds_afterwards() -> None:
    found = device_set(recording([("gathered", device, 0, 0, 10) for device in range(4)]))
    assert found is not None
    (kind,) = found.kinds
    assert (kind.operation, kind.message_bytes) == ("all_gather", 16_000)
    assert kind.bus_bandwidth == pytest.approx(0.75 * 16_000 / 10e-6)


def test_groups_are_apart_and_which_device_is_which_is_said() -> None:
    found = device_set(recording(REDUCED, groups="{{0,2},{1,3}}"))
    assert found is not None
    assert {kind.group: kind.wait_ns for kind in found.kinds} == {
        (0, 2): {0: 0, 2: 20_000},
        (1, 3): {1: 0, 3: 20_000},
    }
    assert found.notes == (
        "the mapping from devices to partitions is not recorded; the n-th device is assumed to be the n-th partition",
    )


def test_where_the_place_of_each_device_is_recorded_it_is_not_guessed() -> None:
    found = device_set(recording(REDUCED, groups="{{0,2},{1,3}}", places=(2, 3, 1, 0)))
    assert found is not None
    assert {kind.group: kind.wait_ns for kind in found.kinds} == {
        (0, 3): {0: 0, 3: 30_000},
        (1, 2): {1: 0, 2: 10_000},
    }
    assert (found.unmatched, found.notes) == (0, ())


def test_groups_with_a_place_that_is_not_in_the_recording_are_left_out() -> None:
    """The second of two processes with two devices each: devices 0 and 1 are partitions 2 and 3."""
    second = [(name, device, run, start, end) for name, device, run, start, end in REDUCED if device < 2]
    found = device_set(recording(second, devices=2, groups="{{0,1},{2,3}}", places=(2, 3)))
    assert found is not None
    assert [(kind.group, kind.count) for kind in found.kinds] == [((0, 1), 2)]
    crossing = recording(second, devices=2, groups="{{0,2},{1,3}}", places=(2, 3))
    assert device_set(crossing) is None


@pytest.mark.parametrize("positions", [(0, 1, 2, -1), (0, 1, 2, 2)])
def test_places_that_do_not_tell_all_devices_apart_are_not_used(positions: tuple[int, ...]) -> None:
    found = device_set(recording(REDUCED, groups="{{0,2},{1,3}}", places=positions))
    assert found is not None
    assert [kind.group for kind in found.kinds] == [(1, 3), (0, 2)]
    assert len(found.notes) == 1


def test_what_cannot_be_held_against_others_is_counted() -> None:
    spans = [*REDUCED[:7], ("moved", 0, 0, 300, 310), ("moved", 1, 0, 300, 310)]
    found = device_set(recording(spans))
    assert found is not None
    assert (found.matched, found.unmatched) == (1, 5)
    assert [note.split(":")[1].strip() for note in found.notes] == [
        "2 runs of collectives on a device, between two devices (permute), which are not matched",
        "3 runs of collectives on a device, not on all recorded devices of their group",
    ]


def test_a_start_and_a_done_that_both_are_work_are_not_the_collective() -> None:
    done = [("all-reduce-done", device, run, start + 50, end + 50) for _, device, run, start, end in REDUCED]
    gathered = [("gathered", device, 0, 900, 910) for device in range(4)]
    found = device_set(recording([*REDUCED, *done, *gathered]))
    assert found is not None
    assert [kind.operation for kind in found.kinds] == ["all_gather"]
    assert found.unmatched == 16


def test_of_several_kernels_a_run_the_bytes_are_not_known() -> None:
    again = [(name, device, run, start + 50, end + 50) for name, device, run, start, end in REDUCED]
    found = device_set(recording([*REDUCED, *again]))
    assert found is not None
    (kind,) = found.kinds
    assert (kind.count, kind.message_bytes, kind.bus_bandwidth) == (4, None, None)


def test_missing_members_make_the_bandwidth_a_lower_bound() -> None:
    found = device_set(recording(REDUCED[:3], devices=3))
    assert found is not None
    (kind,) = found.kinds
    assert kind.group == (0, 1, 2, 3)
    assert any("lower bound" in caveat for caveat in kind.caveats)


@pytest.mark.parametrize(("groups", "matched", "unmatched"), [("{{},{0,1,2}}", 3, 2), ("{{0,1,9},{2}}", 1, 8)])
def test_groups_that_no_device_fits_are_counted(groups: str, matched: int, unmatched: int) -> None:
    gathered = [("gathered", device, 0, 900, 910) for device in range(4)]
    found = device_set(recording([*REDUCED, *gathered], groups=groups))
    assert found is not None
    assert (found.matched, found.unmatched) == (matched, unmatched)


def test_a_claim_of_any_number_of_devices_is_not_written_out() -> None:
    trace = recording(REDUCED)
    trace = replace(trace, hlo=(replace(trace.hlo[0], num_partitions=2**62),))
    assert device_set(trace) is None


def test_one_device_is_not_compared() -> None:
    assert device_set(recording(REDUCED[:1], devices=1)) is None
    assert collectives_section([recording(REDUCED[:1], devices=1)]) == NO_COLLECTIVES


def test_reports_speak_of_devices() -> None:
    judged = analyze(recording(REDUCED), ["straggler"])
    shown = " ".join(text.render(judged, verbose=True).split())
    assert "Collectives of devices 0-3 of 4: 2 collectives matched on 4 devices" in shown
    assert "0 ns (device 0) to 30.0 us (device 3)" in shown
    document = json.loads(json_report.render(judged))
    Draft202012Validator(json.loads((REPOSITORY / "docs" / "report-schema.json").read_text())).validate(document)
    assert document["collectives"]["jobs"][0]["members"] == "device"


@pytest.mark.slow
@pytest.mark.corpus
def test_maxtext_durations_are_those_of_the_projection(corpus: Path, tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    (archive,) = (corpus / "nsys_jax").glob("*.zip")
    with zipfile.ZipFile(archive) as packed:
        members = [name for name in packed.namelist() if name.startswith(("dump/", "nvtx_gpu_proj_trace/"))]
        packed.extractall(tmp_path, members)
    (job,) = collectives_section(load_path(tmp_path).traces).jobs
    assert (job.label, job.matched, job.unmatched) == ("devices 0-3 of 4", 160, 0)

    rows = pd.read_parquet(tmp_path / "nvtx_gpu_proj_trace" / "trace.parquet")
    operation = rows["Name"].fillna("").str.extract(r"hlo_op=(all-gather|all-reduce|all-to-all|reduce-scatter)")[0]
    rows = rows.assign(operation=operation)[operation.notna()]
    expected = rows.groupby(["operation", "TID"])["Projected Duration"].sum().astype(int)
    for operation in ("all-gather", "all-reduce", "all-to-all", "reduce-scatter"):
        kinds = [kind for kind in job.kinds if kind.operation == operation.replace("-", "_")]
        by_device = [sum(kind.duration_ns[device] for kind in kinds) for device in range(4)]
        assert by_device == [expected[operation, thread] for thread in sorted(rows["TID"].unique())]
    for total in job.ranks:
        assert total.wait_ns + total.core_ns == total.duration_ns

    # 146,800,640 bytes: seven parameters of a layer in bf16, gathered from 4; by hand, of the medians of the shortest
    (largest,) = [kind for kind in job.kinds if (kind.operation, kind.message_bytes) == ("all_gather", 146_800_640)]
    assert largest.count == 60
    assert largest.bus_bandwidth == pytest.approx(146_800_640 / largest.median_core_ns * 1e9 * 3 / 4)
    assert largest.bus_bandwidth is not None
    assert 300e9 < largest.bus_bandwidth < 450e9  # no more than NVLink of an H100 carries


@pytest.mark.corpus
def test_tpu_devices_of_a_larger_job(corpus: Path) -> None:
    (job,) = collectives_section(load_path(corpus / "xplane/xprof__tpu_inference_2.xplane.pb.gz").traces).jobs
    (kind,) = job.kinds
    assert (job.label, kind.count, kind.message_bytes) == ("devices 0-3 of 8", 3, 5_368_709_120)
    assert kind.duration_ns[0] == 365_076_257


@pytest.mark.corpus
def test_threads_of_the_cpu_backend_are_left_to_their_meetings(corpus: Path) -> None:
    traces = load_path(corpus / "aot/md.xplane.pb.gz").traces
    assert collectives_section(traces) == NO_COLLECTIVES
