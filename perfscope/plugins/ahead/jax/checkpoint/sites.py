"""Finds the layers of a differentiated function: loops, checkpoints, and repeated calls.

A loop is one over layers if it runs only once and its iterations pass an array on; the memory advisor uses the same
definition. A loop inside a layer (over time, over blocks of keys), and a checkpoint in such a loop, do not count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from perfscope.model.op_flops import JAX_PRODUCTS
from perfscope.plugins.ahead.jax import compat as compat
from perfscope.plugins.ahead.jax.checkpoint.jaxprs import (
    called_function,
    is_checkpoint,
    is_loop,
    may_be_checkpointed,
    opaque_jaxprs,
    open_jaxpr,
)
from perfscope.plugins.ahead.jax.lines import SourceLine, display_path, is_user_file

SiteKind = Literal["scan", "checkpoint", "calls"]

MAX_DEPTH = 80
"""Most frames that are followed."""


class SitePlace(Struct, frozen=True, kw_only=True):
    """A loop, a checkpoint or repeated calls, as reports name them."""

    kind: SiteKind
    count: int
    """Iterations of the loop, or number of calls."""
    at: SourceLine | None
    """Line of the program that calls it."""
    written: SourceLine | None
    """First line of its function."""

    def words(self) -> str:
        """``the scan at train.py:35 (12 turns)``."""
        where = "" if self.at is None else f" at {self.at}"
        if self.kind == "scan":
            return f"the scan{where} ({self.count:,} turns)"
        if self.kind == "calls":
            written = "" if self.written is None else f" of {self.written}"
            return f"the function{written} that is called {self.count:,} times alike{where}"
        return f"the checkpoint{where}"


class Site(Struct, frozen=True, kw_only=True, eq=False):
    """A place whose checkpoint policy can be set."""

    place: SitePlace
    eqn: Any
    """A scan or a checkpoint; for repeated calls their first equation."""
    depth: int
    """Number of enclosing loops."""
    layer: bool
    """Whether it is a layer, or a loop over layers."""
    why: str = ""
    """Why it is not a layer."""
    fixed: bool = False
    """It cannot be changed, even if it is selected by line."""
    pieces: tuple[tuple[int, int], ...] = ()
    """For repeated calls: positions of each in the equations of its jaxpr, half open."""
    holder: Any = None
    """For repeated calls: that jaxpr."""


class _Visited(Struct, frozen=True, kw_only=True):
    """An equation with its context on the way through the jaxprs."""

    eqn: Any
    loops: tuple[Any, ...]
    """Enclosing loops, outermost first."""
    checkpoints: tuple[Any, ...]
    """Enclosing checkpoints."""
    shut: str = ""
    """Why checkpoints have no effect here: an enclosing equation has no backward, or a custom one."""


def sites_of(jaxpr: Any) -> list[Site]:
    """All sites of a function's jaxpr, in program order. Linear in its equations."""
    met = list(_walk(jaxpr, (), (), ""))
    alike = _repetitions(jaxpr)
    bodies = {id(visited.loops[0]) for visited in met if is_checkpoint(visited.eqn) and len(visited.loops) == 1}
    calls = repeated_calls(jaxpr)
    within_calls = {id(eqn) for call in calls for low, high in call.pieces for eqn in call.holder.eqns[low:high]}
    sites = [_site(visited, alike, bodies, within_calls) for visited in met]
    if not any(visited.layer for visited in sites):
        sites += calls
    return sites


def _site(visited: _Visited, alike: Counter[Any], bodies: set[int], within_calls: set[int]) -> Site:
    eqn, loop = visited.eqn, is_loop(visited.eqn)
    why = visited.shut or _why_no_layer(visited, alike, bodies, within_calls)
    return Site(
        place=SitePlace(
            kind="scan" if loop else "checkpoint",
            count=eqn.params["length"] if loop else 1,
            at=user_line_of(eqn) if loop else user_line_of(eqn, *reversed(visited.loops)),
            written=_written(eqn.params["jaxpr"]),
        ),
        eqn=eqn,
        depth=len(visited.loops),
        layer=not why,
        why=why,
        fixed=bool(visited.shut),
    )


def _why_no_layer(visited: _Visited, alike: Counter[Any], bodies: set[int], within_calls: set[int]) -> str:
    """Why a loop or a checkpoint is not a layer; empty if it is."""
    eqn, loops, loop = visited.eqn, visited.loops, is_loop(visited.eqn)
    around = loops[0] if loops else eqn
    if len(loops) > (0 if loop else 1):
        return f"within the loop at {user_line_of(around)}"
    if alike[_likeness(around)] > 1 and (loop or loops):
        return "it runs several times alike: a loop within layers"
    if loop and id(eqn) in within_calls:
        return "it runs several times alike: a loop within layers"
    if loop and visited.checkpoints and id(eqn) not in bodies:
        return "within another checkpoint"
    if not loop and not loops and any(alike[_likeness(each)] > 1 for each in visited.checkpoints):
        return "within another checkpoint"
    if (loop or loops) and not _carries_gradient(around):
        return "the turns of its loop hand no array to each other"
    if loop and not may_be_checkpointed(eqn.params["jaxpr"].effects):
        return "it calls into Python, which jax.checkpoint refuses"
    return ""


def _walk(jaxpr: Any, loops: tuple[Any, ...], checkpoints: tuple[Any, ...], shut: str) -> Iterator[_Visited]:
    """Scans of several iterations and checkpoints with their context, also inside calls."""
    for eqn in jaxpr.eqns:
        loop, checkpoint = is_repeating_scan(eqn), is_checkpoint(eqn)
        if loop or checkpoint:
            yield _Visited(eqn=eqn, loops=loops, checkpoints=checkpoints, shut=shut)
        open_inside = open_jaxpr(eqn)
        if open_inside is not None:
            outer = (*checkpoints, eqn) if checkpoint else checkpoints
            yield from _walk(open_inside, (*loops, eqn) if loop else loops, outer, shut)
        within, why = opaque_jaxprs(eqn)
        for inner in within:
            yield from _walk(inner, loops, checkpoints, shut or why)


def _repetitions(jaxpr: Any) -> Counter[Any]:
    """Number of similar loops and checkpoints outside of loops."""
    counts: Counter[Any] = Counter()
    for eqn in jaxpr.eqns:
        loop = is_repeating_scan(eqn)
        if loop or is_checkpoint(eqn):
            counts[_likeness(eqn)] += 1
        inner = None if loop else open_jaxpr(eqn)
        if inner is not None:
            counts += _repetitions(inner)
    return counts


def is_repeating_scan(eqn: Any) -> bool:
    """Whether an equation is a ``jax.lax.scan`` of several iterations."""
    return is_loop(eqn) and eqn.params["length"] > 1


def _carries_gradient(eqn: Any) -> bool:
    """Whether an iteration passes on an array of numbers with a gradient, as a layer does."""
    first = eqn.params["num_consts"]
    carried = eqn.params["jaxpr"].in_avals[first : first + eqn.params["num_carry"]]
    kinds = ("float", "bfloat", "complex")
    return any(getattr(aval, "shape", ()) and str(aval.dtype).startswith(kinds) for aval in carried)


def _likeness(eqn: Any) -> tuple[Any, ...]:
    """Equal for copies of a loop or a checkpoint: the function's place, and its input shapes."""
    inner = eqn.params["jaxpr"]
    info = getattr(inner, "jaxpr", inner).debug_info
    shapes = tuple(str(variable.aval) for variable in eqn.invars)
    return eqn.primitive.name, info.func_filename, info.func_lineno, shapes


def user_line_of(eqn: Any, *around: Any) -> SourceLine | None:
    """The innermost line of the user for an equation, or for an enclosing one; else a line of a library."""
    library = None
    for equation in (eqn, *around):  # frames of a loop's body begin at the body
        for frame in compat.user_frames(equation.source_info.traceback):
            file, line = frame.file_name, frame.start_line
            if is_user_file(file):
                return SourceLine(file=display_path(file), line=line)
            if library is None and not file.startswith(("<", *compat.package_folders())):
                library = SourceLine(file=display_path(file), line=line)
    return library


def _written(jaxpr: Any) -> SourceLine | None:
    info = getattr(jaxpr, "jaxpr", jaxpr).debug_info
    file = info.func_filename
    if not file or file.startswith(("<", *compat.package_folders())):
        return None
    return SourceLine(file=display_path(file), line=info.func_lineno or 0)


# Layers called by a Python loop: the same function, called several times in a row, with the same operations.
#
# The frames of an equation name its functions. From the outermost call on, the first function whose operations repeat
# and include a matrix product is a layer: ``x = block(weights, x)``, or a module of Flax or Equinox in a list.


Call = tuple[Any, ...]
"""A frame that calls another: code and line."""


class InnerFunction(Struct, frozen=True, kw_only=True):
    """Represents the code of a function whose frames are inside its own jaxpr: jitted, or with a custom rule."""

    co_filename: str
    co_firstlineno: int


def repeated_calls(jaxpr: Any) -> list[Site]:
    """Groups of calls of one function in a jaxpr, or in a jitted function inside it."""
    paths = [_path(eqn) for eqn in jaxpr.eqns]
    sites: list[Site] = []
    _descend(jaxpr, paths, list(range(len(paths))), 0, sites)
    if not sites:
        for eqn in jaxpr.eqns:
            inner = None if is_loop(eqn) or is_checkpoint(eqn) else open_jaxpr(eqn)
            if inner is not None:
                sites += repeated_calls(inner)
    return sites


def _descend(jaxpr: Any, paths: Sequence[Sequence[Call]], numbers: list[int], depth: int, sites: list[Site]) -> None:
    """Groups among equations whose first ``depth`` calls are equal."""
    if depth >= MAX_DEPTH:
        return
    callees: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for number in numbers:
        path = paths[number]
        if depth + 1 < len(path):  # called from here, by this line
            callees[path[depth], path[depth + 1][0]].append(number)
    for members in callees.values():
        pieces = _equal_calls(jaxpr, paths, members, depth + 1)
        if pieces:
            sites.append(_call_site(jaxpr, pieces, paths, depth))
        else:
            _descend(jaxpr, paths, members, depth + 1, sites)


def _equal_calls(
    jaxpr: Any, paths: Sequence[Sequence[Call]], members: list[int], depth: int
) -> tuple[tuple[int, int], ...]:
    """The calls among equations of one function: two or more with the same operations, else empty."""
    runs: list[list[int]] = []
    for number in members:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    signs = {number: _signature(jaxpr.eqns[number], paths[number][depth:]) for number in members}
    parts = [part for run in runs for part in _periods(run, [signs[number] for number in run])]
    kinds: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    for low, high in parts:
        kinds[tuple(signs[number] for number in range(low, high))].append((low, high))
    chosen = max(kinds.values(), key=lambda same: len(same) * (same[0][1] - same[0][0]))
    if len(chosen) < 2 or not any(_multiplies(eqn) for eqn in jaxpr.eqns[chosen[0][0] : chosen[0][1]]):
        return ()
    if not may_be_checkpointed(*(eqn.effects for eqn in jaxpr.eqns[chosen[0][0] : chosen[0][1]])):
        return ()
    covered = sum(high - low for low, high in chosen)
    return tuple(chosen) if 2 * covered > len(members) else ()


def _periods(run: Sequence[int], signs: Sequence[Any]) -> list[tuple[int, int]]:
    """Divide a run of adjacent equations from its end into as many equal parts as possible; else one part.

    The remainder at the front (a first layer with another input) is less than half.
    """
    size, end = len(run), run[-1] + 1
    for period in range(1, size // 2 + 1):
        count = 1
        while (count + 1) * period <= size and signs[size - (count + 1) * period :][:period] == signs[-period:]:
            count += 1
        if count > 1 and 2 * count * period > size:
            parts = [(end - index * period, end - (index - 1) * period) for index in range(count, 0, -1)]
            return [(run[0], parts[0][0]), *parts] if parts[0][0] > run[0] else parts
    return [(run[0], end)]


def _call_site(jaxpr: Any, pieces: tuple[tuple[int, int], ...], paths: Sequence[Sequence[Call]], depth: int) -> Site:
    first = pieces[0][0]
    (caller, line), (callee, _) = paths[first][depth], paths[first][depth + 1]
    return Site(
        place=SitePlace(
            kind="calls",
            count=len(pieces),
            at=SourceLine(file=display_path(caller.co_filename), line=line),
            written=SourceLine(file=display_path(callee.co_filename), line=callee.co_firstlineno),
        ),
        eqn=jaxpr.eqns[first],
        depth=0,
        layer=True,
        pieces=pieces,
        holder=jaxpr,
    )


def _path(eqn: Any) -> tuple[Call, ...]:
    """Frames outside of jax, outermost first: (code, line). Jitted code counts as a call of its function."""
    traceback = eqn.source_info.traceback
    if traceback is None:
        return ()
    called: tuple[Call, ...] = ()
    info = called_function(eqn)
    if info is not None and info.func_filename and compat.is_user_filename(info.func_filename):
        called = ((InnerFunction(co_filename=info.func_filename, co_firstlineno=info.func_lineno or 0), 0),)
    codes, lasti = traceback.raw_frames()
    frames = tuple(
        (code, compat.raw_frame_to_frame(code, instruction).start_line)
        for code, instruction in zip(reversed(codes), reversed(lasti), strict=True)
        if compat.is_user_filename(code.co_filename)
    )
    return frames + called


def _signature(eqn: Any, path: Sequence[Call]) -> tuple[Any, ...]:
    """The part of an equation that repeats with a call: operation, shapes, and the lines below the call."""
    shapes = tuple(str(atom.aval) for atom in (*eqn.invars, *eqn.outvars))
    lines = tuple((code.co_filename, code.co_firstlineno, line) for code, line in path)
    return eqn.primitive.name, shapes, lines


def _multiplies(eqn: Any) -> bool:
    """Whether an equation is a matrix product, or contains one."""
    if eqn.primitive.name in JAX_PRODUCTS:
        return True
    return any(_multiplies(eqn) for jaxpr in compat.jaxprs_in_params(eqn.params) for eqn in jaxpr.eqns)
