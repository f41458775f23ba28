"""Memory ran out or nearly does, and activations are kept that could be made again.

Example:
    Before::

        for block in model.blocks:
            x = block(x)

    After::

        for block in model.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)

Why it costs: a step that does not fit dies, or forces a smaller batch on which the device computes less efficiently.
Values that the forward keeps for the backward are often most of the peak, and some are cheap to compute again: a norm
or an activation function takes a hundredth of the time of a neighbouring product and holds as many bytes.

How it is found: an allocation failed, or the peak of what the allocator holds leaves a tenth of the device or less
(as in ``oom_near``). Then the recorded step is simulated with one more region checkpointed at a time, each time the
region that takes most bytes off the peak per millisecond of repeated work. The input is the op graph (where each value
is made, and whose backward reads it) and the measured time of the ops. The curve of peaks is the evidence. It is
modelled; ``perfscope advise memory`` also considers offloading and dividing state.

Fix: wrap the first of the regions named::

    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for index in range(0, 4):
        model.blocks[index] = checkpoint_wrapper(model.blocks[index])

and see all choices with ``perfscope advise memory RUN --budget 72GiB``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from perfscope.analyzers.memory import SCARCE_SHARE
from perfscope.analyzers.ops import graph_time, spans_of_regions
from perfscope.model.finding import AbstainError, Cell, Finding, Scope, Span, Where, fit_title
from perfscope.model.severity import Severity
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_bytes, format_ns, format_share
from perfscope.plugins.memory_advice.models import step_models

if TYPE_CHECKING:
    from perfscope.plugins.memory_advice.plans import GreedyStep
    from perfscope.plugins.memory_advice.simulate import Simulation
    from perfscope.plugins.memory_advice.step_model import StepModel

MAX_ROWS = 20

MINIMUM_SHARE = 0.01
"""Least share of the peak that checkpointing everything must remove for a finding."""


def examined(trace: Trace) -> Scope:
    """Steps whose layers are known."""
    return Scope(len(step_models([trace]).models), "steps with layers")


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Abstain: a plan's ops have no measured times to compare."""
    raise AbstainError("a plan has no measured times to weigh: perfscope compile --sweep policy=... plans the choices")


def check(trace: Trace) -> Iterable[Finding]:
    """One finding per step that is short of memory and has regions to checkpoint."""
    steps = step_models([trace])
    if not steps.models:
        raise AbstainError(steps.unseen[0].removeprefix(f"{trace.source.path}: "))
    known = [model for model in steps.models if model.capacity_bytes is not None or model.out_of_memory]
    if not known:
        host = all(model.on_host for model in steps.models)
        raise AbstainError(
            "the program computes in the host's memory; free memory of the machine is not judged"
            if host
            else "the memory size of the device was not recorded, so the peak cannot be compared with it"
        )
    for model in known:
        yield from _of_step(trace, model)


def _of_step(trace: Trace, model: StepModel) -> Iterable[Finding]:
    from perfscope.plugins.memory_advice.plans import greedy
    from perfscope.plugins.memory_advice.simulate import Simulator, todays

    simulator = Simulator(model)
    today = simulator.run(todays(model))
    held_bytes = round((model.measured_peak_bytes or today.peak_bytes) * (1 + (model.reserve_share or 0.0)))
    scarce = model.capacity_bytes is not None and held_bytes >= SCARCE_SHARE * model.capacity_bytes
    if not scarce and not model.out_of_memory:
        return
    steps = greedy(simulator, todays(model))
    if not steps or today.peak_bytes - steps[-1].simulation.peak_bytes < MINIMUM_SHARE * today.peak_bytes:
        return
    chosen = _enough(model, today, steps)
    severity: Severity = "high" if model.out_of_memory else "medium"
    saved = today.peak_bytes - chosen.simulation.peak_bytes
    added = chosen.simulation.recompute_ns - today.recompute_ns
    yield Finding(
        subject="activations kept in scarce memory",
        title=fit_title(f"{_short(model, held_bytes)}: checkpointing lowers the peak", model.label),
        detail=f"Checkpointing {_names(steps, chosen)} takes {format_bytes(saved)} off the peak and runs "
        f"{format_ns(added)} of a step again{_of_step_share(model, added)}.",
        severity=severity,
        basis="modelled",
        cost_bytes=saved,
        bytes_are="freed",
        memory_bytes=today.peak_bytes,
        where=Where(module=steps[0].unit),
        evidence=tuple(_row(order, step) for order, step in enumerate(steps[:MAX_ROWS], 1)),
        spans=_spans(trace, [step.unit for step in steps[: steps.index(chosen) + 1]]),
        advice=_advice(model, chosen),
    )


def _spans(trace: Trace, units: Sequence[str]) -> tuple[Span, ...]:
    """The forward pass of each module that would run again, in each timed step; empty for compiled programs."""
    if trace.op_graph is None:
        return ()
    names = tuple(dict.fromkeys(units))
    of_unit: dict[str, list[int]] = {name: [] for name in names}
    for op in trace.op_graph.ops:
        if op.phase == "forward":
            for name in names:
                if op.module == name or op.module.startswith(f"{name}."):
                    of_unit[name].append(op.index)
    rows_by_unit = [rows[ops] for rows in trace.fact(graph_time).spans for ops in of_unit.values()]
    return spans_of_regions(trace, [rows[rows != MISSING].tolist() for rows in rows_by_unit])


def _enough(model: StepModel, today: Simulation, steps: Sequence[GreedyStep]) -> GreedyStep:
    """The first step after which memory is no longer scarce; the last if none suffices, or the size is unknown."""
    from perfscope.plugins.memory_advice.plans import SAME_PEAK

    limit = SCARCE_SHARE * model.capacity_bytes if model.capacity_bytes is not None else 0.0
    fits = (
        step
        for step in steps
        if model.needed_bytes(step.policies, step.simulation.peak_bytes) < limit
        and step.simulation.peak_bytes < today.peak_bytes * (1 - SAME_PEAK)
    )
    return next(fits, steps[-1])


def _short(model: StepModel, held_bytes: int) -> str:
    if model.out_of_memory:
        return f"{model.label} ran out of memory"
    capacity = model.capacity_bytes or 0
    share = format_share(held_bytes, capacity)
    return f"{model.label} holds {format_bytes(held_bytes)} of {format_bytes(capacity)} ({share})"


def _names(steps: Sequence[GreedyStep], chosen: GreedyStep) -> str:
    until = steps[: steps.index(chosen) + 1]
    units = list(dict.fromkeys(step.unit.partition(".")[2] or step.unit for step in until))
    more = f" and {len(units) - 2} more" if len(units) > 2 else ""
    return ", ".join(units[:2]) + more


def _of_step_share(model: StepModel, added: int) -> str:
    return "" if not model.step_ns else f" ({format_share(added, model.step_ns)} of it)"


def _row(order: int, step: GreedyStep) -> dict[str, Cell]:
    milliseconds = step.added_ns / 1e6
    return {
        "order": order,
        "module": step.unit,
        "policy": step.policy,
        "saved_bytes": step.saved_bytes,
        "recompute_ns": step.added_ns,
        "saved_bytes_a_ms": round(step.saved_bytes / milliseconds) if milliseconds else None,
        "peak_bytes": step.simulation.peak_bytes,
        "all_recompute_ns": step.simulation.recompute_ns,
    }


def _advice(model: StepModel, chosen: GreedyStep) -> str:
    wrap = (
        "jax.checkpoint(layer), selective: policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable"
        if model.framework == "jax"
        else "checkpoint_wrapper(module) from torch.distributed.algorithms._checkpoint.checkpoint_wrapper; selective: "
        "context_fn=partial(create_selective_checkpoint_contexts, policy), whose policy saves products and attention"
    )
    peak = format_bytes(chosen.simulation.peak_bytes)
    return (
        f"Checkpoint the modules of the evidence from the top, down to a peak of {peak}. Use {wrap}. "
        "perfscope advise memory RUN --budget BYTES has the code for each, offloading, and dividing state."
    )
