"""Where in a function that is differentiated its layers are: loops, checkpoints, and calls that are repeated.

A loop is one over layers if nothing runs it more than once and its turns hand an array to each other; so the advisor
tells layers, too. A loop within a layer (over time, over blocks of keys), and a checkpoint in such a loop, are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any, Literal

from perfscope.profiler.aot import jax_abstract_compat as compat
from perfscope.profiler.aot.jax_checkpoint_edit import is_checkpoint, is_loop, may_be_checkpointed
from perfscope.profiler.aot.jax_checkpoint_inside import open_jaxprs, shut_jaxprs
from perfscope.profiler.aot.jax_checkpoint_stage import Around
from perfscope.profiler.aot.jax_seen_lines import Line, is_users, shown_file

Kind = Literal["scan", "checkpoint", "calls"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """One place whose checkpoint policy can be set."""

    kind: Kind
    eqn: Any
    """A scan or a checkpoint; the first equation of calls that are repeated."""
    count: int
    """Turns of the loop, or calls."""
    at: Line | None
    """Where the program calls it."""
    written: Line | None
    """Where its function begins."""
    depth: int
    """Loops around it."""
    layer: bool
    """It is a layer, or a loop over layers."""
    why: str = ""
    """Why it is no layer."""
    fixed: bool = False
    """Nothing can be done with it, not even where it is named."""
    pieces: tuple[tuple[int, int], ...] = ()
    """Of repeated calls: positions of each in the equations of its jaxpr, half open."""
    holder: Any = None
    """Of repeated calls: that jaxpr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Met:
    """An equation on the way through the jaxprs."""

    eqn: Any
    loops: tuple[Any, ...]
    """Around it, the outermost first."""
    checkpoints: tuple[Any, ...]
    """Around it."""
    shut: str = ""
    """Why no checkpoint does anything here: around it is what has no backward, or one of its own."""


IN_RULE = "in a derivative rule of the program's own (custom_vjp, custom_jvp), which keeps what it says"


def sites_of(jaxpr: Any, around: Around) -> list[Site]:
    """All of a function's jaxpr, in program order. Linear in its equations."""
    from perfscope.profiler.aot.jax_checkpoint_calls import repeated_calls

    met = list(_walk(jaxpr, around, (), (), ""))
    alike = _alike(jaxpr, around)
    bodies = {id(one.loops[0]) for one in met if is_checkpoint(one.eqn) and len(one.loops) == 1}
    calls = repeated_calls(jaxpr, around)
    within_calls = {id(eqn) for held in calls for low, high in held.pieces for eqn in held.holder.eqns[low:high]}
    found = [_site(one, alike, bodies, within_calls) for one in met]
    if not any(one.layer for one in found):
        found += calls
    return [replace(one, layer=False, why=IN_RULE) for one in found] if around.in_rule else found


def _site(one: _Met, alike: Counter[Any], bodies: set[int], within_calls: set[int]) -> Site:
    eqn, outer = one.eqn, one.loops[:1]
    repeated = alike[_likeness(outer[0] if outer else eqn)] > 1
    in_repeated = any(alike[_likeness(each)] > 1 for each in one.checkpoints) and not outer
    why = one.shut
    if is_loop(eqn):
        if why:
            pass
        elif outer:
            why = f"a loop within the loop at {place_of(outer[0])}"
        elif repeated or id(eqn) in within_calls:
            why = "it runs several times alike: a loop within layers"
        elif one.checkpoints and id(eqn) not in bodies:
            why = "a loop within what is checkpointed already"
        elif not _hands_on(eqn):
            why = "its turns hand no array to each other"
        elif not may_be_checkpointed(eqn.params["jaxpr"].effects):
            why = "it calls into Python, which jax.checkpoint refuses"
        return Site(
            kind="scan", eqn=eqn, count=eqn.params["length"], at=place_of(eqn), written=_written(eqn.params["jaxpr"]),
            depth=len(one.loops), layer=not why, why=why, fixed=bool(one.shut),
        )  # fmt: skip
    if why:
        pass
    elif len(one.loops) > 1:
        why = f"within a loop of the loop at {place_of(outer[0])}"
    elif outer and repeated:
        why = "in a loop that runs several times alike: a loop within layers"
    elif outer and not _hands_on(outer[0]):
        why = "in a loop whose turns hand no array to each other"
    elif in_repeated:
        why = "within another checkpoint"
    return Site(
        kind="checkpoint", eqn=eqn, count=1, at=place_of(eqn, *reversed(one.loops)),
        written=_written(eqn.params["jaxpr"]), depth=len(one.loops), layer=not why, why=why, fixed=bool(one.shut),
    )  # fmt: skip


def _walk(
    jaxpr: Any, around: Around, loops: tuple[Any, ...], checkpoints: tuple[Any, ...], shut: str
) -> Iterator[_Met]:
    """Scans of more than one turn and checkpoints, with what is around them; inside of calls and branches as well."""
    for eqn in jaxpr.eqns:
        if around.derives(eqn):
            continue
        loop, checkpoint = is_turning(eqn), is_checkpoint(eqn)
        if loop or checkpoint:
            yield _Met(eqn=eqn, loops=loops, checkpoints=checkpoints, shut=shut)
        for inner in open_jaxprs(eqn):
            outer = (*checkpoints, eqn) if checkpoint else checkpoints
            yield from _walk(inner, around, (*loops, eqn) if loop else loops, outer, shut)
        within, why = shut_jaxprs(eqn)
        for inner in within:
            yield from _walk(inner, around, loops, checkpoints, shut or why)


def _alike(jaxpr: Any, around: Around) -> Counter[Any]:
    """How many of each likeness run at most, outside of loops: of the branches of `cond` one does."""
    found: Counter[Any] = Counter()
    for eqn in jaxpr.eqns:
        if around.derives(eqn):
            continue
        loop = is_turning(eqn)
        if loop or is_checkpoint(eqn):
            found[_likeness(eqn)] += 1
        if not loop:
            found += reduce(or_, (_alike(inner, around) for inner in open_jaxprs(eqn)), Counter())
    return found


def is_turning(eqn: Any) -> bool:
    """Whether an equation is a ``jax.lax.scan`` of more than one turn."""
    return is_loop(eqn) and eqn.params["length"] > 1


def _hands_on(eqn: Any) -> bool:
    """Whether a turn of a loop gives the next one an array of numbers with a gradient: what a layer gives the next."""
    first = eqn.params["num_consts"]
    carried = eqn.params["jaxpr"].in_avals[first : first + eqn.params["num_carry"]]
    kinds = ("float", "bfloat", "complex")
    return any(getattr(one, "shape", ()) and str(one.dtype).startswith(kinds) for one in carried)


def _likeness(eqn: Any) -> tuple[Any, ...]:
    """Equal for copies of a loop or a checkpoint: the function's place, and the shapes it takes."""
    held = eqn.params["jaxpr"]
    info = getattr(held, "jaxpr", held).debug_info
    shapes = tuple(str(variable.aval) for variable in eqn.invars)
    return eqn.primitive.name, info.func_filename, info.func_lineno, shapes


def place_of(eqn: Any, *around: Any) -> Line | None:
    """The innermost line of the user that an equation comes from, or one of those around it; else a library's."""
    library = None
    for one in (eqn, *around):  # frames of a loop's body begin at the body
        for frame in frames_of(one):
            file, line = frame.file_name, frame.start_line
            if is_users(file):
                return Line(file=shown_file(file), line=line)
            if library is None and not file.startswith(("<", *compat.package_folders())):
                library = Line(file=shown_file(file), line=line)
    return library


def frames_of(eqn: Any) -> Iterator[Any]:
    """Frames outside of jax that an equation comes from, the innermost first: ``file_name``, ``start_line``, ..."""
    found: Iterator[Any] = compat.get("jax._src.source_info_util", "user_frames")(eqn.source_info.traceback)
    return found


def _written(held: Any) -> Line | None:
    info = getattr(held, "jaxpr", held).debug_info
    file = info.func_filename
    if not file or file.startswith(("<", *compat.package_folders())):
        return None
    return Line(file=shown_file(file), line=info.func_lineno or 0)
