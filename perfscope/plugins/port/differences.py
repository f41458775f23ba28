"""Differences of a ledger: work that only one side does, with its cost.

Both sides are searched for the same kinds of work. Work of a kind is a difference in a layer if one side has clearly
more of it there than the other, and if it is large enough for the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from perfscope.plugins.port.document import Difference
from perfscope.plugins.port.labels import Layer
from perfscope.plugins.port.ledger import Both, Key, Placed, kind_name, time_outside
from perfscope.plugins.port.pieces import PHASES, Fact, Piece, common_call

LEAST_SHARE = 0.02
"""Smallest share of a step that is a difference: less is in the noise of two measured steps."""
CLEARLY = 1.5
"""Ratio to the other side from which a layer has clearly more work of a kind: layouts of equal programs differ less."""
EXPLAINS = 0.5
"""Part of the difference of the step times from which a difference is its reason."""
WIDTHS = {"float64": 8, "f64": 8, "float32": 4, "f32": 4, "float16": 2, "f16": 2, "bfloat16": 2, "bf16": 2}
_LOOP_STATE = frozenset({"dynamic_slice", "dynamic_update_slice", "closed_call", "while", "body", "cond"})
"""Names of moves with which XLA hands values to the turns of a loop: the program has no line for them."""

MOVE, CAST, PRECISION, ATTENTION, REPEAT = "copy", "cast", "wider products", "attention written out", "heads repeated"
REMAT, GATHER, CONSTANT, DONATION = "second forward", "weight gathered again", "constant baked in", "buffer not donated"
SYNC, DISPATCH, UNROLLED, MORE = "host sync", "host dispatch", "loop unrolled", "larger products"
SLOWER = "slower layer"
_LEAST_GAP = 0.1
"""Share of the slower step by which it is longer from which a layer is named for it: two runs differ by less."""
_MORE = 1.1
"""Ratio of FLOPs of a layer's products from which one side computes more than the other."""
LEAST_UNROLLED = 8
"""Alike layers in the text of a program from which a loop would make it clearly smaller."""
_LEAST_UPDATES = 2
"""Launches of the optimizer per weight from which it updates weights one by one; a fused one has a few in all."""


class Doing(Fact, frozen=True, kw_only=True):
    """Work of one kind on one side, at one line, in one row."""

    key: Key | None
    """Its row; ``None``: of the whole step."""
    flops: int = 0


def differences(both: Both) -> tuple[Difference, ...]:
    """All differences of both sides: those of the slower side first, then by their share of the step."""
    steps = both.a.program.step_ns, both.b.program.step_ns
    slower = "" if None in steps or steps[0] == steps[1] else "a" if (steps[0] or 0) > (steps[1] or 0) else "b"
    found = [*_of_side(both, "a", slower), *_of_side(both, "b", slower), *_outside_of_ops(both, slower)]
    if slower and not any(one.explains for one in found):
        found += [one for one in _slower_layer(both, slower) if not _has_work(found, slower, one.layers[0])]
    explains = [one for one in found if one.explains]
    first = sorted(explains, key=lambda one: -one.share)
    rest = sorted(
        (one for one in found if not one.explains),
        key=lambda one: (one.kind == UNROLLED, -one.share, one.side != slower),
    )
    return (*first, *rest)


def _outside_of_ops(both: Both, slower: str) -> Iterator[Difference]:
    """Time of the slower side in no op, if most of its delay is there: its host starts ops one by one, or waits."""
    if not slower:
        return
    here, there = (both.a, both.b) if slower == "a" else (both.b, both.a)
    mine, other = here.program, there.program
    times = time_outside(mine), time_outside(other)
    if times[0] is None or times[1] is None or mine.step_ns is None or other.step_ns is None:
        return
    more = times[0] - times[1]
    if more >= EXPLAINS * (mine.step_ns - other.step_ns):
        most: dict[tuple[str | None, int | None], int] = defaultdict(int)
        for piece in mine.pieces:
            most[piece.file, piece.line] += piece.launches * (piece.line is not None)
        file, line = max(most, key=lambda place: most[place])
        place = _other_line(there, "", [])
        yield Difference(
            side=slower, kind=DISPATCH, layers=(), count=sum(piece.launches for piece in mine.pieces), time_ns=more,
            share=min(1.0, more / mine.step_ns), of="time", explains=True,
            detail="time in no op: Python, dispatch, waits", file=file, line=line, other_file=place[0],
            other_line=place[1],
        )  # fmt: skip


def _slower_layer(both: Both, slower: str) -> Iterator[Difference]:
    """The layers of one kind, in one phase, that take most of the time by which a step is longer; both sides do it."""
    here, there = (both.a, both.b) if slower == "a" else (both.b, both.a)
    gap = (here.program.step_ns or 0) - (there.program.step_ns or 0)
    if gap < _LEAST_GAP * (here.program.step_ns or 0):
        return
    rows = _by_kind(both, here), _by_kind(both, there)
    excess = {key: _time(rows[0][key]) - _time(rows[1][key]) for key in rows[0].keys() & rows[1].keys()}
    key, most = max(excess.items(), key=lambda pair: pair[1], default=(("", 0), 0))
    if most < EXPLAINS * gap:
        return
    largest, other = (max(row, key=lambda piece: (piece.line is not None, _time([piece]))) for row in
                      (rows[0][key], rows[1][key]))  # fmt: skip
    yield Difference(
        side=slower, kind=SLOWER, layers=(key[0],), count=sum(piece.launches for piece in rows[0][key]),
        bytes=sum(piece.bytes for piece in rows[0][key]), flops=sum(piece.flops for piece in rows[0][key]),
        time_ns=most, share=min(1.0, most / (here.program.step_ns or 1)), of="time", explains=True,
        detail=f"{PHASES[key[1]]}, {sum(piece.launches for piece in rows[1][key])} launches on the other side",
        file=largest.file, line=largest.line, other_file=other.file, other_line=other.line,
    )  # fmt: skip


def _has_work(found: Sequence[Difference], side: str, layer: str) -> bool:
    """Whether a part of the reason is known: work of that side alone in these layers, or products in a wider type."""
    return any(one.side == side and (one.kind == PRECISION or layer in map(kind_name, one.layers)) for one in found)


def _by_kind(both: Both, placed: Placed) -> dict[tuple[str, int], list[Piece]]:
    """Pieces by the name of alike layers and the phase."""
    result: dict[tuple[str, int], list[Piece]] = defaultdict(list)
    for piece, shares in zip(placed.program.pieces, placed.shares, strict=True):
        for key in dict.fromkeys((kind_name(both.name(share.key)), share.key.phase) for share in shares):
            result[key].append(piece)
    return result


def _time(pieces: list[Piece]) -> int:
    return sum(piece.time_ns or 0 for piece in pieces)


def _of_side(both: Both, side: str, slower: str) -> Iterator[Difference]:
    mine, other = (both.a, both.b) if side == "a" else (both.b, both.a)
    products = [piece for piece in (*both.a.program.pieces, *both.b.program.pieces) if piece.flops]
    narrowest = min((WIDTHS[piece.dtype] for piece in products if piece.dtype in WIDTHS), default=8)
    ours, theirs = (
        _by_row(_doings(mine, len(both.pairs), narrowest)),
        _by_row(_doings(other, len(both.pairs), narrowest)),
    )
    excess: dict[tuple[str, str | None, int | None], list[Doing]] = defaultdict(list)
    lone = {number for number, pair in enumerate(both.pairs) if not (pair.a and pair.b)}
    for (kind, key), doings in ours.items():
        if key is not None and key[0] in lone:
            continue  # a layer without a partner is listed as such
        against = theirs.get((kind, key), [])
        if _exceeds(kind, doings, against):
            for one in _net(kind, doings, against):
                place = (None, None) if kind in _ONE_ROW else (one.file, one.line)
                excess[kind, *place].append(one)
    gap = abs((mine.program.step_ns or 0) - (other.program.step_ns or 0)) if slower == side else 0
    for (kind, file, line), parts in excess.items():
        made = _difference(side, kind, parts, mine, both)
        if made.share < LEAST_SHARE and kind not in (SYNC, GATHER):
            continue
        if kind in _ONE_ROW:
            largest = max(parts, key=lambda one: (one.flops, one.bytes))
            file, line = largest.file, largest.line
        place = _other_line(other, kind, [one.key for one in parts])
        explains = bool(gap and made.time_ns is not None and made.time_ns >= EXPLAINS * gap)
        yield Difference(
            **{name: getattr(made, name) for name in made.__struct_fields__ if name not in _SET},
            explains=explains, file=file, line=line, other_file=place[0], other_line=place[1],
        )  # fmt: skip


_ONE_ROW = frozenset({REMAT, MORE})
"""Kinds of which all lines are one difference."""
_SET = frozenset({"explains", "file", "line", "other_file", "other_line"})


def _exceeds(kind: str, mine: list[Doing], theirs: list[Doing]) -> bool:
    """Whether one side has clearly more of a kind in a row."""
    if kind in (SYNC, GATHER, DISPATCH, UNROLLED):
        return sum(one.count for one in mine) > sum(one.count for one in theirs)
    if kind == MORE:
        return sum(one.flops for one in mine) > _MORE * sum(one.flops for one in theirs) > 0
    if kind in (REMAT, PRECISION):
        return sum(one.flops for one in mine) > CLEARLY * sum(one.flops for one in theirs)
    if kind == ATTENTION:
        return not theirs
    return sum(one.bytes for one in mine) > CLEARLY * sum(one.bytes for one in theirs)


def _net(kind: str, mine: list[Doing], theirs: list[Doing]) -> Iterator[Doing]:
    """The work without the part that the other side does, too: of moved bytes in order, of FLOPs in proportion."""
    left = {"bytes": sum(one.bytes for one in theirs), "flops": sum(one.flops for one in theirs)}
    by_flops = kind in (REMAT, PRECISION, MORE)
    total = sum(one.flops for one in mine)
    for one in mine:
        if by_flops:
            part = 1 - left["flops"] / total if total else 1.0
        else:
            part = max(0, one.bytes - left["bytes"]) / one.bytes if one.bytes else 1.0
            left["bytes"] = max(0, left["bytes"] - one.bytes)
        if part:
            time = None if one.time_ns is None else round(one.time_ns * part)
            yield replace(one, bytes=round(one.bytes * part), flops=round(one.flops * part), time_ns=time)


def _difference(side: str, kind: str, doings: list[Doing], placed: Placed, both: Both) -> Difference:
    """One difference of the work at one line."""
    program = placed.program
    moved = sum(one.bytes for one in doings)
    flops = sum(one.flops for one in doings)
    count = sum(one.count for one in doings)
    times = [one.time_ns for one in doings if one.time_ns is not None]
    time = sum(times) if times else None
    whole = {
        "time": program.step_ns or 0,
        "bytes moved": sum(piece.bytes for piece in program.pieces),
        "FLOPs": sum(piece.flops for piece in program.pieces),
        "peak memory": sum(held.bytes for held in program.held),
        "launches": sum(piece.launches for piece in program.pieces),
    }
    amounts = {"bytes moved": moved, "FLOPs": flops, "peak memory": moved, "launches": count, "time": time or 0}
    of = _measure(kind, time if program.step_ns else None)
    return Difference(
        side=side,
        kind=kind,
        layers=tuple(dict.fromkeys(both.name(one.key) for one in doings if one.key is not None)),
        count=count,
        bytes=moved,
        flops=flops,
        time_ns=time,
        share=min(1.0, amounts[of] / whole[of]) if whole[of] else 0.0,
        of=of,
        detail=next((one.detail for one in doings if one.detail), ""),
    )


def _measure(kind: str, time: int | None) -> str:
    if kind in (CONSTANT, DONATION):
        return "peak memory"
    if time:
        return "time"
    return {
        REMAT: "FLOPs",
        PRECISION: "FLOPs",
        MORE: "FLOPs",
        UNROLLED: "launches",
        SYNC: "launches",
        DISPATCH: "launches",
    }.get(kind, "bytes moved")


def _by_row(doings: Iterator[Doing]) -> dict[tuple[str, tuple[int, bool] | None], list[Doing]]:
    """Work by kind and layer; both phases of a layer together, because a copy may be in either."""
    result: dict[tuple[str, tuple[int, bool] | None], list[Doing]] = defaultdict(list)
    for one in doings:
        result[one.kind, None if one.key is None else (one.key.pair, False)].append(one)
    return result


def _doings(placed: Placed, rest: int, narrowest: int) -> Iterator[Doing]:
    """All work of a side that may be a difference. ``narrowest``: bytes of the narrowest type of products."""
    program = placed.program
    written = {number for fact in program.facts if fact.kind == "attention" for number in fact.pieces}
    for number, (piece, shares) in enumerate(zip(program.pieces, placed.shares, strict=True)):
        kind = _kind(piece)
        for share in shares:
            if kind and number not in written:
                yield _doing(
                    kind, piece, share.key, share.of(piece.bytes), 0, share.of(piece.time_ns or 0), share.turns
                )
            if piece.recompute:
                time = None if piece.time_ns is None else share.of(piece.time_ns)
                yield _doing(REMAT, piece, share.key, share.of(piece.bytes), share.of(piece.flops), time, share.turns)
            if piece.flops and piece.phase == "forward" and not share.key.core and share.key.pair < rest:
                time = None if piece.time_ns is None else share.of(piece.time_ns)
                yield _doing(MORE, piece, share.key, share.of(piece.bytes), share.of(piece.flops), time, share.turns)
            if piece.flops and WIDTHS.get(piece.dtype, 0) > narrowest:
                time = None if piece.time_ns is None else share.of(piece.time_ns)
                yield _doing(PRECISION, piece, share.key, 0, share.of(piece.flops), time, share.turns)
    for fact in program.facts:
        yield from _of_fact(placed, fact)
    yield from _gathers(placed)
    yield from _updates(placed)
    yield from _unrolled(placed)


def _gathers(placed: Placed) -> Iterator[Doing]:
    """Collectives that bring the parts of a weight together once more in the same step."""
    seen: set[int] = set()
    for piece, shares in zip(placed.program.pieces, placed.shares, strict=True):
        if piece.kind != "collective" or not piece.carries:
            continue
        again = seen & set(piece.weights)
        seen.update(piece.weights)
        for share in shares if again else ():
            time = None if piece.time_ns is None else share.of(piece.time_ns)
            yield _doing(GATHER, piece, share.key, share.of(piece.bytes), 0, time, share.turns)


def _updates(placed: Placed) -> Iterator[Doing]:
    """An optimizer that launches ops for each weight."""
    pieces = [piece for piece in placed.program.pieces if piece.phase == "optimizer"]
    launches = sum(piece.launches for piece in pieces)
    if placed.program.framework == "torch" and launches > _LEAST_UPDATES * len(placed.program.weights):
        largest = max(pieces, key=lambda piece: (piece.line is not None, piece.bytes))
        times = [piece.time_ns for piece in pieces if piece.time_ns is not None]
        yield Doing(
            kind=DISPATCH, key=None, count=launches, time_ns=sum(times) if times else None, file=largest.file,
            line=largest.line, detail="launches of the optimizer, several for each weight",
        )  # fmt: skip


def _unrolled(placed: Placed) -> Iterator[Doing]:
    """Alike layers one after the other in the text of a compiled program."""
    alike: dict[tuple[str, int], list[Layer]] = defaultdict(list)
    for layer in placed.layers:
        if kind_name(layer.name) != layer.name and layer.stacked == 1:
            alike[kind_name(layer.name), layer.elements].append(layer)
    most = max(alike.values(), key=len, default=[])
    if placed.program.framework == "jax" and len(most) >= LEAST_UNROLLED:
        pieces = placed.program.pieces
        own = [piece for piece in pieces if piece.line is not None and set(piece.weights) & set(most[0].weights)]
        first = own[0] if own else pieces[most[0].first]
        weights = {
            one for group in alike.values() if len(group) == len(most) for layer in group for one in layer.weights
        }
        call = common_call(piece for piece in pieces if piece.phase == "forward" and weights & set(piece.weights))
        file, line = call or (first.file, first.line)
        inside = sum(piece.launches for piece in pieces if piece.phase in ("forward", "backward"))
        yield Doing(
            kind=UNROLLED, key=None, count=inside * (len(most) - 1) // len(most), file=file, line=line,
            detail=f"{len(most)} alike layers are compiled one by one",
        )  # fmt: skip


def _doing(kind: str, piece: Piece, key: Key, moved: int, flops: int, time: int | None, turns: int) -> Doing:
    file, line = piece.checkpoint or (piece.file, piece.line) if kind == REMAT else (piece.file, piece.line)
    return Doing(
        kind=kind, key=key, bytes=moved, flops=flops, count=max(1, piece.launches // turns),
        time_ns=time if piece.time_ns is not None else None, file=file, line=line, detail=piece.op,
    )  # fmt: skip


def _kind(piece: Piece) -> str | None:
    if not piece.data or piece.added:
        return None
    if piece.kind == "move":
        state = piece.op in _LOOP_STATE or (not piece.reads and not piece.weights)
        return None if state or piece.phase == "optimizer" else MOVE
    if piece.phase == "optimizer":
        return None
    return {"cast": CAST, "repeat": REPEAT}.get(piece.kind)


_OF_FACTS = {"sync": SYNC, "dispatch": DISPATCH, "constant": CONSTANT, "donation": DONATION, "gather": GATHER,
             "unrolled": UNROLLED}  # fmt: skip


def _of_fact(placed: Placed, fact: Fact) -> Iterator[Doing]:
    if fact.kind != "attention":
        shares = placed.shares[fact.pieces[0]] if fact.pieces else ()
        yield Doing(
            kind=_OF_FACTS[fact.kind], key=shares[0].key if shares else None, bytes=fact.bytes, count=fact.count,
            time_ns=fact.time_ns,
            file=fact.file, line=fact.line, detail=fact.detail,
        )  # fmt: skip
        return
    pieces = placed.program.pieces
    for number in fact.pieces:
        piece = pieces[number]
        for share in placed.shares[number]:
            moved = share.of(piece.bytes) if piece.kind != "product" else 0
            time = None if piece.time_ns is None or piece.kind == "product" else share.of(piece.time_ns)
            yield Doing(
                kind=ATTENTION, key=share.key, bytes=moved, count=1, time_ns=time, file=fact.file, line=fact.line,
                detail="scores and probabilities in memory",
            )  # fmt: skip


_OF_STEP = {DONATION: "optimizer", DISPATCH: "optimizer", SYNC: "forward"}
"""Phase whose last line of the other side is shown for work that belongs to no layer."""


def _other_line(other: Placed, kind: str, keys: list[Key | None]) -> tuple[str | None, int | None]:
    """The line of the other side that computes the same layers, or the same phase: its product, else its largest op."""
    wanted = {(key.pair, key.core) for key in keys if key is not None}
    phase = _OF_STEP.get(kind, "forward")
    lines: list[tuple[tuple[int, int, int], Piece]] = []
    for number, (piece, shares) in enumerate(zip(other.program.pieces, other.shares, strict=True)):
        if piece.line is None:
            continue
        if wanted and any((share.key.pair, share.key.core) in wanted for share in shares):
            lines.append(((piece.flops, piece.bytes, -number), piece))
        elif not wanted and piece.phase == phase:
            lines.append(((0, 0, number) if kind == SYNC else (piece.flops, piece.bytes, -number), piece))
    best = max(lines, key=lambda pair: pair[0], default=None)
    return (None, None) if best is None else (best[1].file, best[1].line)
