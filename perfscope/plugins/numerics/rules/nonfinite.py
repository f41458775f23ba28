"""A value of the program becomes NaN or infinite.

Example:
    Before::

        loss = -probability.log().mean()        # infinite at 0

    After::

        loss = -(probability + 1e-8).log().mean()

Why it costs:
    NaN spreads: from one loss to all gradients, from these to all parameters, and all that was trained since the last
    checkpoint is lost. The step in which it shows is often not the one in which it began.

How it is found:
    `perfscope run --numerics` looks at the smallest and largest value of each module's output and gradient, of the
    losses, and of the parameters and their gradients, in every step. The first tensor that is not finite is named. In
    the first two steps, in each tenth one, and in two steps after it happened, ops are watched as well: named is the
    first op since the last finite tensor that makes NaN or infinity of finite values, with its line. Values are
    measured; no time is known. With several ranks, the rank in which it began is named.

    A program that trains is flagged if a loss, a parameter or a gradient is not finite; infinite outputs that
    reach none of these are masks. Without a loss NaN of any output counts, and infinity that an op computed. Ops that
    put a given value (`masked_fill`, `where`, `full`) compute nothing. Gradients of a loss that a
    `torch.amp.GradScaler` scales are left to it: it looks for infinity and skips the step (`unstable_scale`).

Fix:
    Give the op a range that holds its result: bfloat16 or float32 where float16 ends at 65504, an epsilon where it
    divides by 0 or takes the logarithm of it::

        with torch.autocast("cuda", dtype=torch.bfloat16): ...
        scores = (query.float() @ key.float().mT) * scale
        loss = -(probability + 1e-8).log().mean()
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from perfscope.model.finding import MOST_ROWS, Cell, Finding, Scope, Where, fit_title
from perfscope.model.trace import Trace
from perfscope.plugins.numerics.document import KINDS, Nonfinite, Numerics, numerics_of
from perfscope.plugins.numerics.summary import split_line

REPLACES = True

_WORDS = {"nan": "NaN", "inf": "infinite", "-inf": "infinite"}
_DIVIDES = frozenset(
    {"div", "div_", "reciprocal", "rsqrt", "sqrt", "log", "log2", "log10", "log1p", "pow", "addcdiv", "addcdiv_"}
)

_MULTIPLIES = frozenset({"mul", "mul_", "addcmul", "addcmul_"})
_ADDS = frozenset({"add", "add_", "sub", "sub_", "rsub"})
_SOFTMAX = frozenset({"_softmax", "_log_softmax"})


def examined(trace: Trace) -> Scope:
    """Tensors that were examined."""
    return Scope(0 if (numerics := numerics_of(trace)) is None else len(numerics.tensors), "tensors")


def check(trace: Trace) -> Iterable[Finding]:
    """One finding: the first place."""
    numerics = numerics_of(trace)
    if numerics is None:
        return
    events = _events(numerics)
    if not events:
        return
    first = events[0]
    module = first.op_module or ("" if first.kind == "loss" else first.name)
    name = module or "the loss"
    file, line = split_line(first.op_line or first.line)
    dtype = next((tensor.dtype for tensor in numerics.tensors if (tensor.kind, tensor.name) == _key(first)), "")
    made = f"{first.op} of {name}" if first.op else name if first.kind == "loss" else f"{first.kind} {name}"
    later = "" if first.op_step in (None, first.step) else f" The op was seen in step {first.op_step}."
    yield Finding(
        subject="values that are not finite",
        title=fit_title(f"{made} is not finite from step {first.step} on", name),
        detail=f"The first tensor that is not finite is the {first.kind} {first.name} ({dtype}, "
        f"{_WORDS[first.state]}); {len(events):,} tensors are not finite in some step.{later}",
        severity="high",
        basis="measured",
        advice=_advice(first, first.op_dtype or dtype, numerics.framework),
        where=Where(
            op=first.op or None,
            module=None if first.kind == "loss" and not first.op_module else name,
            file=file,
            line=line,
        ),
        evidence=tuple(_evidence(event) for event in events[:MOST_ROWS]),
    )


def compare(traces: Sequence[Trace]) -> Iterable[Finding]:
    """Keep the rank in which it began; the others get the value from the following collective."""
    began = [
        (events[0].step, KINDS.index(events[0].kind), index)
        for index, trace in enumerate(traces)
        if (numerics := numerics_of(trace)) is not None and (events := _events(numerics))
    ]
    if len(began) > 1:
        first = traces[min(began)[2]]
        ranks = () if first.source.rank is None else (first.source.rank,)
        yield from (replace(finding, ranks=ranks) for finding in check(first))


def _events(numerics: Numerics) -> list[Nonfinite]:
    """Tensors that are not finite, except masks and values handled by a loss scaler; first ones first."""
    events = [event for event in numerics.nonfinite if not event.scaled]
    computed = [
        event
        for event in events
        if event.kind not in ("input", "output") or event.state == "nan" or event.op or not event.watched
    ]
    trains = any(tensor.kind in ("loss", "parameter gradient") for tensor in numerics.tensors)
    if trains and all(event.kind in ("input", "output") for event in events):
        return []
    return computed


def _key(event: Nonfinite) -> tuple[str, str]:
    return (event.kind, event.name)


def _evidence(event: Nonfinite) -> dict[str, Cell]:
    return {
        "step": event.step,
        "kind": event.kind,
        "tensor": event.name,
        "value": _WORDS[event.state],
        "op": event.op,
        "line": event.op_line or event.line,
    }


def _advice(first: Nonfinite, dtype: str, framework: str) -> str:
    op = first.op or f"what the {first.kind} is made of"
    if first.kind == "input":
        return "Leave out batches with NaN or infinity: the input of the model has them before any op ran."
    tiny = " In float16 an epsilon below 6e-8 is 0." if dtype == "float16" else ""
    if first.op in _DIVIDES:
        return f"Keep the argument of {op} away from 0: add an epsilon, or clamp it.{tiny}"
    if first.op_state == "nan" and (advice := _without_infinity(first.op, framework)):
        return advice
    deep = "" if first.op else " `perfscope run --numerics --level deep` watches ops in all steps and names the one."
    if dtype == "float16":
        autocast = " torch.autocast with bfloat16 needs no loss scale." if framework == "torch" else ""
        return (
            f"Compute {op} in bfloat16 or float32, or scale its operands down: float16 ends at 65504.{autocast}{deep}"
        )
    training = " a smaller learning rate, clipped gradients," if first.step else ""
    return f"Bound {op}:{training} a clamp, or an epsilon where it divides.{deep}"


def _without_infinity(op: str, framework: str) -> str:
    """Return the advice for an op that makes NaN of numbers only if some are infinite; empty for other ops."""
    finfo, xlogy = (
        ("jnp.finfo(dtype).min", "jax.scipy.special.xlogy(p, p)")
        if framework == "jax"
        else ("torch.finfo(dtype).min", "torch.xlogy(p, p)")
    )
    if op in _MULTIPLIES:
        return (
            f"Keep infinity out of {op}: 0 times infinity is NaN. Mask with {finfo} in place of -inf, and compute "
            f"p * log p as {xlogy}."
        )
    if op in _ADDS:
        return f"Keep infinity out of {op}: infinity minus infinity is NaN. Mask with {finfo} in place of -inf."
    if op in _SOFTMAX:
        return f"Leave one finite score in each row of {op}: a row whose scores are all -inf is NaN."
    return ""
