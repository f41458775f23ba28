"""The document of a sweep, ``perfscope.sweep/1``: what was varied, what became of each variant, the front.

Every face of a sweep is drawn from it. It is read like a stranger's file: bounded, and what is wrong is one line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.analyzers.predict.spans import Range
from perfscope.analyzers.sweep.front import Swept, VariantPoint, VariantState, pareto_front, sentences, size_limits
from perfscope.dashboards.report.compare.types import Count, Ns, Texts, Value
from perfscope.dashboards.report.html_page import page
from perfscope.dashboards.report.renderers.text import WIDTH, hanging, printed
from perfscope.model.documents.bounded_json import read_document
from perfscope.model.errors import DataError
from perfscope.model.units import format_bytes, format_ns, format_share
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType


SCHEMA = "perfscope.sweep/1"
FILE = "sweep.json"
MOST_BYTES = 16 << 20
MOST_POINTS = 4096

Number = Annotated[int, msgspec.Meta(ge=0, lt=MOST_POINTS)]
"""Of a variant, from 0."""
Numbers = Annotated[tuple[Number, ...], msgspec.Meta(max_length=MOST_POINTS)]


class SweptAxis(Value, frozen=True, kw_only=True):
    """One thing that was varied."""

    name: str
    values: Texts
    kind: Literal["size", "choice", "machine"]
    """Of a size the work changes. Variants that differ in it, or in the machine, are not held against each other."""


class SweptVariant(Value, frozen=True, kw_only=True):
    """What became of one variant. Times are modelled; bytes are of one device."""

    settings: dict[str, str]
    state: VariantState
    target: str = ""
    step_low_ns: Ns | None = None
    step_high_ns: Ns | None = None
    peak_bytes: Count | None = None
    memory_bytes: Count | None = None
    on_front: bool = False
    dominated_by: Numbers = ()
    same_as: Numbers = ()
    reason: str = ""
    programs: Texts = ()
    """Those that the step was taken for."""
    folder: str = ""
    """Relative to the document's folder."""
    seconds_to_compile: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    host_bytes: Count | None = None
    """Memory of the machine that compiled it."""
    reused: bool = False

    @property
    def step_ns(self) -> int | None:
        """Geometric mean of the range."""
        if self.step_low_ns is None or self.step_high_ns is None:
            return None
        return Range(low=self.step_low_ns, high=self.step_high_ns).middle


class SweptReach(Value, frozen=True, kw_only=True):
    """Up to which size a choice fits, as far as was tried."""

    held: str
    axis: str
    memory_bytes: Count | None
    fits_to: Count | None
    first_that_does_not: Count | None
    not_known: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_POINTS)] = ()


class SweptDominance(Value, frozen=True, kw_only=True):
    """A choice that another one beats at every size at which it is known."""

    worse: str
    better: str
    sizes: Count


class Sweep(Value, frozen=True, kw_only=True):
    """All of a sweep."""

    schema: str
    name: str
    command: Texts
    created_utc: str
    basis: Literal["modelled"] = "modelled"
    axes: Annotated[tuple[SweptAxis, ...], msgspec.Meta(max_length=16)]
    variants: Annotated[tuple[SweptVariant, ...], msgspec.Meta(max_length=MOST_POINTS)]
    reaches: Annotated[tuple[SweptReach, ...], msgspec.Meta(max_length=MOST_POINTS)] = ()
    dominated: Annotated[tuple[SweptDominance, ...], msgspec.Meta(max_length=MOST_POINTS)] = ()
    said: Texts = ()
    """The same in sentences."""
    notes: Texts = ()
    complete: bool = True
    """False: interrupted; what was done by then is here."""


def sweep_document(
    axes: Sequence[Swept],
    points: Sequence[VariantPoint],
    *,
    name: str,
    command: Sequence[str],
    created_utc: str,
    notes: Sequence[str] = (),
) -> Sweep:
    """The document of points, compared. Texts are made fit to be shown."""
    front = pareto_front(axes, points)
    alike: dict[int, tuple[int, ...]] = {}
    for numbers in front.same:
        alike |= {number: tuple(value for value in numbers if value != number) for number in numbers}
    reached = size_limits(front.sizes, points)
    return Sweep(
        schema=SCHEMA,
        name=sanitize(name),
        command=tuple(sanitize(word) for word in command),
        created_utc=created_utc,
        axes=tuple(
            SweptAxis(
                name=axis.name, values=tuple(sanitize(value) for value in axis.values),
                kind=front.kinds[axis.name],
            )
            for axis in axes
        ),
        variants=tuple(
            _variant(point, number in front.on_front, front.beaten_by.get(number, ()), alike.get(number, ()))
            for number, point in enumerate(points)
        ),
        reaches=tuple(
            SweptReach(
                held=sanitize(item.rest), axis=item.axis, memory_bytes=item.memory_bytes, fits_to=item.fits_to,
                first_that_does_not=item.first_that_does_not, not_known=item.not_known,
            )
            for item in reached
        ),
        dominated=tuple(
            SweptDominance(worse=sanitize(dominance.worse), better=sanitize(dominance.better), sizes=dominance.groups)
            for dominance in front.dominated
        ),
        said=tuple(sanitize(sentence, 400) for sentence in sentences(front, reached, points)),
        notes=tuple(sanitize(note, 400) for note in notes),
        complete=not any(point.state == "not reached" for point in points),
    )  # fmt: skip


def _variant(point: VariantPoint, on_front: bool, beaten_by: tuple[int, ...], same_as: tuple[int, ...]) -> SweptVariant:
    return SweptVariant(
        settings={name: sanitize(value) for name, value in point.settings},
        state=point.state,
        target=sanitize(point.target),
        step_low_ns=None if point.step is None else point.step.low,
        step_high_ns=None if point.step is None else point.step.high,
        peak_bytes=point.peak_bytes,
        memory_bytes=point.memory_bytes,
        on_front=on_front,
        dominated_by=beaten_by,
        same_as=same_as,
        reason=sanitize(point.reason, 400),
        programs=tuple(sanitize(name) for name in point.programs),
        folder=point.folder,
        seconds_to_compile=point.seconds,
        host_bytes=point.host_bytes,
        reused=point.reused,
    )


def dump(sweep: Sweep) -> bytes:
    """A document as UTF-8 JSON."""
    return msgspec.json.format(msgspec.json.encode(sweep), indent=1) + b"\n"


def load(path: Path) -> Sweep:
    """The document in a file or a sweep's folder. ``DataError`` in one line for whatever else."""
    file = path / FILE if path.is_dir() else path
    sweep = read_document(file, Sweep, SCHEMA, what="a sweep", most_bytes=MOST_BYTES)
    wrong = next(
        (variant for variant in sweep.variants if set(variant.settings) != {axis.name for axis in sweep.axes}), None
    )
    beyond = [number for variant in sweep.variants for number in (*variant.dominated_by, *variant.same_as)]
    if wrong is not None or any(number >= len(sweep.variants) for number in beyond):
        raise DataError(f"{file}: its variants and axes do not agree")
    return sweep


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a document, made from the types that read it (docs/sweep-schema.json)."""
    _, parts = msgspec.json.schema_components([Sweep], ref_template="#/$defs/{name}")
    whole = parts.pop("Sweep")
    whole["properties"]["schema"] = {"const": SCHEMA}
    title = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"A sweep, {SCHEMA}"}
    rest = {key: value for key, value in whole.items() if key != "title"}
    result: dict[str, Any] = json.loads(json.dumps({**title, **rest, "$defs": dict(sorted(parts.items()))}))
    return result


# The rows that every face of a sweep shows: group by group, the quickest first.


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
    places = {axis.name: {value: index for index, value in enumerate(axis.values)} for axis in order}

    def key(number: int) -> tuple[object, ...]:
        variant = sweep.variants[number]
        group = tuple(places[axis.name].get(variant.settings[axis.name], 0) for axis in order)
        return (group, variant.step_ns is None, variant.step_ns or 0, variant.peak_bytes or 0, number)

    return tuple(_row(sweep, number) for number in sorted(range(len(sweep.variants)), key=key))


def headline(sweep: Sweep) -> str:
    """``attention: 12 variants for H100 SXM``."""
    targets = list(dict.fromkeys(variant.target for variant in sweep.variants if variant.target))
    what = f"{sweep.name}: {len(sweep.variants)} variants"
    if len(targets) > 2:
        return f"{what} for {len(targets)} targets"
    return f"{what} for {' and '.join(targets)}" if targets else what


def facts(sweep: Sweep) -> tuple[str, ...]:
    """What was varied, and how the numbers are known."""
    axes = [f"{axis.name}={','.join(axis.values)} ({axis.kind})" for axis in sweep.axes]
    reused = sum(variant.reused for variant in sweep.variants)
    known = "times are modelled, not measured; peaks are as the compiler planned them"
    return (*axes, known, *([f"{reused} of an earlier sweep"] if reused else []))


def step_words(variant: SweptVariant) -> str:
    """``3.10 - 4.40 ms``, or one number where both ends round to it."""
    if variant.step_low_ns is None or variant.step_high_ns is None:
        return "-"
    low, high = format_ns(variant.step_low_ns), format_ns(variant.step_high_ns)
    if low == high:
        return low
    number, _, unit = low.rpartition(" ")
    return f"{number} - {high}" if high.endswith(f" {unit}") else f"{low} - {high}"


def words(sweep: Sweep, number: int) -> str:
    """``policy=dots seq=1024``."""
    return " ".join(f"{name}={value}" for name, value in sweep.variants[number].settings.items())


def choice_words(sweep: Sweep, variant: SweptVariant) -> str:
    """The same without sizes: what a picture tells apart."""
    choices = [axis.name for axis in sweep.axes if axis.kind != "size"]
    return " ".join(f"{name}={variant.settings[name]}" for name in choices)


def _row(sweep: Sweep, number: int) -> SweepRow:
    variant = sweep.variants[number]
    peak, memory = variant.peak_bytes, variant.memory_bytes
    return SweepRow(
        number=number,
        settings=tuple(variant.settings[axis.name] for axis in sweep.axes),
        step=step_words(variant),
        peak="-" if peak is None else format_bytes(peak),
        share="-" if peak is None or memory is None else format_share(peak, memory),
        fits={"fits": "yes", "does not fit": "no", "compiled": "not known", "failed": "-", "not reached": "-"}[
            variant.state
        ],
        note=_note(sweep, variant),
        on_front=variant.on_front,
    )


def _note(sweep: Sweep, variant: SweptVariant) -> str:
    if variant.state == "not reached":
        return "not reached"
    if variant.state == "failed":
        return f"failed: {variant.reason}"
    if variant.state == "does not fit" and variant.step_low_ns is None:
        return f"the compiler refused it: {variant.reason.rpartition('RESOURCE_EXHAUSTED: ')[2]}"
    said = []
    if variant.on_front:
        said.append("front")
    elif variant.dominated_by:
        said.append(f"dominated by {_apart(sweep, variant, variant.dominated_by[0])}")
    if variant.same_as:
        said.append(f"as {_apart(sweep, variant, variant.same_as[0])}")
    if variant.reason:
        said.append(variant.reason)
    return "; ".join(said)


def _apart(sweep: Sweep, variant: SweptVariant, other: int) -> str:
    """What another variant has different."""
    its = sweep.variants[other].settings
    return " ".join(f"{name}={value}" for name, value in its.items() if variant.settings.get(name) != value)


# A sweep on a terminal: what follows from it, and every variant with the front marked.


def render_text(sweep: Sweep, *, width: int = WIDTH, color: bool = False) -> str:
    """The sweep as text for ``width`` columns."""
    return printed(lambda columns: _parts(sweep), width=width, color=color)


def _parts(sweep: Sweep) -> Iterator[RenderableType]:
    yield Text(f"perfscope: {headline(sweep)}", style="bold")
    yield from (Padding(Text(fact), (0, 0, 0, 2)) for fact in facts(sweep))
    if sweep.said:
        yield ""
        yield from (hanging(text) for text in sweep.said)
    yield ""
    yield _table(sweep)
    if sweep.notes:
        yield ""
        yield from (hanging(note) for note in sweep.notes)


def _table(sweep: Sweep) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for axis in sweep.axes:
        table.add_column(axis.name, justify="right" if axis.kind == "size" else "left", no_wrap=True)
    for name in ("step, modelled", "peak", "of memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    table.add_column("", overflow="fold", ratio=1)
    apart = [index for index, axis in enumerate(sweep.axes) if axis.kind != "choice"]
    last: tuple[str, ...] | None = None
    for row in rows_of(sweep):
        group = tuple(row.settings[index] for index in apart)
        if last is not None and group != last and len(apart) < len(sweep.axes):
            table.add_row()
        last = group
        cells = (">" if row.on_front else "", *row.settings, row.step, row.peak, row.share, row.fits, row.note)
        table.add_row(*map(Text, cells), style="bold" if row.on_front else "")
    return Padding(table, (0, 0, 0, 2))


# The picture of a sweep as inline SVG: peak upwards, modelled time to the right, both on logarithms.
#
# A choice has a colour; its sizes are joined by a line. Places along the width are percentages, so that words keep
# their size on a phone.


COLORS = ("#3f7fd6", "#e0892b", "#2e9c7a", "#9465c2", "#c8486b", "#7a8a2a", "#4aa3b5", "#8a6d4f")
TOO_MUCH = "#9aa3af"
_TOP, _BOTTOM = 24, 300
_LEFT, _RIGHT = 13.0, 96.0

STYLE = """
.ps-sweep{display:block;overflow:visible;width:100%;height:334px;margin:4px 0 10px}
.ps-sweep text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--soft);
paint-order:stroke;stroke:var(--card);stroke-width:3px;stroke-linejoin:round}
.ps-sweep .ps-grid{stroke:var(--line)}
.ps-sweep .ps-memory{stroke:var(--high);stroke-dasharray:6 4}
.ps-sweep .ps-reach{stroke-width:2px;stroke-opacity:.35}
.ps-sweep .ps-join{stroke-width:1px;stroke-opacity:.5;stroke-dasharray:2 3}
.ps-sweep .ps-front{fill:none;stroke:var(--ink);stroke-width:2px}
.ps-sweep-key{display:flex;flex-wrap:wrap;gap:4px 16px;margin:0 0 6px;padding:0;list-style:none}
.ps-sweep-key svg{vertical-align:-1px}
.mark{font-weight:650}
"""


def colors_of(sweep: Sweep) -> dict[str, str]:
    """Choice -> colour, in the order of the variants; beyond eight they come again."""
    names = dict.fromkeys(choice_words(sweep, variant) for variant in sweep.variants)
    return {name: COLORS[index % len(COLORS)] for index, name in enumerate(names)}


def drawn(sweep: Sweep) -> list[int]:
    """Numbers of the variants that have a place in the picture."""
    return [number for number, variant in enumerate(sweep.variants) if variant.step_ns and variant.peak_bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Where a time and a peak lie: logarithms between the least and the most."""

    quick: float
    slow: float
    lean: float
    full: float

    def across(self, ns: float) -> float:
        """Percent of the width."""
        return _LEFT + (_RIGHT - _LEFT) * (log(max(ns, 1)) - log(self.quick)) / (log(self.slow) - log(self.quick))

    def down(self, size: float) -> float:
        """Pixels from the top."""
        return _BOTTOM - (_BOTTOM - _TOP) * (log(max(size, 1)) - log(self.lean)) / (log(self.full) - log(self.lean))


def sweep_picture(sweep: Sweep) -> str:
    """The picture; ``''`` where no variant has both a time and a peak."""
    shown = [sweep.variants[number] for number in drawn(sweep)]
    if not shown:
        return ""
    peaks = [variant.peak_bytes or 1 for variant in shown]
    memories = [size for size in sorted({variant.memory_bytes or 0 for variant in shown}) if 0 < size <= 4 * max(peaks)]
    scale = _Scale(
        quick=min(variant.step_low_ns or 1 for variant in shown) / 1.3,
        slow=max(variant.step_high_ns or 1 for variant in shown) * 1.3,
        lean=min(peaks) / 1.5,
        full=max([*peaks, *memories]) * 1.3,
    )
    shapes = list(_grid(scale))
    for memory in memories:
        y = scale.down(memory)
        shapes.append(f'<line class="ps-memory" x1="{_LEFT}%" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        shapes.append(f'<text x="100%" y="{y - 5:.1f}" text-anchor="end">memory: {format_bytes(memory)}</text>')
    colors = colors_of(sweep)
    shapes += _joins(sweep, colors, scale)
    for number in drawn(sweep):
        variant = sweep.variants[number]
        shapes += _point(variant, words(sweep, number), colors[choice_words(sweep, variant)], scale)
    text = f"{len(shown)} variants: peak of memory against modelled time of a step; the table has the numbers"
    return f'<svg class="ps-sweep" role="img" aria-label="{escape(text)}">{"".join(shapes)}</svg>'


def key_of(sweep: Sweep) -> str:
    """Which colour is which choice; ``''`` where there is but one."""
    colors = colors_of(sweep)
    if len(colors) < 2:
        return ""
    items = "".join(
        f'<li><svg width="10" height="10" aria-hidden="true"><circle cx="5" cy="5" r="5" fill="{color}"/></svg> '
        f"{escape(name)}</li>"
        for name, color in colors.items()
    )
    return f'<ul class="ps-sweep-key">{items}</ul>'


def _grid(scale: _Scale) -> Iterator[str]:
    for size in _spread([2**power for power in range(63) if scale.lean <= 2**power <= scale.full], 6):
        y = scale.down(size)
        yield f'<line class="ps-grid" x1="{_LEFT}%" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 1:.1f}%" y="{y + 4:.1f}" text-anchor="end">{format_bytes(size)}</text>'
    round_times = [first * 10**power for power in range(18) for first in (1, 2, 5)]
    for ns in _spread([round_time for round_time in round_times if scale.quick <= round_time <= scale.slow], 4):
        x = scale.across(ns)
        yield f'<line class="ps-grid" x1="{x:.2f}%" x2="{x:.2f}%" y1="{_TOP}" y2="{_BOTTOM}"/>'
        yield f'<text x="{x:.2f}%" y="{_BOTTOM + 18}" text-anchor="middle">{format_ns(ns)}</text>'


def _spread(values: list[int], most: int) -> list[int]:
    """Every n-th, so that no more than ``most`` are left."""
    return values[:: max(1, -(-len(values) // most))]


def _joins(sweep: Sweep, colors: dict[str, str], scale: _Scale) -> Iterator[str]:
    """Lines through the sizes of each choice."""
    lines: dict[str, list[SweptVariant]] = {}
    for number in drawn(sweep):
        lines.setdefault(choice_words(sweep, sweep.variants[number]), []).append(sweep.variants[number])
    if not any(axis.kind == "size" for axis in sweep.axes):
        return
    for name, line in lines.items():
        for variant, other in pairwise(line):
            ends = [(scale.across(end.step_ns or 1), scale.down(end.peak_bytes or 1)) for end in (variant, other)]
            yield (
                f'<line class="ps-join" stroke="{colors[name]}" x1="{ends[0][0]:.2f}%" y1="{ends[0][1]:.1f}" '
                f'x2="{ends[1][0]:.2f}%" y2="{ends[1][1]:.1f}"/>'
            )


def _point(variant: SweptVariant, name: str, color: str, scale: _Scale) -> Iterator[str]:
    y, x = scale.down(variant.peak_bytes or 1), scale.across(variant.step_ns or 1)
    low, high = scale.across(variant.step_low_ns or 1), scale.across(variant.step_high_ns or 1)
    fill = TOO_MUCH if variant.state == "does not fit" else color
    title = f"{name}: {step_words(variant)}, {format_bytes(variant.peak_bytes or 0)}" + (
        ", does not fit" if variant.state == "does not fit" else ", front" if variant.on_front else ""
    )
    yield f'<line class="ps-reach" stroke="{fill}" x1="{low:.2f}%" x2="{high:.2f}%" y1="{y:.1f}" y2="{y:.1f}"/>'
    if variant.on_front:
        yield f'<circle class="ps-front" cx="{x:.2f}%" cy="{y:.1f}" r="8"/>'
    yield f'<circle cx="{x:.2f}%" cy="{y:.1f}" r="5" fill="{fill}"><title>{escape(title)}</title></circle>'


# A sweep as one HTML file: opens offline, loads nothing, reads well on a phone.


_NUMBERS = ("step, modelled", "peak", "of memory")


def render_html(sweep: Sweep) -> str:
    """The page. Every text is escaped; the policy forbids any request."""
    data = dump(sweep).decode().replace("<", "\\u003c")
    return page(_page(sweep), title=headline(sweep), data_id="perfscope-sweep", data=data, style=STYLE)


def _page(sweep: Sweep) -> Iterator[str]:
    yield f"<header><h1><b>perfscope</b> <span>{escape(headline(sweep))}</span></h1>"
    yield f'<p class="sub">{" · ".join(escape(fact) for fact in facts(sweep))}</p></header>'
    if sweep.said:
        items = "".join(f"<li>{escape(text)}</li>" for text in sweep.said)
        yield f'<section class="card"><h2>What follows</h2><ul>{items}</ul></section>'
    picture = sweep_picture(sweep)
    if picture:
        yield '<section class="card"><h2>Peak against modelled time</h2>'
        yield (
            '<p class="note">Upwards: the peak of one device. To the right: the modelled time of a step; a bar reaches '
            "from all peaks of the vendor reached to what kernels usually reach. Ringed: the front, which nothing that "
            "does the same work beats. Grey: it does not fit.</p>"
        )
        yield key_of(sweep) + picture + "</section>"
    yield '<section class="card"><h2>Variants</h2><div class="scroll"><table class="stacks">'
    yield _head(sweep)
    yield (
        "<tbody>"
        + "".join(_row_sweep_formats(sweep, row) for row in rows_of(sweep))
        + "</tbody></table></div></section>"
    )
    if sweep.notes:
        items = "".join(f"<li>{escape(note)}</li>" for note in sweep.notes)
        yield f'<section class="card unseen"><h2>How it is known</h2><ul>{items}</ul></section>'


def _columns(sweep: Sweep) -> tuple[str, ...]:
    return (*(axis.name for axis in sweep.axes), *_NUMBERS, "fits", "note")


def _head(sweep: Sweep) -> str:
    heads = "".join(
        f'<th scope="col"{" class=n" if name in _NUMBERS else ""}>{escape(name)}</th>' for name in _columns(sweep)
    )
    return f"<thead><tr>{heads}</tr></thead>"


def _row_sweep_formats(sweep: Sweep, row: SweepRow) -> str:
    chip = ' <span class="chip ok">front</span>' if row.on_front else ""
    note = row.note.removeprefix("front").removeprefix("; ")
    cells = [*map(escape, row.settings), row.step, row.peak, row.share, row.fits, escape(note) + chip]
    names = _columns(sweep)
    body = "".join(
        f'<td data-name="{escape(name)}" class="{"n" if name in _NUMBERS else "t" if index == 0 else ""}">{cell}</td>'
        for index, (name, cell) in enumerate(zip(names, cells, strict=True))
    )
    return f"<tr{' class=mark' if row.on_front else ''}>{body}</tr>"
