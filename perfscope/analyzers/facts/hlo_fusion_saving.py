"""Time that fusing across a round trip would save: the memory traffic, less what is computed twice.

``waste = saved_bytes / bandwidth - k (m - 1) * flops(p) / peak``, for a producer p that runs k times and is read by
m kernels: fused into each of them it is computed m times. Launches that go are a separate addend: XLA records its
kernels into CUDA graphs by default, where one costs far less than outside, so they are shown and not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.facts.hlo_cost import hlo_costs
from perfscope.analyzers.facts.hlo_executions import measured_run_ns, module_index
from perfscope.analyzers.facts.hlo_fusion import RoundTrip
from perfscope.analyzers.facts.hlo_roofline import compute_ns
from perfscope.analyzers.facts.hlo_saving import Part, bytes_ns
from perfscope.analyzers.facts.program_device import program_device
from perfscope.model.trace import Trace

LAUNCH_NS = 2_000
"""An assumption: from one kernel's end to the next one's start, outside a CUDA graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TripTime:
    """Time of a round trip in one run of the program, in ns; None where no device is known."""

    memory_ns: float | None
    """Its bytes at the bandwidth of the device's memory, also where they stay in the cache."""
    again_ns: float | None
    """Arithmetic of the producer for every reader but one."""
    launches_ns: float
    """One launch fewer each time, at ``LAUNCH_NS``; not in ``saved_ns``."""
    measured_ns: float | None
    """What its kernels took, where that was recorded and nothing else ran beside them."""
    saved_ns: float | None
    """What fusing saves at most by the model; 0 where the value stays in the cache or costs more to compute again.
    Not limited by ``measured_ns`` yet: kernels of several round trips are not saved several times."""

    @property
    def is_worse_fused(self) -> bool:
        """Computing it again costs as much as moving it: rightly not fused."""
        return self.memory_ns is not None and self.again_ns is not None and self.again_ns >= self.memory_ns


def trip_time(trace: Trace, trip: RoundTrip) -> TripTime:
    """The parts of the formula for one round trip."""
    known = trace.fact(program_device)
    memory, again = bytes_ns(trace, trip.saved_bytes), None
    if known is not None:
        cost = trace.fact(hlo_costs)[module_index(trace, trip.module)]
        once = compute_ns(cost.by_name[trip.computation, trip.producer.name].once, known.device)
        again = None if once is None else trip.runs.times * (len(trip.consumers) - 1) * once
    saved = None
    if memory is not None and again is not None:
        saved = 0.0 if trip.in_cache else max(0.0, memory - again)
    return TripTime(
        memory_ns=memory,
        again_ns=again,
        launches_ns=LAUNCH_NS * trip.runs.times,
        measured_ns=measured_run_ns(trace, trip.module, instructions_of(trip)),
        saved_ns=saved,
    )


def part_of(trip: RoundTrip, time: TripTime) -> Part:
    """The round trip as something that ``price`` can add up."""
    return Part(module=trip.module, instructions=instructions_of(trip), modelled_ns=time.saved_ns)


def instructions_of(trip: RoundTrip) -> tuple[str, ...]:
    """The kernels between which the value goes."""
    return (trip.producer.name, *(one.name for one in trip.consumers))
