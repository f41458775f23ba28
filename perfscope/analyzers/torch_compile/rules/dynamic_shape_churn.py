"""A function is compiled again for each size of a tensor.

Why it costs:
    `torch.compile` burns sizes into its code. With `dynamic=False`, with a size that the code itself compares
    or computes with, or for a Python list of tensors, every new size is another compilation: seconds to minutes
    of the host while the device waits. After 8 of them torch.compile gives up and runs other sizes in eager mode.

How it is found:
    From torch.compile's log: guards on one dimension of one tensor that fail with at least three sizes (with
    automatic dynamic shapes the second one makes the dimension dynamic and ends it), in at least two steps after
    the first one that compiled, where they are at least half of the frame's recompilations. The time is that of
    all phases of those compilations, the backward's with them, moments counted once: measured, and an upper
    bound where the device still had work queued. These compilations are then not counted by `recompilation`:
    each frame is in one of the two rules. Evidence: the guards with their sizes, the step and the time of each.
    The place is where the log says that the guard was made, else the first line of the compiled function.
    In a planned program (`perfscope compile`) the same guards count over the steps that were walked through;
    no time is known.

Fix:
    Tell it which dimension changes, or let few sizes come::

        torch._dynamo.mark_dynamic(tokens, 1, min=16, max=4096)
        program = torch.compile(model, dynamic=True)     # or: not dynamic=False
        length = 1 << (length - 1).bit_length()          # or: pad to powers of two
"""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.analyzers.torch_compile.frames import compile_records
from perfscope.analyzers.torch_compile.rules.recompilation import planned_again_findings, recompilation_findings
from perfscope.model.finding import Finding
from perfscope.model.trace import Trace

examined = compile_records


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per frame that is compiled again for each size of a dimension."""
    return recompilation_findings(trace, churn=True)


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Yield the same for a planned program, without time."""
    return planned_again_findings(trace, churn=True)
