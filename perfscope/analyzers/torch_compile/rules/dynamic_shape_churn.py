"""A function is compiled again for each size of a tensor.

Example:
    Before::

        for tokens in loader:                   # another length in each batch
            compiled(tokens)

    After::

        for tokens in loader:
            torch._dynamo.mark_dynamic(tokens, 1)
            compiled(tokens)

Why it costs:
    `torch.compile` makes sizes part of the compiled code. With `dynamic=False`, with a size that the code itself
    compares or computes with, or with a Python list of tensors, every new size causes another compilation: seconds to
    minutes on the host while the device waits. After 8 of them torch.compile gives up and runs other sizes in eager
    mode.

How it is found:
    From torch.compile's log: guards on one dimension of one tensor that fail with at least three sizes, in at least two
    steps after the first one that compiled, if they cause at least half of the frame's recompilations. (With automatic
    dynamic shapes the second size makes the dimension dynamic, and no more follow.) The time is measured: all phases of
    those compilations, including the backward pass, each moment counted once. It is an upper bound if the device still
    had work queued. Each frame belongs either to this rule or to `recompilation`. Evidence: the guards with their
    sizes, and step and time of each compilation. The place is the line of the guard in the log, else the first line of
    the compiled function.
    In a planned program (`perfscope compile`) the same guards are counted over the planned steps, without time.

Fix:
    Mark the dimension that changes as dynamic, or use few sizes::

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
