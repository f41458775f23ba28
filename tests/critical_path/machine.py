"""A small machine: a host that launches work on streams in order and sometimes waits. Gives the trace it would record.

Times are microseconds. It shares no code with the graph, so what it makes of a program without a wait, or with shorter
work, is the answer that a what-if must find.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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


def without_waits(ops: list[Op]) -> list[Op]:
    """The same program, but for its last wait, which ends the step."""
    return [*(replace(op, waits=False) for op in ops[:-1]), ops[-1]]


def scaled(ops: list[Op], name: str, factor: float) -> list[Op]:
    """The same program with other times of one op and its kernel."""
    return [
        replace(op, host=round(op.host * factor), kernel=round(op.kernel * factor)) if op.name == name else op
        for op in ops
    ]
