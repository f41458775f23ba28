"""The document of a sweep, ``perfscope.sweep/1``: the axes, the result of each variant, the front.

It is read as untrusted input: bounded, with errors of one line.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from perfscope.model.documents.bounded_json import Count, Ns, Texts, Value, read_document, schema_of
from perfscope.model.errors import DataError

SCHEMA = "perfscope.sweep/1"
FILE = "sweep.json"
MOST_BYTES = 16 << 20
MOST_POINTS = 4096

VariantState = Literal["fits", "does not fit", "compiled", "failed", "not reached"]
"""``compiled``: whether it fits is unknown, because the device's memory or the program's peak is."""

AxisKind = Literal["size", "choice", "machine"]

Number = Annotated[int, msgspec.Meta(ge=0, lt=MOST_POINTS)]
"""Number of a variant, from 0."""
Numbers = Annotated[tuple[Number, ...], msgspec.Meta(max_length=MOST_POINTS)]


class SweptAxis(Value, frozen=True, kw_only=True):
    """One thing that was varied."""

    name: str
    values: Texts
    kind: AxisKind
    """With a size the work changes. Variants that differ in a size, or in the machine, are not compared."""


class SweptVariant(Value, frozen=True, kw_only=True):
    """Result of one variant. Times are modelled; bytes are of one device."""

    settings: dict[str, str]
    """Axis -> value, in the order of the axes."""
    state: VariantState
    target: str = ""
    """``8 H100 SXM``."""
    step_low_ns: Ns | None = None
    """Modelled time of one step; null if the compiler refused it, or no time could be modelled."""
    step_high_ns: Ns | None = None
    peak_bytes: Count | None = None
    """Largest memory that one of its programs needs at once."""
    memory_bytes: Count | None = None
    on_front: bool = False
    dominated_by: Numbers = ()
    """Variants of its group that dominate it, those on the front first."""
    same_as: Numbers = ()
    """Variants of its group that are the same program, or have equal time and peak."""
    reason: str = ""
    """Why it failed, or which values are unknown."""
    inputs: tuple[Count, Count] | None = None
    """Bytes of the step's arguments and outputs: variants that differ in them do different work."""
    programs: Texts = ()
    """Programs that make up the step."""
    fingerprints: Texts = ()
    """Fingerprints of these; equal programs have equal ones."""
    folder: str = ""
    """Run folder, relative to the document's folder; empty without one."""
    seconds_to_compile: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    host_bytes: Count | None = None
    """Memory of the machine that compiled it."""
    reused: bool = False

    @property
    def step_ns(self) -> int | None:
        """Geometric mean of the range."""
        if self.step_low_ns is None or self.step_high_ns is None:
            return None
        return round(math.sqrt(self.step_low_ns) * math.sqrt(self.step_high_ns))

    @property
    def judged(self) -> bool:
        """Whether time and peak are known."""
        return self.step_low_ns is not None and self.step_high_ns is not None and self.peak_bytes is not None

    def words(self, axes: tuple[str, ...] | None = None) -> str:
        """``policy=dots seq=1024``, with these axes only."""
        return " ".join(f"{name}={value}" for name, value in self.settings.items() if axes is None or name in axes)


class SweptReach(Value, frozen=True, kw_only=True):
    """Up to which size a choice fits, as far as was tried, all else fixed."""

    held: str
    """The fixed settings, ``policy=dots``; empty if only the size is swept."""
    axis: str
    memory_bytes: Count | None
    fits_to: Count | None
    """The largest value up to which every value tried fits; null if even the smallest does not."""
    first_that_does_not: Count | None
    """Null if all evaluated values fit."""
    not_known: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_POINTS)] = ()
    """Values that failed or were not reached, in order: nothing is claimed beyond the first of them."""
    fits_again: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOST_POINTS)] = ()
    """Values that fit although a smaller one does not."""
    most_tried: Count | None = None
    """The largest value; null in documents of earlier versions."""


class SweptDominance(Value, frozen=True, kw_only=True):
    """A choice that another one beats at every size at which it is known."""

    worse: str
    """``policy=full``."""
    better: str
    sizes: Count
    """Number of sizes at which both are known; the better choice dominates at each."""


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
    """False: interrupted; the variants done by then are here."""


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
    return schema_of(Sweep, SCHEMA, what="A sweep")
