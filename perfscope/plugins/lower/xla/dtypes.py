"""Conversions between dtypes: the program's own with their reason, and those that XLA added."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from perfscope.analyzers.hlo import HloModule
from perfscope.plugins.lower.document import Fate
from perfscope.plugins.lower.program import Grouped, fate, listed, place_of
from perfscope.plugins.lower.xla.lines import Lines, Written, phase
from perfscope.plugins.lower.xla.passes import Passes
from perfscope.plugins.lower.xla.widths import FLOATS, Widths

Conversion = tuple[str, str, str]
"""Line, dtype before, dtype after."""
_GONE = " (the conversion itself is simplified away)"
_KEPT = 3
"""Most lines that a reason names."""


def converted(program: str, before: HloModule | None, lines: Lines, passes: Passes) -> Iterator[Fate]:
    """Yield conversions of floats, by line, dtypes, and who made them."""
    asked = _asked(before or lines.module)
    groups: dict[tuple[Conversion, bool], Grouped] = defaultdict(Grouped)
    for computation, row in lines.rows():
        item = row.instruction
        if item.opcode != "convert" or item.operands[0] not in computation.by_name:
            continue
        narrow = computation.by_name[item.operands[0]].shape.dtype
        if narrow not in FLOATS or item.shape.dtype not in FLOATS:
            continue
        key = lines.shown(computation, item), narrow, item.shape.dtype
        by_xla = before is not None and (not item.op_name or key not in asked)
        group = groups[key, by_xla]
        kernel = lines.kernel(computation, item)
        group.add(item.name, bytes_=item.shape.bytes * row.runs, kernel=kernel, phase=phase(item))
        if by_xla and not any(group.reasons):
            group.reasons[passes.adder("convert", item.shape.dtype, item.shape.elements)] = None
    yield from _simplified(program, before, asked, {key for key, by_xla in groups if not by_xla})
    for (key, by_xla), group in groups.items():
        place, old, new = key
        if by_xla:
            reason = _added(next((name for name in group.reasons if name), ""), old if new == "f32" else new)
        else:
            reason = asked.get(key, "") or _unexplained(group, widens=FLOATS.index(new) < FLOATS.index(old))
        yield fate(
            "converted", program, place, group, reason, before=old, after=new, by="compiler" if by_xla else "program"
        )


def _unexplained(group: Grouped, *, widens: bool) -> str:
    if {*group.phases} == {"backward"}:
        return "the gradient of a conversion at this line"
    if widens:
        return "the conversion has no name of an op: XLA added it, or lost the name"
    return "the line converts it to the narrower dtype"


def conversions(program: str, before: HloModule) -> Iterator[Fate]:
    """Yield the conversions to a wider dtype of a program that is not compiled."""
    for found in _simplified(program, before, _asked(before), set()):
        yield replace(found, reason=found.reason.removesuffix(_GONE))


def _asked(before: HloModule) -> dict[Conversion, str]:
    """The program's own conversions, with the reason of those to a wider dtype."""
    asked: dict[Conversion, str] = {}
    widths = Widths(before)
    reach = widths.reach()
    for holder, item in before.instructions():
        if item.opcode == "convert" and item.operands:
            old = holder.by_name[item.operands[0]].shape.dtype
            asked.setdefault((place_of(item.file, item.line), old, item.shape.dtype), "")
    for _, wide in widths.widened():
        place, dtype = place_of(wide.instruction.file, wide.instruction.line), wide.instruction.shape.dtype
        also = [*reach.get(place, ())]
        more = f" and {len(also) - _KEPT} more" if len(also) > _KEPT else ""
        stays = f"; keeps {listed(also[:_KEPT])}{more} in {dtype}" if also else ""
        key = place, wide.before, dtype
        asked[key] = asked[key] or f"{wide.reason}{stays}"
    return asked


def _added(adder: str, dtype: str) -> str:
    if adder.startswith("float-normalization"):
        return f"added by XLA ({adder}): this backend computes {dtype} in float32"
    return f"added by XLA ({adder})" if adder else "added by XLA, by a pass that is unknown"


def _simplified(
    program: str, before: HloModule | None, asked: Mapping[Conversion, str], kept: set[Conversion]
) -> Iterator[Fate]:
    """The program's conversions to a wider dtype that XLA joined with others: later values are wide all the same."""
    left: dict[Conversion, Grouped] = defaultdict(Grouped)
    named = None if before is None else Written(before)
    for holder, item in before.instructions() if before is not None else ():
        if item.opcode == "convert" and item.operands and item.file is not None:
            key = place_of(item.file, item.line), holder.by_name[item.operands[0]].shape.dtype, item.shape.dtype
            if asked.get(key) and key not in kept:
                where = "" if named is None else named.phase(holder.name, item)
                runs = 1 if named is None else named.runs(holder.name)
                left[key].add(item.name, bytes_=item.shape.bytes * runs, phase=where)
    for key, group in left.items():
        reason = f"{asked[key]}{_GONE}"
        yield fate("converted", program, key[0], group, reason, before=key[1], after=key[2])
