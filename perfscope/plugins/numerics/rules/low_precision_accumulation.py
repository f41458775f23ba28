"""Sums, softmax, variances or weight updates in float16 or bfloat16 lose what they add up.

Example:
    Before::

        weights = scores.half().softmax(-1)

    After::

        weights = scores.softmax(-1, dtype=torch.float32).to(scores.dtype)

Why it costs:
    bfloat16 has 8 significant bits, float16 has 11. A variance as the difference of two means cancels them, a softmax
    over a long axis in float16 gives subnormal numbers, a sum that is kept in 16 bits stops to grow, and an update
    smaller than 2^-9 of a bfloat16 weight changes nothing: the model trains on what is left, without an error.

How it is found:
    `perfscope run --numerics` watches ops in the first two steps and in each tenth. Each reduction (softmax, sum,
    mean, norm, variance, cumulative sum ...) from 16 bits to 16 bits is computed again in float64 of the same values,
    once a line: one rounding to nearest explains a relative error of u (2^-8 in bfloat16, 2^-11 in float16; N. J.
    Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, section 2.2), twice that is flagged. PyTorch's own
    kernels add up in float32, so that most are within u whatever their length. A difference of two results of
    reductions is flagged if it can have lost a tenth: u times the larger norm over that of the difference. For 16-bit
    parameters, the share of elements is counted that an optimizer step with a gradient and a learning rate leaves
    unchanged; from one half on it is flagged (P. Zamirai et al., *Revisiting BFloat16 Training*, arXiv:2010.06192,
    2020, on updates that rounding to nearest cancels). 2, a tenth and a half are choices. Matrix products are not
    computed again. Errors are measured; no time is known.

Fix:
    Keep what adds up in float32: torch.autocast does it for softmax, norms and sums, and weights in float32 with
    autocast around the forward take small updates::

        variance = x.float().var(dim=-1)                  # not (x * x).mean(-1) - x.mean(-1) ** 2
        weights = scores.softmax(-1, dtype=torch.float32)
        with torch.autocast("cuda", dtype=torch.bfloat16): loss = model(batch)     # weights in float32
"""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.model.finding import MOST_ROWS, Cell, Finding, Scope, Where, fit_title
from perfscope.model.trace import Trace
from perfscope.plugins.numerics.document import PrecisionLoss, numerics_of
from perfscope.plugins.numerics.summary import split_line

UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Unit roundoff: the relative error of one rounding to nearest."""
ROUNDINGS = 2.0
"""Times the unit roundoff that a reduction's result may be off. Its own rounding is one."""
CANCELLED = 0.1
"""Relative error of a difference: one decimal digit is left."""
UNCHANGED = 0.5
"""Share of the elements of a parameter that an update should change and does not."""


def examined(trace: Trace) -> Scope:
    """Reductions and parameters of 16 bits."""
    numerics = numerics_of(trace)
    return Scope(0 if numerics is None else numerics.reductions, "reductions and parameters of 16 bits")


def check(trace: Trace) -> Iterable[Finding]:
    """A finding for each line whose reduction or difference loses precision, and one for all updates."""
    losses = () if (numerics := numerics_of(trace)) is None else numerics.losses
    flagged = sorted(filter(_flagged, losses), key=lambda loss: -loss.error)
    for loss in flagged:
        if loss.how != "update":
            yield _of_op(loss)
    updates = [loss for loss in flagged if loss.how == "update"]
    if updates:
        parameters = sum(loss.how == "update" for loss in losses)
        yield _of_updates(updates, parameters)


def _flagged(loss: PrecisionLoss) -> bool:
    least = {"rounding": ROUNDINGS * UNIT.get(loss.dtype, 1.0), "cancellation": CANCELLED, "update": UNCHANGED}
    return loss.error > least[loss.how]


def _of_op(loss: PrecisionLoss) -> Finding:
    file, line = split_line(loss.line)
    op = loss.op.removeprefix("_")
    error, unit = _percent(loss.error), _percent(UNIT[loss.dtype])
    if loss.how == "cancellation":
        title = f"a difference of two reductions in {loss.dtype} can be off by {error}"
        detail = (
            f"{op} takes the difference of nearly equal values that reductions over {loss.terms:,} terms made, each "
            f"rounded to {unit}."
        )
        advice = f"Compute it in float32, a variance by x.float().var(): its terms are rounded to {loss.dtype} before "
        advice += "they cancel."
    else:
        title = f"{op} over {loss.terms:,} terms in {loss.dtype} is off by {error}"
        detail = f"Against float64 of the same values; one rounding to {loss.dtype} is off by at most {unit}."
        advice = f"Compute {op} in float32 and round its result: under torch.autocast, or with dtype=torch.float32."
        if "backward" in op:
            advice = (
                "Scale the loss (torch.amp.GradScaler), or compute in bfloat16: gradients this small are subnormal."
            )
    return Finding(
        subject=f"{loss.how} of {op} in {loss.dtype}",
        title=fit_title(title, op),
        detail=detail,
        severity="medium",
        basis="measured",
        advice=advice,
        where=Where(op=loss.op, module=loss.module or None, file=file, line=line),
        evidence=(_evidence(loss),),
    )


def _of_updates(updates: list[PrecisionLoss], parameters: int) -> Finding:
    worst = updates[0]
    return Finding(
        subject="updates that change nothing",
        title=f"most updates of {len(updates):,} of {parameters:,} parameters in {worst.dtype} change nothing",
        detail=f"Of {worst.module}, {_percent(worst.error)} of the elements with a gradient stay as they were.",
        severity="high",
        basis="measured",
        advice="Keep weights in float32 and compute under torch.autocast: a 16-bit weight takes no update smaller than "
        "half a unit in its last place.",
        where=Where(module=worst.module),
        evidence=tuple(_evidence(loss) for loss in updates[:MOST_ROWS]),
    )


def _evidence(loss: PrecisionLoss) -> dict[str, Cell]:
    return {
        "step": loss.step,
        "how": loss.how,
        "op": loss.op,
        "module": loss.module,
        "line": loss.line,
        "dtype": loss.dtype,
        "terms": loss.terms,
        "error": loss.error,
    }


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
