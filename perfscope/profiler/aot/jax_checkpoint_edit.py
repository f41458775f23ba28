"""Jaxprs with checkpoints put in, given another policy, or taken out: nothing is traced again.

What is put around equations is the primitive that ``jax.checkpoint`` puts there, with its default parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfscope.profiler.aot import jax_abstract_compat as compat

Policy = Callable[..., Any] | None
"""What ``jax.checkpoint`` takes as ``policy``."""
PREVENT_CSE = True
"""As ``jax.checkpoint(layer)`` has it, in loops as well: the barrier keeps XLA from moving out what runs again."""


class Substitution(dict[Any, Any]):
    """Variables that stand for others."""

    def __call__(self, atom: Any) -> Any:
        """The atom that stands for one."""
        return atom if _is_literal(atom) else self.get(atom, atom)


def is_checkpoint(eqn: Any) -> bool:
    """Whether an equation is a ``jax.checkpoint`` as the program wrote it, not one that was differentiated."""
    return eqn.primitive is compat.get("jax._src.ad_checkpoint", "remat_p") and not eqn.params["differentiated"]


def is_loop(eqn: Any) -> bool:
    """Whether an equation is a ``jax.lax.scan``."""
    return eqn.primitive is compat.get("jax._src.lax.control_flow.loops", "scan_p")


def is_call(eqn: Any) -> bool:
    """Whether an equation calls a function that is part of the same program: ``jax.jit``."""
    return eqn.primitive is compat.get("jax._src.pjit", "jit_p")


def may_be_checkpointed(*effects: Any) -> bool:
    """Whether ``jax.checkpoint`` takes what has these effects: printing, and not calls into Python, for instance."""
    allowed = compat.get("jax._src.effects", "remat_allowed_effects")
    return not any(allowed.filter_not_in(one) for one in effects)


def with_policy(eqn: Any, policy: Policy) -> Any:
    """A checkpoint with another policy; what else it was written with stays."""
    return eqn.replace(params={**eqn.params, "policy": policy})


def wrapped_loop(eqn: Any, policy: Policy) -> Any:
    """A scan whose body is ``jax.checkpoint(body, policy=policy)``."""
    closed = eqn.params["jaxpr"]
    body = closed.jaxpr
    fresh = [_like(variable) for variable in (*body.constvars, *body.invars)]
    results = [_like(variable) for variable in body.outvars]
    inner = compat.get("jax._src.interpreters.partial_eval", "convert_constvars_jaxpr")(body)
    checkpoint = _checkpoint(fresh, results, inner, policy, eqn)
    count = len(body.constvars)
    around = body.replace(constvars=fresh[:count], invars=fresh[count:], outvars=results, eqns=[checkpoint])
    return eqn.replace(params={**eqn.params, "jaxpr": closed.replace(jaxpr=around)})


def wrapped_equations(eqns: Sequence[Any], used: set[Any], policy: Policy, debug_info: Any) -> Any:
    """One checkpoint around adjacent equations; ``used``: variables that are read behind them."""
    core = "jax._src.core"
    made = {variable for eqn in eqns for variable in eqn.outvars}
    read = dict.fromkeys(
        atom for eqn in eqns for atom in eqn.invars if not _is_literal(atom) and atom not in made
    )  # in their order
    given = [variable for variable in dict.fromkeys(v for eqn in eqns for v in eqn.outvars) if variable in used]
    stacks = [eqn.source_info.name_stack for eqn in eqns]
    shared = _shared(stacks)
    within = Substitution({variable: _like(variable) for variable in read})
    inner = []
    for eqn in eqns:
        drop = compat.get(core, "DropVar")
        within |= {one: _like(one) for one in eqn.outvars if not isinstance(one, drop)}
        stack = type(eqn.source_info.name_stack)(eqn.source_info.name_stack.stack[shared:])
        inner.append(
            eqn.replace(
                invars=[within(one) for one in eqn.invars],
                outvars=[within(one) for one in eqn.outvars],
                source_info=type(eqn.source_info)(eqn.source_info.traceback, stack),
            )
        )
    jaxpr = compat.get(core, "Jaxpr")(
        constvars=(),
        invars=[within[one] for one in read],
        outvars=[within[one] for one in given],
        eqns=inner,
        effects=compat.get(core, "join_effects")(*(eqn.effects for eqn in eqns)),
        debug_info=debug_info.with_unknown_names(),
    )
    first = eqns[0]
    stack = type(stacks[0])(stacks[0].stack[:shared])
    at = first.replace(source_info=type(first.source_info)(first.source_info.traceback, stack))
    return _checkpoint(list(read), given, jaxpr, policy, at)


def inlined(eqn: Any, within: Substitution) -> list[Any]:
    """The equations of a checkpoint without it; what it gave is put into ``within``."""
    jaxpr = eqn.params["jaxpr"]
    inside = Substitution(zip(jaxpr.invars, eqn.invars, strict=True))
    found = []
    for one in jaxpr.eqns:
        inputs = [inside(atom) for atom in one.invars]
        inside |= {variable: _like(variable) for variable in one.outvars if not _is_dropped(variable)}
        stack = eqn.source_info.name_stack + one.source_info.name_stack
        found.append(
            one.replace(
                invars=inputs,
                outvars=[inside(variable) for variable in one.outvars],
                source_info=type(one.source_info)(one.source_info.traceback, stack),
            )
        )
    for variable, given in zip(eqn.outvars, jaxpr.outvars, strict=True):
        if not _is_dropped(variable):
            within[variable] = inside(given)
    return found


def with_equations(jaxpr: Any, eqns: Sequence[Any], within: Substitution) -> Any:
    """A jaxpr with other equations, and its results by what stands for them."""
    return jaxpr.replace(eqns=list(eqns), outvars=[within(one) for one in jaxpr.outvars])


def _checkpoint(inputs: list[Any], results: list[Any], jaxpr: Any, policy: Policy, at: Any) -> Any:
    core = "jax._src.core"
    return compat.get(core, "new_jaxpr_eqn")(
        inputs,
        results,
        compat.get("jax._src.ad_checkpoint", "remat_p"),
        {"jaxpr": jaxpr, "prevent_cse": PREVENT_CSE, "differentiated": False, "policy": policy},
        compat.get(core, "eqn_effects")(jaxpr, inputs),
        at.source_info,
        at.ctx,
    )


def _shared(stacks: Sequence[Any]) -> int:
    """How many of their first scopes all have."""
    count = min(len(one.stack) for one in stacks)
    for at in range(count):
        if any(one.stack[at] != stacks[0].stack[at] for one in stacks):
            return at
    return count


def _like(atom: Any) -> Any:
    return compat.get("jax._src.core", "Var")(atom.aval)


def _is_literal(atom: Any) -> bool:
    return isinstance(atom, compat.get("jax._src.core", "Literal"))


def _is_dropped(variable: Any) -> bool:
    return isinstance(variable, compat.get("jax._src.core", "DropVar"))
