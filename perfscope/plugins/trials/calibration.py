"""Predicted savings of rules against those that `perfscope try` measured: how reliable predictions are."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from perfscope.plugins.trials.document import Trial, Try

HARDWARE = ("gpu", "cpu", "cpus")
"""Facts of a try's machine that must be equal for two machines to count as the same."""
MEASURED = ("gain", "slower", "no gain", "cannot tell")


class CalibrationRow(Struct, frozen=True, kw_only=True):
    """An intervention that answered findings of a rule. Times are per step, medians over its tries.

    Only tries against the unchanged program count, not tries on top of another intervention.
    """

    rule: str
    """Rule, or a sign of the launches such as garbage collection."""
    intervention: str
    measured: int
    gains: int
    unclear: int
    """Tries whose launches scatter too much for an answer. Times below leave them out, unless there are no other tries.
    """
    rejected: int
    """Tries that changed the results."""
    predicted_ns: float | None
    """Upper bound of the saving that the rule measured or modelled."""
    saved_ns: float | None
    """Measured saving of tries with an answer; negative if the step became longer."""
    step_ns: float | None
    """Step time of the unchanged programs."""
    kept: float | None
    """Median of measured over predicted saving; 1 if the prediction was met in full."""
    kept_low: float | None
    kept_high: float | None


class Calibration(Struct, frozen=True, kw_only=True):
    """All rules of a machine.

    ``tries``: documents that were read; ``others``: documents of other hardware, left out.
    """

    rows: tuple[CalibrationRow, ...]
    tries: int
    others: int
    untried: tuple[str, ...]
    """Rules with an intervention of which no finding was tried."""
    unanswered: tuple[str, ...]
    """Rules without an intervention."""


def of_machine(documents: Sequence[Try], facts: Mapping[str, str]) -> list[Try]:
    """Return the documents that ran on hardware with these ``facts``."""
    return [one for one in documents if all(one.machine.get(name, "") == facts.get(name, "") for name in HARDWARE)]


def calibrate(documents: Sequence[Try], rules: Mapping[str, bool], *, others: int = 0) -> Calibration:
    """Calibrate rules. ``rules``: every rule to report, and whether an intervention answers it."""
    tried: dict[tuple[str, str], list[tuple[Trial, int | None]]] = defaultdict(list)
    for document in documents:
        for trial in document.trials:
            if not trial.with_others and not trial.in_place_of and trial.state in (*MEASURED, "rejected"):
                for rule in trial.answers:
                    tried[rule, trial.name].append((trial, trial.promised_ns.get(rule)))
    rows = tuple(_row(rule, name, trials) for (rule, name), trials in sorted(tried.items()))
    seen = {row.rule for row in rows}
    return Calibration(
        rows=rows,
        tries=len(documents),
        others=others,
        untried=tuple(rule for rule, answered in sorted(rules.items()) if answered and rule not in seen),
        unanswered=tuple(rule for rule, answered in sorted(rules.items()) if not answered),
    )


def _row(rule: str, intervention: str, trials: Sequence[tuple[Trial, int | None]]) -> CalibrationRow:
    measured = [(trial, promised) for trial, promised in trials if trial.state in MEASURED]
    clear = [(trial, promised) for trial, promised in measured if trial.state != "cannot tell"]
    saved = [(_saved(trial), promised) for trial, promised in clear]
    shares = [ns / promised for ns, promised in saved if ns is not None and promised]
    return CalibrationRow(
        rule=rule,
        intervention=intervention,
        measured=len(measured),
        gains=sum(trial.state == "gain" for trial, _ in measured),
        unclear=sum(trial.state == "cannot tell" for trial, _ in measured),
        rejected=len(trials) - len(measured),
        predicted_ns=_median([promised for _, promised in clear or measured]),
        saved_ns=_median([ns for ns, _ in saved]),
        step_ns=_median([trial.base_ns for trial, _ in clear or measured]),
        kept=_median(shares),
        kept_low=min(shares, default=None),
        kept_high=max(shares, default=None),
    )


def _saved(trial: Trial) -> float | None:
    return None if trial.base_ns is None or trial.head_ns is None else trial.base_ns - trial.head_ns


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
