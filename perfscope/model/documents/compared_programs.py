"""Compiled programs in the document of a comparison: each change with its part of every exact metric."""

from __future__ import annotations

from typing import Annotated

import msgspec

from perfscope.model.documents.bounded_json import MANY, SOME, Count, Number, Texts, Value

Whole = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class MetricSides(Value, frozen=True, kw_only=True):
    """A metric on both sides."""

    name: str
    unit: str
    """``ns``, ``bytes``, ``FLOP``, ``count`` or ``text``."""
    base: Number | str | None
    """Median of the launches' values; null without one."""
    head: Number | str | None


class ProgramAmount(MetricSides, frozen=True, kw_only=True):
    """A metric of a program, or a row's part of it, on both sides."""

    base: Whole
    head: Whole


Amounts = Annotated[tuple[ProgramAmount, ...], msgspec.Meta(max_length=SOME)]


class ProgramRowValues(Value, frozen=True, kw_only=True):
    """One change of a compiled program at one line."""

    change: str
    what: str = ""
    """Ops of the change: ``exp, tanh``."""
    place: str = ""
    """``model.py:17`` with the line number of the head, else a scope; ``''``: unknown."""
    source: str = ""
    """The changed line of the program as written, where it is known: the cause."""
    phase: str = ""
    count: Count = 1
    """Times that the change occurs."""
    lost: Count = 0
    """Launches that were part of a fusion."""
    blocking: Count = 0
    """Collectives that the device waits for now, and did not."""
    base_names: Texts = ()
    head_names: Texts = ()
    said: Texts = ()
    """The change in sentences."""

    def where(self) -> str:
        """The line to look at first."""
        return self.source or self.place


class ProgramRow(ProgramRowValues, frozen=True, kw_only=True):
    """A change with its part of each metric."""

    amounts: Amounts = ()
    is_worse: bool = False


class OtherRows(Value, frozen=True, kw_only=True):
    """The rows that were not written one by one."""

    count: Count = 0
    amounts: Amounts = ()


class ProgramWritten(Value, frozen=True, kw_only=True):
    """A difference at a line of the program before the compiler optimized it."""

    place: str
    change: str
    what: str = ""
    count: Count = 1


class Span(Value, frozen=True, kw_only=True):
    """Modelled time of a run, in ns: from the peaks of the hardware to usual kernels."""

    low: Whole
    high: Whole


class ProgramDifference(Value, frozen=True, kw_only=True):
    """One compiled program on both sides; its rows sum to the change of each of its metrics."""

    name: str
    base_fingerprint: str
    head_fingerprint: str
    identical: bool
    amounts: Amounts = ()
    rows: Annotated[tuple[ProgramRow, ...], msgspec.Meta(max_length=MANY)] = ()
    other_rows: OtherRows = OtherRows()
    written: Annotated[tuple[ProgramWritten, ...], msgspec.Meta(max_length=MANY)] | None = None
    """``None``: the programs before optimization were not there."""
    base_modelled: Span | None = None
    head_modelled: Span | None = None
    notes: Texts = ()

    def problem(self) -> str | None:
        """The sum that does not add up; ``None``: all do."""
        wanted = {amount.name: amount.head - amount.base for amount in self.amounts}
        sums = dict.fromkeys(wanted, 0)
        for amounts in (*(row.amounts for row in self.rows), self.other_rows.amounts):
            for part in amounts:
                if part.name not in sums:
                    return f"a row is of {part.name[:80]!r}, which the program does not have"
                sums[part.name] += part.head - part.base
        wrong = next((name for name in wanted if sums[name] != wanted[name]), None)
        if wrong is not None:
            return f"{wrong[:80]}: its rows sum to {sums[wrong]}, not to {wanted[wrong]}"
        if self.identical and (self.rows or self.base_fingerprint != self.head_fingerprint):
            return "it is called identical and is not"
        return None
