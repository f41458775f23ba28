"""Work of autograd's anomaly mode in a step: checks for NaN after each node, and stacks of the forward pass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.time import jax_debugging, step_windows
from perfscope.model.finding import Where
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

_NODE = "autograd::engine::evaluate_function"
_ACCUMULATES = "AccumulateGrad"
_FIRST_CHECK = "aten::isnan"
_CHECKS = frozenset({_FIRST_CHECK, "aten::_is_any_true", "aten::any", "aten::item"})
"""Ops that the engine runs on each result of a node, outside of the node's own work."""

CHECKED_SHARE = 0.5
"""Share of checked nodes from which anomaly mode is on: all nodes with a result, or none without it."""


DISTORTED = frozenset({"host_bound", "host_sync", "launch_bound", "small_kernels", "unexplained_idle", "unfused_ops"})
"""Rules whose findings are consequences of anomaly mode (reads and small kernels after each node) or of disabled jit.
"""


class AnomalyMode(Struct, frozen=True, kw_only=True):
    """Cost in the recorded steps."""

    where: Where
    """Line that turns it on, if `perfscope run` recorded it."""
    rows: Int64
    """Rows of ``slices`` of the checks."""
    checks: int
    """Number of checked results per step."""
    check_ns: int
    """Time of all checks over the recording."""
    stacks: int
    """Number of kept stacks per step."""
    stack_ns: int | None
    """Time of all stacks over the recording; ``None`` if not measured."""

    @property
    def cost_ns(self) -> int:
        """Sum of both over the recording."""
        return self.check_ns + (self.stack_ns or 0)


def anomaly_mode(trace: Trace) -> AnomalyMode | None:
    """Return the cost of anomaly mode in the recorded steps; ``None`` if it is off."""
    slices = trace.rows["slices"]
    texts = trace.strings
    nodes = np.array([code for code, text in enumerate(texts) if text.startswith(_NODE)], np.int64)
    grown = {code for code in nodes.tolist() if texts[code].endswith(_ACCUMULATES)}
    is_node = np.isin(slices["name"], nodes) & _in_steps(trace, slices["start_ns"])
    parents = slices["parent"]
    below_node = (parents != MISSING) & is_node[np.maximum(parents, 0)]
    checks = below_node & np.isin(slices["name"], [code for code, text in enumerate(texts) if text in _CHECKS])
    first = checks & np.isin(slices["name"], [code for code, text in enumerate(texts) if text == _FIRST_CHECK])
    if not is_node.any() or len(np.unique(parents[first])) < CHECKED_SHARE * is_node.sum():
        return None
    steps = max(1, trace.fact(step_windows).count)
    rows = np.flatnonzero(checks)
    kept = int((is_node & ~np.isin(slices["name"], list(grown))).sum())
    measured = next((fact for fact in trace.program_facts if fact.name == "anomaly_stacks"), None)
    stack_ns = None if measured is None or not measured.total_ns else measured.total_ns // measured.count * kept
    place = next((fact for fact in trace.program_facts if fact.name == "anomaly_mode"), None)
    return AnomalyMode(
        where=Where() if place is None else Where(file=place.file, line=place.line),
        rows=rows,
        checks=round(int(first.sum()) / steps),
        check_ns=int((slices["end_ns"][rows] - slices["start_ns"][rows]).sum()),
        stacks=round(kept / steps),
        stack_ns=stack_ns,
    )


def distortion(trace: Trace) -> str | None:
    """Return why the rules in ``DISTORTED`` cannot evaluate this trace; ``None`` if they can."""
    if trace.fact(jax_debugging).disable_jit is not None:
        return "jax_disable_jit makes every operation a separate program: turn it off and record again"
    if trace.fact(anomaly_mode) is None:
        return None
    return "anomaly mode of autograd adds reads and small kernels to each op: turn it off and record again"


def _in_steps(trace: Trace, times_ns: Int64) -> npt.NDArray[np.bool_]:
    """Mask of the times in a step; all True without known steps."""
    windows = trace.fact(step_windows)
    if not windows.count:
        return np.ones(len(times_ns), bool)
    at = np.searchsorted(windows.starts, times_ns, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (times_ns < windows.ends[np.maximum(at, 0)])
    return inside
