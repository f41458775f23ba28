"""What ``--sweep NAME=VALUES`` asks for: axes of values, and the variants of a program's arguments that they span.

``policy=none,dots,full`` lists values; ``seq=1k..128k`` doubles from the first to the last; ``heads=8..64/8`` goes in
steps. ``k`` is 1024, ``m`` 1024 times that. Each becomes ``--NAME VALUE`` of the program, in place of what its
arguments say of that flag, or after them; where an argument holds ``{NAME}`` it goes there and nowhere else.
``target`` and ``memory`` are not the program's: they say what to compile for. Neither is ``checkpoint``, the policy
that its layers get (``--checkpoint``), unless an argument holds ``{checkpoint}``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from perfscope.model.errors import UsageError

AxisKind = Literal["size", "choice"]
"""Of a size, variants that differ in it do another amount of work and are not held against each other."""

RESERVED_AXES = ("target", "memory", "checkpoint")
"""Axes that are ours, not the program's."""
MAX_VALUES = 64
MAX_VARIANTS = 256
MAX_OPTION_LENGTH = 200

_NUMBER = re.compile(r"(\d{1,15})([kKmM]?)")
_SCALE = {"": 1, "k": 1 << 10, "m": 1 << 20}


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One thing that is varied."""

    name: str
    values: tuple[str, ...]
    """As they reach the program."""
    kind: AxisKind | None
    """As the user said; None: what the compiled programs say."""

    @property
    def numeric(self) -> bool:
        """Whether all values are whole numbers."""
        return all(value.isdigit() for value in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to start the program."""

    settings: tuple[tuple[str, str], ...]
    """(axis, value), in the order of the axes."""
    arguments: tuple[str, ...]

    @property
    def label(self) -> str:
        """``policy=dots seq=1024``."""
        return " ".join(f"{name}={value}" for name, value in self.settings)

    def value(self, axis: str) -> str | None:
        """The value of an axis; None if there is no such axis."""
        return dict(self.settings).get(axis)


def parse_axis(text: str, *, option: str = "--sweep", most: int = MAX_VALUES) -> Axis:
    """One ``NAME=VALUES`` (or ``NAME:size=VALUES``, ``NAME:choice=VALUES``); ``UsageError`` in one line.

    ``option``: as which it was written; ``most``: values.
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
        raise UsageError(f"{option} {name}: {twice!r} is there twice")
    if len(values) > most:
        raise UsageError(f"{option} {name}: {len(values)} values; it may be {most}")
    if kind == "size" and not all(value.isdigit() for value in values):
        raise UsageError(f"{option} {name}:size: sizes are whole numbers")
    return Axis(name=name, values=tuple(values), kind="size" if kind == "size" else "choice" if kind else None)


def parse_axes(texts: Sequence[str]) -> tuple[Axis, ...]:
    """All of them; the product of their values may be ``MOST_VARIANTS``."""
    axes = tuple(parse_axis(text) for text in texts)
    names = [axis.name for axis in axes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--sweep {twice}: it is swept twice; list all its values in one")
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MAX_VARIANTS:
        sizes = " x ".join(f"{len(axis.values)} {axis.name}" for axis in axes)
        raise UsageError(f"--sweep: {count:,} variants ({sizes}); it may be {MAX_VARIANTS}")
    return axes


def is_reserved(name: str, arguments: Sequence[str]) -> bool:
    """Whether an axis is ours: the program has no place for ``{checkpoint}``. ``arguments``: script or module first."""
    return name in RESERVED_AXES and not (
        name == "checkpoint" and any("{checkpoint}" in word for word in arguments[1:])
    )


def variants(axes: Sequence[Axis], arguments: Sequence[str]) -> tuple[Variant, ...]:
    """Every combination, the last axis the fastest. ``arguments`` begin with the script or module."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placement:
    """Where a value goes."""

    name: str
    how: Literal["braces", "next", "equals", "appended"]
    at: int = 0

    @staticmethod
    def of(name: str, arguments: Sequence[str]) -> _Placement:
        """Where the arguments have a place for it. ``UsageError`` where a flag is there twice."""
        if any(f"{{{name}}}" in word for word in arguments[1:]):
            return _Placement(name=name, how="braces")
        flag = f"--{name}"
        whole = [index for index, word in enumerate(arguments) if index and word == flag]
        equal = [index for index, word in enumerate(arguments) if index and word.startswith(f"{flag}=")]
        if len(whole) + len(equal) > 1:
            raise UsageError(f"--sweep {name}: {flag} is there twice; write {{{name}}} where its value goes")
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


def _values(part: str, asked: str, most: int) -> list[str]:
    """Values of one part of an axis. ``asked``: the option as written, for messages of a ``UsageError``."""
    if len(part) > MAX_OPTION_LENGTH:
        raise UsageError(f"{asked}: a value of {len(part)} characters; it may have {MAX_OPTION_LENGTH}")
    if ".." not in part or not part[:1].isdigit():
        number = _NUMBER.fullmatch(part)
        return [str(_scaled(number)) if number is not None and number[2] else part]
    match = re.fullmatch(r"(\d{1,15}[kKmM]?)\.\.(\d{1,15}[kKmM]?)(?:/(\d{1,15}[kKmM]?))?", part)
    if match is None:
        raise UsageError(f"{asked}={part[:60]}: no range; write 1k..128k (doubling) or 8..64/8 (steps)")
    first, last, step = (None if bound is None else _scaled(_NUMBER.fullmatch(bound)) for bound in match.groups())
    assert first is not None
    assert last is not None
    if not 0 < first <= last or step == 0:
        raise UsageError(f"{asked}={part[:60]}: a range goes upwards from 1 or more")
    values = [first]
    while values[-1] < last:
        values.append(min(values[-1] * 2 if step is None else values[-1] + step, last))
        if len(values) > most:
            raise UsageError(f"{asked}={part[:60]}: more than {most} values")
    return [str(value) for value in values]


def _scaled(match: re.Match[str] | None) -> int:
    assert match is not None
    return int(match[1]) * _SCALE[match[2].lower()]


# ``--fit NAME=RANGE``: which sizes to compile to find the largest that fits, by halving what is left.
#
# Each answer halves the sizes between the largest that fits and the smallest that does not, so a thousand sizes take
# ten compilations. This assumes that no size above one that does not fit fits. That is not guaranteed, because
# compilers recompute more when memory is short, so nothing is claimed about sizes that were not compiled.


MAX_SIZES = 4_096
"""Of a range that is searched: twelve compilations."""


class Bisection:
    """Of ``count`` sizes, in rising order. ``next()`` says which to try, ``tell()`` what came of it."""

    def __init__(self, count: int) -> None:
        """Nothing is known yet."""
        self._fits, self._refused = -1, count
        self._given_up = False

    def next(self) -> int | None:
        """Place of the size to try now; ``None``: it is known, or a size could not be judged."""
        if self._given_up or self._refused - self._fits < 2:
            return None
        return (self._fits + self._refused) // 2

    def tell(self, index: int, fits: bool | None) -> None:
        """Whether the size at a place fits; ``None``: it is not known, and the search ends."""
        if fits is None:
            self._given_up = True
        elif fits:
            self._fits = max(self._fits, index)
        else:
            self._refused = min(self._refused, index)


def max_compilations(count: int) -> int:
    """The most sizes of ``count`` that are compiled."""
    return math.ceil(math.log2(count + 1))


def fit_axis(text: str, others: Sequence[Axis]) -> Axis:
    """The axis that is searched, its sizes rising; ``others`` are swept beside it. ``UsageError`` in a line."""
    axis = parse_axis(text, option="--fit", most=MAX_SIZES)
    if axis.kind == "choice" or not axis.numeric or axis.name in ("target", "memory"):
        raise UsageError(f"--fit {axis.name}: only whole numbers can be searched; write e.g. seq=1k..128k/1k")
    if any(other.name == axis.name for other in others):
        raise UsageError(f"--fit {axis.name}: it is swept, too")
    lines = math.prod(len(other.values) for other in others)
    if lines * max_compilations(len(axis.values)) > MAX_VARIANTS:
        tries = max_compilations(len(axis.values))
        raise UsageError(
            f"--fit {axis.name}: {lines:,} variants with up to {tries} sizes each; it may be {MAX_VARIANTS} in all"
        )
    return Axis(name=axis.name, values=tuple(sorted(axis.values, key=int)), kind="size")
