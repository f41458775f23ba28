"""A run next to its plan: the parts of a step as planned and as recorded, and where the plan was wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from perfscope.analyzers.time import step_accounts
from perfscope.dashboards.report.blocks import Badge, Column, Range, Report, Section, Text, table
from perfscope.model.errors import DataError
from perfscope.model.trace import MISSING, Trace
from perfscope.plugins.plan.document import Plan, PlannedCandidate
from perfscope.plugins.plan.sections import mesh_words

PARTS: dict[str, tuple[str, ...]] = {
    "kernels": ("compute", "recomputation", "optimizer"),
    "exposed communication": ("weights", "activations", "tokens", "sends", "communication"),
    "exposed copies": ("host copies", "copies"),
    "idle": ("bubble", "gaps"),
}
"""Part of a recorded step -> parts of a planned one."""

_RECORDED = {"compute": "kernels", "exposed_communication": "exposed communication", "exposed_copy": "exposed copies"}
"""Cause of an account -> part; all other causes are idle."""

Verdict = Literal["inside", "shorter", "longer"]


class Checked(Struct, frozen=True, kw_only=True):
    """One part of the step, ns."""

    part: str
    low_ns: int
    high_ns: int
    measured_ns: int

    @property
    def verdict(self) -> Verdict:
        """Where the measured time lies."""
        if self.measured_ns < self.low_ns:
            return "shorter"
        return "longer" if self.measured_ns > self.high_ns else "inside"


def recorded_parts(traces: Sequence[Trace]) -> dict[str, int]:
    """Mean step of all devices by part, ns; ``DataError`` without a step on a device."""
    accounts = [
        account for trace in traces for account in trace.fact(step_accounts)
        if account.device != MISSING and account.numbers
    ]  # fmt: skip
    if not accounts:
        raise DataError("--check: the run has no step on a device, so nothing can be laid next to the plan")
    sums = dict.fromkeys(PARTS, 0)
    for account in accounts:
        for cause, value in account.mean_ns.items():
            sums[_RECORDED.get(cause, "idle")] += value
    return {part: value // len(accounts) for part, value in sums.items()}


def check(candidate: PlannedCandidate, traces: Sequence[Trace]) -> tuple[Checked, ...]:
    """The step and its parts. Ends of the parts are those of all scenarios, so they do not add up to the step's."""
    measured = recorded_parts(traces)
    planned = {part.name: part for part in candidate.account}
    rows = [
        Checked(
            part="step", low_ns=candidate.step_low_ns, high_ns=candidate.step_high_ns,
            measured_ns=sum(measured.values()),
        )
    ]  # fmt: skip
    for part, names in PARTS.items():
        found = [planned[name] for name in names if name in planned]
        rows.append(
            Checked(
                part=part, low_ns=sum(one.low_ns for one in found), high_ns=sum(one.high_ns for one in found),
                measured_ns=measured[part],
            )
        )  # fmt: skip
    return tuple(rows)


def check_report(plan: Plan, candidate: PlannedCandidate, traces: Sequence[Trace]) -> Report:
    """The comparison as blocks."""
    rows = check(candidate, traces)
    wrong = [row for row in rows[1:] if row.verdict != "inside"]
    worst = max(wrong, key=lambda row: max(row.measured_ns - row.high_ns, row.low_ns - row.measured_ns), default=None)
    verdict = {
        "inside": "lies in its planned range",
        "shorter": "is shorter than planned",
        "longer": "is longer than planned",
    }
    headline = f"{plan.name}, {mesh_words(candidate)}: the step {verdict[rows[0].verdict]}"
    if worst is not None:
        headline += f"; the plan is most wrong in {worst.part}"
    return Report(headline=headline, facts=tuple(_facts(plan)), sections=(_section(rows),))


def _facts(plan: Plan) -> Iterator[str]:
    yield f"planned for {plan.target} at {plan.created_utc}; measured: mean of the steps of all devices"


def _section(rows: Sequence[Checked]) -> Section:
    made = table(
        (
            Column("part", lambda row: row.part),
            Column("planned", lambda row: Range(row.low_ns, row.high_ns), "ns"),
            Column("measured", lambda row: row.measured_ns, "ns"),
            Column("", lambda row: Badge(row.verdict, "plain" if row.verdict == "inside" else "worse")),
        ),
        rows,
        few=len(rows),
    )
    return Section(
        title="Planned and measured",
        blocks=(
            made,
            Text("Idle holds the bubble, waits for other ranks, launches and the host: a plan has the bubble only."),
        ),
    )
