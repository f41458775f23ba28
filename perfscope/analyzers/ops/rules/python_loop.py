"""A Python loop runs small ops once for each sample, node, tensor or time step.

Example:
    Before::

        for i in range(len(x)):
            out.append(f(x[i : i + 1]))
        y = torch.cat(out)

    After::

        y = f(x)

Why it costs: each op costs 2 to 10 us of Python and dispatch before it computes anything, and as much again in the
backward pass. A loop of hundreds of rounds pays that for each op of each round, while one call on the whole batch pays
it once. A faster device changes nothing, because it waits for the launches.

How it is found: `perfscope run` records, for each op of one step, the innermost `for` or `while` of the program
around it (from the code that runs, not from the file). A loop counts if the same ops run in it 16 times or more with
the same parameters, so that a loop over layers does not. If a round computes with a result of the previous one, the
loop is left to `unfused_ops`, unless it is one of torch's recurrent cells; adding results up does not count. Steps of
a generation, which extend a cache, are such rounds. Rounds that wait for a value on the host are left to `host_sync`
and `single_requests`. Loops in torch (an optimizer, `clip_grad_norm_`) and in installed packages are not reported.
The saving is an upper bound that leaves one round of them: on an accelerator, its idle time while the loop runs; on
the host, the time of the loop without ops that take longer than 10 us, because they compute.

Fix: by the kind of the loop.

    Independent rounds: one call with a batch dimension, or `torch.func.vmap(f)(x)`; sums over groups of rows
    (neighbours in a graph, tokens of an expert) by `index_add_`, `scatter_reduce_` or `torch.segment_reduce`.
    Gradients of single samples: `torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))`. A cell over time:
    `nn.LSTM`, `nn.GRU`, `nn.RNN` on the whole sequence. Updates of many tensors (an average of the weights)::

        torch._foreach_lerp_(averages, weights, 1 - decay)

    or `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn(decay)`.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.examined import op_records
from perfscope.analyzers.ops.finding_spans import spans_of_ops
from perfscope.analyzers.ops.graph_time import removed_ops
from perfscope.analyzers.ops.loops import PythonLoop, loop_saving, loop_time, python_loops
from perfscope.analyzers.spans import removed_time
from perfscope.analyzers.time import step_windows, warm_accounts, warm_windows
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, Where
from perfscope.model.severity import severity_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns

LEAST_SHARE = 0.05
"""Smallest share of the steps, without waits for a core: teams schedule a task for a twentieth."""

_FIX = {
    "gradients": "Give several rounds to one call: a larger batch has the sum of their gradients. "
    "`torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))` has the gradient of each.",
    "rounds": "Do all rounds in one call: a batch dimension, or `torch.func.vmap`; sums over groups of rows by "
    "`index_add_` or `scatter_reduce_`.",
    "tensors": "Do it for all tensors in one call: `torch._foreach_lerp_(averages, weights, 1 - decay)`, "
    "`torch._foreach_norm(gradients)`. Torch has functions that do so: `AveragedModel` with `get_ema_multi_avg_fn`, "
    "`clip_grad_norm_`.",
    "update": "Update all parameters in one call: an optimizer of torch.optim with `fused=True`, or "
    "`torch._foreach_add_(weights, gradients, alpha=-lr)`.",
}

examined = op_records


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding for each loop whose launches take ``LEAST_SHARE`` of the steps."""
    if trace.op_graph is not None and not any(op.loop_line for op in trace.op_graph.ops) and trace.op_graph.ops:
        raise AbstainError("no op of the recorded step is in a Python loop, or the recording is of an older version")
    whole, usual = _with_core(trace), len(trace.fact(warm_windows).numbers)
    for loop in trace.fact(python_loops):
        saved, total = loop_saving(trace, loop)
        if not saved or saved < LEAST_SHARE * whole:
            continue
        yield Finding(
            subject=f"loop at line {loop.line}",
            title=f"a Python loop runs small ops in {loop.rounds:,} rounds per step",
            detail=f"{len(loop.ops):,} ops per step with their backward pass, most of them at {loop.lines[0][0]}; "
            f"{format_ns(total)} in the usual steps.",
            severity=severity_of(saved, whole),
            basis="modelled",
            cost_ns=saved * trace.fact(step_windows).count // max(1, usual),
            cost_ns_per_step=round(saved / usual) if usual else None,
            where=Where(file=loop.file, line=loop.line),
            evidence=tuple(
                {"line": line, "rounds": loop.rounds, "ops": count} for line, count in loop.lines[:MOST_ROWS]
            ),
            spans=spans_of_ops(trace, loop.ops),
            advice=_advice(loop),
            removes=(*removed_ops(trace, loop.ops), removed_time(loop_time(trace, loop))),
        )


def _with_core(trace: Trace) -> int:
    """Return the time of the usual steps without waits for a core, which other programs cause, ns."""
    accounts = trace.fact(warm_accounts)
    return max((account.whole_ns - account.total_ns["core_wait"] for account in accounts), default=0)


def _advice(loop: PythonLoop) -> str:
    if loop.kind == "cell":
        return f"Call `nn.{loop.cell}` on the whole sequence: it has the same weights as the cell."
    return _FIX[loop.kind]
