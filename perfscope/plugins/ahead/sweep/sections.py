"""A sweep: what was varied, the outcome of each variant, and the Pareto front."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import (
    Badge,
    Column,
    Dot,
    Legend,
    Line,
    Listing,
    Plot,
    Range,
    Report,
    Section,
    table,
)
from perfscope.dashboards.report.charts import TOO_MUCH, peaks_plot
from perfscope.dashboards.report.renderers.html import report_html
from perfscope.dashboards.report.renderers.text import WIDTH, report_text
from perfscope.dashboards.report.renderers.values import range_text
from perfscope.model.units import format_bytes
from perfscope.plugins.ahead.sweep.document import dump

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfscope.model.results import Unit
    from perfscope.plugins.ahead.sweep.document import Sweep, SweptVariant


COLORS = ("#3f7fd6", "#e0892b", "#2e9c7a", "#9465c2", "#c8486b", "#7a8a2a", "#4aa3b5", "#8a6d4f")

CAPTION = (
    "The peak of one device upwards, the modelled time of a step to the right; a bar reaches from all peaks of the "
    "vendor reached to what kernels usually reach. Ringed: the front, which nothing that does the same work beats. "
    "Grey: it does not fit."
)

_FITS: dict[str, Badge] = {
    "fits": Badge("yes"),
    "does not fit": Badge("no", "worse"),
    "compiled": Badge("not known", "open"),
    "failed": Badge("failed", "worse"),
    "not reached": Badge("not reached", "open"),
}


def render_text(sweep: Sweep, *, width: int = WIDTH, color: bool = False) -> str:
    """The sweep as text for ``width`` columns."""
    return report_text(_report(sweep), width=width, color=color)


def render_html(sweep: Sweep) -> str:
    """The sweep as one page."""
    return report_html(_report(sweep), data_id="perfscope-sweep", data=dump(sweep).decode())


def _report(sweep: Sweep) -> Report:
    return Report(headline=headline(sweep), facts=facts(sweep), sections=tuple(sweep_sections(sweep)))


def sweep_sections(sweep: Sweep) -> Iterator[Section]:
    """Conclusions, all variants with their picture, and how the numbers were computed."""
    if sweep.said:
        yield Section(title="Conclusions", blocks=(Listing(items=sweep.said, few=len(sweep.said)),))
    rows = _ordered(sweep)
    yield Section(
        title="Variants",
        blocks=(*_picture(sweep), table(tuple(_columns(sweep)), rows, few=len(rows))),
    )
    if sweep.notes:
        yield Section(title="How it is known", blocks=(Listing(items=sweep.notes, few=len(sweep.notes)),))


def _ordered(sweep: Sweep) -> list[SweptVariant]:
    """All variants: by machine and size in the order of the values, then by time; variants without a time last."""
    order = [axis for axis in sweep.axes if axis.kind != "choice"]
    places = {axis.name: {value: index for index, value in enumerate(axis.values)} for axis in order}

    def key(variant: SweptVariant) -> tuple[object, ...]:
        group = tuple(places[axis.name].get(variant.settings[axis.name], 0) for axis in order)
        return (group, variant.step_ns is None, variant.step_ns or 0, variant.peak_bytes or 0)

    return sorted(sweep.variants, key=key)


def _columns(sweep: Sweep) -> Iterator[Column[SweptVariant]]:
    yield Column("", lambda variant: Badge("front", "better") if variant.on_front else None)
    for axis in sweep.axes:
        unit: Unit = "count" if axis.kind == "size" else "text"
        yield Column(axis.name, lambda variant, name=axis.name: variant.settings[name], unit)  # type: ignore[misc]
    yield Column("step, modelled", step_range, "ns")
    yield Column("peak", lambda variant: variant.peak_bytes, "bytes")
    yield Column("of memory", _share, "share", drop=1)
    yield Column("fits", lambda variant: _FITS[variant.state])
    yield Column("note", lambda variant: _note(sweep, variant))


def step_range(variant: SweptVariant) -> Range | None:
    """The modelled time of a step, ns."""
    if variant.step_low_ns is None or variant.step_high_ns is None:
        return None
    return Range(variant.step_low_ns, variant.step_high_ns)


def _share(variant: SweptVariant) -> float | None:
    if variant.peak_bytes is None or not variant.memory_bytes:
        return None
    return variant.peak_bytes / variant.memory_bytes


def headline(sweep: Sweep) -> str:
    """``attention: 12 variants for H100 SXM``."""
    targets = list(dict.fromkeys(variant.target for variant in sweep.variants if variant.target))
    what = f"{sweep.name}: {len(sweep.variants)} variants"
    if len(targets) > 2:
        return f"{what} for {len(targets)} targets"
    return f"{what} for {' and '.join(targets)}" if targets else what


def facts(sweep: Sweep) -> tuple[str, ...]:
    """The varied settings, and how the numbers were computed."""
    axes = [f"{axis.name}={','.join(axis.values)} ({axis.kind})" for axis in sweep.axes]
    reused = sum(variant.reused for variant in sweep.variants)
    known = "times are modelled, not measured; peaks are as the compiler planned them"
    return (*axes, known, *([f"{reused} of an earlier sweep"] if reused else []))


def choice_words(sweep: Sweep, variant: SweptVariant) -> str:
    """Settings that distinguish variants in a picture: all but sizes."""
    return variant.words(tuple(axis.name for axis in sweep.axes if axis.kind != "size"))


def _note(sweep: Sweep, variant: SweptVariant) -> str:
    if variant.state in ("not reached", "failed"):
        return variant.reason
    if variant.state == "does not fit" and variant.step_low_ns is None:
        return f"the compiler refused it: {variant.reason.rpartition('RESOURCE_EXHAUSTED: ')[2]}"
    notes = []
    if variant.dominated_by:
        notes.append(f"dominated by {_apart(sweep, variant, variant.dominated_by[0])}")
    if variant.same_as:
        notes.append(f"as {_apart(sweep, variant, variant.same_as[0])}")
    if variant.reason:
        notes.append(variant.reason)
    return "; ".join(notes)


def _apart(sweep: Sweep, variant: SweptVariant, other: int) -> str:
    """Settings in which another variant differs."""
    its = sweep.variants[other].settings
    return " ".join(f"{name}={value}" for name, value in its.items() if variant.settings.get(name) != value)


def colors_of(sweep: Sweep) -> dict[str, str]:
    """Choice -> colour, in the order of the variants; colours repeat after eight."""
    names = dict.fromkeys(choice_words(sweep, variant) for variant in sweep.variants)
    return {name: COLORS[index % len(COLORS)] for index, name in enumerate(names)}


def drawn(sweep: Sweep) -> list[int]:
    """Numbers of the variants that are drawn in the picture."""
    return [number for number, variant in enumerate(sweep.variants) if variant.step_ns and variant.peak_bytes]


def _picture(sweep: Sweep) -> Iterator[Plot]:
    """Variants with a time and a peak; nothing without one."""
    numbers = drawn(sweep)
    if not numbers:
        return
    colors = colors_of(sweep)
    dots = {number: _dot(sweep, number, colors) for number in numbers}
    memories = sorted({variant.memory_bytes or 0 for variant in sweep.variants})
    limits = [(float(size), "memory") for size in memories if 0 < size <= 4 * max(dot.y for dot in dots.values())]
    sizes: dict[str, list[Dot]] = {}
    if any(axis.kind == "size" for axis in sweep.axes):
        for number, dot in dots.items():
            sizes.setdefault(choice_words(sweep, sweep.variants[number]), []).append(dot)
    lines = [
        Line(points=tuple((dot.x, dot.y) for dot in members), color=members[0].color, kind="faint")
        for members in sizes.values()
    ]
    legend = Legend(tuple(colors.items()) if len(colors) > 1 else ())
    words = f"{len(dots)} variants: peak of memory against modelled time of a step; the table has the numbers"
    yield peaks_plot(list(dots.values()), lines, limits, logarithmic=True, words=words, note=CAPTION, legend=legend)


def _dot(sweep: Sweep, number: int, colors: dict[str, str]) -> Dot:
    variant = sweep.variants[number]
    state = "does not fit" if variant.state == "does not fit" else "front" if variant.on_front else ""
    step, size = range_text(step_range(variant) or Range(0, 0)), format_bytes(variant.peak_bytes or 0)
    return Dot(
        x=variant.step_ns or 1,
        low=variant.step_low_ns or 1,
        high=variant.step_high_ns or 1,
        y=variant.peak_bytes or 1,
        title=f"{variant.words()}: {step}, {size}{f', {state}' if state else ''}",
        color=TOO_MUCH if variant.state == "does not fit" else colors[choice_words(sweep, variant)],
        ring=variant.on_front,
    )
