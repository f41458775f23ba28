"""Part of a training step that device work belongs to: forward, backward, optimizer, input, communication.

Work belongs to the phase in which the host launched it. Phases are intervals of host time, of all threads together:
``backward()`` blocks the calling thread while autograd's own threads launch. A collective between the backward pass and
the optimizer is communication, although autograd numbers its op like those of the forward pass. An instruction of a
compiled XLA program has its phase in its path: ``transpose(...)`` is the backward pass, ``jvp(...)`` the forward pass
of differentiated code. Other work is *not told*.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import numpy as np

from perfscope.analyzers.spans import input_spans, named_slices, rows_by_device, union_of
from perfscope.model.frames import parse_module
from perfscope.model.intervals import EMPTY, Int64, Intervals, covered, difference, intersection, merge
from perfscope.model.trace import MISSING, CopyKind, SliceKind, Trace

Phase = Literal["forward", "backward", "optimizer", "input", "communication", "not_told"]
PHASES: tuple[Phase, ...] = get_args(Phase)

_PRECEDENCE: tuple[Phase, ...] = ("backward", "optimizer", "input", "forward", "communication")
"""A moment with several phases counts for the first: a checkpointed module runs its forward within the backward pass.
"""

_BACKWARD = re.compile(
    r"autograd::engine::evaluate_function: .*|.*torch/(_tensor|autograd/__init__)\.py\(\d+\): backward"
)
_OPTIMIZER = re.compile(
    r"Optimizer\.(step|zero_grad)#.*|.*torch/optim/.*\.py\(\d+\): (_?step|zero_grad)"
    r"|.*torch/nn/utils/clip_grad\.py\(\d+\): clip_grad_\w+"
)
_WORD = r"(?i)(?<![a-z])(?:{})(?![a-z])"
_NAMED: dict[Phase, re.Pattern[str]] = {
    "backward": re.compile(_WORD.format("backward|bwd")),
    "optimizer": re.compile(_WORD.format(r"optimi[sz]er|optim|apply_(updates?|gradients?)|update_params")),
    "forward": re.compile(_WORD.format("forward|fwd")),
}
"""Names that programs use for ranges and jitted functions."""
_COMPILED = "Torch-Compiled Region"
_COLLECTIVE = re.compile(r"(c10d|_c10d_functional|nccl|gloo|mpi|ucc)::?.*|record_param_comms")
"""Ops of collectives."""


def phases_of(trace: Trace, device: int, busy: Mapping[str, Intervals], windows: Iterable[Int64]) -> dict[Phase, int]:
    """Return the busy time of a device by phase, in ns over all windows; the values sum to the busy time in them.

    ``device``: row of ``devices``, ``MISSING`` for the host; ``busy``: its disjoint intervals of compute (``compute``),
    exposed communication and exposed copies; ``windows``: starts and ends of the steps.
    """
    starts, ends = windows
    parts = _on_host(trace, busy["compute"]) if device == MISSING else _on_device(trace, device, busy)
    result = {phase: int(covered(parts.get(phase, EMPTY), starts, ends).sum()) for phase in PHASES}
    whole = sum(int(covered(part, starts, ends).sum()) for part in busy.values())
    result["not_told"] = whole - sum(value for phase, value in result.items() if phase != "not_told")
    return result


def _on_host(trace: Trace, compute: Intervals) -> dict[Phase, Intervals]:
    spans = {phase: merge(*both) for phase, both in trace.fact(host_phases).items()}
    ops, phases = trace.rows["hlo_ops"], trace.fact(_instruction_phases)
    for index, phase in enumerate(PHASES):
        spans[phase] = merge(spans.get(phase, EMPTY), union_of(ops, phases == index))
    result: dict[Phase, Intervals] = {}
    for phase in _PRECEDENCE:
        result[phase] = intersection(compute, spans[phase])
        compute = difference(compute, spans[phase])
    return result


def _on_device(trace: Trace, device: int, busy: Mapping[str, Intervals]) -> dict[Phase, Intervals]:
    kernels = trace.rows["kernels"]
    here = trace.fact(rows_by_device)
    computes = here["kernels"][device][~kernels["communication"][here["kernels"][device]]]
    parts: dict[Phase, list[Intervals]] = {"communication": [busy["exposed_communication"]]}
    for table, chosen, left in (
        ("kernels", computes, busy["compute"]),
        ("copies", here["copies"][device], busy["exposed_copy"]),
    ):
        work, phases = trace.rows[table], trace.fact(work_phases)[table]
        for phase in _PRECEDENCE:
            mine = chosen[phases[chosen] == PHASES.index(phase)]
            spans = intersection(left, union_of(work, mine))
            parts.setdefault(phase, []).append(spans)
            left = difference(left, spans)
    return {phase: merge(*spans) for phase, spans in parts.items()}


def work_phases(trace: Trace) -> dict[str, Int64]:
    """Return the index in ``PHASES`` per row of ``kernels`` and of ``copies``."""
    return {table: _phases_of_work(trace, table) for table in ("kernels", "copies")}


def _phases_of_work(trace: Trace, table: str) -> Int64:
    work, calls, slices = trace.rows[table], trace.rows["calls"], trace.rows["slices"]
    launch = np.full(len(work), MISSING, np.int64)
    for column, source in (("op", slices), ("call", calls)):
        rows = work[column]
        known = rows != MISSING
        launch[known] = source["start_ns"][rows[known]]
    result = np.full(len(work), PHASES.index("not_told"))
    spans = trace.fact(host_phases)
    for phase in reversed(_PRECEDENCE):
        sure, likely = spans[phase]
        inside = _contains(sure, launch)
        if table == "copies" and phase == "input":
            inside |= work["kind"] == CopyKind.HOST_TO_DEVICE
            inside &= ~_contains(spans["forward"][0], launch)
        elif table == "kernels" or phase != "forward":
            inside |= _contains(likely, launch)
        result[inside & (launch != MISSING)] = PHASES.index(phase)
    ops, phases = trace.rows["hlo_ops"], trace.fact(_instruction_phases)
    column = "kernel" if table == "kernels" else "copy"
    known = (ops[column] != MISSING) & (phases != PHASES.index("not_told"))
    result[ops[column][known]] = phases[known]
    return result


def host_phases(trace: Trace) -> dict[Phase, tuple[Intervals, Intervals]]:
    """Return, per phase, the host time that names it (modules, ranges, autograd), and that suggests it (ops)."""
    slices = trace.rows["slices"]
    ranges, is_op = slices["kind"] == SliceKind.ANNOTATION, slices["kind"] == SliceKind.OP
    named = {phase: named_slices(trace, pattern.search) & ranges for phase, pattern in _NAMED.items()}
    recorded = is_op & (slices["sequence"] != MISSING)
    named["backward"] |= named_slices(trace, _BACKWARD.fullmatch) | (is_op & (slices["forward_thread"] > 0))
    named["optimizer"] |= named_slices(trace, _OPTIMIZER.fullmatch)
    named["forward"] |= named_slices(trace, lambda name: parse_module(name) or name.startswith(_COMPILED))
    forward = recorded & (slices["forward_thread"] <= 0)
    late = _collectives_after(trace, forward, union_of(slices, named["backward"]))
    named["communication"] = late
    likely = {"forward": union_of(slices, forward & ~_contains(union_of(slices, late), slices["start_ns"]))}
    result = {phase: (union_of(slices, rows), likely.get(phase, EMPTY)) for phase, rows in named.items()}
    return {**result, "input": (merge(EMPTY, *trace.fact(input_spans).values()), EMPTY)}


def _collectives_after(trace: Trace, forward: np.ndarray, backward: Intervals) -> np.ndarray:
    """Mask of the collectives after a backward pass: no other op with a forward pass's number is between them.

    ``forward``: mask of the ops with such a number.
    """
    slices = trace.rows["slices"]
    collective = named_slices(trace, _COLLECTIVE.fullmatch) & forward
    if not collective.any() or not len(backward.ends):
        return np.zeros(len(slices), bool)
    starts = slices["start_ns"]
    inside = _contains(union_of(slices, collective), starts)
    others = np.sort(starts[forward & ~inside])
    last_backward, last_forward = _latest(backward.ends, starts), _latest(others, starts)
    return np.asarray(collective & (last_backward != MISSING) & (last_backward >= last_forward))


def _latest(times: Int64, until: Int64) -> Int64:
    """The latest of the sorted ``times`` that is not after each time of ``until``; ``MISSING`` without one."""
    at = np.searchsorted(times, until, side="right") - 1
    return np.where(at >= 0, times[np.maximum(at, 0)], MISSING) if len(times) else np.full(len(until), MISSING)


def _instruction_phases(trace: Trace) -> Int64:
    """Return the index in ``PHASES`` per row of ``hlo_ops``, by the path of its instruction."""
    ops = trace.rows["hlo_ops"]
    result = np.full(len(ops), PHASES.index("not_told"))
    if not len(ops):
        return result
    from perfscope.analyzers.hlo import hlo_time, scope_of

    paths = [{item.name: item.op_name for _, item in module.instructions()} for module in trace.hlo]
    phases: dict[tuple[str, str], Phase] = {}
    for item in trace.fact(hlo_time).instructions:
        path = "" if item.module_index is None else paths[item.module_index].get(item.instruction, "")
        if path and scope_of(path).phase != "forward":
            phases[item.module, item.instruction] = "backward"
        elif "jvp(" in path:
            phases[item.module, item.instruction] = "forward"
        elif _NAMED["optimizer"].search(item.module):
            phases[item.module, item.instruction] = "optimizer"
    for row in np.flatnonzero(~ops["encloses"]).tolist():
        phase = phases.get((trace.text(int(ops["module"][row])), trace.text(int(ops["name"][row]))))
        if phase is not None:
            result[row] = PHASES.index(phase)
    return result


def _contains(spans: Intervals, times: Int64) -> np.ndarray:
    """Mask of the times in one of the disjoint intervals."""
    if not len(spans.starts):
        return np.zeros(len(times), bool)
    at = np.searchsorted(spans.starts, times, side="right") - 1
    return (at >= 0) & (times < spans.ends[np.maximum(at, 0)])
