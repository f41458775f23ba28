"""An op or a collective of a trace as a benchmark script that stands alone."""

from __future__ import annotations

from perfscope.analyzers.replay.collective import collective_script
from perfscope.analyzers.replay.op import op_script
from perfscope.analyzers.replay.signatures import COLLECTIVES, SIGNATURES
from perfscope.model.errors import UsageError
from perfscope.model.trace import Trace

__all__ = ["COLLECTIVES", "SIGNATURES", "replay_script"]


def replay_script(trace: Trace, op: str) -> str:
    """Python source. ``op``: a row of ``slices``, the name of an op, or of a collective (``all_reduce``).

    Of a name, it is the shapes that took most time. ``UsageError`` says why there is none.
    """
    if op in COLLECTIVES:
        return collective_script(trace, op)
    name = op.removeprefix("aten::")
    if not op.isascii() or not (op.isdigit() or name in SIGNATURES):
        known = ", ".join((*SIGNATURES, *COLLECTIVES))
        raise UsageError(f"replay: that op cannot be replayed; a row of slices, or one of {known}")
    return op_script(trace, int(op) if op.isdigit() else f"aten::{name}")
