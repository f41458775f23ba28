"""The rows that every face of a sweep shows: group by group, the quickest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfscope.model.units import format_bytes, format_ns, format_share

if TYPE_CHECKING:
    from perfscope.dashboards.reports.sweep_document import Sweep, SweptVariant


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One variant in words."""

    number: int
    """In the document, from 0."""
    settings: tuple[str, ...]
    """In the order of the axes."""
    step: str
    peak: str
    share: str
    """Of the device's memory."""
    fits: str
    note: str
    on_front: bool


def rows_of(sweep: Sweep) -> tuple[SweepRow, ...]:
    """All variants: by machine and size in the order of the values, then by time; those without one come last."""
    order = [axis for axis in sweep.axes if axis.kind != "choice"]
    places = {axis.name: {value: at for at, value in enumerate(axis.values)} for axis in order}

    def key(number: int) -> tuple[object, ...]:
        one = sweep.variants[number]
        group = tuple(places[axis.name].get(one.settings[axis.name], 0) for axis in order)
        return (group, one.step_ns is None, one.step_ns or 0, one.peak_bytes or 0, number)

    return tuple(_row(sweep, number) for number in sorted(range(len(sweep.variants)), key=key))


def headline(sweep: Sweep) -> str:
    """``attention: 12 variants for H100 SXM``."""
    targets = list(dict.fromkeys(one.target for one in sweep.variants if one.target))
    what = f"{sweep.name}: {len(sweep.variants)} variants"
    if len(targets) > 2:
        return f"{what} for {len(targets)} targets"
    return f"{what} for {' and '.join(targets)}" if targets else what


def facts(sweep: Sweep) -> tuple[str, ...]:
    """What was varied, and how the numbers are known."""
    axes = [f"{axis.name}={','.join(axis.values)} ({axis.kind})" for axis in sweep.axes]
    reused = sum(one.reused for one in sweep.variants)
    known = "times are modelled, not measured; peaks are as the compiler planned them"
    return (*axes, known, *([f"{reused} of an earlier sweep"] if reused else []))


def step_words(one: SweptVariant) -> str:
    """``3.10 - 4.40 ms``, or one number where both ends round to it."""
    if one.step_low_ns is None or one.step_high_ns is None:
        return "-"
    low, high = format_ns(one.step_low_ns), format_ns(one.step_high_ns)
    if low == high:
        return low
    number, _, unit = low.rpartition(" ")
    return f"{number} - {high}" if high.endswith(f" {unit}") else f"{low} - {high}"


def words(sweep: Sweep, number: int) -> str:
    """``policy=dots seq=1024``."""
    return " ".join(f"{name}={value}" for name, value in sweep.variants[number].settings.items())


def choice_words(sweep: Sweep, one: SweptVariant) -> str:
    """The same without sizes: what a picture tells apart."""
    choices = [axis.name for axis in sweep.axes if axis.kind != "size"]
    return " ".join(f"{name}={one.settings[name]}" for name in choices)


def _row(sweep: Sweep, number: int) -> SweepRow:
    one = sweep.variants[number]
    peak, memory = one.peak_bytes, one.memory_bytes
    return SweepRow(
        number=number,
        settings=tuple(one.settings[axis.name] for axis in sweep.axes),
        step=step_words(one),
        peak="-" if peak is None else format_bytes(peak),
        share="-" if peak is None or memory is None else format_share(peak, memory),
        fits={"fits": "yes", "does not fit": "no", "compiled": "not known", "failed": "-", "not reached": "-"}[
            one.state
        ],
        note=_note(sweep, one),
        on_front=one.on_front,
    )


def _note(sweep: Sweep, one: SweptVariant) -> str:
    if one.state == "not reached":
        return "not reached"
    if one.state == "failed":
        return f"failed: {one.reason}"
    if one.state == "does not fit" and one.step_low_ns is None:
        return f"the compiler refused it: {one.reason.rpartition('RESOURCE_EXHAUSTED: ')[2]}"
    said = []
    if one.on_front:
        said.append("front")
    elif one.dominated_by:
        said.append(f"dominated by {_apart(sweep, one, one.dominated_by[0])}")
    if one.same_as:
        said.append(f"as {_apart(sweep, one, one.same_as[0])}")
    if one.reason:
        said.append(one.reason)
    return "; ".join(said)


def _apart(sweep: Sweep, one: SweptVariant, other: int) -> str:
    """What another variant has different."""
    its = sweep.variants[other].settings
    return " ".join(f"{name}={value}" for name, value in its.items() if one.settings.get(name) != value)
