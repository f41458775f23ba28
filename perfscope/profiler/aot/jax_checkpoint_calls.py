"""Layers that a Python loop calls: the same function, called several times in a row, with the same operations.

Which function an equation comes from is in its frames. From the outermost call on, the first one whose operations
repeat, and that multiplies matrices, is a layer: ``x = block(weights, x)``, a module of Flax or Equinox in a list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfscope.profiler.aot import jax_abstract_compat as compat
from perfscope.profiler.aot.jax_checkpoint_edit import is_checkpoint, is_loop, may_be_checkpointed
from perfscope.profiler.aot.jax_checkpoint_inside import function_of, open_jaxprs
from perfscope.profiler.aot.jax_checkpoint_stage import Around

if TYPE_CHECKING:
    from perfscope.profiler.aot.jax_checkpoint_sites import Site

PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general")
MOST_DEPTH = 80
"""Frames that are followed."""

Call = tuple[Any, ...]
"""A frame that calls another: code and line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """Stands for the code of a function whose frames are inside of its own jaxpr: jitted, a branch, one with a rule."""

    co_filename: str
    co_firstlineno: int


def repeated_calls(jaxpr: Any, around: Around) -> list[Site]:
    """Groups of calls of one function, of a jaxpr and of what is jitted, or a branch of `cond`, within it."""
    found = _groups(jaxpr, around)
    if not found:
        for eqn in jaxpr.eqns:
            if not is_loop(eqn) and not is_checkpoint(eqn):
                for inner in open_jaxprs(eqn):
                    found += repeated_calls(inner, around)
    return found


def _groups(jaxpr: Any, around: Around) -> list[Site]:
    paths = [() if around.derives(eqn) else _path(eqn) for eqn in jaxpr.eqns]
    found: list[Site] = []
    _descend(jaxpr, paths, list(range(len(paths))), 0, found)
    return found


def _descend(jaxpr: Any, paths: Sequence[Sequence[Call]], numbers: list[int], depth: int, found: list[Site]) -> None:
    """Groups among equations that have ``depth`` calls in common."""
    if depth >= MOST_DEPTH:
        return
    callees: dict[tuple[Any, Any], list[int]] = defaultdict(list)
    for number in numbers:
        path = paths[number]
        if depth + 1 < len(path):  # called from here, by this line
            callees[path[depth], path[depth + 1][0]].append(number)
    for members in callees.values():
        pieces = _pieces(jaxpr, paths, members, depth + 1)
        if pieces:
            found.append(_site(jaxpr, pieces, paths, depth))
        else:
            _descend(jaxpr, paths, members, depth + 1, found)


def _pieces(jaxpr: Any, paths: Sequence[Sequence[Call]], members: list[int], depth: int) -> tuple[tuple[int, int], ...]:
    """The calls among equations of one function: two or more with the same operations, else none."""
    runs: list[list[int]] = []
    for number in members:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    signs = {number: _sign(jaxpr.eqns[number], paths[number][depth:]) for number in members}
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
    """A run of adjacent equations cut into equal parts, as many as can be, from its end on; whole where there are none.

    What is in front of them (a first layer that takes something else) is less than half.
    """
    size, end = len(run), run[-1] + 1
    for period in range(1, size // 2 + 1):
        count = 1
        while (count + 1) * period <= size and signs[size - (count + 1) * period :][:period] == signs[-period:]:
            count += 1
        if count > 1 and 2 * count * period > size:
            parts = [(end - at * period, end - (at - 1) * period) for at in range(count, 0, -1)]
            return [(run[0], parts[0][0]), *parts] if parts[0][0] > run[0] else parts
    return [(run[0], end)]


def _site(jaxpr: Any, pieces: tuple[tuple[int, int], ...], paths: Sequence[Sequence[Call]], depth: int) -> Site:
    from perfscope.profiler.aot.jax_checkpoint_sites import Site
    from perfscope.profiler.aot.jax_seen_lines import Line, shown_file

    first = pieces[0][0]
    (caller, line), (callee, _) = paths[first][depth], paths[first][depth + 1]
    return Site(
        kind="calls",
        eqn=jaxpr.eqns[first],
        count=len(pieces),
        at=Line(file=shown_file(caller.co_filename), line=line),
        written=Line(file=shown_file(callee.co_filename), line=callee.co_firstlineno),
        depth=0,
        layer=True,
        pieces=pieces,
        holder=jaxpr,
    )


def _path(eqn: Any) -> tuple[Call, ...]:
    """Frames outside of jax, the outermost first: (code, line). What is jitted, say, is a call of its function."""
    is_user = compat.get("jax._src.source_info_util", "is_user_filename")
    traceback = eqn.source_info.traceback
    if traceback is None:
        return ()
    called: tuple[Call, ...] = ()
    info = function_of(eqn)
    if info is not None and info.func_filename and is_user(info.func_filename):
        called = ((Called(co_filename=info.func_filename, co_firstlineno=info.func_lineno or 0), 0),)
    codes, lasti = traceback.raw_frames()
    place = compat.get("jax._src.source_info_util", "raw_frame_to_frame")
    frames = tuple(
        (code, place(code, at).start_line)
        for code, at in zip(reversed(codes), reversed(lasti), strict=True)
        if is_user(code.co_filename)
    )
    return frames + called


def _sign(eqn: Any, path: Sequence[Call]) -> tuple[Any, ...]:
    """What of an equation repeats with a call: operation, shapes, and the lines below the call."""
    shapes = tuple(str(atom.aval) for atom in (*eqn.invars, *eqn.outvars))
    lines = tuple((code.co_filename, code.co_firstlineno, line) for code, line in path)
    return eqn.primitive.name, shapes, lines


def _multiplies(eqn: Any) -> bool:
    """Whether an equation is a product of matrices, or has one inside."""
    if eqn.primitive.name in PRODUCTS:
        return True
    inner = compat.get("jax._src.core", "jaxprs_in_params")(eqn.params)
    return any(_multiplies(one) for jaxpr in inner for one in jaxpr.eqns)
