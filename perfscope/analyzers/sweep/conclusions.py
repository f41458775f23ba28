"""What a sweep says in sentences: how far each choice goes, and which one there is no reason to take."""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.sweep.front import Front, SizeLimit, VariantPoint
from perfscope.model.units import format_bytes

MAX_SENTENCES = 24
"""Sentences; the table has the rest."""


def sentences(front: Front, reaches: Sequence[SizeLimit], points: Sequence[VariantPoint]) -> tuple[str, ...]:
    """All of them, what to leave first."""
    said = [
        *_dominated(front),
        *(_same_sentence(numbers, points, front) for numbers in _always_equal(front, points)),
        *_reached(reaches, points),
        *_counted(points),
    ]
    if len(said) > MAX_SENTENCES:
        said = [*said[:MAX_SENTENCES], f"and {len(said) - MAX_SENTENCES} more like these: the table has them"]
    return tuple(said)


def _dominated(front: Front) -> list[str]:
    """One sentence for all that the same choice dominates at as many sizes."""
    together: dict[tuple[str, int], list[str]] = {}
    for one in front.dominated:
        together.setdefault((one.better, one.groups), []).append(one.worse)
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
    return [tuple(sorted(key)) for key, sizes in together.items() if all(known.get(one) == sizes for one in key)]


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
    for one in reaches:
        together.setdefault(_reach(one, points), []).append(one.rest)
    said = []
    for words, who in together.items():
        several = len([name for name in who if name]) > 1
        for verb, many in (("fits", "fit"), ("does not", "do not"), ("is not", "are not")) if several else ():
            if words.startswith(verb):
                words = many + words[len(verb) :]
                break
        said.append(f"{_joined_names(who)} {words}" if any(who) else words)
    return said


def _reach(one: SizeLimit, points: Sequence[VariantPoint]) -> str:
    memory = "" if one.memory_bytes is None else f" on {format_bytes(one.memory_bytes)}"
    refused = one.first_that_does_not
    if one.fits_to is not None:
        said = f"fits up to {one.axis}={one.fits_to}{memory}"
        if one.fits_to == one.most_tried:
            said += ", the most that was tried"
        elif refused is not None:
            said += f"; {one.axis}={refused} {_needs(one, points)}"
    elif refused is not None and not [value for value in one.not_known if value < refused]:
        said = f"does not fit at {one.axis}={refused}{memory}: it {_needs(one, points)}"
    else:
        said = f"is not known to fit at any {one.axis}"
    if one.fits_again:
        said += f"; it fits again at {_listed(one.axis, one.fits_again)}: the compiler recomputes more there"
    if one.not_known and (one.fits_to is not None or refused is not None):
        said += f"; not known: {_listed(one.axis, one.not_known)}"
    return said


def _needs(one: SizeLimit, points: Sequence[VariantPoint]) -> str:
    for point in points:
        rest = tuple(name for name, _ in point.settings if name != one.axis)
        if point.words(rest) == one.rest and point.value(one.axis) == str(one.first_that_does_not):
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
