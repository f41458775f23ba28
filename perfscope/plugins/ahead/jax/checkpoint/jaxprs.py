"""Insert, change or remove checkpoints in jaxprs, without tracing again.

Equations are wrapped in the primitive that ``jax.checkpoint`` uses, with its default parameters.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from perfscope.plugins.ahead.jax import compat as compat
from perfscope.plugins.ahead.jax.lines import user_line

if TYPE_CHECKING:
    from perfscope.plugins.ahead.jax.checkpoint.rewrite import Checkpoints

Policy = Callable[..., Any] | None
"""Type of the ``policy`` argument of ``jax.checkpoint``."""
PREVENT_CSE = True
"""As in ``jax.checkpoint(layer)``, also in loops: the barrier keeps XLA from removing the repeated work."""

_RULED = ("custom_vjp_call", "custom_jvp_call")
_SKIPPED = ("pallas_call", "checkpoint", "remat2", "remat")
"""Skipped: XLA keeps no values of a kernel; an already differentiated checkpoint was handled before."""


class Substitution(dict[Any, Any]):
    """Replaces variables by others."""

    def __call__(self, atom: Any) -> Any:
        """The replacement of an atom."""
        return atom if isinstance(atom, compat.Literal) else self.get(atom, atom)


def is_checkpoint(eqn: Any) -> bool:
    """Whether an equation is a ``jax.checkpoint`` as written by the program, not a differentiated one."""
    return eqn.primitive is compat.remat_p and not eqn.params["differentiated"]


def is_loop(eqn: Any) -> bool:
    """Whether an equation is a ``jax.lax.scan``."""
    return eqn.primitive is compat.scan_p


def is_call(eqn: Any) -> bool:
    """Whether an equation calls a function within the same program: ``jax.jit``."""
    return eqn.primitive is compat.jit_p


def may_be_checkpointed(*effects: Any) -> bool:
    """Whether ``jax.checkpoint`` accepts these effects: printing yes, calls into Python no."""
    return not any(compat.remat_allowed_effects.filter_not_in(effect) for effect in effects)


def with_policy(eqn: Any, policy: Policy) -> Any:
    """A checkpoint with another policy; its other parameters stay."""
    return eqn.replace(params={**eqn.params, "policy": policy})


def wrapped_loop(eqn: Any, policy: Policy) -> Any:
    """A scan whose body is ``jax.checkpoint(body, policy=policy)``."""
    closed = eqn.params["jaxpr"]
    body = closed.jaxpr
    fresh = [compat.Var(variable.aval) for variable in (*body.constvars, *body.invars)]
    results = [compat.Var(variable.aval) for variable in body.outvars]
    inner = compat.convert_constvars_jaxpr(body)
    checkpoint = _checkpoint(fresh, results, inner, policy, eqn)
    count = len(body.constvars)
    around = body.replace(constvars=fresh[:count], invars=fresh[count:], outvars=results, eqns=[checkpoint])
    return eqn.replace(params={**eqn.params, "jaxpr": closed.replace(jaxpr=around)})


def wrapped_equations(eqns: Sequence[Any], used: set[Any], policy: Policy, debug_info: Any) -> Any:
    """One checkpoint around adjacent equations; ``used``: variables that are read after them."""
    made = {variable for eqn in eqns for variable in eqn.outvars}
    read = dict.fromkeys(
        atom for eqn in eqns for atom in eqn.invars if not isinstance(atom, compat.Literal) and atom not in made
    )  # in order
    given = [variable for variable in dict.fromkeys(v for eqn in eqns for v in eqn.outvars) if variable in used]
    stacks = [eqn.source_info.name_stack for eqn in eqns]
    shared = _common_scopes(stacks)
    within = Substitution({variable: compat.Var(variable.aval) for variable in read})
    inner = []
    for eqn in eqns:
        within |= {
            variable: compat.Var(variable.aval) for variable in eqn.outvars if not isinstance(variable, compat.DropVar)
        }
        stack = type(eqn.source_info.name_stack)(eqn.source_info.name_stack.stack[shared:])
        inner.append(
            eqn.replace(
                invars=[within(variable) for variable in eqn.invars],
                outvars=[within(variable) for variable in eqn.outvars],
                source_info=type(eqn.source_info)(eqn.source_info.traceback, stack),
            )
        )
    inputs, outputs = [within[variable] for variable in read], [within[variable] for variable in given]
    jaxpr = compat.new_jaxpr(inputs, outputs, inner, debug_info.with_unknown_names())
    first = eqns[0]
    stack = type(stacks[0])(stacks[0].stack[:shared])
    origin = first.replace(source_info=type(first.source_info)(first.source_info.traceback, stack))
    return _checkpoint(list(read), given, jaxpr, policy, origin)


def inlined(eqn: Any, within: Substitution) -> list[Any]:
    """The equations of a checkpoint without it; its results are substituted in ``within``."""
    jaxpr = eqn.params["jaxpr"]
    inside = Substitution(zip(jaxpr.invars, eqn.invars, strict=True))
    equations = []
    for inner_eqn in jaxpr.eqns:
        inputs = [inside(atom) for atom in inner_eqn.invars]
        inside |= {
            variable: compat.Var(variable.aval)
            for variable in inner_eqn.outvars
            if not isinstance(variable, compat.DropVar)
        }
        stack = eqn.source_info.name_stack + inner_eqn.source_info.name_stack
        equations.append(
            inner_eqn.replace(
                invars=inputs,
                outvars=[inside(variable) for variable in inner_eqn.outvars],
                source_info=type(inner_eqn.source_info)(inner_eqn.source_info.traceback, stack),
            )
        )
    for variable, given in zip(eqn.outvars, jaxpr.outvars, strict=True):
        if not isinstance(variable, compat.DropVar):
            within[variable] = inside(given)
    return equations


def with_equations(jaxpr: Any, eqns: Sequence[Any], within: Substitution) -> Any:
    """A jaxpr with other equations, and with its results substituted."""
    return jaxpr.replace(eqns=list(eqns), outvars=[within(variable) for variable in jaxpr.outvars])


def _checkpoint(inputs: list[Any], results: list[Any], jaxpr: Any, policy: Policy, origin: Any) -> Any:
    params = {"jaxpr": jaxpr, "prevent_cse": PREVENT_CSE, "differentiated": False, "policy": policy}
    return compat.new_equation(compat.remat_p, inputs, results, params, origin)


def _common_scopes(stacks: Sequence[Any]) -> int:
    """Number of leading scopes that all have in common."""
    count = min(len(stack.stack) for stack in stacks)
    for index in range(count):
        if any(stack.stack[index] != stacks[0].stack[index] for stack in stacks):
            return index
    return count


# Jaxprs inside an equation: one that is differentiated with its surroundings, and those that are not.
#
# Loops, checkpoints, jitted functions and `shard_map` are differentiated as written. A function with a custom rule
# (`custom_vjp`, `custom_jvp`) is not: its rule runs instead. A `while_loop` has no backward. Branches of `cond` are
# ignored.


def inner_jaxpr(eqn: Any) -> Any:
    """The jaxpr of a scan, a checkpoint or a call."""
    inner = eqn.params["jaxpr"]
    return getattr(inner, "jaxpr", inner)


def open_jaxpr(eqn: Any) -> Any | None:
    """The jaxpr of an equation that is differentiated with its surroundings."""
    if is_loop(eqn) or is_checkpoint(eqn) or is_call(eqn) or eqn.primitive.name == "shard_map":
        return inner_jaxpr(eqn)
    return None


def with_open_jaxpr(eqn: Any, change: Callable[[Any], Any]) -> Any:
    """The equation with ``change`` applied to its `open_jaxpr`; the same object if nothing changes."""
    before = open_jaxpr(eqn)
    after = None if before is None else change(before)
    if after is before:
        return eqn
    inner = eqn.params["jaxpr"]
    whole = inner.replace(jaxpr=after) if inner is not before else after
    return eqn.replace(params={**eqn.params, "jaxpr": whole})


def opaque_jaxprs(eqn: Any) -> tuple[tuple[Any, ...], str]:
    """The jaxprs of an equation in which checkpoints have no effect, and the reason for the report of a site."""
    if open_jaxpr(eqn) is not None or eqn.primitive.name in _SKIPPED:
        return (), ""
    return tuple(compat.jaxprs_in_params(eqn.params)), f"no checkpoint reaches into {eqn.primitive.name}"


def custom_rule(eqn: Any) -> tuple[Any, ...]:
    """The forward of a ``custom_vjp`` as a jaxpr: it may name values to keep. Empty without one."""
    if eqn.primitive.name != "custom_vjp_call":
        return ()
    count = len(eqn.invars) - eqn.params["num_consts"]
    with contextlib.suppress(Exception):  # a rule that cannot be differentiated for all of its arguments
        return (eqn.params["fwd_jaxpr_thunk"].call_wrapped(*[True] * count)[0],)
    return ()


def called_function(eqn: Any) -> Any:
    """The function that an equation calls without a separate frame; None if it calls none."""
    if eqn.primitive.name in _RULED:
        return eqn.params["call_jaxpr"].jaxpr.debug_info
    return inner_jaxpr(eqn).debug_info if is_call(eqn) else None


# Differentiation through a jaxpr: the function is traced, changed, and run in place of the original.


def through_jaxpr(fun: Callable[..., Any], book: Checkpoints) -> Callable[..., Any]:
    """The function as a jaxpr changed by ``book``. A function that reads values runs unchanged and is reported."""
    import jax

    reads_values = (
        jax.errors.ConcretizationTypeError,
        jax.errors.NonConcreteBooleanIndexError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    )

    @functools.wraps(fun)
    def run(*arguments: Any) -> Any:
        book.differentiated += 1
        line = user_line()
        where = "" if line is None else f" at {line}"
        if in_derivative_rule():
            book.unseen.append(f"what is differentiated{where} is in a derivative rule of the program's own")
            return fun(*arguments)
        others: list[Any] = []

        def traced(*inner: Any) -> list[Any]:
            leaves, tree = jax.tree.flatten(fun(*inner))
            tracers = [isinstance(leaf, jax.core.Tracer) for leaf in leaves]
            others[:] = [tree, [None if one else leaf for leaf, one in zip(leaves, tracers, strict=True)], tracers]
            return [leaf for leaf, one in zip(leaves, tracers, strict=True) if one]

        before = book.differentiated
        try:
            closed = compat.traced_for_linearize(traced, fun, arguments)
        except reads_values as error:
            book.unseen.append(f"what is differentiated{where} reads values ({type(error).__name__})")
            return fun(*arguments)
        if book.differentiated > before:
            book.unseen.append(f"what is differentiated{where} differentiates something itself, which was looked at")
            return fun(*arguments)
        jaxpr = book.rewritten(closed.jaxpr)
        results = iter(compat.eval_jaxpr(jaxpr, closed.consts, *compat.flat_arguments(arguments).vals))
        tree, leaves, tracers = others
        return tree.unflatten(
            [next(results) if is_tracer else leaf for leaf, is_tracer in zip(leaves, tracers, strict=True)]
        )

    return run


def in_derivative_rule() -> bool:
    """Whether a derivative rule (``custom_vjp``, ``custom_jvp``) of the program is running, by frames on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if compat.is_derivative_rule(frame.f_code):
            return True
        frame = frame.f_back
    return False
