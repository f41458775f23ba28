"""How the optimizer walks over the parameters: one op after the other, op by op over lists, or fused.

PyTorch marks every step as ``Optimizer.step#AdamW.step``. Inside, ``foreach=False`` runs the update's
formula once for each parameter, ``foreach=True`` runs each op of it over all parameters at once
(``aten::_foreach_*``), ``fused=True`` runs all of it in one kernel (``aten::_fused_adamw_``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.ops.graph_time import spans_time
from perfscope.analyzers.ops.kernels import input_tensors
from perfscope.analyzers.time.device_time import device_busy
from perfscope.analyzers.time.spans import WorkTime, nearest_ancestor, subtree_ends, work_inside
from perfscope.model.intervals import covered
from perfscope.model.trace import MISSING, SliceKind, Trace

Style = Literal["loop", "foreach", "fused", "other"]

STEP = "Optimizer.step#"

MOST_OF_THE_STEP = 0.5
"""Share of the time of the step's ops that is in update ops. An optimizer that mostly multiplies matrices
(Shampoo, Muon) is no elementwise loop, and fused=True is no answer to it."""

PASSES: dict[str, int] = {
    "add": 3, "add_": 2, "sub_": 3, "mul": 2, "mul_": 2, "div": 2, "div_": 2, "sqrt": 2, "sqrt_": 2, "square": 2,
    "lerp_": 3, "addcmul": 4, "addcmul_": 3, "addcdiv": 4, "addcdiv_": 4, "maximum": 3, "copy_": 2, "neg": 2,
    "sign": 2, "sign_": 2, "abs": 2, "rsqrt": 2, "reciprocal_": 2, "pow": 2, "exp_": 2, "clone": 2, "clamp_": 2,
}  # fmt: skip
"""Times an update op moves a parameter's worth of bytes, read and written, as torch's optimizers call it:
``mul_`` by a number reads and writes (2), ``addcmul_(v, g, g)`` reads two and writes one (3)."""

FUSED_PASSES: dict[str, int] = {
    "Adam": 7, "AdamW": 7, "NAdam": 7, "RAdam": 7, "Adamax": 7, "Adagrad": 5, "RMSprop": 5, "SGD": 3,
}  # fmt: skip
"""The least a step can move: gradient, parameter and states read; parameter and states written.
Adam: 4 read, 3 written. SGD: without momentum."""

LEAST_PASSES = 3
"""Of an optimizer that is not listed: parameter and gradient read, parameter written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep:
    """One call of ``Optimizer.step``."""

    row: int
    """Row of ``slices``."""
    optimizer: str
    """Class name, such as ``AdamW``."""
    style: Style
    ops: Counter[str]
    """Update ops by name (``mul_``; ``mul_`` also for ``_foreach_mul_``)."""
    time: WorkTime
    """Device work of the update ops; the ops themselves without an accelerator."""
    idle_ns: int
    """Between the step's first and last device work, nothing ran; without an accelerator: the host
    was in the step but in no update op. 0 unless the step is a loop: lists and fused steps launch few."""
    first_op: int
    """Row of ``slices``: an update op, or the step itself where there is none."""

    @property
    def fused_share(self) -> float:
        """Part of the bytes moved now that a fused step would still move; 1 where nothing is known."""
        return fused_share(self.optimizer, self.ops)

    @property
    def saved_ns(self) -> int:
        """At most, if the step were fused: the bytes it need not move, and the idle between its kernels."""
        return round(self.time.exposed_ns * (1 - self.fused_share)) + self.idle_ns


def fused_share(optimizer: str, ops: Counter[str]) -> float:
    """Part of the bytes its update ops move that a fused step would still move; 1 where nothing is known."""
    if not ops:
        return 1.0
    parameters = min(ops.values())
    now = sum(PASSES[name] * count for name, count in ops.items())
    adds = "add_" in ops and not ({"sqrt", "rsqrt"} & set(ops))  # SGD: adds a tensor, not eps
    now += ops["add_"] if adds else 0
    return min(1.0, FUSED_PASSES.get(optimizer, LEAST_PASSES) * parameters / now)


def optimizer_steps(trace: Trace) -> tuple[OptimizerStep, ...]:
    """All outermost optimizer steps, in order of the table."""
    slices = trace.rows["slices"]
    codes = [code for code, text in enumerate(trace.strings) if text.startswith(STEP)]
    marked = np.isin(slices["name"], codes) & (slices["kind"] != SliceKind.PYTHON)
    rows = np.flatnonzero(marked)
    rows = rows[nearest_ancestor(trace, slices["parent"][rows].astype(np.int64), marked) == MISSING]
    return tuple(_step(trace, int(row)) for row in rows)


def _step(trace: Trace, row: int) -> OptimizerStep:
    slices = trace.rows["slices"]
    inner = np.arange(row + 1, int(trace.fact(subtree_ends)[row]))
    inner = inner[(slices["kind"][inner] == SliceKind.OP) & ~trace.fact(_within_batched)[inner]]
    names = [trace.text(int(code)).rpartition("::")[2] for code in slices["name"][inner]]
    optimizer = trace.text(int(slices["name"][row])).removeprefix(STEP).partition(".")[0]
    batched = [op for op, name in zip(inner.tolist(), names, strict=True) if name.startswith("_foreach_")]
    listed = Counter(name.removeprefix("_foreach_") for name in names if name.startswith("_foreach_"))
    single = [
        (int(op), name)
        for op, name in zip(inner, names, strict=True)
        if name in PASSES and _updates(trace, int(op), name, optimizer)
    ]
    loop = Counter(name for _, name in single)
    # FusedAdam (apex, DeepSpeed) counts its steps with add_ and calls a kernel of its own
    fused = any(name.startswith("_fused_") for name in names) or optimizer.startswith("Fused")
    style: Style = "fused" if fused else _style(loop, listed)
    updates = [op for op, _ in single] if style == "loop" else batched
    time = spans_time(trace, np.array(updates, np.int64))
    if style == "loop" and time.sum_ns < MOST_OF_THE_STEP * spans_time(trace, inner).sum_ns:
        style = "other"
    return OptimizerStep(
        row=row,
        optimizer=optimizer,
        style=style,
        ops=loop if style == "loop" else Counter({name: n for name, n in listed.items() if name in PASSES}),
        time=time,
        idle_ns=_idle(trace, row, time) if style == "loop" else 0,
        first_op=updates[0] if updates else row,
    )


def _within_batched(trace: Trace) -> npt.NDArray[np.bool_]:
    """By row of ``slices``: it lies inside a list op, a fused one or an update op, which may call others."""
    slices = trace.rows["slices"]
    codes = [
        code
        for code, text in enumerate(trace.strings)
        if text.startswith(("aten::_foreach_", "aten::_fused_")) or text.removeprefix("aten::") in PASSES
    ]
    around = nearest_ancestor(trace, slices["parent"].astype(np.int64), np.isin(slices["name"], codes))
    return np.asarray(around != MISSING)


def _style(loop: Counter[str], listed: Counter[str]) -> Style:
    if loop.total() > listed.total():
        return "loop"
    return "foreach" if listed else "other"


def _updates(trace: Trace, op: int, name: str, optimizer: str) -> bool:
    """False for the step counter, a 0-dim tensor on the host."""
    if len(trace.rows["kernels"]):
        return bool(len(work_inside(trace, "kernels", np.array([op]))))
    tensors = input_tensors(trace, op)
    if tensors:
        return bool(tensors[0].shape)
    return name != "add_" or optimizer == "SGD"  # without shapes, SGD alone is known to have no counter


def _idle(trace: Trace, row: int, updates: WorkTime) -> int:
    slices = trace.rows["slices"]
    if not len(trace.rows["kernels"]):
        return max(0, int(slices["end_ns"][row] - slices["start_ns"][row]) - updates.sum_ns)
    work = trace.rows["kernels"]
    chosen = work_inside(trace, "kernels", np.array([row]))
    idle = 0
    for device in np.unique(work["device"][chosen]).tolist():
        on_device = chosen[work["device"][chosen] == device]
        start, end = int(work["start_ns"][on_device].min()), int(work["end_ns"][on_device].max())
        idle += end - start - int(covered(trace.fact(device_busy)[device], [start], [end])[0])
    return idle
