"""One rule by itself, of one recording or of those of several ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfscope.analyzers.engine import analyze, judge
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from perfscope.model.trace import Trace
from tests.build import TraceBuilder


def judged_by(name: str) -> Callable[[Trace | TraceBuilder], Outcome]:
    """The rule's result for a trace, or for the content of a builder."""
    rule = load_rule(name)
    return lambda recorded: judge(rule, recorded.build() if isinstance(recorded, TraceBuilder) else recorded)


def compared_by(name: str) -> Callable[[Sequence[Trace]], Outcome]:
    """The rule's result for several traces together."""
    return lambda traces: analyze(traces, [name])[name]
