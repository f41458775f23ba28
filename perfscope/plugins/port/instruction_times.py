"""Time of each instruction of a program per step, so that the times add up to the time in which any of them ran."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from perfscope.analyzers.hlo import executions, rows_of
from perfscope.analyzers.predict import estimate
from perfscope.analyzers.time import account_windows, trace_step_time
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from perfscope.plugins.port.pieces import Basis


class Times(Struct, frozen=True, kw_only=True):
    """Times of a program in one step, ns."""

    ns: Mapping[str, int] | None
    """By instruction; instructions of loops have the sum of their turns."""
    step_ns: int | None
    basis: Basis | None


def times_of(trace: Trace, index: int) -> Times:
    """Measured times of the program ``trace.hlo[index]``, else the modelled ones for the trace's target."""
    module = trace.hlo[index]
    ran = trace.fact(executions).get(index)
    if ran is not None:
        step = trace_step_time(trace)
        windows = trace.fact(account_windows)
        names = [one.name for computation in module.computations.values() for one in computation.instructions]
        traced = windows.whole_ns / max(1, len(windows.starts))
        whole = round(traced) if step is None else round(step.ns)
        scale = min(1.0, whole / traced) / ran.count if traced else 1 / ran.count
        return Times(ns=_divided(trace, index, names, scale), step_ns=whole, basis="measured")
    if trace.target is not None:
        try:
            made = estimate(module, trace.target)
        except DataError:
            return Times(ns=None, step_ns=None, basis=None)
        ns = {row.name: round((row.exposed.low + row.exposed.high) / 2) for row in made.rows}
        return Times(ns=ns, step_ns=round((made.step_ns.low + made.step_ns.high) / 2), basis="modelled")
    return Times(ns=None, step_ns=None, basis=None)


def _divided(trace: Trace, index: int, names: list[str], scale: float) -> dict[str, int]:
    """Divide each moment among the instructions that run at that moment on a device."""
    ops, module = trace.rows["hlo_ops"], trace.hlo[index]
    result: dict[str, float] = {}
    owners, rows = [], []
    for name in dict.fromkeys(names):
        mine = rows_of(trace, module, [name])
        mine = mine[~ops["encloses"][mine]]
        rows.append(mine)
        owners += [name] * len(mine)
    chosen = np.concatenate(rows) if rows else np.empty(0, np.int64)
    owner = np.array(owners, dtype=object)
    for device in np.unique(ops["ordinal"][chosen]):
        on = ops["ordinal"][chosen] == device
        start, end = ops["start_ns"][chosen[on]], ops["end_ns"][chosen[on]]
        for name, share in zip(owner[on], _shares(start, end), strict=True):
            result[name] = result.get(name, 0.0) + float(share)
    return {name: round(ns * scale) for name, ns in result.items()}


def _shares(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Part of each interval if every moment is divided equally among the intervals that hold it."""
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    change = np.concatenate([np.ones(len(start), np.int64), -np.ones(len(end), np.int64)])[order]
    running = np.cumsum(change)[:-1]
    lengths = np.diff(times[order])
    each = np.concatenate([[0.0], np.cumsum(np.where(running > 0, lengths / np.maximum(running, 1), 0.0))])
    sorted_times = times[order]
    shares: np.ndarray = each[np.searchsorted(sorted_times, end)] - each[np.searchsorted(sorted_times, start)]
    return shares
