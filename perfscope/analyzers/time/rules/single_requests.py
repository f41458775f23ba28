"""The model computes one request per call although several are available.

Example:
    Before::

        answers = [model.generate(tokenize(prompt)) for prompt in prompts]

    After::

        answers = model.generate(tokenize(prompts, padding=True))

Why it costs: a call reads every weight of the model once, for one row as for eight. A product of a few rows waits for
memory, so eight prompts one after the other take nearly eight times as long as eight prompts in one call.

How it is found: in calls without a backward pass. If the model's embedding shows the tokens of a call, each call has
one sequence and several prompts follow each other: a call of many tokens, then calls of one token, then the next
prompt. Without tokens, from the op graph: every product with a parameter has one row, in at least `FEWEST_CALLS` calls.
The saving is modelled, an upper bound: all prompts, at most `MOST_ROWS_AT_ONCE`, in one call that takes as long as a
call of one row. It is unknown if the number of independent inputs is unknown.
In a step with a backward pass: at least `FEWEST_ANSWERS` calls of one row, each followed by a read of the answer on the
host, which the next call may depend on (a policy and its environment). Several of them side by side share each call.

Fix: put several inputs into one call: `tokenizer(prompts, padding=True)` and one `generate` for all, `torch.stack` for
rows; for requests that arrive one by one a server that batches them (vLLM, SGLang). Step several environments at once
(`gymnasium.vector`), so that one call of the policy answers all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from perfscope.analyzers.examined import op_records
from perfscope.analyzers.spans import named_slices
from perfscope.analyzers.time.model_calls import BACKWARD, answered_calls, call_tokens, rows_of_product
from perfscope.analyzers.time.steps import step_windows, whole_ns
from perfscope.model.finding import NOWHERE, AbstainError, Finding, Scope, Where
from perfscope.model.severity import severity_of
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import OpGraph

FEWEST_PROMPTS = 2
"""Minimum number of prompts in sequence."""

FEWEST_CALLS = 8
"""Minimum number of calls with one row: fewer are not a loop."""

MOST_ROWS_AT_ONCE = 8
"""Number of rows that a product computes in about the time of one: below 8 rows memory is the limit on every device."""

_ADVICE = (
    "Put several inputs into one call: one `generate` for a padded batch (`tokenizer(prompts, padding=True)`), "
    "`torch.stack` for rows. Requests that arrive one by one need a server that batches them (vLLM, SGLang)."
)


_SIDE_BY_SIDE = (
    "Step several environments (or sequences) side by side and give all their inputs to one call of the model: "
    "`gymnasium.make_vec(name, num_envs=8)`. A call of eight rows takes little longer than a call of one."
)


def examined(trace: Trace) -> Scope:
    """Count the ops."""
    return op_records(trace)


def check(trace: Trace) -> Iterable[Finding]:
    """Yield a finding if several requests are computed one by one."""
    tokens, graph = [call for call in call_tokens(trace) if call is not None], trace.op_graph
    if not tokens and graph is None:
        raise AbstainError("neither tokens of the model's calls nor an op graph was recorded", ("op_graph",))
    if named_slices(trace, lambda name: name.startswith(BACKWARD)).any():
        yield from _answered(trace)
        return
    if tokens:
        prompts = _prompts(tokens)
        if prompts >= FEWEST_PROMPTS:
            yield _prompt_finding(trace, prompts, graph)
    elif graph is not None and len(trace.step_times_ns) >= FEWEST_CALLS:
        yield from _row_finding(trace, graph)


def _prompts(tokens: Sequence[tuple[int, int]]) -> int:
    """Return the number of consecutive prompts with one sequence each; 0 if calls have several sequences."""
    if any(sequences != 1 for sequences, _ in tokens):
        return 0
    prefills = [index for index, (_, length) in enumerate(tokens) if length > 1]
    return len(prefills) if sum(length == 1 for _, length in tokens) >= len(prefills) else 0


def _prompt_finding(trace: Trace, prompts: int, graph: OpGraph | None) -> Finding:
    steps, whole = max(1, trace.fact(step_windows).count), whole_ns(trace)
    saved = 1 - 1 / min(prompts, MOST_ROWS_AT_ONCE)
    bare = median(trace.step_times_ns) if trace.step_times_ns else None
    return Finding(
        subject="requests one by one",
        title=f"{prompts:,} prompts are computed one after the other, one sequence per call",
        detail="A call reads all weights, for one sequence as for eight.",
        severity=severity_of(saved * whole, whole),
        basis="modelled",
        cost_ns=round(saved * whole),
        cost_ns_per_step=round(saved * whole / steps),
        untraced_ns_per_step=None if bare is None else round(saved * bare),
        advice=_ADVICE,
        where=_outside(graph),
        evidence=({"prompts": prompts, "sequences_per_call": 1, "rows_at_once": min(prompts, MOST_ROWS_AT_ONCE)},),
    )


def _row_finding(trace: Trace, graph: OpGraph) -> Iterable[Finding]:
    rows = [(op, rows) for op in graph.ops if (rows := rows_of_product(graph, op)) is not None]
    products = [op for op, _ in rows]
    if not products or any(count != 1 for _, count in rows):
        return
    yield Finding(
        subject="rows one by one",
        title=f"each call of the model computes one row: {len(products):,} products",
        detail="If several inputs are available, one call for all of them takes little longer.",
        severity="medium",
        basis="structural",
        advice=_ADVICE,
        where=Where(op=products[0].name, module=products[0].module or None, file=products[0].file,
                    line=products[0].line),
        evidence=({"products": len(products), "rows": 1, "calls": len(trace.step_times_ns)},),
    )  # fmt: skip


def _answered(trace: Trace) -> Iterable[Finding]:
    found = trace.fact(answered_calls)
    if found is None:
        return
    first, calls = found.products[0], len(found.answers)
    yield Finding(
        subject="rows one by one",
        title=f"the model computes one row per call, {calls:,} calls per step",
        detail="Each call waits for the host, which reads the answer before the next call: an environment, or a token.",
        severity="medium",
        basis="structural",
        advice=_SIDE_BY_SIDE,
        where=Where(op=first.name, module=first.module or None, file=first.file, line=first.line),
        evidence=({"products": len(found.products), "rows": 1, "calls": calls},),
    )


def _outside(graph: OpGraph | None) -> Where:
    """Return the code of the loop around the model, by the first op outside of it."""
    op = next((op for op in graph.ops if op.phase == "other" and op.file), None) if graph is not None else None
    return NOWHERE if op is None else Where(file=op.file, line=op.line)
