"""What an equation has inside: jaxprs that are differentiated with what is around them, and those that are not.

Loops, checkpoints, jitted functions, `shard_map` and the branches of `cond` are differentiated as they are written. A
function with a rule of its own (`custom_vjp`, `custom_jvp`) is not: its rule runs in its place. Nor does a
`while_loop` have a backward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from perfscope.profiler.aot import jax_abstract_compat as compat
from perfscope.profiler.aot.jax_checkpoint_edit import is_call, is_checkpoint, is_loop

_RULED = {"custom_vjp_call": "custom_vjp", "custom_jvp_call": "custom_jvp"}
_SKIPPED = ("pallas_call", "checkpoint", "remat2", "remat")
"""A kernel has nothing that XLA keeps; a checkpoint that is differentiated already was looked at before it was."""


def inner_of(eqn: Any) -> Any:
    """The jaxpr of a scan, a checkpoint or a call."""
    held = eqn.params["jaxpr"]
    return getattr(held, "jaxpr", held)


def open_jaxprs(eqn: Any) -> tuple[Any, ...]:
    """The jaxprs of an equation that are differentiated with what is around it; of `cond` one a branch."""
    if _is_branching(eqn):
        return tuple(branch.jaxpr for branch in eqn.params["branches"])
    if is_loop(eqn) or is_checkpoint(eqn) or is_call(eqn) or eqn.primitive.name == "shard_map":
        return (inner_of(eqn),)
    return ()


def with_open_jaxprs(eqn: Any, change: Callable[[Any], Any]) -> Any:
    """The equation with ``change`` made to each of its `open_jaxprs`; the same object where none changes."""
    before = open_jaxprs(eqn)
    after = tuple(map(change, before))
    if all(new is old for new, old in zip(after, before, strict=True)):
        return eqn
    if _is_branching(eqn):
        branches = tuple(old.replace(jaxpr=new) for old, new in zip(eqn.params["branches"], after, strict=True))
        return eqn.replace(params={**eqn.params, "branches": branches})
    held = eqn.params["jaxpr"]
    whole = held.replace(jaxpr=after[0]) if held is not before[0] else after[0]
    return eqn.replace(params={**eqn.params, "jaxpr": whole})


def shut_jaxprs(eqn: Any) -> tuple[tuple[Any, ...], str]:
    """The jaxprs of an equation in which no checkpoint does anything, and why, as a place is told with it."""
    if open_jaxprs(eqn) or eqn.primitive.name in _SKIPPED:
        return (), ""
    found = tuple(compat.get("jax._src.core", "jaxprs_in_params")(eqn.params))
    name = eqn.primitive.name
    if name in _RULED:
        return found, f"in a function with a derivative rule of its own ({_RULED[name]}), which keeps what it says"
    if name == "while":
        return found, "in a while_loop, which has no backward"
    return found, f"in an operation that is not looked into ({name})"


def rule_of(eqn: Any) -> tuple[Any, ...]:
    """The forward of a ``custom_vjp``, as a jaxpr: it may name what it keeps. Empty where there is none."""
    if eqn.primitive.name != "custom_vjp_call":
        return ()
    count = len(eqn.invars) - eqn.params["num_consts"]
    with contextlib.suppress(Exception):  # a rule that cannot be differentiated for all of its arguments
        return (eqn.params["fwd_jaxpr_thunk"].call_wrapped(*[True] * count)[0],)
    return ()


def function_of(eqn: Any) -> Any:
    """What is known of the function that an equation calls without a frame of its own; None where it calls none.

    Of `cond` the branch with the most in it: the other passes on what it is given.
    """
    if _is_branching(eqn):
        return max((branch.jaxpr for branch in eqn.params["branches"]), key=lambda one: len(one.eqns)).debug_info
    if eqn.primitive.name in _RULED:
        return eqn.params["call_jaxpr"].jaxpr.debug_info
    return inner_of(eqn).debug_info if is_call(eqn) else None


def _is_branching(eqn: Any) -> bool:
    return bool(eqn.primitive.name == "cond" and "branches" in eqn.params)
