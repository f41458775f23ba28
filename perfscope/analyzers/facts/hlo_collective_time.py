"""Time of collectives of compiled programs: what a device waits for them, and what of it could hide.

Measured where a recording shows them, as the time while nothing else ran on the device. Else the least time the bytes
take over all links of the device (``hlo_roofline``); within a node, slower networks between nodes are not known. Of a
program compiled for a TPU slice, where they go is known: the low end of the estimate (``estimate/torus.py``), for
devices that differ along one axis of the torus do not use the links of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.estimate.assumptions import factors_for
from perfscope.analyzers.estimate.collective_time import collective_range
from perfscope.analyzers.facts.hlo_collectives import Collective
from perfscope.analyzers.facts.hlo_cost import hlo_costs
from perfscope.analyzers.facts.hlo_executions import measured_run_ns, module_index
from perfscope.analyzers.facts.hlo_saving import Part, once_ns, wire_ns
from perfscope.analyzers.hlo.module import Instruction
from perfscope.model.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """One collective, in one run of its program, in ns. None: not known."""

    transfer_ns: float | None
    """Its bytes over the device's links, at the least."""
    hidden_ns: float
    """Part of it behind what is scheduled between start and done, where it does not block."""
    measured_ns: float | None
    """While nothing else ran on the device: transfer, and waiting for the other devices."""

    @property
    def waits_ns(self) -> float | None:
        """What the device waits for it: measured, else what of the transfer nothing hides."""
        if self.measured_ns is not None:
            return self.measured_ns
        return None if self.transfer_ns is None else max(0.0, self.transfer_ns - self.hidden_ns)


def collective_time(trace: Trace, one: Collective) -> CollectiveTime:
    """Time of a collective in one run of its program."""
    return CollectiveTime(
        transfer_ns=_transfer_ns(trace, one),
        hidden_ns=one.runs.times * _work_ns(trace, one, one.between) if one.blocks is None else 0.0,
        measured_ns=measured_run_ns(trace, one.module, names_of(one)),
    )


def names_of(one: Collective) -> tuple[str, ...]:
    """What a profile may call it: the start, or the done that waits for it."""
    return tuple(dict.fromkeys((one.start.name, one.done.name)))


def waiting_part(trace: Trace, one: Collective) -> Part:
    """All that the device waits for a collective, for ``price``: what goes if the collective goes."""
    time = collective_time(trace, one)
    return Part(module=one.module, instructions=names_of(one), modelled_ns=time.waits_ns, whole=True)


def overlap_parts(
    trace: Trace, members: Sequence[Collective], free: Mapping[int, tuple[Instruction, ...]]
) -> list[Part]:
    """What could hide behind independent work, for ``price``: the shorter of the collectives and of that work.

    ``free``: independent work by ``id`` of a collective; those without are left out. Work that several collectives
    of a computation could hide behind counts once.
    """
    grouped: dict[tuple[int, str], list[Collective]] = {}
    for one in members:
        if free.get(id(one)):
            grouped.setdefault((module_index(trace, one.module), one.computation.name), []).append(one)
    parts = []
    for group in grouped.values():
        first = group[0]
        names = tuple(name for one in group for name in names_of(one))
        work = first.runs.times * _work_ns(trace, first, (work.name for one in group for work in free[id(one)]))
        sent: float | None = 0.0
        if measured_run_ns(trace, first.module, names) is None:
            transfers = [_transfer_ns(trace, one) for one in group]
            sent = None if None in transfers else sum(one or 0.0 for one in transfers)
            work = 0.0 if sent is None else min(work, sent)
        parts.append(Part(module=first.module, instructions=names, modelled_ns=None if sent is None else work))
    return parts


def _transfer_ns(trace: Trace, one: Collective) -> float | None:
    target = trace.target
    if target is not None and target.platform == "tpu" and one.module.platform == "tpu":
        modelled = collective_range(one, target, factors_for(target))
        return float(modelled.time.low * one.runs.times) if modelled.known else None
    cost = trace.fact(hlo_costs)[module_index(trace, one.module)]
    row = cost.by_name.get((one.computation.name, one.start.name))
    sent = None if row is None else wire_ns(trace, row.once.wire_bytes)
    return None if sent is None else sent * one.runs.times


def _work_ns(trace: Trace, one: Collective, names: Iterable[str]) -> float:
    """Time of one run of instructions of a collective's computation, each once."""
    times, index = trace.fact(once_ns), module_index(trace, one.module)
    return sum(times.get((index, one.computation.name, name), 0.0) for name in dict.fromkeys(names))
