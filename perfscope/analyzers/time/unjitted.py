"""Operations of JAX programs outside of `jax.jit`, each dispatched separately."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from perfscope.analyzers.time.jax_debugging import jax_debugging
from perfscope.model.documents.run import ProgramFact
from perfscope.model.trace import Trace

LEAST_OPERATIONS = 10
"""Minimum number per step: dividing a loss or incrementing a counter costs little."""


class SingleOperations(Struct, frozen=True, kw_only=True):
    """Operations that a step dispatches one by one."""

    fact: ProgramFact
    steps: Literal["jitted", "unjitted"]
    """``unjitted``: the program jits nothing; ``jitted``: they are dispatched in addition to the call of a jitted step.
    """


def single_operations(trace: Trace) -> SingleOperations | None:
    """Return the counts of `perfscope run`; ``None`` for few or none, or with `jax_disable_jit`.

    A fact of the trace.
    """
    if trace.fact(jax_debugging).disable_jit is not None:
        return None
    for fact in trace.program_facts:
        if fact.name == "unjitted_step":
            return SingleOperations(fact=fact, steps="unjitted")
        if fact.name == "single_operations" and fact.count >= LEAST_OPERATIONS:
            return SingleOperations(fact=fact, steps="jitted")
    return None
