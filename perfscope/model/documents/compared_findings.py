"""Findings of two runs in the document of a comparison, and their part of the change of the step time."""

from __future__ import annotations

from typing import Literal

from perfscope.model.documents.bounded_json import Ns, Value
from perfscope.model.finding import FindingHead

Change = Literal["new", "worse", "first looked at", "fixed", "better", "no longer looked at", "unchanged"]


class Carried(Value, frozen=True, kw_only=True):
    """One part of a change of the step time: a finding, or a cause of the account without a finding."""

    rule: str = ""
    cause: str = ""
    """Cause of the account of the step."""
    delta_ns: Ns
    place: str = ""
    function: str = ""
    on_host: bool = False
    """The account is the host's."""


class FindingChange(Value, frozen=True, kw_only=True):
    """A finding on both sides; at least one of them has it."""

    rule: str
    change: Change
    by_time: bool = False
    """Nothing that can be counted changed with it: a threshold on a measured time was crossed, maybe by chance."""
    carries: bool = False
    """Whether the change of its cost is a large part of the change of the step time."""
    base: FindingHead | None = None
    head: FindingHead | None = None

    @property
    def shown(self) -> FindingHead:
        """The head's, else the base's."""
        finding = self.head or self.base
        if finding is None:
            raise ValueError("a change of no finding")
        return finding

    @property
    def is_worse(self) -> bool:
        """Whether a gate counts it: new, or costlier than before, and not by a measured time alone."""
        return self.change in ("new", "worse") and not self.by_time
