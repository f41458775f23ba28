"""Which phase of a training step an op belongs to, by the path JAX gives it."""

from __future__ import annotations

from typing import Literal

Phase = Literal["forward", "backward", "recompute", "unnamed"]


def phase_of(op_name: str) -> Phase:
    """Phase of an op by its path.

    ``rematted_computation`` under ``checkpoint`` is forward again, for the backward pass; what else is under
    ``transpose(`` is backward. Everything before, the optimizer included, counts as forward: without gradients
    there is nothing else. Ops that XLA adds have no path.
    """
    if not op_name:
        return "unnamed"
    if "rematted_computation" in op_name:
        return "recompute"
    return "backward" if "transpose(" in op_name else "forward"
