"""Operations of JAX programs that run outside of `jax.jit`, each dispatched by itself."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from perfscope.analyzers.time.jax_debugging import JIT_DISABLED, switches_on
from perfscope.model.documents.run import ProgramFact
from perfscope.model.trace import Trace

LEAST_OPERATIONS = 10
"""Per step: a loss that is divided or a counter that is raised costs little."""


class SingleOperations(Struct, frozen=True, kw_only=True):
    """Operations that a step dispatches one by one."""

    fact: ProgramFact
    steps: Literal["jitted", "unjitted"]
    """``unjitted``: the program jits nothing; ``jitted``: they are dispatched beside the call of a jitted step."""


def jit_disabled(trace: Trace) -> bool:
    """Whether `jax_disable_jit` makes every operation a program of its own."""
    return any(fact.name == JIT_DISABLED for fact in switches_on(trace))


def single_operations(trace: Trace) -> SingleOperations | None:
    """What `perfscope run` counted; ``None``: few or none, or `jax_disable_jit` makes them. A fact of the trace."""
    if jit_disabled(trace):
        return None
    for fact in trace.program_facts:
        if fact.name == "unjitted_step":
            return SingleOperations(fact=fact, steps="unjitted")
        if fact.name == "single_operations" and fact.count >= LEAST_OPERATIONS:
            return SingleOperations(fact=fact, steps="jitted")
    return None
