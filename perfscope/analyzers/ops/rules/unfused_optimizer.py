"""The optimizer updates parameters one by one, or op by op, where a fused step would do.

Example:
    Before::

        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)

    After::

        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

Why it costs:
    An Adam step is about eight elementwise ops. Run for each parameter by itself, a model with 200
    parameters launches 1,600 small kernels per step: the device waits for the host between them, and each
    of them moves the parameter, its gradient or its states through memory again, 20 times in all where
    7 would do. The list form (`foreach=True`) launches eight large kernels, the fused form one.

How it is found:
    PyTorch marks every step as `Optimizer.step#AdamW.step`. Update ops of single tensors inside it that
    outnumber the list ops (`aten::_foreach_*`) are a loop; a step with `aten::_fused_*` is fused. Step
    counters (0-dim tensors on the host) do not count. The cost is modelled, an upper bound: the step's
    exposed device time times the part of its bytes that a fused step need not move (reads and writes of
    each op as torch's optimizers call it, against gradient, parameter and states once), plus the time
    the device idles between the step's kernels. A program without an accelerator is judged by the time
    of the ops, and the host time between them. The list form is only ever a low finding, by its bytes
    alone. A step that mostly does other things than elementwise updates (Shampoo, Muon) is left alone.

    In a planned PyTorch program (`perfscope compile`): from the ops of the optimizer's step; the cost is the bytes a
    fused step would not move at the target's bandwidth, and a shortest kernel for each launch it would not need.

Fix:
    Ask for the fused form where the optimizer is made::

        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    or `foreach=True` where a parameter or device has no fused kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.graph import flow_of, short_name
from perfscope.analyzers.ops.achieved import longest_ns, moved_bytes
from perfscope.analyzers.ops.graph_time import spans_time
from perfscope.analyzers.ops.kernels import input_tensors
from perfscope.analyzers.ops.recompute import OPTIMIZER_STEP
from perfscope.analyzers.spans import (
    WorkTime,
    lineage,
    named_slices,
    nearest_ancestor,
    outermost,
    removed_inside,
    slice_name,
    subtree_ends,
    work_inside,
    worst_spans,
)
from perfscope.analyzers.time import (
    CallSite,
    Situation,
    call_site,
    detail_row,
    device_busy,
    per_step,
    situation,
    whole_ns,
)
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, Scope, Where, fit_title
from perfscope.model.frames import parse_frame
from perfscope.model.frames.kinds import FrameKind, frame_kind
from perfscope.model.intervals import covered
from perfscope.model.severity import severity_of
from perfscope.model.trace import MISSING, SliceKind, Trace
from perfscope.model.units import format_bytes, format_ns

if TYPE_CHECKING:
    from perfscope.analyzers.plans import PlanWork
    from perfscope.model.op_graph import GraphOp, OpGraph

MIN_SHARE = 0.01
"""Smallest saving as a share of the steps: less is within the variation between steps."""

FEWEST_UPDATES = 8
"""Minimum number of update ops per step: fewer belong to one parameter, so there is nothing to batch."""

HAVE_FUSED = frozenset({"Adagrad", "Adam", "AdamW", "SGD"})
"""torch.optim classes with ``fused=True`` (torch 2.13)."""

HAVE_FOREACH = frozenset({"ASGD", "Adadelta", "Adafactor", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"})
"""torch.optim classes with ``foreach=True`` and without ``fused`` (torch 2.13)."""


_OWN = (FrameKind.USER, FrameKind.UNKNOWN)

MOST_OF_THE_STEP = 0.5
"""Minimum share of the time of the step's ops in update ops. An optimizer that mostly multiplies matrices (Shampoo,
Muon) is not an elementwise loop, and fused=True does not help.
"""

PASSES: dict[str, int] = {
    "add": 3, "add_": 2, "sub_": 3, "mul": 2, "mul_": 2, "div": 2, "div_": 2, "sqrt": 2, "sqrt_": 2, "square": 2,
    "lerp_": 3, "addcmul": 4, "addcmul_": 3, "addcdiv": 4, "addcdiv_": 4, "maximum": 3, "copy_": 2, "neg": 2,
    "sign": 2, "sign_": 2, "abs": 2, "rsqrt": 2, "reciprocal_": 2, "pow": 2, "exp_": 2, "clone": 2, "clamp_": 2,
}  # fmt: skip
"""Number of parameter-sized reads and writes per update op, as torch's optimizers call it: ``mul_`` by a number reads
and writes (2), ``addcmul_(v, g, g)`` reads two and writes one (3).
"""

FUSED_PASSES: dict[str, int] = {
    "Adam": 7, "AdamW": 7, "NAdam": 7, "RAdam": 7, "Adamax": 7, "Adagrad": 5, "RMSprop": 5, "SGD": 3,
}  # fmt: skip
"""Minimum reads and writes of a step: gradient, parameter and states read; parameter and states written. Adam: 4 read,
3 written. SGD: without momentum.
"""

LEAST_PASSES = 3
"""The same for an unlisted optimizer: parameter and gradient read, parameter written."""

Style = Literal["loop", "foreach", "fused", "other"]


def examined(trace: Trace) -> Scope:
    """Count the steps of optimizers."""
    if trace.torch_plans:
        return Scope(sum(len(held.plan.optimizers) for held in trace.torch_plans), "optimizers in the plan")
    return Scope(len(trace.fact(optimizer_steps)), "optimizer steps in the recording")


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per optimizer class and form whose steps cost at least ``MIN_SHARE``."""
    steps = trace.fact(optimizer_steps)
    if not steps:
        raise AbstainError("no optimizer step in the trace (inference, or steps that torch.optim does not mark)")
    groups: dict[tuple[str, Style], list[OptimizerStep]] = {}
    for step in steps:
        many = step.ops.total() >= FEWEST_UPDATES
        if (step.style == "loop" and many) or (step.style == "foreach" and step.optimizer in HAVE_FUSED):
            groups.setdefault((step.optimizer, step.style), []).append(step)
    whole = whole_ns(trace)
    for (optimizer, style), members in groups.items():
        cost = sum(step.saved_ns for step in members)
        if cost >= MIN_SHARE * whole and cost > 0:
            yield _finding(trace, optimizer, style, members, cost)


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Yield a finding about the optimizer of a planned program, with modelled time."""
    from perfscope.analyzers.plans import plan_works

    if not any(held.plan.optimizers for held in trace.torch_plans):
        raise AbstainError("no optimizer step in the plan (inference, or an optimizer that is not torch.optim's)")
    return (finding for work in trace.fact(plan_works) for finding in _of_plan(trace, work))


def _finding(trace: Trace, optimizer: str, style: Style, members: list[OptimizerStep], cost: int) -> Finding:
    whole = whole_ns(trace)
    busiest = max(members, key=lambda step: step.ops.total())
    slices, rows = trace.rows["slices"], [step.row for step in members]
    idle = sum(step.idle_ns for step in members)
    loop = style == "loop"
    between = "between its kernels" if len(trace.rows["kernels"]) else "on the host between its ops"
    site = _own_site(trace, busiest.first_op)
    title = f"{optimizer} updates {_form(loop)}, not fused"
    detail = f"{busiest.ops.total():,} update ops in an optimizer step; "
    detail += f"fused saves up to {format_ns(cost / len(members))} of each"
    if idle:
        detail += f", {format_ns(idle / len(members))} of it {between}"
    return Finding(
        subject=_subject(optimizer, loop),
        title=fit_title(title, optimizer),
        detail=f"{detail}.",
        severity=severity_of(cost, whole) if loop else "low",
        basis="modelled",
        cost_ns=cost,
        cost_ns_per_step=per_step(trace, cost),
        where=Where(op=f"{optimizer}.step", file=site.file, line=site.line),
        evidence=tuple(
            {
                "update_ops": step.ops.total(),
                "ops": _most_common(step.ops),
                "kernels": step.time.kernels,
                "work_ns": step.time.sum_ns,
                "between_ns": step.idle_ns,
                "bytes_kept_percent": round(100 * step.fused_share, 1),
                "saved_ns": step.saved_ns,
            }
            for step in sorted(members, key=lambda step: -step.saved_ns)[:MOST_ROWS]
        ),
        spans=worst_spans(slices["start_ns"][rows], slices["end_ns"][rows], [step.saved_ns for step in members]),
        removes=removed_inside(trace, np.array(rows, np.int64), min(step.fused_share for step in members)),
        advice=_advice(optimizer, loop, trace.fact(situation)),
    )


def _own_site(trace: Trace, row: int) -> CallSite:
    """Return the program's line of an optimizer step: around a package that calls it (accelerate), if there is one."""
    site = call_site(trace, row)
    if site.file is None or frame_kind(f"{site.file}({site.line}): f") in _OWN:
        return site
    held, at = trace, row
    if trace.detail is not None and (match := detail_row(trace, row)) is not None:
        held, at = trace.detail, match
    for around in lineage(held, at):
        name = slice_name(held, around)
        frame = parse_frame(name) if held.rows["slices"]["kind"][around] == SliceKind.PYTHON else None
        if frame is not None and frame_kind(name) is FrameKind.USER:
            return CallSite(file=frame.file, line=frame.line, function=frame.function)
    return site


def _subject(optimizer: str, loop: bool) -> str:
    return f"{optimizer} in a loop" if loop else f"{optimizer} with foreach"


def _form(loop: bool) -> str:
    return "one parameter at a time" if loop else "by lists (foreach)"


def _most_common(ops: Counter[str]) -> str:
    return ", ".join(f"{name} x{count}" for name, count in ops.most_common(8))


def _advice(optimizer: str, loop: bool, where: Situation | None = None) -> str:
    if where is not None and where.device == "npu" and optimizer in ("SGD", "Adam", "AdamW"):
        return f"Construct it as `torch_npu.optim.NpuFused{optimizer}(params, ...)`."
    if optimizer in HAVE_FUSED:
        also = " Use `foreach=True` where a parameter or device has no fused kernel." if loop else ""
        return f"Construct it as `torch.optim.{optimizer}(params, ..., fused=True)`.{also}"
    if where is not None and where.device == "cpu":
        return (
            "Compile the update: `update = torch.compile(optimizer.step)`, and call `update()` in place of "
            "`optimizer.step()`. On a CPU, list ops (`foreach=True`) take as long as a loop."
        )
    if optimizer in HAVE_FOREACH:
        return f"Construct it as `torch.optim.{optimizer}(params, ..., foreach=True)`."
    return (
        "Call `torch._foreach_mul_` and the like over lists of parameters in place of a loop, or compile the step: "
        "`torch.compile(optimizer.step)`."
    )


# How a recorded step iterates over the parameters.


class OptimizerStep(Struct, frozen=True, kw_only=True):
    """One call of ``Optimizer.step``."""

    row: int
    """Row of ``slices``."""
    optimizer: str
    """Class name, for example ``AdamW``."""
    style: Style
    ops: Counter[str]
    """Update ops by name (``mul_``; ``mul_`` also for ``_foreach_mul_``)."""
    time: WorkTime
    """Device work of the update ops; the ops themselves without an accelerator."""
    idle_ns: int
    """Time between the step's first and last device work in which nothing ran; without an accelerator, time of the host
    in the step outside of update ops. 0 unless the step is a loop: lists and fused steps launch few kernels.
    """
    first_op: int
    """Row of ``slices``: an update op, or the step itself without one."""
    longest_ns: int | None = None
    """Upper bound of the time of the update ops' bytes and launches; None if the bytes are unknown."""

    @property
    def fused_share(self) -> float:
        """Share of the moved bytes that a fused step would still move; 1 if unknown."""
        return fused_share(self.optimizer, self.ops)

    @property
    def saved_ns(self) -> int:
        """Upper bound of the saving by a fused step: the avoided bytes, and the idle time between its kernels."""
        spare = 1 - self.fused_share
        work = self.time.exposed_ns if self.longest_ns is None else min(self.time.exposed_ns, self.longest_ns)
        return round(work * spare) + self.idle_ns


def fused_share(optimizer: str, ops: Counter[str]) -> float:
    """Return the share of its update ops' bytes that a fused step would still move; 1 if unknown."""
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
    marked = named_slices(trace, lambda name: name.startswith(OPTIMIZER_STEP)) & (slices["kind"] != SliceKind.PYTHON)
    return tuple(_step(trace, row) for row in outermost(trace, marked).tolist())


def _step(trace: Trace, row: int) -> OptimizerStep:
    slices = trace.rows["slices"]
    inner = np.arange(row + 1, int(trace.fact(subtree_ends)[row]))
    inner = inner[(slices["kind"][inner] == SliceKind.OP) & ~trace.fact(_within_batched)[inner]]
    names = [trace.text(int(code)).rpartition("::")[2] for code in slices["name"][inner]]
    optimizer = slice_name(trace, row).removeprefix(OPTIMIZER_STEP).partition(".")[0]
    batched = [op for op, name in zip(inner.tolist(), names, strict=True) if name.startswith("_foreach_")]
    listed = Counter(name.removeprefix("_foreach_") for name in names if name.startswith("_foreach_"))
    single = [
        (int(op), name)
        for op, name in zip(inner, names, strict=True)
        if name in PASSES and _updates(trace, int(op), name, optimizer)
    ]
    loop = Counter(name for _, name in single)
    # FusedAdam (apex, DeepSpeed) counts its steps with add_ and calls its own kernel
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
        longest_ns=_longest(trace, updates, time),
    )


def _longest(trace: Trace, updates: list[int], time: WorkTime) -> int | None:
    moved = moved_bytes(trace, updates)
    launches = max(len(updates), time.kernels)
    return None if moved is None else longest_ns(trace, moved=moved, launches=launches)


def _within_batched(trace: Trace) -> npt.NDArray[np.bool_]:
    """Mask of the rows of ``slices`` inside a list op, a fused op or an update op, which may call others."""
    batched = named_slices(
        trace,
        lambda name: name.startswith(("aten::_foreach_", "aten::_fused_")) or name.removeprefix("aten::") in PASSES,
    )
    around = nearest_ancestor(trace, trace.rows["slices"]["parent"].astype(np.int64), batched)
    return np.asarray(around != MISSING)


def _style(loop: Counter[str], listed: Counter[str]) -> Style:
    if loop.total() > listed.total():
        return "loop"
    return "foreach" if listed else "other"


def _updates(trace: Trace, op: int, name: str, optimizer: str) -> bool:
    """Whether it is an update op; False for the step counter, a 0-dim tensor on the host."""
    if len(trace.rows["kernels"]):
        return bool(len(work_inside(trace, "kernels", np.array([op]))))
    tensors = input_tensors(trace, op)
    if tensors:
        return bool(tensors[0].shape)
    return name != "add_" or optimizer == "SGD"  # without shapes, only SGD is known to have no counter


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


# The optimizer of a planned program.


def _of_plan(trace: Trace, work: PlanWork) -> Iterator[Finding]:
    """Yield a finding if the optimizer of one plan updates in a loop, or over lists although it could be fused."""
    from perfscope.analyzers.plans import bytes_ns, launches, op_bytes, shortest_ns

    graph, target = _graph(work), trace.target
    if graph is None or target is None:
        return
    updates = [op for op in graph.ops if op.phase == "optimizer" and launches(op)]
    names = Counter(short_name(op) for op in updates)
    optimizers = work.held.plan.optimizers
    optimizer = optimizers[0] if len(optimizers) == 1 else "the optimizer"
    listed = any(name.startswith("_foreach_") for name in names)
    ops = Counter(
        {name.removeprefix("_foreach_"): n for name, n in names.items() if name.startswith("_foreach_") == listed}
    )
    ops = Counter({name: count for name, count in ops.items() if name in PASSES})
    fused = any(name.startswith("_fused_") for name in names)
    if fused or not ops or (listed and optimizer not in HAVE_FUSED) or (not listed and ops.total() < FEWEST_UPDATES):
        return
    flow = flow_of(graph)
    moved = sum(op_bytes(graph, flow, op.index) for op in updates)
    saved_bytes = round(moved * (1 - fused_share(optimizer, ops)))
    saved = bytes_ns(target, saved_bytes) + shortest_ns(target) * (len(updates) - 1)
    whole = work.as_run.device.low
    if saved >= MIN_SHARE * whole:
        yield _plan_finding(updates, optimizer, ops, saved=saved, saved_bytes=saved_bytes, whole=whole, loop=not listed)


def _plan_finding(
    updates: list[GraphOp], optimizer: str, ops: Counter[str], *, saved: int, saved_bytes: int, whole: int, loop: bool
) -> Finding:
    first = next((op for op in updates if op.file is not None), updates[0])
    return Finding(
        subject=_subject(optimizer, loop),
        title=fit_title(
            f"{optimizer} updates {_form(loop)}, not fused",
            optimizer,
        ),
        detail=f"{len(updates):,} launches per step; fused saves up to {format_bytes(saved_bytes)} of memory traffic.",
        severity=severity_of(saved, whole) if loop else "low",
        basis="modelled",
        cost_ns=saved,
        cost_ns_per_step=saved,
        cost_bytes=saved_bytes,
        where=Where(op=f"{optimizer}.step", file=first.file, line=first.line),
        evidence=(
            {
                "launches": len(updates),
                "update_ops": ops.total(),
                "ops": _most_common(ops),
                "saved_bytes": saved_bytes,
                "saved_ns": saved,
            },
        ),
        advice=_advice(optimizer, loop),
    )


def _graph(work: PlanWork) -> OpGraph | None:
    """Return the graph that contains the optimizer: outside of compiled graphs unless the program compiles it."""
    return work.held.outside if work.held.plan.compiled_by == "program" else work.held.eager
