"""A small machine: a host that launches work on streams in order and sometimes waits. Gives the trace it would record.

Times are microseconds. It shares no code with the graph, so what it makes of a program without a wait, or with shorter
work, is the answer that a what-if must find.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
from hypothesis import strategies as st

from perfscope.model.trace import CallKind, Trace
from tests.build import TraceBuilder

CALL, LATENCY, BETWEEN, BACK = 3, 6, 1, 4
"""Launch call, launch to an idle device, between two works of a stream, return of a wait after the work."""


@dataclass(frozen=True)
class Op:
    """An op of the host: time before its launch; ``kernel``: length of what it launches, 0 for nothing."""

    name: str
    host: int
    kernel: int = 0
    stream: int = 7
    waits: bool = False
    """Waits for all work after that."""


OPS = st.lists(
    st.builds(
        Op,
        name=st.sampled_from("abc"),
        host=st.integers(1, 60),
        kernel=st.integers(0, 120),
        stream=st.sampled_from([7, 8]),
        waits=st.booleans(),
    ),
    min_size=1,
    max_size=14,
)
"""Drawn programs."""


def run(ops: list[Op], *, stall: int = 0) -> tuple[Trace, int]:
    """(trace of one step, its length in us). ``stall``: the host does nothing recorded before each op for as long."""
    builder = TraceBuilder()
    time, free = 0, {}
    for number, op in enumerate(ops):
        begin = time + stall
        time = begin + op.host
        if op.kernel:
            start = max(time + LATENCY, free.get(op.stream, -BETWEEN) + BETWEEN)
            free[op.stream] = start + op.kernel
            builder.launched(
                f"k_{op.name}", time, start, start + op.kernel, correlation=number, stream=op.stream, cost=CALL
            )
            time += CALL
        if op.waits:
            back = max([time + 2, *(end + BACK for end in free.values())])
            builder.call("cudaDeviceSynchronize", time, back, kind=CallKind.SYNC)
            time = back
        builder.op(op.name, begin, time)
    builder.step(1, 0, time)
    builder.annotation("ProfilerStep#1", 0, time)
    return builder.build(), time


@dataclass(frozen=True)
class Round:
    """A rank's work before a collective: time of its host, then a kernel."""

    host: int
    kernel: int


ROUNDS = st.integers(1, 5).flatmap(
    lambda size: st.lists(
        st.lists(st.builds(Round, host=st.integers(20, 80), kernel=st.integers(10, 200)), min_size=size, max_size=size),
        min_size=2,
        max_size=3,
    )
)
"""Drawn jobs: the rounds of each rank. Longer host time counts as polling (``POLLED_NS``)."""

TRANSFER = 40


def run_job(
    ranks: list[list[Round]], *, transfer: int = TRANSFER, shift: int = 0, waits: bool = True
) -> tuple[list[Trace], int]:
    """(one trace per rank, end of the last one in us). Each round is a kernel followed by an all-reduce.

    ``transfer``: of the all-reduce; 0 for none. ``shift``: of the clock of each rank relative to the previous one.
    ``waits``: each host waits for each all-reduce; it always waits for the last.
    """
    builders = [TraceBuilder(rank=rank, path=f"rank{rank}.json") for rank in range(len(ranks))]
    times, free = [0] * len(ranks), [0] * len(ranks)
    for number in range(len(ranks[0])):
        arrivals = []
        for rank, rounds in enumerate(ranks):
            begin, launch = times[rank], times[rank] + rounds[number].host
            start = max(launch + LATENCY, free[rank] + BETWEEN)
            end = start + rounds[number].kernel
            builders[rank].launched(
                "gemm",
                shift * rank + launch,
                shift * rank + start,
                shift * rank + end,
                correlation=2 * number,
                cost=CALL,
            )
            builders[rank].op("work", shift * rank + begin, shift * rank + launch + 2 * CALL)
            times[rank] = launch + 2 * CALL
            arrivals.append(max(end + BETWEEN, launch + CALL + LATENCY) if transfer else end)
            free[rank] = end
        done = max(arrivals) + transfer
        for rank in range(len(ranks)):
            if transfer:
                free[rank] = done
                _all_reduce(builders[rank], rank * shift, times[rank], arrivals[rank], done, number, len(ranks))
            if waits or number == len(ranks[0]) - 1:
                back = max(times[rank] + 2, free[rank] + BACK)
                builders[rank].call(
                    "cudaDeviceSynchronize", shift * rank + times[rank], shift * rank + back, kind=CallKind.SYNC
                )
                times[rank] = back
    for rank, builder in enumerate(builders):
        builder.step(1, shift * rank, shift * rank + times[rank])
    return [
        msgspec.structs.replace(trace, source=msgspec.structs.replace(trace.source, world_size=len(ranks)))
        for trace in map(TraceBuilder.build, builders)
    ], max(times)


def _all_reduce(build: TraceBuilder, shift: int, time: int, start: int, end: int, number: int, size: int) -> None:
    build.launched("ncclDevKernel_AllReduce_Sum_f32", shift + time - CALL, shift + start, shift + end,
                   correlation=2 * number + 1, communication=True, cost=CALL)  # fmt: skip
    kernel = len(build.tables["kernels"]) - 1
    row = build.tables["kernels"][kernel]
    build.row("collectives", name=build.code("all_reduce"), start_ns=row["start_ns"], end_ns=row["end_ns"],
              kernel=kernel, slice=-1, group=build.code("0"), group_size=size, ranks=build.code(str(list(range(size)))),
              elements_in=1000, elements_out=1000, dtype=build.code("Float"), sequence=number)  # fmt: skip


def without_waits(ops: list[Op]) -> list[Op]:
    """The same program, but for its last wait, which ends the step."""
    return [*(replace(op, waits=False) for op in ops[:-1]), ops[-1]]


def scaled(ops: list[Op], name: str, factor: float) -> list[Op]:
    """The same program with other times of one op and its kernel."""
    return [
        replace(op, host=round(op.host * factor), kernel=round(op.kernel * factor)) if op.name == name else op
        for op in ops
    ]
