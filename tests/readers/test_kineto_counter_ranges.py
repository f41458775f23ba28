"""Ranges of hardware counters in Kineto files made here: their values, and how they are joined with launches."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.kineto import decode, shard
from perfscope.analyzers.readers.kineto import reader as kineto_reader
from perfscope.analyzers.readers.kineto.categories import call_kind
from perfscope.analyzers.selection import Selection, part_of
from perfscope.model.trace import CallKind, Trace
from tests.growth.test_growth import MOST_PER_DOUBLING
from tests.growth.work import counting
from tests.readers.test_kineto import read, span, text

Event = dict[str, Any]


def counted(name: str, number: int, *, device: int = 0, **args: Any) -> Event:
    return span("cuda_profiler_range", name, 50_000 + 100 * number, 100, pid=device, tid=0, args=args)


def launch(ts: float, dur: float = 5, *, tid: int = 7, correlation: int = -1, name: str = "cudaLaunchKernel") -> Event:
    return span("cuda_runtime", name, ts, dur, tid=tid, args={"correlation": correlation})


def program(kernels: int = 3) -> list[Event]:
    """Ops of one kernel each, 20 us apart."""
    ops = [span("cpu_op", f"aten::op{number}", 20 * number, 15) for number in range(kernels)]
    return [*ops, *(launch(20 * number + 5, correlation=number + 1) for number in range(kernels))]


def joined(trace: Trace) -> list[tuple[str, str | None]]:
    """Range and op, in the order of the table."""
    shown = trace.kernel_counters
    names = trace.rows["slices"]["name"]
    return [
        (str(name), None if op is None or op != op else trace.text(int(names[int(op)])))
        for name, op in zip(shown["name"], shown["op"].astype(object).where(shown["op"].notna(), None), strict=True)
    ]


def basis(trace: Trace) -> str:
    (found,) = set(trace.kernel_counters["basis"])
    return str(found)


def test_ranges_are_joined_by_order_of_launch(tmp_path: Path) -> None:
    ranges = [counted(f"k{number}", number, cycles=number) for number in (2, 0, 1)]  # by time, not by place in the file
    trace = read(tmp_path, text([*ranges, *program()]))
    assert joined(trace) == [("k0", "aten::op0"), ("k1", "aten::op1"), ("k2", "aten::op2")]
    assert trace.kernel_counters["value"].tolist() == [0, 1, 2]
    assert basis(trace) == "joined by order of launch; counts are equal: 3 of 3"


def test_correlation_ids_go_before_the_order(tmp_path: Path) -> None:
    ranges = [counted("a", 0, correlation=3, cycles=1), counted("b", 1, correlation=9, cycles=1),
              counted("c", 2, correlation=0, cycles=1)]  # fmt: skip
    trace = read(tmp_path, text([*ranges, *program()]))
    assert joined(trace) == [("a", "aten::op2"), ("b", None), ("c", None)]
    assert basis(trace) == "joined by correlation id: 1 of 3 ranges"
    assert set(trace.kernel_counters["metric"]) == {"cycles"}


ALONE = {
    "fewer ranges": (program(), 2, "not joined: 2 ranges, but kernels were launched 3 times: ranges are of parts"),
    "more ranges": (program(), 4, "not joined: 4 ranges, but kernels were launched 3 times"),
    "no launch": ([span("cpu_op", "aten::mm", 0, 9)], 1, "not joined: 1 range, but kernels were launched 0 times"),
    "a part of the program": (program(), 1, "not joined: 1 range, but kernels were launched 3 times: ranges are of"),
    "a graph": (
        [*program(), launch(90, name="cudaGraphLaunch")], 3, "not joined: 1 graph launch, each of several kernels"
    ),
    "threads at once": (
        [*program(2), launch(27, tid=8)], 3, "not joined: several threads launched kernels at the same time"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ALONE)
def test_ranges_stay_alone_and_say_why(tmp_path: Path, case: str) -> None:
    events, ranges, said = ALONE[case]
    trace = read(tmp_path, text([*events, *(counted(f"k{number}", number, cycles=7) for number in range(ranges))]))
    assert joined(trace) == [(f"k{number}", None) for number in range(ranges)]
    assert basis(trace).startswith(said)
    (work,) = analyze(trace).of("hardware_counters")
    assert (work.ranges, work.joined, [op.name for op in work.ops]) == (ranges, 0, [f"k{n}" for n in range(ranges)])


def test_ranges_of_two_devices_stay_alone(tmp_path: Path) -> None:
    ranges = [counted("k", number, device=number % 2, cycles=number) for number in range(4)]
    trace = read(tmp_path, text([*program(4), *ranges]))
    assert basis(trace) == "not joined: the ranges are of 2 devices, and a launch does not record its device"
    assert trace.kernel_counters["ordinal"].tolist() == [0, 0, 1, 1]
    assert trace.kernel_counters["value"].tolist() == [0, 2, 1, 3]


def test_threads_that_launch_one_after_the_other_are_in_order(tmp_path: Path) -> None:
    """As the thread of the backward pass does, for which the main thread waits."""
    backward = [span("cpu_op", "MmBackward0", 60, 15, tid=8), launch(65, tid=8)]
    trace = read(tmp_path, text([*program(), *backward, *(counted(f"k{n}", n, cycles=n) for n in range(4))]))
    assert joined(trace)[-1] == ("k3", "MmBackward0")
    assert basis(trace) == "joined by order of launch; counts are equal: 4 of 4"


def test_what_is_no_count_is_missing_and_costs_nothing_else(tmp_path: Path) -> None:
    odd = counted("k0", 0, text="12", flag=True, nothing=None, many=[1], huge=10**30, fine=2**63, part=0.25)
    written = text([*program(1), odd]).replace('"part": 0.25', '"part": 0.25, "nan": NaN, "far": 1e999, "digits": 1'
                                               + "0" * 400)  # fmt: skip
    trace = read(tmp_path, written)
    shown = trace.kernel_counters
    values = dict(zip(shown["metric"], shown["value"], strict=True))
    assert {name for name, value in values.items() if math.isnan(value)} == {
        "text", "flag", "nothing", "many", "huge", "nan", "far", "digits",
    }  # fmt: skip
    assert (values["fine"], values["part"]) == (2**63, 0.25)
    assert joined(trace)[0] == ("k0", "aten::op0")


def test_a_sample_that_is_no_count_is_left_out(tmp_path: Path) -> None:
    sample = {"ph": "C", "name": "GPU", "ts": 1, "pid": 1, "args": {"far": 10**400, "power": 250.5, "text": "1"}}
    trace = read(tmp_path, text([*program(1), sample]))
    assert trace.rows["counters"]["value"].tolist() == [250.5]


def test_a_range_without_counters_is_still_a_launch(tmp_path: Path) -> None:
    trace = read(tmp_path, text([*program(2), counted("a", 0), counted("b", 1, cycles=3)]))
    shown = trace.kernel_counters
    assert shown["metric"].isna().tolist() == [True, False]
    assert joined(trace) == [("a", "aten::op0"), ("b", "aten::op1")]


def test_ranges_without_a_time_are_unplaced(tmp_path: Path) -> None:
    broken = [dict(counted("a", 0, cycles=1), ts="soon"), dict(counted("b", 1, cycles=1), dur=-1)]
    trace = read(tmp_path, text([*program(1), *broken, counted("c", 2, cycles=1)]))
    assert trace.source.unplaced == {
        "time is not a number": 1,
        "missing, negative or overflown duration": 1,
    }
    assert joined(trace) == [("c", "aten::op0")]


def test_counters_that_cannot_be_read_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values nested so deep that one decoder skips them and the other gives up."""

    def give_up(_: bytes) -> None:
        raise RecursionError

    monkeypatch.setattr(shard, "counted_ranges", give_up)
    trace = read(tmp_path, text([*program(1), counted("a", 0, cycles=1), counted("b", 1, cycles=1)]))
    assert trace.source.unplaced == {"ranges whose counters cannot be read": 2}


def test_names_made_to_do_harm_are_shown_clean(tmp_path: Path) -> None:
    hostile = {"\x1b[31m\u202e<script>": 1, "x" * 100_000: 2, "": 3}
    ranges = [counted("<b>\x1b]0;\x07", 0, **hostile), counted("k" * 100_000, 1, cycles=1)]
    trace = read(tmp_path, text([*program(3), *ranges]))
    said = str(analyze(trace))
    assert "Hardware counters" in said
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert len(said) < 20_000


def test_other_arguments_of_events_are_no_counters(tmp_path: Path) -> None:
    mark = span("cpu_op", "cuda_profiler_range", 0, 5, args={"secret": 12})
    trace = read(tmp_path, text([mark, *program(1)]))
    assert not len(trace.kernel_counters)
    assert "secret" not in trace.strings


def test_made_up_times_are_in_no_account(tmp_path: Path) -> None:
    without = read(tmp_path, text(program()), "without.json")
    counters = read(tmp_path, text([*program(), *(counted("k", number, cycles=1) for number in range(3))]))
    assert counters.span_ns() == without.span_ns()
    for name, rows in without.rows.items():
        if name != "kernel_counters":
            assert len(counters.rows[name]) == len(rows)
    assert analyze(counters).accounts == analyze(without).accounts
    assert not counters.source.unplaced


def test_a_file_of_ranges_alone_is_read(tmp_path: Path) -> None:
    trace = read(tmp_path, text([counted("__profile__", 0, cycles=1)]))
    (work,) = analyze(trace).of("hardware_counters")
    assert (work.ranges, work.joined) == (1, 0)


def test_several_processes_and_odd_events_give_the_same_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [*program(300), *(counted(f"k{number}", number, a=number, b=-number) for number in range(300))]
    alone = read(tmp_path, text(events, indent=1)).kernel_counters
    odd = {"ph": "X", "cat": "cpu_op", "name": 5, "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    lenient = read(tmp_path, text([*events, odd], indent=1), "odd.json").kernel_counters
    monkeypatch.setattr(decode, "processes", lambda size: 3)
    monkeypatch.setattr(decode, "CHUNK", 5000)
    together = kineto_reader.read(tmp_path / "trace.json").kernel_counters
    for name in ("number", "name", "call", "metric", "value"):
        assert alone[name].astype(str).tolist() == together[name].astype(str).tolist()
        assert alone[name].astype(str).tolist() == lenient[name].astype(str).tolist()


def test_a_part_of_the_recording_keeps_its_counters(tmp_path: Path) -> None:
    trace = read(tmp_path, text([*program(), *(counted(f"k{n}", n, cycles=n) for n in range(3))]))
    part = part_of(trace, Selection(time_ns=(20_000, 36_000)))
    part.check()
    assert joined(part) == [("k1", "aten::op1")]


@pytest.mark.parametrize("names", ["same counters", "counters of their own"])
def test_work_grows_with_the_ranges(tmp_path: Path, names: str) -> None:
    def work(ranges: int) -> int:
        path = tmp_path / f"{ranges}.json"
        own = names == "counters of their own"
        path.write_text(json.dumps({"traceEvents": [
            *program(ranges), *(counted("k", n, **{f"m{n if own else 0}": n, "b": 1}) for n in range(ranges)),
        ]}))  # fmt: skip
        with counting() as done:
            (found,) = analyze(kineto_reader.read(path), rules=["host_bound"]).of("hardware_counters")
        assert found.joined == ranges
        return sum(done.lines.values()) + sum(done.elements.values()) // 8

    work(50)
    small, large = work(500), work(2000)
    assert large <= small * MOST_PER_DOUBLING**2


def test_a_callback_on_a_stream_is_no_launch_of_a_kernel() -> None:
    names = ("cudaLaunchKernel", "cuLaunchKernelEx", "cudaLaunchHostFunc", "hipLaunchHostFunc", "cudaGraphLaunch")
    kinds = [CallKind.KERNEL, CallKind.KERNEL, CallKind.OTHER, CallKind.OTHER, CallKind.GRAPH]
    assert list(map(call_kind, names)) == kinds
