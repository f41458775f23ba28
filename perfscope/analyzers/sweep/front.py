"""Which variants are held against each other, and which of those nothing beats. Exact: no tolerance, ties stay.

Variants that do the same work are one group: they differ in choices only, never in a size. An axis is a size where
the user says so, or where its values are whole numbers and the bytes of the step's inputs differ along it; a block
size leaves them alone, a batch or a length does not. Machines (``target``, ``memory``) are groups of their own, too,
unless the user calls them a choice.

One variant dominates another if it is no slower at both ends of its modelled time, needs no more memory at its peak,
and is better in one of the three. The front of a group is what nothing dominates; of equals all are on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from perfscope.analyzers.predict.spans import Range
from perfscope.model.documents.sweep import AxisKind, VariantState
from perfscope.model.units import format_bytes


class VariantPoint(Struct, frozen=True, kw_only=True):
    """A variant with what was modelled of it. Bytes are of one device."""

    settings: tuple[tuple[str, str], ...]
    """(axis, value), in the order of the axes."""
    state: VariantState
    target: str = ""
    """``8 H100 SXM``."""
    step: Range | None = None
    """Modelled time of one step; None where the compiler refused it, or no time could be modelled."""
    peak_bytes: int | None = None
    """The most that one of its programs needs at once."""
    memory_bytes: int | None = None
    reason: str = ""
    """Why it failed, or what is not known of it."""
    inputs: tuple[int, int] | None = None
    """Bytes of the step's arguments and outputs: variants that differ in them do not do the same."""
    programs: tuple[str, ...] = ()
    """Names of the programs that the step was taken for."""
    fingerprints: tuple[str, ...] = ()
    """Of them: the same program has the same."""
    folder: str = ""
    """Run folder, relative to the sweep's; empty where there is none."""
    seconds: float | None = None
    """To compile it."""
    host_bytes: int | None = None
    """Memory of this machine that compiling took."""
    reused: bool = False

    @property
    def judged(self) -> bool:
        """Whether time and peak are known."""
        return self.step is not None and self.peak_bytes is not None

    def value(self, axis: str) -> str | None:
        """Its value of an axis."""
        return dict(self.settings).get(axis)

    def words(self, axes: tuple[str, ...] | None = None) -> str:
        """``policy=dots seq=1024``, of those axes only."""
        return " ".join(f"{name}={value}" for name, value in self.settings if axes is None or name in axes)


MACHINES = ("target", "memory")


class Swept(Struct, frozen=True, kw_only=True):
    """An axis as it was asked for."""

    name: str
    values: tuple[str, ...]
    kind: str | None = None
    """``size`` or ``choice`` where the user said so."""


class Dominance(Struct, frozen=True, kw_only=True):
    """A choice that another beats wherever both are known."""

    worse: str
    """``policy=full``."""
    better: str
    groups: int
    """Sizes at which both are known; the better one dominates at each of them."""


class Front(Struct, frozen=True, kw_only=True):
    """A sweep, compared."""

    kinds: Mapping[str, AxisKind]
    """Axis -> what it is."""
    on_front: frozenset[int]
    """Numbers of points; none where nothing was left to choose."""
    beaten_by: Mapping[int, tuple[int, ...]]
    """Number of a point -> those of its group that dominate it, those of the front first."""
    same: tuple[tuple[int, ...], ...]
    """Points of one group that are the same program, or cannot be told apart by time and peak."""
    dominated: tuple[Dominance, ...]

    @property
    def sizes(self) -> tuple[str, ...]:
        """Axes along which the work changes."""
        return tuple(name for name, kind in self.kinds.items() if kind == "size")

    @property
    def apart(self) -> tuple[str, ...]:
        """Axes along which variants are not held against each other: sizes and machines."""
        return tuple(name for name, kind in self.kinds.items() if kind != "choice")

    @property
    def choices(self) -> tuple[str, ...]:
        """The others."""
        return tuple(name for name, kind in self.kinds.items() if kind == "choice")


def pareto_front(axes: Sequence[Swept], points: Sequence[VariantPoint]) -> Front:
    """The fronts of all groups. Points that do not fit, or whose time or peak is not known, are on none."""
    kinds = {axis.name: kind_of(axis, points) for axis in axes}
    apart = tuple(name for name, kind in kinds.items() if kind != "choice")
    choices = tuple(name for name, kind in kinds.items() if kind == "choice")
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for number, point in enumerate(points):
        if point.judged and point.state in ("fits", "compiled"):
            groups.setdefault(tuple(point.value(name) for name in apart), []).append(number)
    beaten: dict[int, tuple[int, ...]] = {}
    for members in groups.values():
        for number in members:
            beaten[number] = tuple(member for member in members if dominates(points[member], points[number]))
    front = frozenset(number for number, by in beaten.items() if not by and choices)
    ordered = {
        number: tuple(sorted(by, key=lambda value: (value not in front, value))) for number, by in beaten.items() if by
    }
    return Front(
        kinds=kinds,
        on_front=front,
        beaten_by=ordered,
        same=tuple(same for members in groups.values() for same in _indistinguishable(points, members)),
        dominated=_dominated(points, choices, apart),
    )


def dominates(point: VariantPoint, other: VariantPoint) -> bool:
    """Whether ``one`` is nowhere worse than ``other`` and somewhere better; False where something is not known."""
    if point.step is None or other.step is None or point.peak_bytes is None or other.peak_bytes is None:
        return False
    pairs = (
        (point.step.low, other.step.low),
        (point.step.high, other.step.high),
        (point.peak_bytes, other.peak_bytes),
    )
    return all(mine <= its for mine, its in pairs) and any(mine < its for mine, its in pairs)


def kind_of(axis: Swept, points: Sequence[VariantPoint]) -> AxisKind:
    """What the user said, or what the compiled programs say."""
    if axis.kind is not None:
        return "size" if axis.kind == "size" else "choice"
    if axis.name in MACHINES:
        return "machine"
    if not all(value.isdigit() for value in axis.values):
        return "choice"
    return "size" if _changes_work(axis, points) else "choice"


def _changes_work(axis: Swept, points: Sequence[VariantPoint]) -> bool:
    rest: dict[tuple[tuple[str, str], ...], set[tuple[int, int]]] = {}
    for point in points:
        if point.inputs is not None:
            key = tuple(setting for setting in point.settings if setting[0] != axis.name)
            rest.setdefault(key, set()).add(point.inputs)
    seen = [inputs for inputs in rest.values() if inputs]
    known = sum(1 for point in points if point.inputs is not None)
    # where no two variants along it are known, whole numbers are taken for sizes: nothing is held against each other
    return known <= len(seen) or any(len(inputs) > 1 for inputs in seen)


def _indistinguishable(points: Sequence[VariantPoint], members: Sequence[int]) -> list[tuple[int, ...]]:
    result: dict[object, list[int]] = {}
    for number in members:
        point = points[number]
        result.setdefault((point.step, point.peak_bytes), []).append(number)
    return [tuple(numbers) for numbers in result.values() if len(numbers) > 1]


def _dominated(
    points: Sequence[VariantPoint], choices: tuple[str, ...], apart: tuple[str, ...]
) -> tuple[Dominance, ...]:
    """Choices that one other choice dominates at every size at which both are known, the widest reason of each.

    A choice that fits where the better one does not, or is known where that is not, is not dominated by it.
    """
    by_choice: dict[str, dict[str, VariantPoint]] = {}
    for point in points:
        by_choice.setdefault(point.words(choices), {})[point.words(apart)] = point
    result = []
    for worse, mine in by_choice.items():
        known = {size: point for size, point in mine.items() if point.judged and point.state in ("fits", "compiled")}
        if not worse or not known:
            continue
        for better, its in by_choice.items():
            if better != worse and all(
                size in its and its[size].state in ("fits", "compiled") and dominates(its[size], point)
                for size, point in known.items()
            ):
                result.append(Dominance(worse=worse, better=better, groups=len(known)))
    beaten = {dominance.worse for dominance in result}
    first: dict[str, Dominance] = {}
    for dominance in sorted(result, key=lambda dominance: dominance.better in beaten):
        first.setdefault(dominance.worse, dominance)
    return tuple(first.values())


# Up to which size each choice fits, as far as was tried.


class SizeLimit(Struct, frozen=True, kw_only=True):
    """How far one choice goes along one size, all else held."""

    rest: str
    """``policy=dots``: what is held; empty where the size is all that is swept."""
    axis: str
    memory_bytes: int | None
    fits_to: int | None
    """The largest value up to which every value that was tried fits; None if not even the least does."""
    first_that_does_not: int | None
    """None where all that were judged fit."""
    not_known: tuple[int, ...]
    """Values that failed or were not reached, in order: what lies beyond the first of them is not claimed."""
    fits_again: tuple[int, ...]
    """Values that fit though a smaller one does not."""
    most_tried: int


def size_limits(sizes: Sequence[str], points: Sequence[VariantPoint]) -> tuple[SizeLimit, ...]:
    """One for each size axis and everything that is held beside it, in the order of the points."""
    result = []
    for axis in sizes:
        lines: dict[str, list[VariantPoint]] = {}
        for point in points:
            rest = tuple(name for name, _ in point.settings if name != axis)
            lines.setdefault(point.words(rest), []).append(point)
        result += [_size_limit(axis, rest, line) for rest, line in lines.items() if len(line) > 1]
    return tuple(result)


def _size_limit(axis: str, rest: str, points: Sequence[VariantPoint]) -> SizeLimit:
    line = sorted(((int(point.value(axis) or 0), point) for point in points), key=lambda item: item[0])
    fits_to: int | None = None
    refused: int | None = None
    unknown: list[int] = []
    again: list[int] = []
    for value, point in line:
        if point.state == "fits":
            if refused is not None:
                again.append(value)
            elif not unknown:
                fits_to = value
        elif point.state == "does not fit":
            refused = value if refused is None else refused
        else:
            unknown.append(value)
    memory = next((point.memory_bytes for _, point in line if point.memory_bytes is not None), None)
    return SizeLimit(
        rest=rest,
        axis=axis,
        memory_bytes=memory,
        fits_to=fits_to,
        first_that_does_not=refused,
        not_known=tuple(unknown),
        fits_again=tuple(again),
        most_tried=line[-1][0],
    )


# What a sweep says in sentences: how far each choice goes, and which one there is no reason to take.


MAX_SENTENCES = 24
"""Sentences; the table has the rest."""


def sentences(front: Front, reaches: Sequence[SizeLimit], points: Sequence[VariantPoint]) -> tuple[str, ...]:
    """All of them, what to leave first."""
    texts = [
        *_dominated_sentences(front),
        *(_same_sentence(numbers, points, front) for numbers in _always_equal(front, points)),
        *_reached(reaches, points),
        *_counted(points),
    ]
    if len(texts) > MAX_SENTENCES:
        texts = [*texts[:MAX_SENTENCES], f"and {len(texts) - MAX_SENTENCES} more like these: the table has them"]
    return tuple(texts)


def _dominated_sentences(front: Front) -> list[str]:
    """One sentence for all that the same choice dominates at as many sizes."""
    together: dict[tuple[str, int], list[str]] = {}
    for dominance in front.dominated:
        together.setdefault((dominance.better, dominance.groups), []).append(dominance.worse)
    kinds = " and ".join(front.apart)
    said = []
    for (better, groups), worse in together.items():
        if not kinds:
            where = ""
        elif groups == 1:
            where = f" at the one {kinds} at which both are known"
        else:
            where = f" at each of the {groups} {kinds} at which {'it is' if len(worse) == 1 else 'they are'} known"
        verb = "is" if len(worse) == 1 else "are"
        said.append(f"{_joined_names(worse)} {verb} dominated by {better}: neither quicker nor leaner{where}")
    return said


def _joined_names(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _always_equal(front: Front, points: Sequence[VariantPoint]) -> list[tuple[str, ...]]:
    """Choices that cannot be told apart at any size at which one of them is known."""
    together: dict[frozenset[str], set[str]] = {}
    for numbers in front.same:
        key = frozenset(points[number].words(front.choices) for number in numbers)
        together.setdefault(key, set()).add(points[numbers[0]].words(front.apart))
    known: dict[str, set[str]] = {}
    for point in points:
        if point.judged and point.state in ("fits", "compiled"):
            known.setdefault(point.words(front.choices), set()).add(point.words(front.apart))
    return [tuple(sorted(key)) for key, sizes in together.items() if all(known.get(text) == sizes for text in key)]


def _same_sentence(choices: tuple[str, ...], points: Sequence[VariantPoint], front: Front) -> str:
    prints = {
        point.words(front.apart): {
            other.fingerprints
            for other in points
            if other.words(front.choices) in choices and other.words(front.apart) == point.words(front.apart)
        }
        for point in points
        if point.words(front.choices) in choices and point.judged
    }
    same = all(len(found) == 1 and all(next(iter(found))) and next(iter(found)) for found in prints.values())
    what = "compile to the same program" if same else "have the same modelled time and the same peak"
    return f"{' and '.join(choices)} {what}"


def _reached(reaches: Sequence[SizeLimit], points: Sequence[VariantPoint]) -> list[str]:
    """One sentence for all choices of which the same is to be said."""
    together: dict[str, list[str]] = {}
    for reach in reaches:
        together.setdefault(_reach(reach, points), []).append(reach.rest)
    said = []
    for words, who in together.items():
        several = len([name for name in who if name]) > 1
        for verb, many in (("fits", "fit"), ("does not", "do not"), ("is not", "are not")) if several else ():
            if words.startswith(verb):
                words = many + words[len(verb) :]
                break
        said.append(f"{_joined_names(who)} {words}" if any(who) else words)
    return said


def _reach(item: SizeLimit, points: Sequence[VariantPoint]) -> str:
    memory = "" if item.memory_bytes is None else f" on {format_bytes(item.memory_bytes)}"
    refused = item.first_that_does_not
    if item.fits_to is not None:
        text = f"fits up to {item.axis}={item.fits_to}{memory}"
        if item.fits_to == item.most_tried:
            text += ", the most that was tried"
        elif refused is not None:
            text += f"; {item.axis}={refused} {_needs(item, points)}"
    elif refused is not None and not [value for value in item.not_known if value < refused]:
        text = f"does not fit at {item.axis}={refused}{memory}: it {_needs(item, points)}"
    else:
        text = f"is not known to fit at any {item.axis}"
    if item.fits_again:
        text += f"; it fits again at {_listed(item.axis, item.fits_again)}: the compiler recomputes more there"
    if item.not_known and (item.fits_to is not None or refused is not None):
        text += f"; not known: {_listed(item.axis, item.not_known)}"
    return text


def _needs(item: SizeLimit, points: Sequence[VariantPoint]) -> str:
    for point in points:
        rest = tuple(name for name, _ in point.settings if name != item.axis)
        if point.words(rest) == item.rest and point.value(item.axis) == str(item.first_that_does_not):
            return "does not" if point.peak_bytes is None else f"needs {format_bytes(point.peak_bytes)}"
    return "does not"


def _listed(axis: str, values: Sequence[int]) -> str:
    return ", ".join(f"{axis}={value}" for value in values)


def _counted(points: Sequence[VariantPoint]) -> list[str]:
    said = []
    failed = [point for point in points if point.state == "failed"]
    if failed:
        few = "variant was" if len(failed) == 1 else "variants were"
        said.append(f"{len(failed)} of {len(points)} {few} not compiled: the table has the reason")
    missing = sum(point.state == "not reached" for point in points)
    if missing:
        said.append(f"{missing} of {len(points)} variants were not reached; the same command goes on with them")
    return said
