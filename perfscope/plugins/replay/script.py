"""A standalone benchmark script for an op or a collective of a trace."""

from __future__ import annotations

from perfscope.model.errors import UsageError
from perfscope.model.trace import Trace
from perfscope.plugins.replay.collective import COLLECTIVES, collective_script
from perfscope.plugins.replay.op import OP_NAME, op_script

__all__ = ["COLLECTIVES", "replay_script"]


def replay_script(trace: Trace, op: str) -> str:
    """Return Python source. ``op``: a row of ``slices``, the name of an op, or of a collective (``all_reduce``).

    For a name, the shapes that took most time are used. ``UsageError`` has the reason if it is not possible.
    """
    if op in COLLECTIVES:
        return collective_script(trace, op)
    if op.isascii() and op.isdigit():
        return op_script(trace, int(op))
    name = op if "::" in op else f"aten::{op}"
    if not OP_NAME.fullmatch(name):
        raise UsageError(
            "replay: not an op; give a row of slices, a name such as aten::mm or vllm::moe_forward, or one of "
            + ", ".join(COLLECTIVES)
        )
    return op_script(trace, name)
