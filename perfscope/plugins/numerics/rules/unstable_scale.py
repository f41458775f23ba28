"""The loss scale keeps falling: gradients overflow in step after step, and these steps are skipped.

Example:
    Before::

        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch)
        scaler.scale(loss).backward()

    After::

        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(batch)
        loss.backward()

Why it costs:
    `torch.amp.GradScaler` skips the step of the optimizer when a gradient is not finite, and halves its scale. The time
    of such a step is lost. Where the scale never settles the model hardly trains, and at a small scale small gradients
    become 0 in float16.

How it is found:
    `perfscope run --numerics` reads the scale of a `torch.amp.GradScaler` at the end of each step. It begins high on
    purpose (65536) and falls until it fits, so that only the second half of the recorded steps counts: flagged are at
    least 3 steps there after which it is smaller, if they are 5 % of that half. A scale that fits is doubled after 2000
    steps (`growth_interval`) and then overflows once: 5 % is a hundred times that. A scale below 1 at the end is
    flagged as well: the gradients themselves leave float16. The gradient that is not finite first is named. Scales
    are measured; the time of skipped steps is not in these recordings.

Fix:
    Train in bfloat16, whose range is that of float32, without a loss scale. In float16 keep outputs and gradients
    smaller: clip them after `scaler.unscale_`, and mend what `nonfinite` names::

        with torch.autocast("cuda", dtype=torch.bfloat16): loss = model(batch)
        loss.backward()
"""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.model.finding import MOST_ROWS, AbstainError, Cell, Finding, Scope, Where
from perfscope.model.trace import Trace
from perfscope.plugins.numerics.document import StepValues, numerics_of
from perfscope.plugins.numerics.summary import split_line

MIN_SKIPPED = 3
"""Fewest skipped steps in the second half. Fewer are chance in a short run."""
SKIPPED_SHARE = 0.05
"""Share of the second half's steps; in balance one of 2001 is skipped."""
LEAST_SCALE = 1.0
"""A smaller one makes gradients smaller than they are, and they still overflow."""


def examined(trace: Trace) -> Scope:
    """Steps whose scale is known."""
    return Scope(len(_scaled(trace)), "steps with a loss scale")


def check(trace: Trace) -> Iterable[Finding]:
    """One finding; ``AbstainError`` without a loss scaler."""
    steps, numerics = _scaled(trace), numerics_of(trace)
    if numerics is None or not steps:
        raise AbstainError("no torch.amp.GradScaler scaled a loss")
    late = steps[len(steps) // 2 :]
    fell = [step for step in numerics.scale_halved if step >= late[0].step]
    last = late[-1].scale or 0.0
    keeps = len(fell) >= MIN_SKIPPED and len(fell) >= SKIPPED_SHARE * len(late)
    if not keeps and last >= LEAST_SCALE:
        return
    gradients = [event for event in numerics.nonfinite if event.scaled]
    first = gradients[0] if gradients else None
    file, line = split_line("" if first is None else first.op_line)
    named = (
        "" if first is None else f" The first gradient that was not finite is of {first.name}, in step {first.step}."
    )
    yield Finding(
        subject="the loss scale keeps falling",
        title=f"the loss scale falls in {len(numerics.scale_halved):,} of {len(steps):,} steps, to {last:g}",
        detail=f"{len(fell):,} of the {len(late):,} steps of the second half were skipped.{named}",
        severity="high",
        basis="measured",
        advice="Compute in bfloat16 without a loss scale, or make the gradients smaller: a scale that fits float16 is "
        "not found.",
        where=Where(
            op=(first.op or None) if first else None, module=first.name if first else None, file=file, line=line
        ),
        evidence=_evidence(steps, numerics.scale_halved),
    )


def _scaled(trace: Trace) -> list[StepValues]:
    numerics = numerics_of(trace)
    return [] if numerics is None else [step for step in numerics.steps if step.scale is not None]


def _evidence(steps: list[StepValues], fell: tuple[int, ...]) -> tuple[dict[str, Cell], ...]:
    """The last steps in which it fell."""
    rows: list[dict[str, Cell]] = [
        {"step": step.step, "scale": step.scale, "loss": step.loss} for step in steps if step.step in set(fell)
    ]
    return tuple(rows[-MOST_ROWS:])
