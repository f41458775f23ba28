"""Comparison of variants: groups of comparable variants, and the Pareto front of each. Exact: no tolerance, ties stay.

Variants that do the same work form a group: they differ in choices only, never in a size. An axis is a size if the user
declares it, or if its values are whole numbers and the bytes of the step's inputs change along it; a block size leaves
these unchanged, a batch or a length does not. Machines (``target``, ``memory``) also separate groups, unless the user
declares them a choice.

A variant dominates another if it is not slower at both ends of its modelled time, needs no more memory at its peak,
and is better in one of the three. The front of a group are the variants that are not dominated; equal ones are all on
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from perfscope.model.units import format_bytes
from perfscope.plugins.ahead.sweep.document import AxisKind, SweptDominance, SweptReach, SweptVariant

MACHINES = ("target", "memory")

MAX_SENTENCES = 24
"""Most sentences; the table has the rest."""


class Swept(Struct, frozen=True, kw_only=True):
    """An axis as requested."""

    name: str
    values: tuple[str, ...]
    kind: str | None = None
    """``size`` or ``choice`` if the user declared it."""


class Front(Struct, frozen=True, kw_only=True):
    """The compared sweep."""

    kinds: Mapping[str, AxisKind]
    """Axis -> its kind."""
    on_front: frozenset[int]
    """Numbers of points; empty if there was nothing to choose."""
    beaten_by: Mapping[int, tuple[int, ...]]
    """Number of a point -> points of its group that dominate it, those on the front first."""
    same: tuple[tuple[int, ...], ...]
    """Points of one group that are the same program, or have equal time and peak."""
    dominated: tuple[SweptDominance, ...]

    @property
    def sizes(self) -> tuple[str, ...]:
        """Axes along which the work changes."""
        return tuple(name for name, kind in self.kinds.items() if kind == "size")

    @property
    def apart(self) -> tuple[str, ...]:
        """Axes along which variants are not compared: sizes and machines."""
        return tuple(name for name, kind in self.kinds.items() if kind != "choice")

    @property
    def choices(self) -> tuple[str, ...]:
        """The other axes."""
        return tuple(name for name, kind in self.kinds.items() if kind == "choice")


def pareto_front(axes: Sequence[Swept], points: Sequence[SweptVariant]) -> Front:
    """The fronts of all groups. Points that do not fit, or whose time or peak is unknown, are not on a front."""
    kinds = {axis.name: kind_of(axis, points) for axis in axes}
    apart = tuple(name for name, kind in kinds.items() if kind != "choice")
    choices = tuple(name for name, kind in kinds.items() if kind == "choice")
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for number, point in enumerate(points):
        if point.judged and point.state in ("fits", "compiled"):
            groups.setdefault(tuple(point.settings.get(name) for name in apart), []).append(number)
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


def dominates(point: SweptVariant, other: SweptVariant) -> bool:
    """Whether ``point`` is nowhere worse than ``other`` and somewhere better; False if a value is unknown."""
    costs = _costs(point), _costs(other)
    if any(cost is None for one in costs for cost in one):
        return False
    return costs[0] != costs[1] and all(mine <= its for mine, its in zip(*costs, strict=True))  # type: ignore[operator]


def _costs(point: SweptVariant) -> tuple[int | None, int | None, int | None]:
    """Both ends of the modelled time, and the peak."""
    return point.step_low_ns, point.step_high_ns, point.peak_bytes


def kind_of(axis: Swept, points: Sequence[SweptVariant]) -> AxisKind:
    """The kind declared by the user, or derived from the compiled programs."""
    if axis.kind is not None:
        return "size" if axis.kind == "size" else "choice"
    if axis.name in MACHINES:
        return "machine"
    if not all(value.isdigit() for value in axis.values):
        return "choice"
    return "size" if _changes_work(axis, points) else "choice"


def _changes_work(axis: Swept, points: Sequence[SweptVariant]) -> bool:
    rest: dict[tuple[tuple[str, str], ...], set[tuple[int, int]]] = {}
    for point in points:
        if point.inputs is not None:
            key = tuple(setting for setting in point.settings.items() if setting[0] != axis.name)
            rest.setdefault(key, set()).add(point.inputs)
    seen = [inputs for inputs in rest.values() if inputs]
    known = sum(1 for point in points if point.inputs is not None)
    # if no two variants along the axis are known, whole numbers are taken as sizes, so nothing is compared
    return known <= len(seen) or any(len(inputs) > 1 for inputs in seen)


def _indistinguishable(points: Sequence[SweptVariant], members: Sequence[int]) -> list[tuple[int, ...]]:
    result: dict[object, list[int]] = {}
    for number in members:
        result.setdefault(_costs(points[number]), []).append(number)
    return [tuple(numbers) for numbers in result.values() if len(numbers) > 1]


def _dominated(
    points: Sequence[SweptVariant], choices: tuple[str, ...], apart: tuple[str, ...]
) -> tuple[SweptDominance, ...]:
    """Choices that one other choice dominates at every size at which both are known, each with its strongest reason.

    A choice that fits, or is known, at a size at which the better one is not, is not dominated by it.
    """
    by_choice: dict[str, dict[str, SweptVariant]] = {}
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
                result.append(SweptDominance(worse=worse, better=better, sizes=len(known)))
    beaten = {dominance.worse for dominance in result}
    first: dict[str, SweptDominance] = {}
    for dominance in sorted(result, key=lambda dominance: dominance.better in beaten):
        first.setdefault(dominance.worse, dominance)
    return tuple(first.values())


# The largest size at which each choice fits, among those tried.


def size_limits(sizes: Sequence[str], points: Sequence[SweptVariant]) -> tuple[SweptReach, ...]:
    """One per size axis and fixed setting, in the order of the points."""
    result = []
    for axis in sizes:
        lines: dict[str, list[SweptVariant]] = {}
        for point in points:
            rest = tuple(name for name in point.settings if name != axis)
            lines.setdefault(point.words(rest), []).append(point)
        result += [_size_limit(axis, rest, line) for rest, line in lines.items() if len(line) > 1]
    return tuple(result)


def _size_limit(axis: str, rest: str, points: Sequence[SweptVariant]) -> SweptReach:
    line = sorted(((int(point.settings.get(axis) or 0), point) for point in points), key=lambda item: item[0])
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
    return SweptReach(
        held=rest,
        axis=axis,
        memory_bytes=memory,
        fits_to=fits_to,
        first_that_does_not=refused,
        not_known=tuple(unknown),
        fits_again=tuple(again),
        most_tried=line[-1][0],
    )


# Conclusions of a sweep in sentences: the limit of each choice, and choices that should not be taken.


def sentences(front: Front, reaches: Sequence[SweptReach], points: Sequence[SweptVariant]) -> tuple[str, ...]:
    """All sentences, the choices to avoid first."""
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
    """One sentence for all choices dominated by the same one at equally many sizes."""
    together: dict[tuple[str, int], list[str]] = {}
    for dominance in front.dominated:
        together.setdefault((dominance.better, dominance.sizes), []).append(dominance.worse)
    kinds = " and ".join(front.apart)
    sentences = []
    for (better, groups), worse in together.items():
        if not kinds:
            where = ""
        elif groups == 1:
            where = f" at the one {kinds} at which both are known"
        else:
            where = f" at each of the {groups} {kinds} at which {'it is' if len(worse) == 1 else 'they are'} known"
        verb = "is" if len(worse) == 1 else "are"
        sentences.append(f"{_joined_names(worse)} {verb} dominated by {better}: neither quicker nor leaner{where}")
    return sentences


def _joined_names(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _always_equal(front: Front, points: Sequence[SweptVariant]) -> list[tuple[str, ...]]:
    """Choices that are equal at every size at which one of them is known."""
    together: dict[frozenset[str], set[str]] = {}
    for numbers in front.same:
        key = frozenset(points[number].words(front.choices) for number in numbers)
        together.setdefault(key, set()).add(points[numbers[0]].words(front.apart))
    known: dict[str, set[str]] = {}
    for point in points:
        if point.judged and point.state in ("fits", "compiled"):
            known.setdefault(point.words(front.choices), set()).add(point.words(front.apart))
    return [tuple(sorted(key)) for key, sizes in together.items() if all(known.get(text) == sizes for text in key)]


def _same_sentence(choices: tuple[str, ...], points: Sequence[SweptVariant], front: Front) -> str:
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


def _reached(reaches: Sequence[SweptReach], points: Sequence[SweptVariant]) -> list[str]:
    """One sentence for all choices with the same statement."""
    together: dict[str, list[str]] = {}
    for reach in reaches:
        together.setdefault(_reach(reach, points), []).append(reach.held)
    sentences = []
    for words, who in together.items():
        several = len([name for name in who if name]) > 1
        for verb, many in (("fits", "fit"), ("does not", "do not"), ("is not", "are not")) if several else ():
            if words.startswith(verb):
                words = many + words[len(verb) :]
                break
        sentences.append(f"{_joined_names(who)} {words}" if any(who) else words)
    return sentences


def _reach(item: SweptReach, points: Sequence[SweptVariant]) -> str:
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


def _needs(item: SweptReach, points: Sequence[SweptVariant]) -> str:
    for point in points:
        rest = tuple(name for name in point.settings if name != item.axis)
        if point.words(rest) == item.held and point.settings.get(item.axis) == str(item.first_that_does_not):
            return "does not" if point.peak_bytes is None else f"needs {format_bytes(point.peak_bytes)}"
    return "does not"


def _listed(axis: str, values: Sequence[int]) -> str:
    return ", ".join(f"{axis}={value}" for value in values)


def _counted(points: Sequence[SweptVariant]) -> list[str]:
    sentences = []
    failed = [point for point in points if point.state == "failed"]
    if failed:
        few = "variant was" if len(failed) == 1 else "variants were"
        sentences.append(f"{len(failed)} of {len(points)} {few} not compiled: the table has the reason")
    missing = sum(point.state == "not reached" for point in points)
    if missing:
        sentences.append(f"{missing} of {len(points)} variants were not reached; the same command goes on with them")
    return sentences
