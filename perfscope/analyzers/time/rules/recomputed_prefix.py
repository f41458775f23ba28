"""Each call of the model computes all earlier tokens again: text is generated without a cache.

Example:
    Before::

        for _ in range(length):
            tokens = torch.cat([tokens, pick(model(tokens))], dim=1)

    After::

        for _ in range(length):
            output = model(new, past_key_values=cache, use_cache=True)
            new, cache = pick(output.logits), output.past_key_values

Why it costs: attention needs the keys and values of earlier tokens, and they do not change. A loop that hands the whole
text to the model for each new token computes all of them again: the n-th token costs n times what it must, and a
text of n tokens n/2 times.

How it is found: the tokens of a call are the shape of the indices of the model's first embedding. In four
or more calls that follow each other the length grows by one while the number of sequences stays, and there is no
backward pass. The cost is the compute of a step times the part of its tokens that the step before computed too, an
upper bound: attention still reads the cache.

Fix: hand over the new token and a cache. In transformers leave `use_cache=True`, which is the default of `generate`; in
a model of your own keep keys and values in tensors of the full length, and write each step's part into them.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from perfscope.analyzers.spans import worst_spans
from perfscope.analyzers.time.account import StepAccount, step_accounts
from perfscope.analyzers.time.model_calls import call_tokens, recomputed_lengths
from perfscope.analyzers.time.steps import step_windows, timed_cost, whole_ns
from perfscope.model.finding import NOWHERE, AbstainError, Finding, Scope, Where
from perfscope.model.trace import Trace


def examined(trace: Trace) -> Scope:
    """Count the calls with known tokens."""
    return Scope(len(call_tokens(trace)), "calls of the model with known tokens")


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding if the length of the text grows by one from call to call."""
    calls = call_tokens(trace)
    if not any(calls):
        raise AbstainError("no embedding shows the number of tokens in a call of the model", ("shapes",))
    lengths = recomputed_lengths(trace)
    if not lengths:
        return
    again = 1 - 1 / median(lengths)
    cost = round(again * max(map(_computing_ns, trace.fact(step_accounts)), default=0))
    windows, sequences = trace.fact(step_windows), next(call[0] for call in calls if call is not None)
    yield Finding(
        subject="generation without a cache",
        title=f"each call computes all earlier tokens again: {lengths[0]:,} to {lengths[-1]:,} per sequence",
        detail="The keys and values of earlier tokens do not change.",
        **timed_cost(trace, cost, whole_ns(trace), "modelled"),
        covers_ns={"compute": cost},
        advice="Pass the new token and a cache of keys and values: leave `use_cache=True` in transformers. In a "
        "model of your own allocate the cache at its full length and write each step's part into it.",
        where=_where(trace),
        evidence=(
            {"sequences": sequences, "tokens_first": lengths[0], "tokens_last": lengths[-1], "calls": len(lengths)},
        ),
        spans=worst_spans(windows.starts, windows.ends, windows.ends - windows.starts),
    )


def _computing_ns(account: StepAccount) -> float:
    """Return the compute time with its part of the wait for a core, because avoided work does not wait."""
    waited = account.total_ns["core_wait"]
    return account.total_ns["compute"] * account.whole_ns / max(1, account.whole_ns - waited)


def _where(trace: Trace) -> Where:
    """Return the place at which the text is made longer, by the op graph: a join of indices outside of the model.

    Else the loop.
    """
    graph = trace.op_graph
    outside = [] if graph is None else [op for op in graph.ops if op.phase == "other" and op.file is not None]
    if graph is None or not outside:
        return NOWHERE
    joins = [
        op for op in outside
        if op.name.startswith("aten.cat.") and all("int" in graph.tensors[index].dtype for index in op.inputs)
    ]  # fmt: skip
    op = joins[0] if joins else outside[0]
    return Where(op=op.name if joins else None, file=op.file, line=op.line)
