"""A model is called with gradients enabled, and no backward pass follows.

Example:
    Before::

        def evaluate(model, loader):
            return [model(batch) for batch in loader]

    After::

        @torch.inference_mode()
        def evaluate(model, loader):
            return [model(batch) for batch in loader]

Why it costs: with gradients enabled each op adds a node to the autograd graph, and the node keeps the tensors that its
backward formula reads. The activations of the whole forward pass stay in memory until the result is released; several
results that are kept hold as many graphs. Without gradients an activation is released after its last use.
`model.eval()` changes layers such as dropout and does not disable gradients.

How it is found: `perfscope run` samples calls of outermost modules at the start of the program, and calls of a model
after `model.eval()` until the program compiles a model. A call is sampled if its output has an autograd node. A place
is reported if no backward pass reached the output of any sampled call before the program ended, so outputs that are
used in a later backward pass (rollouts, accumulated losses, `torch.autograd.grad`) are not reported. The line is that
of the call; if training calls the same function, that of its caller. Calls under `torch.no_grad()` and models whose
parameters are all frozen have no such node. One or two sampled calls suffice if the op graph of a step has ops at that
line that build a graph, and no backward op of them. The saving in memory and time is not measured. The finding is high
if the recording has no backward pass at all.

Fix:
    Disable gradients around the loop or function that contains the line::

        @torch.inference_mode()
        def evaluate(model, loader):
            model.eval()

    Use `torch.no_grad()` where a result enters autograd later.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.examined import op_records
from perfscope.analyzers.spans import named_slices
from perfscope.analyzers.time import BACKWARD
from perfscope.model.documents.run import ProgramFact
from perfscope.model.finding import AbstainError, Finding, Where, fit_title
from perfscope.model.trace import Trace

FEWEST_CALLS = 3
"""Sampled calls: fewer may be one check of the output, unless a recorded step has such a call, too."""

examined = op_records


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding for each line whose calls build graphs that no backward pass uses."""
    facts = trace.program_facts
    if not any(fact.name == "threads" for fact in facts):
        raise AbstainError("calls of models were not sampled: `perfscope run` samples them")
    trains = bool(named_slices(trace, lambda name: name.startswith(BACKWARD)).any())
    for fact in facts:
        if fact.name != "unused_graph" or (fact.count < FEWEST_CALLS and not _in_step(trace, fact)):
            continue
        yield Finding(
            subject=f"graphs of {fact.value}",
            title=fit_title(f"`{fact.value}` is called with gradients enabled, no backward pass follows", fact.value),
            detail=f"No backward pass reached the output of any of the {fact.count} calls that were sampled. Each call "
            "builds an autograd graph and keeps the activations of its forward pass until the output is released.",
            severity="medium" if trains else "high",  # without a backward pass, every call of the program builds graphs
            basis="structural",
            where=Where(file=fact.file, line=fact.line, module=fact.value),
            evidence=({"module": fact.value, "sampled_calls": fact.count, "calls_with_backward": 0},),
            advice="Call it under `with torch.no_grad():`, or decorate the function of the loop with "
            "`@torch.inference_mode()`. `model.eval()` does not disable gradients. If the training call "
            "had this batch, use its output.",
        )


def _in_step(trace: Trace, fact: ProgramFact) -> bool:
    """Whether ops at the line of a fact build a graph in the recorded step, and none of it is run backward there."""
    ops = () if trace.op_graph is None else trace.op_graph.ops
    built = {
        op.sequence
        for op in ops
        if op.phase == "forward" and op.sequence is not None and (op.file, op.line) == (fact.file, fact.line)
    }
    return bool(built) and not any(op.phase == "backward" and op.sequence in built for op in ops)
