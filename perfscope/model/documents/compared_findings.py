"""Findings of two runs in the document of a comparison, and their part of the change of the step time."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from perfscope.model.documents.bounded_json import MANY, Ns, Value
from perfscope.model.severity import Severity

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


class Where(Value, frozen=True, kw_only=True):
    """The place of a finding."""

    op: str | None = None
    kernel: str | None = None
    module: str | None = None
    file: str | None = None
    line: int | None = None

    def label(self) -> str:
        """``train.py:88``, else module, op, kernel or ``''``."""
        if self.file:
            return f"{self.file}:{self.line}" if self.line is not None else self.file
        return self.module or self.op or self.kernel or ""


class Finding(Value, frozen=True, kw_only=True):
    """A finding of one side."""

    subject: str
    title: str
    severity: Severity
    basis: str
    cost_ns: Ns | None = None
    cost_ns_per_step: Ns | None = None
    cost_bytes: Ns | None = None
    where: Where = Where()
    advice: str = ""
    ranks: Annotated[tuple[int, ...], msgspec.Meta(max_length=MANY)] = ()


class FindingChange(Value, frozen=True, kw_only=True):
    """A finding on both sides; at least one of them has it."""

    rule: str
    change: Change
    by_time: bool = False
    carries: bool = False
    """Whether the change of its cost is a large part of the change of the step time."""
    base: Finding | None = None
    head: Finding | None = None

    @property
    def shown(self) -> Finding:
        """The head's, else the base's."""
        finding = self.head or self.base
        if finding is None:
            raise ValueError("a change of no finding")
        return finding

    @property
    def is_worse(self) -> bool:
        """Whether a gate counts it: new, or costlier than before, and not by a measured time alone."""
        return self.change in ("new", "worse") and not self.by_time
