"""The document of a sweep, ``perfscope.sweep/1``: what was varied, what became of each variant, the front.

Every face of a sweep is drawn from it. It is read like a stranger's file: bounded, and what is wrong is one line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from perfscope.analyzers.predict.spans import Range
from perfscope.analyzers.sweep.front import Swept, VariantPoint, VariantState, pareto_front, sentences, size_limits
from perfscope.dashboards.report.compare.types import Count, Ns, Texts, Value
from perfscope.model.documents.bounded_json import read_document
from perfscope.model.errors import DataError
from perfscope.model.units import format_bytes, format_ns, format_share
from perfscope.model.untrusted_text import sanitize

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
        alike |= {number: tuple(one for one in numbers if one != number) for number in numbers}
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
                held=sanitize(one.rest), axis=one.axis, memory_bytes=one.memory_bytes, fits_to=one.fits_to,
                first_that_does_not=one.first_that_does_not, not_known=one.not_known,
            )
            for one in reached
        ),
        dominated=tuple(
            SweptDominance(worse=sanitize(one.worse), better=sanitize(one.better), sizes=one.groups)
            for one in front.dominated
        ),
        said=tuple(sanitize(one, 400) for one in sentences(front, reached, points)),
        notes=tuple(sanitize(one, 400) for one in notes),
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
    wrong = next((one for one in sweep.variants if set(one.settings) != {axis.name for axis in sweep.axes}), None)
    beyond = [number for one in sweep.variants for number in (*one.dominated_by, *one.same_as)]
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
    found: dict[str, Any] = json.loads(json.dumps({**title, **rest, "$defs": dict(sorted(parts.items()))}))
    return found


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
