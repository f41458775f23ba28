"""The changes of one function that is differentiated, from its outermost jaxpr to those of its loops and calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perfscope.profiler.aot import jax_abstract_compat as compat
from perfscope.profiler.aot.jax_checkpoint_edit import (
    Policy,
    Substitution,
    inlined,
    with_equations,
    with_policy,
    wrapped_equations,
    wrapped_loop,
)
from perfscope.profiler.aot.jax_checkpoint_inside import with_open_jaxprs
from perfscope.profiler.aot.jax_checkpoint_sites import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One function's changes, by the identity of equations."""

    policy: Policy
    removes: bool
    picked: set[int]
    """Checkpoints."""
    loops: set[int]
    """Scans whose bodies are wrapped."""
    groups: list[Site]
    made: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """Jaxprs by identity, with what became of them: a function that is called twice stays one."""

    def of(self, jaxpr: Any) -> Any:
        """A jaxpr with them; the same object where nothing changes in it."""
        if id(jaxpr) not in self.made:
            self.made[id(jaxpr)] = jaxpr, self._of(jaxpr)
        return self.made[id(jaxpr)][1]

    def _of(self, jaxpr: Any) -> Any:
        within = Substitution()
        found: list[Any] = []
        pieces = dict(piece for site in self.groups if site.holder is jaxpr for piece in site.pieces)
        last = _last_read(jaxpr)
        number, same = 0, not pieces
        while number < len(jaxpr.eqns):
            eqn = jaxpr.eqns[number]
            end = pieces.get(number, number + 1)
            if end > number + 1 or number in pieces:
                used = {variable for variable, read in last.items() if read >= end}
                held = [_with_inputs(one, within) for one in jaxpr.eqns[number:end]]
                found.append(wrapped_equations(held, used, self.policy, jaxpr.debug_info))
            else:
                changed = self._equation(_with_inputs(eqn, within))
                if id(eqn) in self.picked and self.removes:
                    found += inlined(changed, within)
                    same = False
                else:
                    if id(eqn) in self.picked:
                        changed = with_policy(changed, self.policy)
                    elif id(eqn) in self.loops:
                        changed = wrapped_loop(changed, self.policy)
                    found.append(changed)
                    same = same and changed is eqn
            number = end
        return jaxpr if same else with_equations(jaxpr, found, within)

    def _equation(self, eqn: Any) -> Any:
        """An equation with the changes inside of it."""
        return with_open_jaxprs(eqn, self.of)


def _with_inputs(eqn: Any, within: Substitution) -> Any:
    if not within:
        return eqn
    inputs = [within(one) for one in eqn.invars]
    same = all(new is old for new, old in zip(inputs, eqn.invars, strict=True))
    return eqn if same else eqn.replace(invars=inputs)


def _last_read(jaxpr: Any) -> dict[Any, int]:
    """The last equation that reads each variable; behind all of them for results."""
    literal = compat.get("jax._src.core", "Literal")
    found: dict[Any, int] = {}
    for number, eqn in enumerate(jaxpr.eqns):
        found |= {atom: number for atom in eqn.invars if not isinstance(atom, literal)}
    return found | {atom: len(jaxpr.eqns) for atom in jaxpr.outvars if not isinstance(atom, literal)}
