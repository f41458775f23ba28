"""The modelled time of one run of a compiled program on a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import Target
from perfscope.analyzers.hlo import (
    HloModule,
    Instruction,
    ModuleCost,
    Thunks,
    assigned_memory,
    module_cost,
    served,
    users_of,
    utilization,
    where_of,
)
from perfscope.analyzers.predict import levels as streams
from perfscope.analyzers.predict.assumptions import BLIND_SPOTS, Factors, factors_for, listed
from perfscope.analyzers.predict.levels import Level, Levels, Piece
from perfscope.analyzers.predict.model import Estimate, Row, StreamPicture, StreamSpan
from perfscope.analyzers.predict.spans import Range
from perfscope.model.documents.compile_manifest import FILE, load
from perfscope.model.errors import DataError
from perfscope.model.finding import Where
from perfscope.model.trace import Trace

# Parallel work at the high end of the range, for pictures: the program, and iterations of its longest loops.


MOST_SPANS = 200
"""Most sections of a picture, longest first; the others are counted."""

MOST_LOOPS = 2
"""Most loops with a drawn iteration: the forward and the backward pass of the layers."""

_STREAMS = {
    streams.COMPUTE: "compute",
    streams.COPIES: "copies",
    streams.SIDE: "side stream",
    streams.COLLECTIVES: "collectives",
    streams.PAIRS: "pairs",
    streams.TO_HOST: "to the host",
    streams.FROM_HOST: "from the host",
}

LEAST_CALLS = 2
"""Fewest calls from which a program can be taken to be called in each step."""


def pictures(top: Level, names: Mapping[int, str]) -> tuple[StreamPicture, ...]:
    """The program, then its longest loops that use more than one stream."""
    result: dict[str, tuple[int, StreamPicture]] = {}
    waiting = [(top, 1)]
    seen = {top.computation.name}
    while waiting:
        level, runs = waiting.pop()
        for piece in level.pieces:
            for inner, turns in piece.inside:
                name = inner.computation.name
                if name in seen:
                    continue
                seen.add(name)
                waiting.append((inner, runs * turns))
                if len({piece.stream for piece in inner.pieces}) > 1:
                    drawn = _picture(inner, names, piece.instruction.name, turns)
                    result[name] = (inner.time.high * runs * turns, drawn)
    longest = sorted(result.values(), key=lambda pair: -pair[0])[:MOST_LOOPS]
    return (_picture(top, names, "", 1), *(drawn for _, drawn in longest))


def _picture(level: Level, names: Mapping[int, str], of: str, turns: int) -> StreamPicture:
    result = []
    for index, piece in enumerate(level.pieces):
        start, end = level.high.starts[index], level.high.ends[index]
        if end > start:
            result.append(
                StreamSpan(
                    stream=names.get(piece.stream, "other"),
                    kind=piece.kind,
                    start=start,
                    end=end,
                    label=piece.instruction.name,
                    repeats=max((count for _, count in piece.inside), default=1),
                )
            )
    kept = sorted(sorted(result, key=lambda span: span.start - span.end)[:MOST_SPANS], key=lambda span: span.start)
    return StreamPicture(
        of=of, turns=turns, length_ns=level.high.makespan, spans=tuple(kept), left=len(result) - len(kept)
    )


def estimate(
    module: HloModule,
    target: Target,
    *,
    thunks: Thunks | None = None,
    cost: ModuleCost | None = None,
    factors: Factors | None = None,
    times: Mapping[tuple[str, str], Range] | None = None,
) -> Estimate:
    """Estimate one run of a module on a target.

    ``thunks``: launches of its runtime, if not the module's own. ``cost``: of the module, if already computed.
    ``factors``: instead of the vendor's. ``times``: of instructions, by computation and name, if better values are
    known (``calibrate``).

    ``DataError`` for a module that is not scheduled, or was compiled for another platform than the target's.
    """
    _check(module, target)
    counted = module_cost(module) if cost is None else cost
    launched = module.thunks if thunks is None else thunks
    chosen = factors_for(target) if factors is None else factors
    levels = Levels(counted, target, chosen, launched, times)
    top = levels.entry()
    names = {**_STREAMS, **{number: name for name, number in levels.streams.items()}}
    rows = tuple(sorted(_rows(counted, top, names), key=lambda row: (-row.exposed.middle, -row.total.high, row.name)))
    host = Range(low=top.launches * chosen.host[0], high=top.launches * chosen.host[1])
    buffers = True if launched is not None and launched.has_command_buffers else None  # most dumps are unscheduled
    low, high = top.parts
    if times is None and buffers is not True and host.high > high.total:
        high = replace(high, gaps=high.gaps + host.high - high.total)
    step = Range(low=low.total, high=max(low.total, high.total))
    memory = assigned_memory(module)
    worst, best = (utilization(counted, target.device, time) for time in (step.high, step.low))
    return Estimate(
        program=module.name,
        target=target,
        step_ns=step,
        parts=(low, high),
        rows=rows,
        launches=top.launches,
        host_ns=host,
        command_buffers=buffers,
        assumptions=listed(target, chosen, collectives=levels.collectives, between_nodes=levels.between_nodes),
        blind_spots=BLIND_SPOTS,
        lower_bounds=tuple(_lower_bounds(counted, rows)),
        not_known=tuple(row.name for row in rows if not row.known),
        mfu=None if worst is None or best is None else (worst.mfu, best.mfu),
        hfu=None if worst is None or best is None else (worst.hfu, best.hfu),
        peak_bytes=None if memory is None else memory.peak_bytes,
        pictures=pictures(top, names),
    )


def _check(module: HloModule, target: Target) -> None:
    """Raise ``DataError`` for a module that cannot be modelled on the target."""
    label = module.source or module.name
    if not module.is_scheduled:
        raise DataError(f"{label}: not scheduled: no time can be modelled before optimization")
    if module.platform is not None and module.platform != target.platform:
        raise DataError(
            f"{label}: compiled for {module.platform.upper()}, {target.device.name} is a {target.platform.upper()}"
        )


def _rows(cost: ModuleCost, top: Level, names: dict[int, str]) -> Iterator[Row]:
    """A row for each launched instruction of all levels that run."""
    seen: set[str] = set()
    waiting: list[tuple[Level, bool]] = [(top, True)]
    paths: dict[str, bool] = {}
    order: list[Level] = []
    while waiting:
        level, on_path = waiting.pop()
        name = level.computation.name
        paths[name] = paths.get(name, False) or on_path
        if name not in seen:
            seen.add(name)
            order.append(level)
        critical = level.high.critical()
        for index, piece in enumerate(level.pieces):
            for inner, _ in piece.inside:
                inside = on_path and index in critical
                if inner.computation.name not in seen or (inside and not paths.get(inner.computation.name)):
                    waiting.append((inner, inside))
    for level in order:
        critical = level.high.critical() if paths[level.computation.name] else frozenset()
        users = users_of(level.computation)
        for index, piece in enumerate(level.pieces):
            if piece.what != "call":
                where = _where(piece.instruction, users)
                yield _row(level, index, piece, names, where, on_path=index in critical)


def _where(instruction: Instruction, users: Mapping[str, tuple[Instruction, ...]]) -> Where:
    """The user's line; for instructions added by XLA (copies, zeros, changes of layout) the line that needs them."""
    own = where_of(instruction)
    if own.file is not None:
        return own
    other = served(instruction, users)
    return own if other is None else replace(own, file=other.file, line=other.line)


def _row(level: Level, index: int, piece: Piece, names: dict[int, str], where: Where, *, on_path: bool) -> Row:
    instruction, cost, runs = piece.instruction, piece.cost, piece.cost.runs
    low, high = level.low.exposed[index], level.high.exposed[index]
    return Row(
        computation=cost.computation,
        name=instruction.name,
        opcode=instruction.opcode,
        what=piece.what,
        where=where,
        added=instruction.file is None,
        once=piece.time,
        runs=runs,
        runs_exact=cost.runs_exact,
        bound=piece.bound,
        known=piece.known,
        stream=names.get(piece.stream, "other"),
        exposed=Range(low=min(low, high) * runs, high=max(low, high) * runs),
        on_path=on_path,
        flops=cost.once.flops,
        bytes=cost.once.bytes,
        wire_bytes=cost.once.wire_bytes,
        detail="" if piece.collective is None else piece.collective.algorithm,
        contended=piece.contended,
        blocks=piece.blocks,
    )


def _lower_bounds(cost: ModuleCost, rows: tuple[Row, ...]) -> Iterator[str]:
    loops = [
        row.instruction.name
        for row in cost.rows
        if row.place == "control" and row.instruction.opcode == "while" and row.instruction.trip_count is None
    ]
    if loops:
        yield f"{_counted(loops, 'loop')} of unknown length, counted as one turn: {_some(loops)}"
    scatters = [row.name for row in rows if row.contended]
    if scatters:
        yield f"{_counted(scatters, 'scatter')}, longer where many indices are equal: {_some(scatters)}"
    calls = [row.name for row in rows if not row.known and row.what != "collective"]
    if calls:
        yield f"{_counted(calls, 'instruction')} with arithmetic that is not known: {_some(calls)}"
    links = [row.name for row in rows if not row.known and row.what == "collective"]
    if links:
        yield f"{_counted(links, 'collective')} over links that are not known: {_some(links)}"


def _counted(names: list[str], what: str) -> str:
    return f"1 {what}" if len(names) == 1 else f"{len(names):,} {what}s"


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3:,} more"


# Several programs in a run: calls of each per step, and the time of a step over all of them.


class StepOfSeveral(Struct, frozen=True, kw_only=True):
    """A step as calls of programs, derived from the observed calls."""

    steps: int
    """Calls of the longest program among those called more than once: it defines the step."""
    calls: tuple[float | None, ...]
    """Calls of each program per step; None: fewer calls than steps, so not part of a step."""
    time: Range
    """Sum over the programs of a step, which do not overlap."""


def calls_seen(trace: Trace) -> Mapping[int, int]:
    """Observed calls of each program, by index in ``trace.hlo``; empty if unknown."""
    folder = Path(trace.source.path)
    try:
        if not (folder / FILE).is_file():
            return {}
        manifest = load(folder)
    except (DataError, OSError):
        return {}
    by_file = {(folder / program.file).as_posix(): program.calls for program in manifest.programs}
    result = {}
    for index, module in enumerate(trace.hlo):
        calls = by_file.get(Path(module.source).as_posix())
        if calls is not None:
            result[index] = calls
    return result


def step_of(estimates: Sequence[Estimate], calls: Sequence[int]) -> StepOfSeveral | None:
    """The step of several programs with these numbers of calls; ``None`` if they do not determine it."""
    if not estimates or len(estimates) != len(calls):
        return None
    often = [index for index, count in enumerate(calls) if count >= LEAST_CALLS]
    if not often:
        return None
    main = max(often, key=lambda index: (estimates[index].step_ns.middle, -index))
    steps = calls[main]
    each = tuple(count / steps if count >= steps else None for count in calls)
    total = [(estimate.step_ns, count) for estimate, count in zip(estimates, each, strict=True) if count is not None]
    return StepOfSeveral(
        steps=steps,
        calls=each,
        time=Range(
            low=sum(round(time.low * count) for time, count in total),
            high=sum(round(time.high * count) for time, count in total),
        ),
    )
