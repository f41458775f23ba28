"""Sets of ranks with planted arrivals: kernels that begin when a rank arrives and end together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from perfscope.model.trace import CallKind, Trace
from tests.build import TraceBuilder

KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"
STEP = 10_000.0
"""us from one collective's last arrival to the next one's, without what makes a rank late."""

Extra = Callable[[TraceBuilder, int], None]


def collective(
    build: TraceBuilder,
    start: float,
    end: float,
    *,
    operation: str = "all_reduce",
    kernel: str = KERNEL,
    ranks: Sequence[int] | None = None,
    elements: int = 1_000_000,
    received: int | None = None,
    dtype: str = "BFloat16",
    sequence: int = -1,
    stream: int = 20,
    correlation: int = -1,
    group: str = "0",
    description: str = "",
) -> None:
    """A communication kernel with its row of ``collectives``."""
    build.kernel(kernel, start, end, communication=True, stream=stream, correlation=correlation)
    named = ranks is not None
    build.row(
        "collectives", start_ns=round(start * 1000), end_ns=round(end * 1000), name=build.code(operation),
        kernel=len(build.tables["kernels"]) - 1, group=build.code(group) if named else -1,
        description=build.code(description) if description else -1,
        group_size=len(ranks) if ranks is not None else -1, ranks=build.code(str(list(ranks or ()))) if named else -1,
        elements_in=elements, elements_out=elements if received is None else received, dtype=build.code(dtype),
        sequence=sequence,
    )  # fmt: skip


def named(trace: Trace, *, world: int | None = None, path: str | None = None) -> Trace:
    """The trace of a job of ``world`` ranks."""
    return replace(trace, source=replace(trace.source, world_size=world, path=path or trace.source.path))


def rank_set(
    late_us: Sequence[Sequence[float]],
    *,
    core: float = 500.0,
    clock_us: Sequence[float] | None = None,
    recorded: bool = True,
    jitter_us: float = 1.0,
    extra: Extra | None = None,
    world: int | None = None,
    waits: bool = False,
) -> list[Trace]:
    """One trace a rank. ``late_us[k][r]``: how late rank ``r`` comes to collective ``k``, in us.

    The host launches a collective 10 us before its kernel begins. ``clock_us``: what each rank's clock is ahead.
    ``extra(build, rank)`` adds rows, on the true clock. ``waits``: the host waits for each collective.
    """
    size = len(late_us[0])
    arrivals, now = [], 0.0
    for lates in late_us:
        arrivals.append([now + STEP + late for late in lates])
        now = max(arrivals[-1]) + core
    traces = []
    for rank in range(size):
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
        for index, arrived in enumerate(arrivals):
            end = max(arrived) + core + jitter_us * (rank % 2)
            build.call("cudaLaunchKernel", arrived[rank] - 10, arrived[rank] - 8, correlation=1000 + index)
            collective(build, arrived[rank], end, ranks=range(size) if recorded else None,
                       sequence=index if recorded else -1, correlation=1000 + index)  # fmt: skip
            if waits:
                build.call("cudaDeviceSynchronize", arrived[rank] - 7, end + 4, kind=CallKind.SYNC)
        if extra is not None:
            extra(build, rank)
        ahead = round(1000 * clock_us[rank]) if clock_us is not None else 0
        for rows in build.tables.values():
            for row in rows:
                if "start_ns" in row:
                    row["start_ns"] += ahead
                    row["end_ns"] += ahead
        traces.append(named(build.build(), world=size if world is None else world))
    return traces
