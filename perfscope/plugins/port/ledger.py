"""The ledger of two programs: their pieces summed by layer and phase, and what is left."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfscope.model.errors import DataError
from perfscope.plugins.port.document import SCHEMA, Amounts, Ledger, Row, Side, Unpaired, checked
from perfscope.plugins.port.labels import Label, Layer, labels_of
from perfscope.plugins.port.layers import One, Pair, layers_of, pair_layers, singles
from perfscope.plugins.port.pieces import PHASES, Phase, Piece, Program

NO_LAYER = "outside of layers"
ALL_WEIGHTS = "all weights"
BEFORE = "held from before the step"
NOT_IN_OPS = "time outside of ops"
_AMOUNTS = ("flops", "bytes", "launches")


class Key(Struct, frozen=True, order=True):
    """A row: the number of the pair (after all pairs: the rest), the core of it, and its phase."""

    pair: int
    core: bool
    phase: int


class Share(Struct, frozen=True):
    """A part of a piece: turn ``turn`` of ``turns`` that belong to different layers."""

    key: Key
    turn: int
    turns: int

    def of(self, amount: int) -> int:
        """Its part of an amount; all parts add up to the whole."""
        return amount * (self.turn + 1) // self.turns - amount * self.turn // self.turns


class Placed(Struct, frozen=True, kw_only=True):
    """A program with the rows of its pieces."""

    program: Program
    layers: tuple[Layer, ...]
    labels: tuple[Label | None, ...]
    shares: tuple[tuple[Share, ...], ...]
    """By piece."""

    def keys(self, numbers: Sequence[int]) -> set[Key]:
        """Rows of some pieces."""
        return {share.key for number in numbers for share in self.shares[number]}


class Both(Struct, frozen=True, kw_only=True):
    """Two programs and the pairs of their layers."""

    pairs: tuple[Pair, ...]
    a: Placed
    b: Placed
    names: Mapping[tuple[int, bool], str] = {}
    """Name of a row by pair and core."""

    def name(self, key: Key) -> str:
        """Name of a row."""
        if key.pair < len(self.pairs):
            return self.names[key.pair, key.core]
        return ALL_WEIGHTS if PHASES[key.phase] == "optimizer" else NO_LAYER


def place(a: Program, b: Program) -> Both:
    """Pair the layers of two programs and place their pieces. ``DataError``: a side has no layers."""
    layers = layers_of(a), layers_of(b)
    for program, found in zip((a, b), layers, strict=True):
        if not found:
            raise DataError(f"{program.path}: no layers: no op of its step reads a weight")
    ones = singles(layers[0]), singles(layers[1])
    pairs = tuple(pair_layers(*ones))
    if not any(pair.a and pair.b for pair in pairs):
        sizes = [f"{side[0].name} of {program.path} has {side[0].elements:,} elements"
                 for side, program in zip(ones, (a, b), strict=True)]  # fmt: skip
        raise DataError(f"no layer of one side has the size of a layer of the other: {', '.join(sizes)}")
    return _named(
        Both(
            pairs=pairs,
            a=_placed(a, layers[0], pairs, [pair.a for pair in pairs]),
            b=_placed(b, layers[1], pairs, [pair.b for pair in pairs]),
        )
    )


def _placed(
    program: Program, layers: Sequence[Layer], pairs: Sequence[Pair], mine: Sequence[tuple[One, ...]]
) -> Placed:
    ranks = [0.0] * len(layers)
    pair_of: dict[tuple[int, int], int] = {}
    for number in range(len(pairs) - 1, -1, -1):
        for one in mine[number]:
            ranks[one.layer] = float(number)
            pair_of[one.layer, one.turn] = number
    labels = labels_of(program, layers, ranks)
    shares = tuple(
        _shares(piece, label, layers, pair_of, len(pairs)) for piece, label in zip(program.pieces, labels, strict=True)
    )
    return Placed(program=program, layers=tuple(layers), labels=tuple(labels), shares=shares)


def _shares(
    piece: Piece, label: Label | None, layers: Sequence[Layer], pair_of: Mapping[tuple[int, int], int], rest: int
) -> tuple[Share, ...]:
    phase = PHASES.index(piece.phase)
    if label is None:
        return (Share(Key(rest, False, phase), 0, 1),)
    turns = layers[label.layer].stacked
    return tuple(Share(Key(pair_of[label.layer, turn], label.core, phase), turn, turns) for turn in range(turns))


def ledger_of(both: Both) -> Ledger:
    """The rows of both sides. The differences are added by the caller."""
    sums = _sums(both.a), _sums(both.b)
    rows = [
        Row(layer=both.name(key), phase=PHASES[key.phase], a=sums[0].get(key), b=sums[1].get(key))
        for key in sorted(sums[0].keys() | sums[1].keys())
    ]
    rows += list(_remainder(both))
    sides = [_side(placed) for placed in (both.a, both.b)]
    return checked(Ledger(schema=SCHEMA, a=sides[0], b=sides[1], rows=tuple(rows), unpaired=tuple(_unpaired(both))))


def _sums(placed: Placed) -> dict[Key, Amounts]:
    totals: dict[Key, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    best: dict[Key, tuple[int, int, Piece]] = {}
    dtypes: dict[Key, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    timed = any(piece.time_ns is not None for piece in placed.program.pieces)
    for piece, shares in zip(placed.program.pieces, placed.shares, strict=True):
        for share in shares:
            total = totals[share.key]
            for name in _AMOUNTS:
                total[name] += share.of(getattr(piece, name))
            total["recompute_flops"] += share.of(piece.flops) if piece.recompute else 0
            total["time_ns"] += share.of(piece.time_ns or 0)
            if piece.dtype:
                dtypes[share.key][piece.dtype] += share.of(piece.flops)
            size = (piece.flops, piece.bytes, piece)
            if piece.line is not None and (share.key not in best or size[:2] > best[share.key][:2]):
                best[share.key] = size
    for held in placed.program.held:
        for share in placed.shares[held.piece] if held.piece is not None else ():
            totals[share.key]["held_bytes"] += share.of(held.bytes)
    result = {}
    for key, total in totals.items():
        where = best[key][2] if key in best else None
        values: dict[str, int | None] = {**total, "time_ns": total["time_ns"] if timed else None}
        result[key] = Amounts(
            **values,  # type: ignore[arg-type]
            dtype=", ".join(sorted(dtypes[key], key=lambda name: -dtypes[key][name])),
            file=where.file if where is not None else None,
            line=where.line if where is not None else None,
        )
    return result


def _remainder(both: Both) -> Iterator[Row]:
    """Memory from before the step, and the time that is in no op."""
    held = [Amounts(held_bytes=before) if (before := _before(placed)) else None for placed in (both.a, both.b)]
    if any(held):
        yield Row(layer=BEFORE, phase="other", a=held[0], b=held[1])
    left = [
        Amounts(time_ns=time) if (time := time_outside(placed.program)) is not None else None
        for placed in (both.a, both.b)
    ]
    if any(left):
        yield Row(layer=NOT_IN_OPS, phase="other", a=left[0], b=left[1])


def _before(placed: Placed) -> int:
    return sum(held.bytes for held in placed.program.held if held.piece is None)


def time_outside(program: Program) -> int | None:
    """Step time minus that of all ops: negative where ops ran at the same time."""
    times = [piece.time_ns for piece in program.pieces if piece.time_ns is not None]
    return program.step_ns - sum(times) if times and program.step_ns is not None else None


def _side(placed: Placed) -> Side:
    program = placed.program
    timed = any(piece.time_ns is not None for piece in program.pieces)
    return Side(
        path=program.path,
        framework=program.framework,
        device=program.device,
        layers=sum(layer.stacked for layer in placed.layers),
        step_ns=program.step_ns,
        basis=program.basis if program.step_ns is not None else None,
        total=Amounts(
            flops=sum(piece.flops for piece in program.pieces),
            bytes=sum(piece.bytes for piece in program.pieces),
            launches=sum(piece.launches for piece in program.pieces),
            held_bytes=sum(held.bytes for held in program.held),
            recompute_flops=sum(piece.flops for piece in program.pieces if piece.recompute),
            time_ns=program.step_ns if timed else None,
        ),
        notes=program.notes,
    )


def _named(both: Both) -> Both:
    """Name the rows; cores of one name, such as both products of an attention, become one row."""
    names = _names(both)
    last: dict[str, int] = {}
    used = {(one.key.pair, one.key.core) for placed in (both.a, both.b) for shares in placed.shares for one in shares}
    for (pair, core), name in sorted(names.items()):
        if core and (pair, core) in used:
            last[name] = pair
    joined = {(pair, True): last[name] for (pair, core), name in names.items() if core and name in last}

    def moved(placed: Placed) -> Placed:
        return replace(
            placed,
            shares=tuple(
                tuple(
                    Share(
                        replace(one.key, pair=joined.get((one.key.pair, one.key.core), one.key.pair)),
                        one.turn,
                        one.turns,
                    )
                    for one in shares
                )
                for shares in placed.shares
            ),
        )

    return replace(both, a=moved(both.a), b=moved(both.b), names=names)


def _names(both: Both) -> dict[tuple[int, bool], str]:
    """Names of rows: the core of a layer is named after the part of the model that the layer is in."""
    result: dict[tuple[int, bool], str] = {}
    for number, pair in enumerate(both.pairs):
        result[number, False] = pair.name
        result[number, True] = f"{_part(pair.name)} (activations)"
    return result


def _part(name: str) -> str:
    """The part of a model that a layer is in: up to the part after its number, without the layer itself.

    ``layers.0.self_attn.q_proj.lora_A`` and ``layers.0.self_attn.o_proj`` are both in ``layers.0.self_attn``.
    """
    parts = name.split(".")
    numbers = [index for index, part in enumerate(parts) if part.isdecimal()]
    if not numbers:
        return ".".join(parts[:-1]) or name
    return ".".join(parts[: min(numbers[-1] + 2, max(len(parts) - 1, 1))])


def _unpaired(both: Both) -> Iterator[Unpaired]:
    for pair in both.pairs:
        if pair.a and pair.b:
            continue
        side, ones, others = ("a", pair.a, "b") if pair.a else ("b", pair.b, "a")
        free = [one for other in both.pairs for one in getattr(other, others) if not getattr(other, side)]
        for one in ones:
            near = min(free, key=lambda other: abs(other.elements - one.elements), default=None)
            reason = f"its weights have {one.elements:,} elements"
            nearest = (
                "the other side has no layer left"
                if near is None
                else (f"the nearest free layer of the other side is {near.name} with {near.elements:,}")
            )
            yield Unpaired(side=side, layer=one.name, reason=f"{reason}; {nearest}")


def kind_name(layer: str) -> str:
    """The name of a layer without its number, for layers that are alike."""
    return re.sub(r"(?<=\.)\d+(?=\.|$|,| )|^\d+(?=\.)", "*", layer)


def phase_of(key: Key) -> Phase:
    """The phase of a row."""
    return PHASES[key.phase]
