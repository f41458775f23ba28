"""Compute work below the roofs of its device."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.sections.roofline_points import Point, points_by_kind
from perfscope.model.results import Column, ResultTable
from perfscope.model.trace import Trace


def _rows(trace: Trace) -> Iterator[Point]:
    for points in points_by_kind(trace).values():
        yield from sorted(points, key=lambda point: -point.ns)


RESULT: ResultTable[Point] = ResultTable(
    name="roofline",
    doc="Compute work with its time and its least possible time: runs of one instruction, or of ops with one name, "
    "size and line. FLOPs and bytes are modelled from shapes.",
    columns=(
        Column("kind", str, "text", "instructions of programs, ops of a step, or profiled calls of ops", "key"),
        Column("name", str, "code", "instruction or op", "key"),
        Column("what", str, "text", "opcode of an instruction, phase of an op, class of a profiled op", "key"),
        Column("program", str, "code", "compiled program, or module of an op", "key"),
        Column("line", str, "code", "line of the program", "key"),
        Column("dtype", str, "text", "data type", "key"),
        Column("flops", int | None, "quantity", "FLOPs of a run", "key", title="FLOPs per run"),
        Column("bytes", int | None, "bytes", "bytes read and written by a run", "key", title="bytes per run"),
        Column("basis", str, "text", "measured, or modelled: nothing ran, and the time is the least"),
        Column("time_ns", int, "ns", "time of all runs", of=lambda point: round(point.ns)),
        Column("runs", int, "count", "runs"),
        Column("run_ns", float, "ns", "time of a run", title="per run"),
        Column("least_ns", float | None, "ns", "least time of a run at the peaks of the device", of=Point.least_run_ns,
               title="least possible"),
        Column("bound", str, "text", "what bounds the least time", title="bound by"),
        Column("headroom_ns", int | None, "ns", "measured time beyond the least, all runs", of=Point.headroom_ns),
        Column("of_roof", float | None, "share", "least time of the measured one", of=Point.of_roof),
        Column("intensity", float | None, "quantity", "FLOPs per byte", of=Point.intensity, title="FLOP/byte"),
        Column("rate", float | None, "quantity", "FLOPs per second", of=Point.rate, title="FLOP/s"),
        Column("device", str, "text", "device of the roofs"),
    ),
    rows=_rows,
)  # fmt: skip
