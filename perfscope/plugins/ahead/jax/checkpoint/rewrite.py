"""``--checkpoint POLICY``: the layers of a JAX program under another checkpoint policy, without editing the program.

A differentiated function (``jax.grad``, ``jax.value_and_grad``, ``jax.vjp``) is first traced to a jaxpr. There the
checkpoints of the program's layers get the policy, or are removed; if layers have none, the body of their scan, or the
function called by a Python loop, is wrapped as by ``jax.checkpoint(layer, policy=...)``. The result is differentiated
by jax as usual. Nothing else in the program changes; each change is reported in one line.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

from msgspec import Struct, field

from perfscope.model.errors import DataError
from perfscope.plugins.ahead.jax import compat as compat
from perfscope.plugins.ahead.jax.checkpoint.jaxprs import (
    Policy,
    Substitution,
    custom_rule,
    inlined,
    inner_jaxpr,
    is_checkpoint,
    open_jaxpr,
    through_jaxpr,
    with_equations,
    with_open_jaxpr,
    with_policy,
    wrapped_equations,
    wrapped_loop,
)
from perfscope.plugins.ahead.jax.checkpoint.sites import Site, SitePlace, is_repeating_scan, sites_of
from perfscope.plugins.ahead.jax.lines import SourceLine
from perfscope.plugins.ahead.request import CheckpointRequest

# The changes of one differentiated function, from its outermost jaxpr to those of its loops and calls.

VERBS: dict[SiteChange, str] = {"wrapped": "checkpointed", "replaced": "under this policy", "removed": "taken out"}

MAX_REPORTED = 4
"""Most places named in an error."""

_NAMELESS = object()
"""Marker for a policy whose names do not exist."""


class Edit(Struct, frozen=True, kw_only=True):
    """One function's changes, by the identity of equations."""

    policy: Policy
    removes: bool
    picked: set[int]
    """Checkpoints."""
    loops: set[int]
    """Scans whose bodies are wrapped."""
    groups: list[Site]
    made: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """Identity of a jaxpr -> original and changed jaxpr, so that a function called twice stays one function."""

    def of(self, jaxpr: Any) -> Any:
        """Apply the changes to a jaxpr; return the same object if nothing changes."""
        if id(jaxpr) not in self.made:
            self.made[id(jaxpr)] = jaxpr, self._of(jaxpr)
        return self.made[id(jaxpr)][1]

    def _of(self, jaxpr: Any) -> Any:
        within = Substitution()
        equations: list[Any] = []
        pieces = dict(piece for site in self.groups if site.holder is jaxpr for piece in site.pieces)
        last = _last_reads(jaxpr)
        number, same = 0, not pieces
        while number < len(jaxpr.eqns):
            eqn = jaxpr.eqns[number]
            end = pieces.get(number, number + 1)
            if end > number + 1 or number in pieces:
                used = {variable for variable, read in last.items() if read >= end}
                wrapped = [_with_inputs(eqn, within) for eqn in jaxpr.eqns[number:end]]
                equations.append(wrapped_equations(wrapped, used, self.policy, jaxpr.debug_info))
            else:
                changed = with_open_jaxpr(_with_inputs(eqn, within), self.of)
                if id(eqn) in self.picked and self.removes:
                    equations += inlined(changed, within)
                    same = False
                else:
                    if id(eqn) in self.picked:
                        changed = with_policy(changed, self.policy)
                    elif id(eqn) in self.loops:
                        changed = wrapped_loop(changed, self.policy)
                    equations.append(changed)
                    same = same and changed is eqn
            number = end
        return jaxpr if same else with_equations(jaxpr, equations, within)


def _with_inputs(eqn: Any, within: Substitution) -> Any:
    if not within:
        return eqn
    inputs = [within(variable) for variable in eqn.invars]
    same = all(new is old for new, old in zip(inputs, eqn.invars, strict=True))
    return eqn if same else eqn.replace(invars=inputs)


def _last_reads(jaxpr: Any) -> dict[Any, int]:
    """The last equation that reads each variable; for results an index after all equations."""
    last: dict[Any, int] = {}
    for number, eqn in enumerate(jaxpr.eqns):
        last |= {atom: number for atom in eqn.invars if not isinstance(atom, compat.Literal)}
    return last | {atom: len(jaxpr.eqns) for atom in jaxpr.outvars if not isinstance(atom, compat.Literal)}


# Outcome of ``--checkpoint`` for each place of a program, in words.


SiteChange = Literal["wrapped", "replaced", "removed", "left"]


class SiteOutcome(Struct, frozen=True, kw_only=True):
    """The outcome for one place."""

    place: SitePlace
    how: SiteChange
    why: str = ""
    """Why it was left unchanged."""

    def note(self, option: str) -> str:
        """A line of the report; ``option``: ``--checkpoint full``."""
        if self.how == "left":
            return f"{option}: left as it is: {self.place.words()}: {self.why}"
        return f"{option}: {self.place.words()}: {VERBS[self.how]}"


def _as_data(at: SourceLine | None) -> dict[str, Any] | None:
    return None if at is None else {"file": at.file, "line": at.line}


class Checkpoints(Struct, kw_only=True):
    """The changes of one request to a program."""

    request: CheckpointRequest
    outcomes: dict[SiteOutcome, None] = field(default_factory=dict)
    """In the order of their occurrence."""
    differentiated: int = 0
    """Differentiated functions that were examined."""
    unseen: list[str] = field(default_factory=list)
    """Why functions could not be examined."""
    nameless: bool = False
    """``names`` was requested, but the program has no names, or not this one."""
    thread: int | None = None
    """Only functions differentiated by this thread; None: by any thread."""

    @property
    def changed(self) -> list[SiteOutcome]:
        """Places that were changed."""
        return [outcome for outcome in self.outcomes if outcome.how != "left"]

    @property
    def left(self) -> list[SiteOutcome]:
        """Loops and checkpoints that are not layers, or were not selected."""
        return [outcome for outcome in self.outcomes if outcome.how == "left"]

    def notes(self) -> list[str]:
        """Notes for readers of the compiled program. ``DataError`` if nothing could be changed."""
        option = f"--checkpoint {self.request}"
        if not self.changed and (self.request.word != "none" or self.request.spots or self.unseen):
            raise DataError(f"{option}: nothing could be checkpointed: {self._why()}")
        notes = [outcome.note(option) for outcome in self.changed]
        if not self.changed:
            notes = [f"{option}: its layers have no checkpoint; compiled as it is"]
        notes += [outcome.note(option) for outcome in self.left]
        return [*notes, *(f"{option}: not looked at: {why}" for why in dict.fromkeys(self.unseen))]

    def as_data(self) -> dict[str, Any]:
        """For the manifest: ``checkpoint`` of ``compile.json``."""
        places = [
            {
                "kind": outcome.place.kind,
                "how": outcome.how,
                "place": _as_data(outcome.place.at),
                "count": outcome.place.count,
                "reason": outcome.why,
            }
            for outcome in (*self.changed, *self.left)
        ]
        return {"policy": str(self.request), "places": places}

    def linearize(self, real: Any) -> Any:
        """The replacement for ``linearize``, which every reverse pass uses."""

        def linearize(fun: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            apart = self.thread is not None and self.thread != threading.get_ident()
            return real(fun if apart or compat.is_computing() else through_jaxpr(fun, self), *arguments, **named)

        return linearize

    def rewritten(self, jaxpr: Any) -> Any:
        """A function's jaxpr with the policy; the same object if nothing changes."""
        sites = sites_of(jaxpr)
        chosen = self._chosen(sites)
        policy = self._policy(jaxpr)
        if policy is _NAMELESS:
            self.nameless, chosen = True, []
        removes = self.request.word == "none"
        picked = {id(site.eqn) for site in chosen if site.place.kind == "checkpoint"}
        loops: set[int] = set()
        for site in sites:
            how: SiteChange = "left"
            if site.place.kind == "checkpoint" and site in chosen:
                how = "removed" if removes else "replaced"
            elif (
                site in chosen
                and not removes
                and not (
                    site.place.kind == "scan"
                    and any(id(eqn) in picked for eqn in _checkpoints_in(inner_jaxpr(site.eqn)))
                )
            ):
                how = "wrapped"
            elif site in chosen:
                continue  # its checkpoints are reported, or it has none to remove
            if how == "wrapped" and site.place.kind == "scan":
                loops.add(id(site.eqn))
            why = "" if how != "left" else site.why or "not named" if not self.nameless else "nothing is named"
            self.outcomes[SiteOutcome(place=site.place, how=how, why=why)] = None
        groups = [site for site in chosen if site.place.kind == "calls" and not removes]
        if not picked and not loops and not groups:
            return jaxpr
        edit = Edit(policy=None if removes else policy, removes=removes, picked=picked, loops=loops, groups=groups)
        return edit.of(jaxpr)

    def _chosen(self, sites: list[Site]) -> list[Site]:
        """The layers, or the places at the selected lines."""
        if not self.request.spots:
            return [site for site in sites if site.layer]
        named = [site for site in sites if not site.fixed and any(_is_at(site, spot) for spot in self.request.spots)]
        direct = {
            id(eqn) for site in named if site.place.kind == "scan" for eqn in _checkpoints_in(inner_jaxpr(site.eqn))
        }
        return [site for site in sites if site in named or id(site.eqn) in direct]

    def _policy(self, jaxpr: Any) -> Any:
        """The policy for ``jax.checkpoint``; `_NAMELESS` if there is no such name."""
        from jax import checkpoint_policies as policies

        word = self.request.word
        if word == "dots":
            return policies.dots_with_no_batch_dims_saveable
        if word == "all_dots":
            return policies.dots_saveable
        if word != "names":
            return None
        named = _names(jaxpr)
        wanted = self.request.names or tuple(sorted(named))
        return policies.save_only_these_names(*wanted) if wanted and named.issuperset(wanted) else _NAMELESS

    def _why(self) -> str:
        """Why nothing was done, in words."""
        if not self.differentiated:
            return "the program differentiates nothing (jax.grad, jax.vjp) as far as it was followed"
        if self.nameless:
            wanted = f" any of {', '.join(self.request.names)}" if self.request.names else " anything"
            return f"the program does not name{wanted} (jax.ad_checkpoint.checkpoint_name)"
        if self.unseen and not self.outcomes:
            return self.unseen[0]
        if self.request.spots:
            spots = ", ".join(map(str, self.request.spots))
            there = [outcome.place.words() for outcome in self.outcomes][:MAX_REPORTED]
            return f"nothing at {spots}; there is {'; '.join(there) or 'no scan and no checkpoint'}"
        there = [f"{outcome.place.words()}{f' ({outcome.why})' if outcome.why else ''}" for outcome in self.outcomes][
            :MAX_REPORTED
        ]
        if there:
            return f"nothing of it is a layer: {'; '.join(there)}; POLICY@FILE:LINE names one all the same"
        return (
            "what it differentiates has no loop over layers (jax.lax.scan), no jax.checkpoint, and no function that is "
            "called several times alike"
        )


@contextlib.contextmanager
def checkpointed(request: CheckpointRequest | None, *, thread: int | None = None) -> Iterator[Checkpoints | None]:
    """Inside, differentiated functions have the policy; None: unchanged. ``thread``: only those of this thread."""
    if request is None:
        yield None
        return
    compat.check_checkpoint()
    book = Checkpoints(request=request, thread=thread)
    with compat.patched_interface("linearize", book.linearize):
        yield book


def _is_at(site: Site, spot: Any) -> bool:
    return any(line is not None and spot.is_at(line.file, line.line) for line in (site.place.at, site.place.written))


def _checkpoints_in(jaxpr: Any) -> Iterator[Any]:
    """Checkpoints of a loop's body that are not in an inner loop."""
    for eqn in jaxpr.eqns:
        if is_checkpoint(eqn):
            yield eqn
        inner = None if is_repeating_scan(eqn) else open_jaxpr(eqn)
        if inner is not None:
            yield from _checkpoints_in(inner)


def _names(jaxpr: Any) -> set[str]:
    """Names given by ``checkpoint_name`` in a jaxpr and its inner jaxprs, including rules of ``custom_vjp``."""
    names = {str(eqn.params["name"]) for eqn in jaxpr.eqns if eqn.primitive.name == "name"}
    for eqn in jaxpr.eqns:
        names = names.union(*map(_names, (*compat.jaxprs_in_params(eqn.params), *custom_rule(eqn))))
    return names
