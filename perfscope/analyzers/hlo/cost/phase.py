"""Which phase of a training step an op belongs to, by the path JAX gives it."""

from __future__ import annotations

from typing import Literal

from perfscope.analyzers.hlo.scope import scope_of

Phase = Literal["forward", "backward", "recompute", "unnamed"]


def phase_of(op_name: str) -> Phase:
    """Phase of an op by its path; ops that XLA adds have none.

    Everything outside the backward pass, the optimizer included, counts as forward: without gradients there is
    nothing else. What XLA itself computes again keeps the phase of its original.
    """
    return scope_of(op_name).phase if op_name else "unnamed"
