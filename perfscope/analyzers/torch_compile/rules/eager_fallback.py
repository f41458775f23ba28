"""A function that torch.compile was asked for runs in eager mode as a whole.

Why it costs:
    Where dynamo cannot end a graph and go on behind it (in a loop, in a `with` block or `try` it cannot leave,
    at its limit of compilations) it leaves the whole function to Python. Its ops then run one by one, unfused,
    and what it calls is compiled piece by piece: a graph a block in place of one for the model.

How it is found:
    From torch.compile's log: frames with a record that they are skipped, or that reached the limit of
    compilations (the limit holds for calls that no earlier compilation fits). The place is the user's line that
    made dynamo give up. Time is measured where a Python stack (the trace's own, or the detail pass of
    `perfscope run`) tells which ops are the function's own: the host time from its first op to its last, without
    compiled regions between them; with an accelerator what that idles for them and their kernels while
    nothing else runs. It is an upper bound: compiled ops take time as well. The backward pass of these ops is
    not in it, nor what a larger graph would have fused, nor what runs inside a broken region (`graph_break`
    has that). Without a stack the finding is structural. A function that the stack shows and whose own ops
    take less than a thousandth of the step is left alone. Evidence: why, with torch's id of it, and which inner
    functions were compiled nevertheless.

Fix:
    Move the line out of the loop or out of the compiled function, or mark its function with
    `torch._dynamo.disable` so that only it is eager; for the limit see `recompilation` and
    `dynamic_shape_churn`. To be told at once, compile with `fullgraph=True`::

        program = torch.compile(model, fullgraph=True)   # an error in place of a fallback
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from perfscope.analyzers.ops.finding_spans import spans_of_windows
from perfscope.analyzers.time.steps import per_step
from perfscope.analyzers.torch_compile.cost import EagerCost, eager_cost, steady_ns
from perfscope.analyzers.torch_compile.fallbacks import Fallback, fallbacks
from perfscope.analyzers.torch_compile.frames import compile_log_of, doc_link, first_hint, one_line, where_of
from perfscope.model.compile_log import GraphBreak
from perfscope.model.finding import Cell, Finding, Where, severity_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns, format_share

NEEDS = ("compile_log",)

LEAST_SHARE = 0.001
"""Of the step: the own ops of a function that take less are no reason to change it."""

MAX_ROWS = 20


def check(trace: Trace) -> Iterable[Finding]:
    """One finding for each function and line that leaves it to eager mode, however many frames that are."""
    compile_log_of(trace)
    groups: dict[tuple[str, Where], list[Fallback]] = defaultdict(list)
    for one in trace.fact(fallbacks):
        groups[one.frame.function, where_of(one.place)].append(one)
    for (function, where), members in groups.items():
        finding = _finding(trace, function, where, members)
        if finding is not None:
            yield finding


def _finding(trace: Trace, function: str, where: Where, members: Sequence[Fallback]) -> Finding | None:
    first, whole = members[0], trace.fact(steady_ns)
    known = [one.windows for one in members if one.windows is not None]
    cost = eager_cost(trace, [window for windows in known for window in windows]) if known else None
    if cost is not None and cost.host_ns == 0 and any(one.at_limit for one in members):
        cost = None  # eager since a step that was not recorded
    if cost is not None and cost.cost_ns < LEAST_SHARE * whole:
        return None
    count = len({inner.compile_id for one in members for inner in one.inner})
    inner = f"; {count:,} function{'s' if count > 1 else ''} it calls {'are' if count > 1 else 'is'} compiled"
    why = "its limit of compilations is reached" if first.at_limit else first.skip.reason
    return Finding(
        subject=f"{function} in eager mode",
        title=f"{function} runs in eager mode as a whole: {why}{_in_words(cost, whole)}{inner if count else ''}",
        severity="medium" if cost is None else severity_of(cost.cost_ns, whole),
        basis="structural" if cost is None else "measured",
        cost_ns=None if cost is None else cost.cost_ns,
        cost_ns_per_step=None if cost is None else per_step(trace, cost.cost_ns),
        where=where,
        evidence=tuple(row for one in members for row in _rows(one))[:MAX_ROWS],
        spans=spans_of_windows(window for windows in known for window in windows),
        advice=_advice(first),
    )


def _in_words(cost: EagerCost | None, whole: int) -> str:
    if cost is None:
        return ""
    what = "the device loses" if cost.on_device else "its own ops take"
    return f"; {what} {format_ns(cost.cost_ns)} ({format_share(cost.cost_ns, whole)})"


def _rows(one: Fallback) -> Iterable[Mapping[str, Cell]]:
    for skip in one.frame.skips:
        yield _row("skipped", skip.compile_id, one.frame.function, skip)
    for inner in one.inner:
        place = inner.place
        yield {
            "what": "compiled",
            "compile_id": inner.compile_id,
            "function": inner.function,
            "line": None if place is None else f"{place.file}:{place.line}",
            "graph_ops": inner.graph_ops,
            "reason": None,
            "explanation": None,
            "doc": None,
        }


def _row(what: str, compile_id: str, function: str, skip: GraphBreak) -> Mapping[str, Cell]:
    place = skip.place
    return {
        "what": what,
        "compile_id": compile_id,
        "function": function,
        "line": None if place is None else f"{place.file}:{place.line}",
        "graph_ops": None,
        "reason": skip.reason,
        "explanation": one_line(skip.explanation),
        "doc": doc_link(skip.doc_id),
    }


def _advice(one: Fallback) -> str:
    if one.at_limit:
        return (
            "End the recompilations that used the limit up (rules recompilation and dynamic_shape_churn name guard and "
            "line); raising torch._dynamo.config.recompile_limit only moves it."
        )
    hint = first_hint(one.skip)
    said = f" torch says: {hint}" if hint else ""
    return (
        "Move the line out of the loop or of the compiled function, or put it into a function marked with "
        "@torch._dynamo.disable; torch.compile(..., fullgraph=True) makes it an error." + said
    )
