"""What a comparison's document says of compiled programs, typed: changes by instruction that sum to the whole."""

from __future__ import annotations

from typing import Annotated

import msgspec

from perfscope.dashboards.reports.compare_types import MANY, SOME, Count, Texts, Value

Amount = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class ProgramAmount(Value, frozen=True, kw_only=True):
    """A metric of a program, or a row's part of it, on both sides."""

    name: str
    unit: str
    base: Amount
    head: Amount


Amounts = Annotated[tuple[ProgramAmount, ...], msgspec.Meta(max_length=SOME)]


class ProgramRow(Value, frozen=True, kw_only=True):
    """One change at one line; ``source``: the line of the program as written that changed, where it is known."""

    change: str
    what: str = ""
    place: str = ""
    source: str = ""
    phase: str = ""
    count: Count = 1
    amounts: Amounts = ()
    lost: Count = 0
    """Launches that were part of a fusion."""
    blocking: Count = 0
    """Collectives that the device waits for now, and did not."""
    base_names: Texts = ()
    head_names: Texts = ()
    said: Texts = ()
    is_worse: bool = False

    def where(self) -> str:
        """The line to look at first."""
        return self.source or self.place


class OtherRows(Value, frozen=True, kw_only=True):
    """The rows that were not written one by one."""

    count: Count = 0
    amounts: Amounts = ()


class ProgramWritten(Value, frozen=True, kw_only=True):
    """What differs at a line of the program before the compiler optimized it."""

    place: str
    change: str
    what: str = ""
    count: Count = 1


class Span(Value, frozen=True, kw_only=True):
    """Time of a run by the model, in ns: between the peaks of the hardware and what kernels usually reach."""

    low: Amount
    high: Amount


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
        """What does not sum; ``None``: everything does."""
        wanted = {one.name: one.head - one.base for one in self.amounts}
        sums = dict.fromkeys(wanted, 0)
        for held in (*(row.amounts for row in self.rows), self.other_rows.amounts):
            for one in held:
                if one.name not in sums:
                    return f"a row is of {one.name[:80]!r}, which the program does not have"
                sums[one.name] += one.head - one.base
        wrong = next((name for name in wanted if sums[name] != wanted[name]), None)
        if wrong is not None:
            return f"{wrong[:80]}: its rows sum to {sums[wrong]}, not to {wanted[wrong]}"
        if self.identical and (self.rows or self.base_fingerprint != self.head_fingerprint):
            return "it is called identical and is not"
        return None
