"""Order of findings if one is a consequence of another: the fix of the cause removes both.

A model that computes its whole prefix again, or one row per call, has more and longer calls than necessary. Ops of a
function that torch.compile leaves in eager mode are unfused, and the host dispatches each of them. The cost of the
framework, of small kernels or of waiting ranks is listed after such a cause, even if it is higher.
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
_OF_EAGER_MODE = frozenset({"launch_bound", "small_kernels", "unfused_ops"})
_OF_REDUCTIONS = frozenset({"exposed_communication", "straggler", "unexplained_idle"})

CONSEQUENCES: dict[str, frozenset[str]] = {
    "recomputed_prefix": _OF_CALLS,
    "single_requests": _OF_CALLS,
    "repeated_reductions": _OF_REDUCTIONS,
    "eager_fallback": _OF_EAGER_MODE,
}
"""Rule of a cause -> rules of its consequences. The framework's own work between ops is always a consequence."""

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
        first = next((index for index, found in enumerate(pairs) if _follows(cause, *found)), None)
        if place is not None and first is not None and first < place:
            ordered.insert(first, ordered.pop(place))
    return ordered


def _follows(cause: str, rule: str, finding: Finding) -> bool:
    if rule == "host_bound":
        return finding.subject == FRAMEWORK_SUBJECT
    return rule in CONSEQUENCES[cause]
