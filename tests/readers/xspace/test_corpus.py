"""Collectives that XLA made asynchronous on GPUs: the kernel names the operation inside, the program has its start.

The programs are real ones, compiled for H100s. No profile of several GPUs is at hand: the planes are written as XLA's
source has it, which annotates a launch with the instruction inside the ``async-start``.
"""

from __future__ import annotations

import lzma
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.hlo.collective import collectives_of
from perfscope.analyzers.hlo.parse.proto import module_of_proto
from perfscope.analyzers.hlo.time import hlo_time
from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.programs import programs
from perfscope.analyzers.readers.xspace import reader as xspace_reader
from perfscope.analyzers.readers.xspace.programs import started
from perfscope.analyzers.sections.collectives import collectives_section
from perfscope.model.errors import DataError
from perfscope.model.trace import SliceKind, Trace
from tests.conftest import corpus_files
from tests.readers.brute_force import Work, assert_device_times
from tests.readers.wire import Message, RawPlane, SpaceWriter, content, one, planes
from tests.readers.xspace.profiles import US, read, texts

pytestmark = pytest.mark.corpus

FSDP8 = "aot/fsdp8.hlo.pb.gz"
MAXTEXT = "hlo_pb/JAX-Toolbox__module_0016.jit_train_step.sm_9.0_gpu_after_optimizations.hlo.pb.xz"


def program(file: Path) -> bytes:
    return lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else content(file)


def recording(folder: Path, proto: bytes, name: str, instruction: str, devices: int, times: int = 1) -> Trace:
    """Kernels of NCCL for ``instruction`` on each device, each device 5 us longer in one than the next device."""
    space = SpaceWriter().metadata(**{f"{name}(16)": proto})
    for device in range(devices):
        took = (100 + 5 * (devices - device)) * US
        stats = {"hlo_op": instruction, "hlo_module": name, "program_id": 16, "run_id": 1}
        name_of = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        kernels = [(name_of, 300 * US * turn, 300 * US * turn + took, stats) for turn in range(times)]
        space.plane(f"/device:GPU:{device}", {"Stream #20(Kernel)": kernels})
    return read(folder, space.plane("/host:CPU", {"python": [("work", 0, 300 * US)]}))


@pytest.mark.parametrize(
    ("file", "devices", "inside", "start", "operation"),
    [
        (MAXTEXT, 4, "all-to-all.3", "all-to-all-start", "all_to_all"),
        (FSDP8, 8, "reduce-scatter.2", "reduce-scatter-start", "reduce_scatter"),
        (FSDP8, 8, "all-to-all.1.1", "all-to-all-start.1", "all_to_all"),
    ],
)
def test_the_operation_inside_is_the_collective_of_the_program(
    corpus: Path, tmp_path: Path, file: str, devices: int, inside: str, start: str, operation: str
) -> None:
    proto = program(corpus / file)
    module = module_of_proto(proto, file)
    assert started(module)[inside] == start
    (collective,) = [one for one in collectives_of(module) if one.start.name == start]
    times = collective.runs.times
    trace = recording(tmp_path, proto, module.name, inside, devices, times)
    assert set(texts(trace, "hlo_ops")) == {start}
    (job,) = collectives_section([trace]).jobs
    (kind,) = job.kinds
    assert (kind.operation, kind.group, kind.count) == (operation, tuple(range(devices)), times)
    assert kind.message_bytes == collective.bytes > 0
    assert kind.core_ns == 105_000 * times
    assert kind.wait_ns == {device: 5_000 * (devices - 1 - device) * times for device in range(devices)}
    assert job.unmatched == 0


def test_a_name_that_no_start_wraps_stays(corpus: Path, tmp_path: Path) -> None:
    proto = program(corpus / FSDP8)
    trace = recording(tmp_path, proto, "jit_step", "all-to-all.99", 8)
    assert set(texts(trace, "hlo_ops")) == {"all-to-all.99"}


def test_a_program_of_another_name_names_nothing(corpus: Path, tmp_path: Path) -> None:
    proto = program(corpus / FSDP8)
    trace = recording(tmp_path, proto, "jit_other", "all-to-all.1.1", 8)
    assert set(texts(trace, "hlo_ops")) == {"all-to-all.1.1"}


FILES = [
    file
    for folder in ("xplane", "aot")
    for file in corpus_files(folder, "*.xplane.pb.gz")
    if "CORRUPT" not in file.name
]


GPU_COPY = re.compile(r"Memcpy|Memset|__amd_rocclr_(copy|fill)Buffer")
TPU_COPY = re.compile(r"%copy-(start|done)")
COLLECTIVE = re.compile(r"%?(all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)|nccl")
NOISE = re.compile(r"ThreadpoolListener::")


def nanoseconds(ps: int) -> int:
    return int((Decimal(ps) / 1000).to_integral_value(ROUND_HALF_EVEN))


def work_of(plane: RawPlane) -> list[Work]:
    """All work of an accelerator's plane."""
    found = []
    for label, base, name, start, end in named_work(plane):
        copies = GPU_COPY if label.startswith("Stream") else TPU_COPY
        kind = "communication" if COLLECTIVE.match(name) else "copy" if copies.match(name) else "kernel"
        found.append((kind, base + nanoseconds(start), base + nanoseconds(end)))
    return found


def named_work(plane: RawPlane) -> Iterator[tuple[str, int, str, int, int]]:
    """(line, its base in ns, name, start and end in ps) of all work of an accelerator's plane."""
    for line in plane.lines:
        label, base = one(line, 2, b"").decode(), one(line, 3)
        events = [(name, start, start + length) for name, start, length, _ in plane.events(line)]
        if label == "XLA Ops":
            events = innermost(events)
        elif not label.startswith("Stream #") and label != "Async XLA Ops":
            continue
        for name, start, end in events:
            yield label, base, name, start, end


def innermost(events: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Events that enclose no other, by a stack; times in ps."""
    ordered = sorted(events, key=lambda event: (event[1], -event[2]))
    encloses = [False] * len(ordered)
    stack: list[int] = []
    for index, (_, start, end) in enumerate(ordered):
        while stack and ordered[stack[-1]][2] <= start:
            stack.pop()
        if stack and end > start:
            encloses[stack[-1]] = True
        stack.append(index)
    return [event for event, outer in zip(ordered, encloses, strict=True) if not outer]


def short(path: Path) -> str:
    return path.name.removesuffix(".xplane.pb.gz")


@pytest.mark.parametrize("path", FILES, ids=short)
def test_device_time_equals_brute_force(path: Path) -> None:
    trace, raw = xspace_reader.read(path), planes(content(path))
    assert isinstance(trace, Trace)
    trace.check()
    assert trace.source.events_read == sum(len(line[4]) for plane in raw for line in plane.lines)
    assert trace.source.events_unplaced == 0
    work = {int(plane.name.rpartition(":")[2]): work_of(plane) for plane in raw if plane.name.startswith("/device:")}
    assert_device_times(trace, work)


def epoch(raw: list[RawPlane]) -> int:
    """Start of the profile, where times count from it."""
    return next((int(plane.own["profile_start_time"]) for plane in raw if "profile_start_time" in plane.own), 0)


@pytest.mark.parametrize("path", FILES, ids=short)
def test_every_host_event_is_in_a_table_or_counted(path: Path) -> None:
    trace, raw = xspace_reader.read(path), planes(content(path))
    assert isinstance(trace, Trace)
    base = epoch(raw) if "synth" not in path.name else 0
    slices: Counter[tuple[int, int, str]] = Counter()
    calls: Counter[tuple[int, int, str]] = Counter()
    memory = 0
    for plane in raw:
        if not plane.name.startswith("/host:CPU"):
            continue
        for line in plane.lines:
            for event in host_events(plane, line):
                name, start, end, stats = event
                spot = (base + one(line, 3) + nanoseconds(start), base + one(line, 3) + nanoseconds(end), name)
                if "correlation_id" in stats:
                    calls[spot] += 1
                elif name in ("MemoryAllocation", "MemoryDeallocation") and "addr" in stats:
                    memory += 1
                else:
                    slices[spot] += 1
    assert shown(trace, "slices") == slices
    assert shown(trace, "calls") == calls
    assert len(trace.rows["memory"]) == memory


def host_events(plane: RawPlane, line: Message) -> list[tuple[str, int, int, dict[str, object]]]:
    """Spans of a thread: waits of two marks as one, a jitted call that is written twice once, no noise."""
    spans = []
    events = [(name, start, start + length, stats) for name, start, length, stats in plane.events(line)]
    second = {stats["_c"]: end for name, _, end, stats in events if name.endswith("::Await") and "_c" in stats}
    stack: list[tuple[str, int]] = []
    for name, start, end, stats in sorted(events, key=lambda event: (event[1], -event[2])):
        if NOISE.match(name) or (name.startswith("end: ") and "_c" in stats):
            continue
        if name.endswith("::Await") and "_c" in stats:
            continue
        if name.endswith("::Await") and "_p" in stats:
            end = second.get(stats["_p"], end)
        while stack and stack[-1][1] < end:
            stack.pop()
        if name.startswith("PjitFunction(") and stack and stack[-1][0] == name:
            continue
        if "correlation_id" not in stats:
            stack.append((name, end))
        spans.append((name, start, end, stats))
    return spans


def shown(trace: Trace, table: str) -> Counter[tuple[int, int, str]]:
    rows = trace.rows[table]
    return Counter(
        zip(rows["start_ns"].tolist(), rows["end_ns"].tolist(), map(trace.text, rows["name"].tolist()), strict=True)
    )


@pytest.mark.parametrize("path", FILES, ids=short)
def test_instructions_last_from_their_start_to_their_end_mark(path: Path) -> None:
    trace, raw = xspace_reader.read(path), planes(content(path))
    assert isinstance(trace, Trace)
    base = epoch(raw)
    ends, begun = {}, []
    for plane in raw:
        if plane.name != "/host:CPU":
            continue
        for line in plane.lines:
            for name, start, length, stats in plane.events(line):
                if name.startswith("end: "):
                    ends[stats["_c"]] = (name, one(line, 3) + nanoseconds(start))
                elif "hlo_op" in stats and "_p" in stats:
                    begun.append((one(line, 3) + nanoseconds(start), one(line, 3) + nanoseconds(start + length), stats))
    expected = Counter()
    for start, returned, stats in begun:
        name, end = ends[stats["_p"]]
        assert name == f"end: {stats['hlo_op']}"
        key = (stats["hlo_op"], stats["hlo_module"], stats["program_id"], stats["run_id"], stats["device_ordinal"])
        expected[(base + start, base + returned, base + end, *key)] += 1
    ops = trace.rows["hlo_ops"]
    hosted = np.flatnonzero(ops["slice"] >= 0)
    numbers = ("start_ns", "launch_end_ns", "end_ns"), ("program_id", "run_id", "ordinal")
    found = Counter(
        (
            *(int(ops[column][row]) for column in numbers[0]),
            trace.text(ops["name"][row]),
            trace.text(ops["module"][row]),
            *(int(ops[column][row]) for column in numbers[1]),
        )
        for row in hosted.tolist()
    )
    assert found == expected
    slices = trace.rows["slices"]
    assert (slices["start_ns"][ops["slice"][hosted]] == ops["start_ns"][hosted]).all()
    assert (slices["end_ns"][ops["slice"][hosted]] == ops["launch_end_ns"][hosted]).all()
    assert (slices["kind"][ops["slice"][hosted]] == SliceKind.OP).all()


@pytest.mark.parametrize("path", FILES, ids=short)
def test_device_work_names_its_instruction(path: Path) -> None:
    trace, raw = xspace_reader.read(path), planes(content(path))
    assert isinstance(trace, Trace)
    expected: Counter[tuple[str, str, int]] = Counter()
    for plane in raw:
        for line in plane.lines if plane.name.startswith("/device:GPU") else ():
            for name, _, _, stats in plane.events(line):
                if "hlo_op" in stats:
                    expected[name, stats["hlo_op"], stats["program_id"]] += 1
        for _, _, name, _, _ in named_work(plane) if plane.name.startswith("/device:TPU") else ():
            program = next(
                stats.get("program_id", -1) for key, stats in plane.shared.items() if plane.names[key] == name
            )
            instruction = name.split(" ")[0].lstrip("%")
            expected[instruction, instruction, program] += 1
    ops, found = trace.rows["hlo_ops"], Counter()
    for column, table in (("kernel", "kernels"), ("copy", "copies")):
        for row in np.flatnonzero(ops[column] >= 0).tolist():
            work = trace.rows[table]
            assert work["start_ns"][ops[column][row]] == ops["start_ns"][row]
            name = trace.text(work["name"][ops[column][row]])
            found[name, trace.text(ops["name"][row]), int(ops["program_id"][row])] += 1
    if any(plane.name.startswith("/device:TPU") for plane in raw):  # one name may belong to several programs
        assert sum(found.values()) == sum(expected.values())
        assert Counter(name for name, _, _ in found.elements()) == Counter(name for name, _, _ in expected.elements())
    else:
        assert found == expected


def test_kernels_know_their_launch(corpus: Path) -> None:
    for name in ("TraceLens__mi300_jax_conv_08", "TraceLens__mi300_jax08_gemm"):
        trace = xspace_reader.read(corpus / "xplane" / f"{name}.xplane.pb.gz")
        assert isinstance(trace, Trace)
        calls, strings = trace.rows["calls"], trace.strings
        for table in ("kernels", "copies"):
            rows = trace.rows[table]
            assert (rows["call"] >= 0).all()
            assert (calls["correlation"][rows["call"]] == rows["correlation"]).all()
            assert (calls["start_ns"][rows["call"]] <= rows["start_ns"]).all()
        kernels = trace.rows["kernels"]
        assert (kernels["blocks"] > 0).all()
        assert np.isnan(kernels["occupancy"]).all()  # ROCm writes 0 for not known
        copies = trace.rows["copies"]
        # the direction is in the call's name only; the runtime also copies where an event is awaited
        directions = {"hipMemcpyHtoDAsync": 0, "hipMemcpyDtoDAsync": 2, "hipStreamWaitEvent": 6, "hipLaunchHostFunc": 6}
        named = [strings[calls["name"][call]] for call in copies["call"].tolist()]
        assert [directions[name] for name in named] == copies["kind"].tolist()
        assert (copies["bytes"] == -1).all()  # ... and size 0


def test_tpu_copies_know_their_direction(corpus: Path) -> None:
    trace = xspace_reader.read(corpus / "xplane" / "xprof__tpu_inference_2.xplane.pb.gz")
    assert isinstance(trace, Trace)
    copies = trace.rows["copies"]
    directions: dict[str, set[int]] = defaultdict(set)
    for row in range(len(copies)):
        directions[trace.text(copies["name"][row])].add(int(copies["kind"][row]))
    # parameters come from host memory (memory space 5), results go back to it
    assert directions["copy-start.4"] == directions["copy-done.2"] == {0}
    assert directions["copy-start.1"] == directions["copy-done.5"] == {1}
    moved = copies["bytes"][copies["bytes"] >= 0]
    assert len(moved) == 600  # only one device shows its asynchronous copies
    assert set(moved.tolist()) == {5 * 1024 * 1024 * 256 * 4}


def test_runs_and_memory_of_a_tpu_equal_those_of_xprof(corpus: Path) -> None:
    """xprof 2.24: peakBytesInUse and memoryCapacity of each device, executions by the line of modules."""
    trace = xspace_reader.read(corpus / "xplane" / "xprof__tpu_inference_2.xplane.pb.gz")
    assert isinstance(trace, Trace)
    ran = {program.name: program.execution for program in trace.fact(programs) if program.execution is not None}
    assert (ran["jit_f"].count, ran["jit_f"].devices, ran["jit_f"].counted) == (400, 4, True)
    calls = {row.instruction: row.calls for row in trace.fact(hlo_time).instructions if row.module == "jit_f"}
    assert set(calls.values()) == {400}
    timelines = [one for one in trace.fact(memory_timelines) if one.space == "device"]
    assert [one.peak()[1] for one in timelines] == [21492569216, 21492671104, 21492671104, 21492569216]
    assert {one.capacity_bytes for one in timelines} == {33550237696}


@pytest.mark.parametrize("name", ["TraceLens__mi300_jax08_gemm", "TraceLens__mi300_jax_conv_08"])
def test_the_capacity_of_a_gpu_is_its_allocators_limit(corpus: Path, name: str) -> None:
    trace = xspace_reader.read(corpus / "xplane" / f"{name}.xplane.pb.gz")
    assert isinstance(trace, Trace)
    timelines = [one for one in trace.fact(memory_timelines) if one.space == "device"]
    assert {one.capacity_bytes for one in timelines} == {154606239744}


def test_the_mangled_file_is_refused_in_one_line(corpus: Path) -> None:
    path = corpus / "xplane" / "xprof__tpu_inference_2_CORRUPT.xplane.pb.gz"
    with pytest.raises(DataError, match=r"CORRUPT\.xplane\.pb\.gz: cut off or corrupt") as caught:
        xspace_reader.read(path)
    assert "\n" not in str(caught.value)


def test_steps_of_a_cpu_profile(corpus: Path) -> None:
    trace = xspace_reader.read(corpus / "aot" / "md.xplane.pb.gz")
    assert isinstance(trace, Trace)
    steps = trace.rows["steps"]
    assert steps["number"].tolist() == [0, 1, 2]
    assert {trace.text(code) for code in steps["name"].tolist()} == {"train"}
    assert (steps["end_ns"][:-1] <= steps["start_ns"][1:]).all()


def test_no_host_name_is_kept(corpus: Path) -> None:
    for path in FILES:
        for name in re.findall(rb"\"\x02(vm)$|\"\x05(tw003)$", content(path)):
            trace = xspace_reader.read(path)
            assert isinstance(trace, Trace)
            assert not {part.decode() for part in name if part} & set(trace.strings)


def test_annotations_are_the_programs_own(corpus: Path) -> None:
    """Among all spans of these profiles only those named by the profiled programs are annotations."""
    for name, wanted in (
        ("aot/attn_naive", r"train|sync"),
        ("aot/md", "train"),
        ("aot/sync0", r"CASE:\w+"),
        ("aot/sync1", r"CASE:\w+"),
        ("aot/int", r"perfscope\.sync"),
        ("xplane/TraceLens__mi300_jax_conv_08", "(?!)"),
        ("xplane/xprof__tpu_inference_2", "(?!)"),
    ):
        trace = xspace_reader.read(corpus / f"{name}.xplane.pb.gz")
        assert isinstance(trace, Trace)
        slices = trace.rows["slices"]
        found = {trace.text(code) for code in slices["name"][slices["kind"] == SliceKind.ANNOTATION].tolist()}
        assert [text for text in found if not re.fullmatch(wanted, text)] == []
        assert bool(found) == (wanted != "(?!)")
