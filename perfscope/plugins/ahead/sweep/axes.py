"""``--sweep NAME=VALUES``: axes of values, and the variants of a program's arguments that they span.

``policy=none,dots,full`` lists values; ``seq=1k..128k`` doubles from the first to the last; ``heads=8..64/8`` goes in
steps. ``k`` is 1024, ``m`` 1024 times that. Each value becomes ``--NAME VALUE`` of the program, replacing that flag in
its arguments, or after them; if an argument contains ``{NAME}``, the value goes there only. ``target`` and ``memory``
are not arguments of the program: they select the target. ``checkpoint`` is the policy for its layers
(``--checkpoint``), unless an argument contains ``{checkpoint}``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import product
from typing import Literal

from msgspec import Struct

from perfscope.model.errors import UsageError

AxisKind = Literal["size", "choice"]
"""Variants that differ in a size do different amounts of work and are not compared."""

RESERVED_AXES = ("target", "memory", "checkpoint")
"""Axes that are not arguments of the program."""
MAX_VALUES = 64
MAX_VARIANTS = 256
MAX_OPTION_LENGTH = 200

_NUMBER = re.compile(r"(\d{1,15})([kKmM]?)")
_SCALE = {"": 1, "k": 1 << 10, "m": 1 << 20}

MAX_SIZES = 4_096
"""Most sizes of a range that is searched: twelve compilations."""


class Axis(Struct, frozen=True, kw_only=True):
    """A varied setting."""

    name: str
    values: tuple[str, ...]
    """Values as passed to the program."""
    kind: AxisKind | None
    """Kind declared by the user; None: derived from the compiled programs."""

    @property
    def numeric(self) -> bool:
        """Whether all values are whole numbers."""
        return all(value.isdigit() for value in self.values)


class Variant(Struct, frozen=True, kw_only=True):
    """One way to start the program."""

    settings: tuple[tuple[str, str], ...]
    """(axis, value), in the order of the axes."""
    arguments: tuple[str, ...]

    @property
    def label(self) -> str:
        """``policy=dots seq=1024``."""
        return " ".join(f"{name}={value}" for name, value in self.settings)

    def value(self, axis: str) -> str | None:
        """The value of an axis; None if the axis does not exist."""
        return dict(self.settings).get(axis)


def parse_axis(text: str, *, option: str = "--sweep", most: int = MAX_VALUES) -> Axis:
    """Parse ``NAME=VALUES`` (or ``NAME:size=VALUES``, ``NAME:choice=VALUES``); ``UsageError`` with one line.

    ``option``: the option for messages; ``most``: largest number of values.
    """
    match = re.fullmatch(r"\s*-{0,2}([A-Za-z][\w-]{0,60})(?::(\w+))?\s*=(.*)", text, re.DOTALL)
    if match is None or len(text) > 10_000 or not text.isprintable():
        raise UsageError(f"{option} {text[:60]!r}: write NAME=VALUES, e.g. policy=none,dots or seq=1k..128k")
    name, kind, text = match[1], match[2], match[3]
    if kind not in (None, "size", "choice"):
        raise UsageError(f"{option} {name}:{kind[:40]}: a sweep's values are a size or a choice")
    values = [value for part in text.split(",") for value in _values(part.strip(), f"{option} {name}", most)]
    if not text.strip() or not values:
        raise UsageError(f"{option} {name}=: no values; write e.g. {name}=a,b or {name}=1k..128k")
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise UsageError(f"{option} {name}: {twice!r} occurs twice")
    if len(values) > most:
        raise UsageError(f"{option} {name}: {len(values)} values; at most {most} are allowed")
    if kind == "size" and not all(value.isdigit() for value in values):
        raise UsageError(f"{option} {name}:size: sizes are whole numbers")
    return Axis(name=name, values=tuple(values), kind="size" if kind == "size" else "choice" if kind else None)


def parse_axes(texts: Sequence[str]) -> tuple[Axis, ...]:
    """Parse all axes; the number of combinations may be at most ``MAX_VARIANTS``."""
    axes = tuple(parse_axis(text) for text in texts)
    names = [axis.name for axis in axes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--sweep {twice}: it is given twice; list all its values in one option")
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MAX_VARIANTS:
        sizes = " x ".join(f"{len(axis.values)} {axis.name}" for axis in axes)
        raise UsageError(f"--sweep: {count:,} variants ({sizes}); at most {MAX_VARIANTS} are allowed")
    return axes


def is_reserved(name: str, arguments: Sequence[str]) -> bool:
    """Whether an axis is ours: the program has no ``{checkpoint}``. ``arguments``: script or module first."""
    return name in RESERVED_AXES and not (
        name == "checkpoint" and any("{checkpoint}" in word for word in arguments[1:])
    )


def variants(axes: Sequence[Axis], arguments: Sequence[str]) -> tuple[Variant, ...]:
    """Every combination, the last axis fastest. ``arguments`` begin with the script or module."""
    placements = {
        axis.name: _Placement.of(axis.name, arguments) for axis in axes if not is_reserved(axis.name, arguments)
    }
    made = []
    for values in product(*(axis.values for axis in axes)):
        settings = tuple((axis.name, value) for axis, value in zip(axes, values, strict=True))
        words = list(arguments)
        appended: list[str] = []
        for name, value in settings:
            if name in placements:
                words = placements[name].filled(words, value, appended)
        made.append(Variant(settings=settings, arguments=(*words, *appended)))
    return tuple(made)


class _Placement(Struct, frozen=True, kw_only=True):
    """Where a value goes."""

    name: str
    how: Literal["braces", "next", "equals", "appended"]
    at: int = 0

    @staticmethod
    def of(name: str, arguments: Sequence[str]) -> _Placement:
        """Find the place for it in the arguments. ``UsageError`` if a flag occurs twice."""
        if any(f"{{{name}}}" in word for word in arguments[1:]):
            return _Placement(name=name, how="braces")
        flag = f"--{name}"
        whole = [index for index, word in enumerate(arguments) if index and word == flag]
        equal = [index for index, word in enumerate(arguments) if index and word.startswith(f"{flag}=")]
        if len(whole) + len(equal) > 1:
            raise UsageError(f"--sweep {name}: {flag} occurs twice; write {{{name}}} where its value goes")
        if equal:
            return _Placement(name=name, how="equals", at=equal[0])
        if whole:
            if whole[0] + 1 >= len(arguments):
                raise UsageError(f"--sweep {name}: {flag} has no value; leave it out, or write {flag} {{{name}}}")
            return _Placement(name=name, how="next", at=whole[0] + 1)
        return _Placement(name=name, how="appended")

    def filled(self, words: list[str], value: str, appended: list[str]) -> list[str]:
        """The words with the value in its place; the first is the program itself."""
        if self.how == "braces":
            return [word.replace(f"{{{self.name}}}", value) if index else word for index, word in enumerate(words)]
        if self.how == "equals":
            return [f"--{self.name}={value}" if index == self.at else word for index, word in enumerate(words)]
        if self.how == "next":
            return [value if index == self.at else word for index, word in enumerate(words)]
        appended += [f"--{self.name}", value]
        return words


def _values(part: str, given: str, most: int) -> list[str]:
    """Values of one part of an axis. ``given``: the option as written, for ``UsageError`` messages."""
    if len(part) > MAX_OPTION_LENGTH:
        raise UsageError(f"{given}: a value of {len(part)} characters; at most {MAX_OPTION_LENGTH} are allowed")
    if ".." not in part or not part[:1].isdigit():
        number = _NUMBER.fullmatch(part)
        return [str(_scaled(number)) if number is not None and number[2] else part]
    match = re.fullmatch(r"(\d{1,15}[kKmM]?)\.\.(\d{1,15}[kKmM]?)(?:/(\d{1,15}[kKmM]?))?", part)
    if match is None:
        raise UsageError(f"{given}={part[:60]}: invalid range; write 1k..128k (doubling) or 8..64/8 (steps)")
    first, last, step = (None if bound is None else _scaled(_NUMBER.fullmatch(bound)) for bound in match.groups())
    assert first is not None
    assert last is not None
    if not 0 < first <= last or step == 0:
        raise UsageError(f"{given}={part[:60]}: a range must rise from 1 or more")
    values = [first]
    while values[-1] < last:
        values.append(min(values[-1] * 2 if step is None else values[-1] + step, last))
        if len(values) > most:
            raise UsageError(f"{given}={part[:60]}: more than {most} values")
    return [str(value) for value in values]


def _scaled(match: re.Match[str] | None) -> int:
    assert match is not None
    return int(match[1]) * _SCALE[match[2].lower()]


# ``--fit NAME=RANGE``: find the largest size that fits by bisection.
#
# Each answer halves the sizes between the largest that fits and the smallest that does not, so a thousand sizes take
# ten compilations. This assumes that no size above one that does not fit fits. That is not guaranteed, because
# compilers recompute more if memory is short, so nothing is claimed about sizes that were not compiled.


class Bisection:
    """Bisection over ``count`` rising sizes. ``next()`` returns the size to try, ``tell()`` takes the result."""

    def __init__(self, count: int) -> None:
        """Start with all sizes open."""
        self._fits, self._refused = -1, count
        self._given_up = False

    def next(self) -> int | None:
        """Index of the size to try now; ``None`` if the result is known, or a size could not be evaluated."""
        if self._given_up or self._refused - self._fits < 2:
            return None
        return (self._fits + self._refused) // 2

    def record(self, index: int, fits: bool | None) -> None:
        """Record whether the size at an index fits; ``None``: unknown, and the search ends."""
        if fits is None:
            self._given_up = True
        elif fits:
            self._fits = max(self._fits, index)
        else:
            self._refused = min(self._refused, index)


def max_compilations(count: int) -> int:
    """Most compilations for ``count`` sizes."""
    return math.ceil(math.log2(count + 1))


def fit_axis(text: str, others: Sequence[Axis]) -> Axis:
    """The searched axis with its sizes, rising; ``others`` are swept too. ``UsageError`` with one line."""
    axis = parse_axis(text, option="--fit", most=MAX_SIZES)
    if axis.kind == "choice" or not axis.numeric or axis.name in ("target", "memory"):
        raise UsageError(f"--fit {axis.name}: only whole numbers can be searched; write e.g. seq=1k..128k/1k")
    if any(other.name == axis.name for other in others):
        raise UsageError(f"--fit {axis.name}: it is also in --sweep")
    lines = math.prod(len(other.values) for other in others)
    if lines * max_compilations(len(axis.values)) > MAX_VARIANTS:
        tries = max_compilations(len(axis.values))
        raise UsageError(
            f"--fit {axis.name}: {lines:,} variants with up to {tries} sizes each; at most {MAX_VARIANTS} in all"
        )
    return Axis(name=axis.name, values=tuple(sorted(axis.values, key=int)), kind="size")
