"""Matching layers of two recordings: by name, else by the weights that they use, in order."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from perfscope.model.documents.trail import Layer
from perfscope.plugins.parity.document import Recording
from perfscope.plugins.parity.errors import relative_error
from perfscope.plugins.parity.names import parse_name
from perfscope.plugins.parity.translation import Translation

MOST_AXES = 5
"""Arrays with more axes are reshaped but not transposed."""
_PROJECTIONS = ("q", "k", "v")

Align = Callable[[np.ndarray], np.ndarray]


class Match(Struct, frozen=True):
    """A layer: numbers of its recorded layers on each side, joined along their last axis if there are several."""

    a: tuple[int, ...]
    b: tuple[int, ...]


def match_layers(a: Recording, b: Recording, translation: Translation | None) -> tuple[list[Match], list[Match]]:
    """Layers that both have, and layers that both may have.

    For the latter the weights are equal, but it is unknown whether the last op with one of them gives the layer's
    result (as in a norm) or more (as when a bias is added to a residual sum).
    """
    matches: list[Match] = []
    possible: list[Match] = []
    free_a, free_b = set(range(len(a.layers))), set(range(len(b.layers)))

    def pair(keys_a: dict[Hashable, list[tuple[int, ...]]], keys_b: dict[Hashable, list[tuple[int, ...]]]) -> None:
        for key in keys_a.keys() & keys_b.keys():
            for one, other in zip(keys_a[key], keys_b[key], strict=False):
                matches.append(Match(one, other))
                free_a.difference_update(one)
                free_b.difference_update(other)

    if a.framework == b.framework:
        pair(_by_name(a.layers, free_a, exact=True), _by_name(b.layers, free_b, exact=True))
    if translation is not None:
        known = [translation.canonical(of_a=True), translation.canonical(of_a=False)]
        group = _groups([(a.layers, known[0]), (b.layers, known[1])])
        runs_a, runs_b = _runs(a.layers, free_a, known[0], group), _runs(b.layers, free_b, known[1], group)
        for key in runs_a.keys() & runs_b.keys():
            for run_a, run_b in zip(runs_a[key], runs_b[key], strict=False):
                matches.append(Match(_value(run_a, a.layers), _value(run_b, b.layers)))
                free_a.difference_update(run_a)
                free_b.difference_update(run_b)
        possible = [Match(one, other) for one, other in _loose(runs_a, runs_b, a.layers)]
        possible += [Match(other, one) for one, other in _loose(runs_b, runs_a, b.layers)]
    pair(_by_name(a.layers, free_a, exact=False), _by_name(b.layers, free_b, exact=False))
    return matches, possible


def unmatched(
    a: Recording, b: Recording, matches: Sequence[Match], translation: Translation | None
) -> list[tuple[str, ...]]:
    """Names of unmatched layers of each side, without ops that lead to a match, such as a product before its bias.

    For two frameworks only layers with weights are named, because each divides a model into modules differently.
    """
    sides = ((a.layers, translation.canonical(of_a=True) if translation is not None else {}),
             (b.layers, translation.canonical(of_a=False) if translation is not None else {}))  # fmt: skip
    numbers = ({n for match in matches for n in match.a}, {n for match in matches for n in match.b})
    covered = {
        weight
        for (layers, known), matched in zip(sides, numbers, strict=True)
        for number in matched
        for weight in plain_weights(layers[number], known)
    }
    left = []
    for (layers, known), matched in zip(sides, numbers, strict=True):
        lone = [layer for number, layer in enumerate(layers) if number not in matched]
        used = [(layer, plain_weights(layer, known)) for layer in lone]
        left.append(
            tuple(
                layer.name
                for layer, weights in used
                if not (weights and weights <= covered) and (layer.weights or a.framework == b.framework)
            )
        )
    return left


def _by_name(layers: Sequence[Layer], free: set[int], *, exact: bool) -> dict[Hashable, list[tuple[int, ...]]]:
    """Name -> its layers; names in words, and only unambiguous ones, unless ``exact``."""
    found: dict[Hashable, list[tuple[int, ...]]] = defaultdict(list)
    for number in sorted(free):
        name = parse_name(layers[number].name)
        found[layers[number].name if exact else (name.words, name.role, name.indices)].append((number,))
    return found if exact else {key: numbers for key, numbers in found.items() if len(numbers) == 1}


def _groups(sides: Sequence[tuple[Sequence[Layer], dict[str, frozenset[str]]]]) -> Callable[[str], str]:
    """Plain weight -> name of the group of weights that layers of either side use together."""
    parent: dict[str, str] = {}

    def find(weight: str) -> str:
        while parent.setdefault(weight, weight) != weight:
            weight = parent[weight]
        return weight

    for layers, known in sides:
        for layer in layers:
            weights = sorted(plain_weights(layer, known))
            for one, other in itertools.pairwise(weights):
                parent[find(other)] = find(one)
    return find


def plain_weights(layer: Layer, known: dict[str, frozenset[str]]) -> set[str]:
    """Weights that a layer uses, by the names of the plain side."""
    return {
        plain for name in layer.weights for plain in known.get(name, known.get(name.partition("[")[0], frozenset()))
    }


def _runs(
    layers: Sequence[Layer], free: set[int], known: dict[str, frozenset[str]], group: Callable[[str], str]
) -> dict[Hashable, list[list[int]]]:
    """Weights of a layer -> its uses, each a chain of consecutive ops, or all projections together."""
    chains: dict[str, list[list[int]]] = defaultdict(list)
    for number in sorted(free):
        layer = layers[number]
        plain = plain_weights(layer, known)
        if not plain:
            continue
        uses = chains[min(map(group, plain))]
        last = uses[-1] if uses else []
        other = bool(last) and _projection(layer) is not None and _projection(layers[last[-1]]) is not None
        seen = {weight for index in last for weight in layers[index].weights}
        if last and (layer.follows == last[-1] or (other and not seen & set(layer.weights))):
            last.append(number)
        else:
            uses.append([number])
    runs: dict[Hashable, list[list[int]]] = defaultdict(list)
    for run in itertools.chain(*chains.values()):
        runs[frozenset().union(*(plain_weights(layers[number], known) for number in run))].append(run)
    return runs


def _loose(
    whole: dict[Hashable, list[list[int]]], parts: dict[Hashable, list[list[int]]], layers: Sequence[Layer]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Layers of one side with several weights that the other side uses separately: (the layer, the last use there)."""
    for key, runs in whole.items():
        inside = {part: uses for part, uses in parts.items() if part < key}  # type: ignore[operator]
        complete = frozenset().union(*inside) == key  # type: ignore[arg-type]
        if key not in parts and complete and len(runs) == 1 and all(len(uses) == 1 for uses in inside.values()):
            yield _value(runs[0], layers), (max(uses[0][-1] for uses in inside.values()),)


def _projection(layer: Layer) -> int | None:
    """0 to 2 for a query, key or value."""
    words = parse_name(layer.weights[0]).words
    return _PROJECTIONS.index(words[-1]) if words and words[-1] in _PROJECTIONS else None


def _value(run: list[int], layers: Sequence[Layer]) -> tuple[int, ...]:
    """The last layer of each projection in a run, in the order query, key, value; otherwise the last of all."""
    last = {projection: number for number in run if (projection := _projection(layers[number])) is not None}
    return tuple(last[index] for index in sorted(last)) if len(last) > 1 else (run[-1],)


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Several arrays as one along their last axis."""
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.asarray(array) for array in arrays], axis=-1)


def one_batch(arrays: Sequence[np.ndarray], *, add: bool) -> tuple[np.ndarray, ...]:
    """The same values with the same batch: one side may compute a value, as of positions, once for all rows.

    It is repeated for them, or, for gradients (``add``), those of the rows are added. Arrays whose shapes differ in
    more than axes of length 1 are unchanged.
    """
    axes = max(array.ndim for array in arrays)
    padded = [array.reshape((1,) * (axes - array.ndim) + array.shape) for array in arrays]
    lengths = [{array.shape[axis] for array in padded} for axis in range(axes)]
    if len({array.size for array in arrays}) == 1 or any(len(found - {1}) > 1 for found in lengths):
        return tuple(arrays)
    if not add:
        shape = tuple(max(found) for found in lengths)
        return tuple(np.broadcast_to(array, shape) for array in padded)
    once = tuple(axis for axis, found in enumerate(lengths) if len(found) > 1)
    return tuple(array.sum(once, keepdims=True) for array in padded)


def alignment(array: np.ndarray, reference: np.ndarray, enough: float) -> Align:
    """Transpose ``array`` to the reference's layout: the order of axes with the smallest error.

    Arrays of equal shape are unchanged. ``enough``: an error that ends the search.
    """
    shape = reference.shape
    if array.shape == shape or array.size != reference.size:
        return lambda value: value
    best: Align = lambda value: value.reshape(shape)  # noqa: E731
    least = relative_error(best(array), reference)
    for order in _orders(array.ndim):
        if least is not None and least <= enough:
            break
        align: Align = lambda value, order=order: value.transpose(order).reshape(shape)  # type: ignore[misc]  # noqa: E731
        error = relative_error(align(array), reference)
        if error is not None and (least is None or error < least):
            best, least = align, error
    return best


def _orders(axes: int) -> Iterator[tuple[int, ...]]:
    return itertools.permutations(range(axes)) if axes <= MOST_AXES else iter(())
