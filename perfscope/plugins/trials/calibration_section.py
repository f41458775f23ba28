"""Predicted and measured savings, by rule and intervention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Block, Column, Range, Report, Section, Text, table, tables
from perfscope.dashboards.report.renderers.text import WIDTH, report_text

if TYPE_CHECKING:
    from perfscope.dashboards.report.blocks import Value
    from perfscope.plugins.trials.calibration import Calibration, CalibrationRow


def render_text(made: Calibration, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """The table for a terminal."""
    tries = f"{made.tries} {'try' if made.tries == 1 else 'tries'} on this machine"
    headline = (
        f"rules calibrated by {tries}"
        if made.rows
        else f"nothing to calibrate rules by: {tries}; `perfscope try PROGRAM` makes them"
    )
    sections = (
        Section(title="Predicted and measured", blocks=tuple(_blocks(made))),
        Section(title="Rules without a row", blocks=tuple(_missing(made))),
    )
    shown = tuple(section for section in sections if section.blocks)
    return report_text(Report(headline=headline, sections=shown), width=width, color=color, verbose=verbose)


def _blocks(made: Calibration) -> Iterator[Block]:
    columns: list[Column[CalibrationRow]] = [
        Column("rule", lambda row: row.rule, "code"),
        Column("intervention", lambda row: row.intervention, "code"),
        Column("tries", lambda row: row.measured or None, "count"),
        Column("gains", lambda row: row.gains or None, "count"),
        Column("open", lambda row: row.unclear or None, "count", 2),
        Column("rejected", lambda row: row.rejected or None, "count", 1),
        Column("step", lambda row: row.step_ns, "ns", 3),
        Column("predicted", lambda row: _change(row.predicted_ns), "signed_ns"),
        Column("measured", lambda row: _change(row.saved_ns), "signed_ns"),
        Column("of predicted", _kept, "share"),
    ]
    yield from tables(table(columns, made.rows, few=max(1, len(made.rows))))
    if made.rows:
        yield Text(
            "Changes of the step time, medians over tries. Predicted: the largest saving that the rule's findings "
            "state. Measured: in pairs of launches with and without the intervention."
        )
    if made.others:
        yield Text(f"{made.others} more on other hardware are left out")


def _change(saved: float | None) -> Value:
    return None if saved is None else -saved


def _kept(row: CalibrationRow) -> Value:
    if row.kept_low is None or row.kept_high is None or row.kept_low == row.kept_high:
        return row.kept
    return Range(row.kept_low, row.kept_high)


def _missing(made: Calibration) -> Iterator[Block]:
    if made.untried:
        yield Text(f"answered by an intervention that `perfscope try` has not tried here: {', '.join(made.untried)}")
    if made.unanswered:
        yield Text(f"answered by no intervention: {', '.join(made.unanswered)}")
