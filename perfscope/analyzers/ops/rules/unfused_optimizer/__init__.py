"""The optimizer updates parameters one by one, or op by op, where a fused step would do.

Why it costs:
    An Adam step is about eight elementwise ops. Run for each parameter by itself, a model with 200
    parameters launches 1,600 small kernels a step: the device waits for the host between them, and each
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

from collections.abc import Iterable

from perfscope.analyzers.ops.optimizer_steps import OptimizerStep, Style, optimizer_steps
from perfscope.analyzers.ops.rules.unfused_optimizer.plan import optimizer_findings
from perfscope.analyzers.time.sites import call_site
from perfscope.analyzers.time.spans import worst_spans
from perfscope.analyzers.time.steps import per_step, whole_ns
from perfscope.model.finding import AbstainError, Finding, Where, severity_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns, format_share

NEEDS = ("host_ops",)

MIN_SHARE = 0.01
"""Of the steps' time: what a step's usual spread would hide."""

FEWEST_UPDATES = 8
"""Update ops in a step: below it there is one parameter, and nothing to batch."""

HAVE_FUSED = frozenset({"Adagrad", "Adam", "AdamW", "SGD"})
"""torch.optim classes with ``fused=True`` (torch 2.13)."""

MAX_ROWS = 20


def check(trace: Trace) -> Iterable[Finding]:
    """One finding for each optimizer class and form whose steps cost at least ``MIN_SHARE``."""
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
    """The optimizer of a planned program, with modelled time."""
    if not any(held.plan.optimizers for held in trace.torch_plans):
        raise AbstainError("no optimizer step in the plan (inference, or an optimizer that is not torch.optim's)")
    return optimizer_findings(trace, fewest=FEWEST_UPDATES, least=MIN_SHARE, have_fused=HAVE_FUSED, advice=_advice)


def _finding(trace: Trace, optimizer: str, style: Style, members: list[OptimizerStep], cost: int) -> Finding:
    whole = whole_ns(trace)
    busiest = max(members, key=lambda step: step.ops.total())
    slices, rows = trace.rows["slices"], [step.row for step in members]
    idle = sum(step.idle_ns for step in members)
    loop = style == "loop"
    form = "one parameter at a time" if loop else "op by op over lists (foreach)"
    between = "between its kernels" if len(trace.rows["kernels"]) else "on the host between its ops"
    site = call_site(trace, busiest.first_op)
    title = f"{optimizer} updates {form}: {busiest.ops.total():,} update ops in a step; fused saves up to "
    title += f"{format_ns(cost / len(members))} of each optimizer step ({format_share(cost, whole)})"
    if idle:
        title += f", {format_ns(idle / len(members))} of it {between}"
    return Finding(
        subject=f"{optimizer} in a loop" if loop else f"{optimizer} with foreach",
        title=title,
        severity=severity_of(cost, whole) if loop else "low",
        basis="modelled",
        cost_ns=cost,
        cost_ns_per_step=per_step(trace, cost),
        where=Where(op=f"{optimizer}.step", file=site.file, line=site.line),
        evidence=tuple(
            {
                "update_ops": step.ops.total(),
                "ops": ", ".join(f"{name} x{count}" for name, count in step.ops.most_common(8)),
                "kernels": step.time.kernels,
                "work_ns": step.time.sum_ns,
                "between_ns": step.idle_ns,
                "bytes_kept_percent": round(100 * step.fused_share, 1),
                "saved_ns": step.saved_ns,
            }
            for step in sorted(members, key=lambda step: -step.saved_ns)[:MAX_ROWS]
        ),
        spans=worst_spans(slices["start_ns"][rows], slices["end_ns"][rows], [step.saved_ns for step in members]),
        advice=_advice(optimizer, loop),
    )


def _advice(optimizer: str, loop: bool) -> str:
    if optimizer in HAVE_FUSED:
        also = " (or foreach=True where a parameter or device has no fused kernel)" if loop else ""
        return f"Make it torch.optim.{optimizer}(params, ..., fused=True){also}, where the optimizer is constructed."
    return (
        f"Make it {optimizer}(params, ..., foreach=True) if it is a torch.optim class; in an optimizer of your own, "
        "call torch._foreach_mul_ and its sisters over lists, or torch.compile the step."
    )
