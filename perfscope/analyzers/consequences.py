"""Order of findings if one is a consequence of another: the fix of the cause removes both.

A model that computes its whole prefix again, one row per call, or rows without work, has more or longer calls than
necessary. Ops of a function that torch.compile leaves in eager mode are unfused, and the host dispatches each of them.
A loop runs its ops once per round. The cost of the framework, of small kernels or of waiting ranks is listed after
such a cause, even if it is higher. So is communication that is exposed mostly because its links are slow, shared or
unevenly loaded, or because it is many small messages.

Memory that grows fast or has run out soon ends the run. It is listed before savings below a twentieth of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from perfscope.model.finding import Finding

Item = TypeVar("Item")

_OF_CALLS = frozenset(
    {"data_movement", "exposed_copy", "launch_bound", "small_kernels", "slow_steps", "unfused_attention", "unfused_ops"}
)
"""Rules about work that every call of the model repeats."""
_OF_LOOPS = frozenset({"data_movement", "launch_bound", "small_kernels", "unfused_ops"})
_OF_EAGER_MODE = frozenset({"launch_bound", "small_kernels", "unfused_ops"})
_OF_REDUCTIONS = frozenset({"exposed_communication", "straggler", "unexplained_idle"})
_OF_UNEVEN_WORK = frozenset({"exposed_communication", "straggler", "unexplained_idle"})
_OF_TRANSFERS = frozenset({"exposed_communication"})

CONSEQUENCES: dict[str, frozenset[str]] = {
    "recomputed_prefix": _OF_CALLS,
    "single_requests": _OF_CALLS,
    "batch_bubble": _OF_CALLS,
    "python_loop": _OF_LOOPS,
    "repeated_reductions": _OF_REDUCTIONS,
    "context_parallel_imbalance": _OF_UNEVEN_WORK,
    "eager_fallback": _OF_EAGER_MODE,
    "expert_imbalance": _OF_UNEVEN_WORK,
    "link_contention": _OF_TRANSFERS,
    "nvlink_stall": _OF_TRANSFERS,
    "small_collectives": _OF_TRANSFERS,
}
"""Rule of a cause -> rules of its consequences."""

_SLOW_TRANSFERS = frozenset({"expert_imbalance", "link_contention", "nvlink_stall", "small_collectives"})
"""Causes whose cost is a part of the exposed communication."""

_ENDS_THE_RUN = frozenset({"memory_leak", "oom_near"})
"""Rules whose findings of high severity come before savings of lower severity."""

OF_THE_HOST = frozenset(
    {"batch_bubble", "recomputed_prefix", "single_requests", "python_loop", "repeated_reductions", "eager_fallback"}
)
"""Causes that add to the framework's own work between ops."""

PART = 0.5
"""Share of exposed communication from which the cause of slow transfers is listed before it: with most of it gone, the
rest needs no overlap.
"""

FRAMEWORK_SUBJECT = "framework between ops"
"""Subject of `host_bound` for work of the framework that has no line in the program."""


def causes_first(items: Sequence[Item], pair: Callable[[Item], tuple[str, Finding]]) -> list[Item]:
    """Return the items in the given order, with each cause moved before its first consequence.

    ``pair``: (rule, finding) of an item.
    """
    ordered = list(items)
    for cause in CONSEQUENCES:
        pairs = [pair(item) for item in ordered]
        place = next((index for index, (rule, _) in enumerate(pairs) if rule == cause), None)
        if place is None:
            continue
        found = pairs[place][1]
        first = next((index for index in range(place) if _follows(cause, found, *pairs[index])), None)
        if first is not None:
            ordered.insert(first, ordered.pop(place))
    return _endings_early(ordered, [pair(item) for item in ordered])


def _endings_early(items: list[Item], pairs: Sequence[tuple[str, Finding]]) -> list[Item]:
    """Return the items with those that soon end the run before the first one whose severity is not high."""
    high = [finding.severity == "high" for _, finding in pairs]
    ends = [rule in _ENDS_THE_RUN and high[index] for index, (rule, _) in enumerate(pairs)]
    place = high.index(False) if False in high else len(items)
    early = [item for index, item in enumerate(items) if index < place or ends[index]]
    return early + [item for index, item in enumerate(items) if index >= place and not ends[index]]


def _follows(cause: str, found: Finding, rule: str, finding: Finding) -> bool:
    """Whether a finding of ``rule`` is a consequence of ``found``, a finding of ``cause``."""
    if rule == "host_bound":
        return cause in OF_THE_HOST and finding.subject == FRAMEWORK_SUBJECT
    if rule not in CONSEQUENCES[cause]:
        return False
    if cause == "python_loop" and finding.where.file is not None:
        return any(row.get("line") == finding.where.label() for row in found.evidence)
    if rule == "exposed_communication" and cause in _SLOW_TRANSFERS:
        return (found.cost_ns or 0) >= PART * (finding.cost_ns or 0)
    return True
