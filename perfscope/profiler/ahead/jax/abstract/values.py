"""What can be known without data: small values that follow from what the program wrote down are computed on the CPU.

Keys, schedules, counters and the like decide which way a program goes. They are small, and so is what leads to them:
an operation is computed where its arguments are known, its results have at most `MOST_ELEMENTS` elements each, and
everything inside it together at most `MOST_WORK`. Of a compiled function that part is computed that leads from known
arguments to small results (the step counter of a training state), and nothing else.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from perfscope.profiler.ahead.jax import compat as compat
from perfscope.profiler.ahead.jax.abstract.array import AbstractArray

MAX_ELEMENTS = 4096
"""Of one array whose value is followed."""
MAX_WORK = 1 << 20
"""Elements written by all operations inside of one that is computed."""
TRIPS = 1000
"""Of a loop whose end is not known."""
NEVER_EVALUATED = frozenset(
    (
        "debug_callback", "debug_print", "io_callback", "pure_callback", "pallas_call", "shard_map", "ffi_call",
        "custom_partitioning", "infeed", "outfeed", "core_map", "run_state", "mpmd_map",
    )
)  # fmt: skip
"""Operations that are never computed: they call the program back, or need the device."""
IDENTITIES = frozenset(("sharding_constraint", "reshard", "device_put", "copy", "copy_p", "layout_constraint", "stage"))
"""Operations that move a value and leave it as it is."""


def elements(aval: Any) -> int:
    """How many elements a value has; what has no shape is none."""
    return (
        math.prod(getattr(aval, "shape", ()))
        if all(isinstance(n, int) for n in getattr(aval, "shape", ()))
        else 1 << 62
    )


def is_small(aval: Any) -> bool:
    """Whether a value of this kind is followed."""
    return hasattr(aval, "dtype") and elements(aval) <= MAX_ELEMENTS


def known_value(value: Any) -> Any:
    """The value of an argument for the CPU; ``None`` where it is unknown or large."""
    if isinstance(value, AbstractArray):
        return value._known
    if isinstance(value, np.ndarray) and value.size > MAX_ELEMENTS:
        return None
    return value


def is_placeholder(value: Any) -> bool:
    """Whether a value depends on unknown values."""
    return isinstance(value, AbstractArray) and value._made_up


def placeholder(aval: Any) -> Any:
    """A placeholder for a small unknown value: zeros on the CPU; ``None`` for keys and tokens."""
    import jax

    if not is_small(aval):
        return None
    try:
        with compat.computing_on_cpu():
            return jax.device_put(np.zeros(aval.shape, aval.dtype))
    except (TypeError, ValueError):  # keys, tokens
        return None


def evaluate_operation(
    primitive: Any, arguments: Sequence[Any], params: dict[str, Any], avals: Sequence[Any]
) -> list[Any] | None:
    """Values of an operation outside of jit, on the CPU; ``None`` where they are not followed."""
    if primitive.name in IDENTITIES:
        return [known_value(one) for one in arguments]
    values = [known_value(one) for one in arguments]
    if (
        any(value is None for value in values)
        or primitive.name in NEVER_EVALUATED
        or not all(map(is_small, avals))
        or any(True for _ in compat.inner_jaxprs(params))
    ):
        return None
    try:
        with compat.computing_on_cpu():
            results = primitive.bind(*values, **params)
    except Exception:  # what the CPU cannot do (a sharding of the target's devices), is not known
        return None
    return list(results) if primitive.multiple_results else [results]


def work_of(jaxpr: Any) -> float:
    """Elements that running a jaxpr writes; infinite where it does something that is never computed."""
    total: float = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name in NEVER_EVALUATED or equation.effects:
            return math.inf
        inner = sum(work_of(one) for one in compat.inner_jaxprs(equation.params))
        trips = {"while": TRIPS, "scan": equation.params.get("length", 1)}.get(equation.primitive.name, 1)
        total += inner * trips + sum(elements(v.aval) if hasattr(v.aval, "shape") else 1 for v in equation.outvars)
        if total > MAX_WORK:
            return math.inf
    return total


KnownPart = tuple[tuple[int, ...], tuple[int, ...], Callable[..., Any]]
"""Places of the arguments and of the results of what is computed of a function, and the function that does it."""

_known_parts: weakref.WeakKeyDictionary[Any, dict[tuple[bool, ...], KnownPart | None]] = weakref.WeakKeyDictionary()


def known_part(closed: Any, knows: tuple[bool, ...]) -> KnownPart | None:
    """What of a compiled function leads from the arguments that are known to small results; ``None``: nothing."""
    found = _known_parts.setdefault(closed, {})
    if knows not in found:
        try:
            found[knows] = _build_known_part(closed, knows)
        except Exception:  # a function that cannot be taken apart is followed no further
            found[knows] = None
    return found[knows]


def _build_known_part(closed: Any, knows: tuple[bool, ...]) -> KnownPart | None:
    import jax

    if any(isinstance(one, AbstractArray) and one._known is None for one in closed.consts):
        return None
    certain = known_results(closed.jaxpr, knows)
    outputs = [sure and is_small(aval) for sure, aval in zip(certain, closed.out_avals, strict=True)]
    results = tuple(at for at, one in enumerate(outputs) if one)
    if not results:
        return None
    less, used = compat.without_unused(closed.jaxpr, outputs)
    arguments = tuple(at for at, one in enumerate(used) if one)
    if less.effects or work_of(less) == math.inf or not all(knows[at] for at in arguments):
        return None
    function = compat.as_function(less, [known_value(one) for one in closed.consts])
    with compat.computing_on_cpu():
        return arguments, results, jax.jit(function)


CALLS = frozenset(
    ("jit", "pjit", "checkpoint", "remat2", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")
)
"""Operations that are a function, called with the same arguments."""


def known_results(jaxpr: Any, knows: Sequence[bool]) -> list[bool]:
    """Which results of a jaxpr follow from the arguments that are known alone."""
    sure = {variable for variable, one in zip(jaxpr.invars, knows, strict=True) if one}
    sure.update(jaxpr.constvars)

    def is_sure(atom: Any) -> bool:
        return hasattr(atom, "val") or atom in sure

    for equation in jaxpr.eqns:
        given = [is_sure(one) for one in equation.invars]
        if equation.effects or equation.primitive.name in NEVER_EVALUATED:
            continue
        if all(given):
            sure.update(equation.outvars)
        elif equation.primitive.name in CALLS and any(given):
            inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
            inner = getattr(inner, "jaxpr", inner)
            if inner is not None and len(inner.invars) == len(given):
                found = zip(equation.outvars, known_results(inner, given), strict=True)
                sure.update(variable for variable, one in found if one)
    return [is_sure(one) for one in jaxpr.outvars]


def evaluate_known_results(closed: Any, arguments: Sequence[Any], *, from_made_up: bool) -> dict[int, tuple[Any, bool]]:
    """Values of the small results of a compiled function that can be had, by place, and whether they are made up.

    ``from_made_up``: also where they follow from values that are made up.
    """
    values = [known_value(one) for one in arguments]
    if not from_made_up:
        values = [None if is_placeholder(one) else value for one, value in zip(arguments, values, strict=True)]
    part = known_part(closed, tuple(value is not None for value in values))
    if part is None:
        return {}
    places, results, function = part
    try:
        with compat.computing_on_cpu():
            found = function(*(values[at] for at in places))
    except Exception:  # see `computed`
        return {}
    doubtful = any(is_placeholder(arguments[at]) for at in places)
    return {at: (value, doubtful) for at, value in zip(results, found, strict=True)}
