"""Assumptions narrowed by a recording of the same devices: where its products and exchanges lay in their own ranges.

A product of a recording has a range by the model, as a product of a plan has. Its position in it, 0 fast to 1 slow, is
an observation of the assumption *products*; a collective is one of *link* or *network*. The assumption is narrowed to
the positions between which eight in ten of the recorded time lie. The share of exchanges that kernels hide is that of
the recorded steps, from the step that hid least to the one that hid most. Other programs may reach other shares
(docs/compile-model.md, "Does calibration carry over"), so a plan names the recording that narrowed it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from perfscope.analyzers.devices import Target
from perfscope.analyzers.ops import device_peaks, op_works
from perfscope.analyzers.plans import XLA_KINDS
from perfscope.analyzers.predict import Exchange, Range, exchange_range, factors_for, usual_range
from perfscope.analyzers.time import account_windows, exposed_communication
from perfscope.model.collectives import element_size, message_elements, operation_of
from perfscope.model.errors import DataError
from perfscope.model.trace import MISSING, Trace
from perfscope.plugins.plan.assumptions import INDEX, UNKNOWNS

LEAST = 20
"""Observations that narrow an assumption: fewer are of a few kernels."""
QUANTILES = (0.1, 0.9)
BEYOND = (-0.5, 4.0)
"""Positions outside of these are kernels that are not what the model takes them for, or waits for others."""


AXES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tensor hidden", ("tp", "tensor")),
    ("tokens hidden", ("ep", "cp", "expert", "context", "sp")),
    ("sends hidden", ("pp", "pipe", "pipeline", "stage")),
    ("weights hidden", ("dp", "fsdp", "ddp", "hsdp", "data", "shard", "replicate", "replica")),
)
"""Assumption -> words in the name that a program gives a process group, e.g. ``mesh_tp``."""


class Narrowed(Struct, frozen=True, kw_only=True):
    """Ends of an assumption by a recording."""

    assumption: str
    low: float
    high: float
    observed: int

    def words(self, recording: str) -> str:
        """A sentence for the plan."""
        if self.assumption.endswith("hidden"):
            unknown = UNKNOWNS[INDEX[self.assumption]]
            most, least = (unknown.best + (unknown.worst - unknown.best) * at for at in (self.low, self.high))
            shares = f"{least:.0%} to {most:.0%} in the steps of {recording} ({self.observed:,} exchanges)"
            return f"{self.assumption}: {shares}; other programs may hide other shares"
        return (
            f"{self.assumption}: from {self.low:.2f} to {self.high:.2f} of its range in {self.observed:,} kernels of "
            f"{recording}; other programs may reach other shares"
        )


def narrowed_by(traces: Sequence[Trace], target: Target) -> tuple[Narrowed, ...]:
    """Assumptions that the traces narrow. ``DataError`` in one line if they are of other devices, or too short."""
    names = {device.name for trace in traces for device in trace.fact(device_peaks) if device is not None}
    if target.device.name not in names:
        shown = ", ".join(sorted(names)) or "no device of the tables"
        raise DataError(f"--calibrate: the recording is of {shown}, the plan for {target.device.name}")
    positions: dict[str, list[tuple[float, int]]] = {}
    for trace in traces:
        for assumption, position, weight in (*_products(trace, target), *_collectives(trace, target)):
            if BEYOND[0] <= position <= BEYOND[1]:
                positions.setdefault(assumption, []).append((position, weight))
    found = tuple(_ends(name, values) for name, values in positions.items() if len(values) >= LEAST)
    found += tuple(_hidden(traces))
    if not found:
        counts = ", ".join(f"{len(values)} of {name}" for name, values in positions.items()) or "none"
        raise DataError(
            f"--calibrate: {LEAST} products or exchanges with shapes narrow an assumption; the recording has {counts}"
        )
    return found


def _ends(name: str, values: Sequence[tuple[float, int]]) -> Narrowed:
    ordered = sorted(values)
    shares = np.cumsum([weight for _, weight in ordered]) / sum(weight for _, weight in ordered)
    places = np.minimum(np.searchsorted(shares, QUANTILES), len(ordered) - 1).tolist()
    low, high = (ordered[place][0] for place in places)
    return Narrowed(assumption=name, low=low, high=high, observed=len(values))


def exchange_category(operation: str, group: str | None) -> str | None:
    """The assumption on hidden exchanges that a collective belongs to; ``None``: its group has no telling name.

    ``group``: as the program calls it. The group of all ranks, and one without a name, is that of data parallelism
    unless the operation is of another kind.
    """
    words = set(re.split(r"[^a-z]+", (group or "").lower()))
    named = next((name for name, known in AXES if words & set(known)), None)
    if named is not None or operation not in _OF_WEIGHTS:
        return named or _BY_KIND.get(operation)
    return "weights hidden" if not group or words & {"default", "world"} else None


_OF_WEIGHTS = frozenset({"all_gather", "all_reduce", "reduce_scatter"})
_BY_KIND = {"all_to_all": "tokens hidden", "send": "sends hidden", "recv": "sends hidden"}


def _hidden(traces: Sequence[Trace]) -> Iterator[Narrowed]:
    """Ends of the hidden shares of each category with enough collectives, over the recorded steps of all ranks."""
    shares: dict[str, list[float]] = {}
    counts: Counter[str] = Counter()
    for trace in traces:
        sums: dict[tuple[str, int], list[int]] = {}
        for name, step, exposed, whole in _exposures(trace):
            counts[name] += 1
            both = sums.setdefault((name, step), [0, 0])
            both[0] += exposed
            both[1] += whole
        for (name, _), (exposed, whole) in sums.items():
            if whole:
                shares.setdefault(name, []).append(1 - exposed / whole)
    for name, found in shares.items():
        if counts[name] >= LEAST:
            unknown = UNKNOWNS[INDEX[name]]
            ends = [(unknown.best - share) / (unknown.best - unknown.worst) for share in (max(found), min(found))]
            yield Narrowed(assumption=name, low=ends[0], high=ends[1], observed=counts[name])


def _exposures(trace: Trace) -> Iterator[tuple[str, int, int, int]]:
    """(Assumption, number of the step, exposed ns, ns) of each collective of a step."""
    collectives, kernels = trace.rows["collectives"], trace.rows["kernels"]
    exposed, windows = trace.fact(exposed_communication), trace.fact(account_windows)
    for row in np.flatnonzero(collectives["kernel"] != MISSING).tolist():
        kernel = int(collectives["kernel"][row])
        begin, end = int(kernels["start_ns"][kernel]), int(kernels["end_ns"][kernel])
        step = int(np.searchsorted(windows.starts, begin, side="right")) - 1
        text = collectives["description"][row]
        group = None if text == MISSING else trace.text(int(text))
        name = exchange_category(operation_of(trace.text(int(collectives["name"][row]))), group)
        if name is not None and step >= 0 and begin < int(windows.ends[step]):
            yield name, step, int(exposed[kernel]), end - begin


def _position(time_ns: int, found: Range) -> float | None:
    return None if found.high <= found.low else (time_ns - found.low) / (found.high - found.low)


def _products(trace: Trace, target: Target) -> Iterator[tuple[str, float, int]]:
    devices = trace.fact(device_peaks)
    for op in op_works(trace):
        device = devices[op.device]
        if device is None or device.name != target.device.name or op.work.category != "product" or op.time_ns <= 0:
            continue
        found = usual_range(target.device, op.work)
        position = None if found is None else _position(op.time_ns, found)
        if position is not None:
            yield "products", position, op.time_ns


def _collectives(trace: Trace, target: Target) -> Iterator[tuple[str, float, int]]:
    """Groups of the first ranks: the recording does not tell which ranks a group has."""
    collectives, kernels = trace.rows["collectives"], trace.rows["kernels"]
    factors = factors_for(target)
    for row in np.flatnonzero(collectives["kernel"] != MISSING).tolist():
        kernel = int(collectives["kernel"][row])
        operation = operation_of(trace.text(int(collectives["name"][row])))
        size = element_size(trace.text(int(collectives["dtype"][row])))
        ranks, ins, outs = (
            None if collectives[name][row] == MISSING else int(collectives[name][row])
            for name in ("group_size", "elements_in", "elements_out")
        )
        elements = message_elements(operation, ins, outs, ranks)
        if not elements or not size or not ranks or not 1 < ranks <= target.count:
            continue
        kind = operation.replace("_", "-")
        exchange = Exchange(kind=XLA_KINDS.get(kind, kind), bytes=elements * size, group=tuple(range(ranks)))
        found = exchange_range(exchange, target, factors)
        time = int(kernels["end_ns"][kernel] - kernels["start_ns"][kernel])
        position = _position(time, found.time)
        if position is not None and found.known:
            yield ("network" if found.nodes > 1 else "link"), position, time
