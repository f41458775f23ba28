"""NVTX ranges of Nsight exports: what encloses what, steps by name, and what NCCL says of its collectives."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.analyzers.readers.nsys_export import DOMAIN, MARK, START_END, Export, names, payload, read_one, small


def test_ranges_between_two_moments_enclose_nothing(tmp_path: Path) -> None:
    export = small()
    export.range("loss scale", 8, 200, event=START_END)
    export.range("open", 9, None, event=START_END)
    export.range("here", 10, None, event=MARK)
    trace = read_one(tmp_path, export)
    row = names(trace, "slices").index("loss scale")
    assert (trace.rows["slices"]["parent"] != row).all()
    assert (trace.rows["calls"]["parent"] != row).all()
    thread = int(trace.rows["slices"]["thread"][row])
    assert trace.text(int(trace.rows["threads"]["thread"][thread])) == "1 ranges"
    assert dict(trace.source.unplaced) == {"NVTX_EVENTS: a row that never ended": 1, "NVTX mark": 1}


@pytest.mark.parametrize(
    ("ranges", "numbers", "guessed"),
    [
        (["ProfilerStep#7", "ProfilerStep#8"], [7, 8], False),
        (["step 41", "step 42"], [41, 42], True),
        (["Iteration 3", "Iteration 4", "warmup 2"], [3, 4], True),
        (["train_step", "train_step", "eval"], [0, 1], True),
        (["step"], [], True),
        (["stepwise 3", "my step 4"], [], True),
        (["optimizer_step", "optimizer_step", "optimizer step 3"], [], True),
    ],
)
def test_steps_are_found_by_name(tmp_path: Path, ranges: list[str], numbers: list[int], guessed: bool) -> None:
    export = small()
    for place, name in enumerate(ranges):
        export.range(name, 1000 + 10 * place, 1008 + 10 * place)
    trace = read_one(tmp_path, export)
    assert trace.rows["steps"]["number"].tolist() == numbers
    assert any("steps are taken from NVTX ranges by their name" in n for n in trace.source.notes) == (
        guessed and bool(numbers)
    )


def test_our_own_steps_win_over_names(tmp_path: Path) -> None:
    export = small()
    export.range("perfscope", 0, None, event=DOMAIN, domain=3)
    for place in range(3):
        export.range("step", 1000 + 10 * place, 1009 + 10 * place, event=START_END, domain=3)
        export.range(f"step {place + 5}", 1001 + 10 * place, 1002 + 10 * place)
    trace = read_one(tmp_path, export)
    assert trace.rows["steps"]["number"].tolist() == [0, 1, 2]
    assert (trace.rows["steps"]["end_ns"] - trace.rows["steps"]["start_ns"]).tolist() == [9000] * 3


def nccl_export(*, group: bool) -> Export:
    """A rank of two: an all-gather of 64 KiB, alone or in a group with a second one."""
    export = Export()
    export.range("NCCL", 0, None, event=DOMAIN, domain=9)
    fields = [("NCCL communicator ID", 18, None), ("No. of ranks", 5, 8), ("Rank", 5, 12)]
    for schema, entries in ((1, fields), (2, [fields[0], ("Message size [bytes]", 22, 8), ("Secret", 22, 16)])):
        for index, (name, kind, offset) in enumerate(entries):
            export.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=9, schemaId=schema, idx=index, type=kind, name=name,
                       offset=offset)  # fmt: skip
    export.range(
        "ncclCommInitRank", 0, 5, domain=9, registered=True, payload=payload(9, 1, struct.pack("<Qii", 0xABC, 2, 1))
    )
    gather = payload(9, 2, struct.pack("<QQQ", 0xABC, 65536, 4242))
    if group:
        export.range("ncclGroupStart", 9, 9.5, domain=9, registered=True)
        export.range("ncclAllGather", 10, 12, domain=9, registered=True, payload=gather)
    export.range("ncclAllGather", 13, 20, domain=9, registered=True, payload=gather)
    if group:
        export.range("ncclGroupEnd", 21, 30, domain=9, registered=True)
    export.call("cudaLaunchKernelExC_v11060", 22 if group else 14, 25 if group else 18, correlation=1)
    export.kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 40, 90, correlation=1)
    return export


@pytest.mark.parametrize(("group", "size"), [(False, 65536), (True, 131072)])
def test_nccl_says_what_a_kernel_moved(tmp_path: Path, group: bool, size: int) -> None:
    trace = read_one(tmp_path, nccl_export(group=group))
    collectives = trace.rows["collectives"]
    assert names(trace, "collectives") == ["all_gather"]
    assert collectives["elements_in"].tolist() == [size]
    assert collectives["elements_out"].tolist() == [2 * size]
    assert trace.text(int(collectives["dtype"][0])) == "uint8"
    assert trace.text(int(collectives["group"][0])) == "0000000000000abc"
    assert collectives["group_size"].tolist() == [2]
    assert (trace.source.rank, trace.source.world_size) == (1, 2)
    assert "collectives" in trace.recorded
    assert "Secret" not in trace.strings


def test_collectives_are_named_by_what_the_program_asked_for(tmp_path: Path) -> None:
    export = Export()
    export.range("nccl:all_to_all, op_id = 5", 0, 30)
    export.range("ncclGroupEnd", 5, 20)
    export.call("cudaLaunchKernelExC_v11060", 6, 8, correlation=1)
    export.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 40, 90, correlation=1)
    trace = read_one(tmp_path, export)
    assert names(trace, "collectives") == ["all_to_all"]
    assert "collectives" not in trace.recorded  # no sizes


def own_steps(*ends: float) -> Export:
    """Our own steps from 1,000 us on, one after the other."""
    export = small()
    export.range("perfscope", 0, None, event=DOMAIN, domain=3)
    for start, end in zip((1000.0, *ends), ends, strict=False):
        export.range("step", start, end, event=START_END, domain=3)
    return export


UNFINISHED = "not counted as steps: ranges that were still open when the program or the recording ended (1)"


def test_a_step_that_the_end_of_the_recording_closed_is_none(tmp_path: Path) -> None:
    export = own_steps(1010, 1020, 1900)
    export.add("ANALYSIS_DETAILS", globalVid=0, duration=1_900_000, startTime=0, stopTime=1_900_000)
    trace = read_one(tmp_path, export)
    assert (trace.rows["steps"]["end_ns"] - trace.rows["steps"]["start_ns"]).tolist() == [10_000, 10_000]
    assert UNFINISHED in trace.source.notes


def test_a_step_that_ended_before_the_recording_is_one(tmp_path: Path) -> None:
    export = own_steps(1010, 1020, 1900)
    export.add("ANALYSIS_DETAILS", globalVid=0, duration=1_900_001, startTime=0, stopTime=1_900_001)
    trace = read_one(tmp_path, export)
    assert trace.rows["steps"]["number"].tolist() == [0, 1, 2]
    assert UNFINISHED not in trace.source.notes


def test_a_step_that_the_end_of_the_program_closed_is_none(tmp_path: Path) -> None:
    export = own_steps(1010, 1020, 1900)
    export.range("exit", 1899, 1901, event=START_END, domain=3)
    trace = read_one(tmp_path, export)
    assert trace.rows["steps"]["number"].tolist() == [0, 1]
    assert UNFINISHED in trace.source.notes


def test_an_exit_of_others_closes_no_step(tmp_path: Path) -> None:
    export = own_steps(1010, 1020, 1900)
    export.range("exit", 1899, 1901, event=START_END)
    assert read_one(tmp_path, export).rows["steps"]["number"].tolist() == [0, 1, 2]


def test_an_open_range_of_a_guessed_name_hides_no_steps(tmp_path: Path) -> None:
    """Whose end is the recording's began before all of them, and would enclose them."""
    export = small()
    for number, (start, end) in enumerate(((900, 1900), (1000, 1010), (1010, 1020))):
        export.range(f"step {number}", start, end)
    export.add("ANALYSIS_DETAILS", globalVid=0, duration=1_900_000, startTime=0, stopTime=1_900_000)
    trace = read_one(tmp_path, export)
    assert trace.rows["steps"]["number"].tolist() == [1, 2]
    assert UNFINISHED in trace.source.notes
