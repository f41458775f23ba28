"""Transposes and copies to another layout: the program's own, and those that XLA added for a reader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from perfscope.analyzers.hlo import Computation, HloModule, Instruction, primitive
from perfscope.plugins.lower.document import Fate
from perfscope.plugins.lower.program import Grouped, fate, place_of
from perfscope.plugins.lower.xla.lines import Lines, Source, Written, phase, shown_shape
from perfscope.plugins.lower.xla.passes import Passes, Signature

By = Literal["program", "compiler"]


def transposed(program: str, before: HloModule | None, lines: Lines, passes: Passes) -> Iterator[Fate]:
    """Yield rearrangements of elements, by line, order, and author (the program or the compiler)."""
    written = _written_transposes(before)
    groups: dict[tuple[str, By, str], Grouped] = defaultdict(Grouped)
    signatures: dict[tuple[str, By, str], Signature] = {}
    for computation, row in lines.rows():
        item = row.instruction
        order = _moves(computation, item)
        if order is None:
            continue
        made = _written_at(written, lines, computation, item)
        key: tuple[str, By, str] = made or lines.shown(computation, item), "program" if made else "compiler", order
        group = groups[key]
        layout = shown_shape(item).partition("{")[2]
        signatures.setdefault(key, (item.opcode, item.shape.dtype, item.shape.elements, f"{{{layout}"))
        kernel = lines.kernel(computation, item)
        group.add(item.name, bytes_=item.shape.bytes * row.runs, kernel=kernel, phase=phase(item))
        reader = lines.reader(computation, item)
        if reader is not None:
            at = place_of(reader.file, reader.line)
            group.reasons[f"{_name(reader)} at {at}"] = None
    for key, group in groups.items():
        place, by, order = key
        served = f"; read by {', '.join(list(group.reasons)[:2])}" if group.reasons else ""
        reason = f"the program's own transpose at this line{served}"
        if {*group.phases} == {"backward"}:
            reason = f"transposed in the gradient of this line{served}"
        if by == "compiler":
            adder = passes.adder(*signatures[key])
            told = f" ({adder})" if adder else ""
            reason = f"added by XLA{told} for the order that its reader needs{served}"
            if before is None and not lines.has_names:
                reason = f"of the program or of XLA: unknown without names of ops{served}"
        old, _, new = order.partition(" -> ")
        yield fate("transposed", program, place, group, reason, before=old, after=new, by=by)


def transposes(program: str, before: HloModule) -> Iterator[Fate]:
    """Yield the transposes of a program that is not compiled."""
    groups: dict[str, Grouped] = defaultdict(Grouped)
    named = Written(before)
    for holder, item in before.instructions():
        if item.opcode == "transpose" and item.file is not None:
            where, bytes_ = named.phase(holder.name, item), item.shape.bytes * named.runs(holder.name)
            groups[place_of(item.file, item.line)].add(item.name, bytes_=bytes_, phase=where)
    for place, group in groups.items():
        yield fate("transposed", program, place, group, "a transpose as written; XLA may make it part of its readers")


def _written_at(
    written: Mapping[tuple[int, ...], Sequence[tuple[str, Source]]], lines: Lines, computation: Computation,
    item: Instruction,
) -> str:  # fmt: skip
    """Line of the program's transpose that an instruction carries out; empty if it is XLA's own.

    XLA moves and merges transposes, and drops their lines: they are known by what they rearrange, and their sizes.
    """
    if item.file is not None and primitive(item.op_name) == "transpose":
        return place_of(item.file, item.line)
    source, here = lines.source(computation, item), place_of(item.file, item.line)
    for sizes in (item.shape.dims, _any_order(item)):
        for place, of in written.get(sizes, ()):
            if of == source or place == here:
                return place
    return ""


def _name(reader: Instruction) -> str:
    """Name of a reader: a product that XLA merged a transpose into has the transpose's path."""
    return reader.opcode if reader.opcode in ("dot", "convolution") else primitive(reader.op_name) or reader.opcode


def _written_transposes(before: HloModule | None) -> dict[tuple[int, ...], list[tuple[str, Source]]]:
    """Lines of the program's own transposes and what they rearrange, by the sizes of the result, ordered or not."""
    found: dict[tuple[int, ...], list[tuple[str, Source]]] = defaultdict(list)
    if before is None:
        return found
    named = Written(before)
    for holder, item in before.instructions():
        if item.opcode == "transpose" and item.file is not None:
            for sizes in (item.shape.dims, _any_order(item)):
                found[sizes].append((place_of(item.file, item.line), named.source(holder, item)))
    return found


def _any_order(item: Instruction) -> tuple[int, ...]:
    """Key of its sizes in any order, which no sizes equal."""
    return (-1, *sorted(item.shape.dims))


def _moves(computation: Computation, item: Instruction) -> str | None:
    """Order of the elements before and after, if an instruction really rearranges them; else ``None``."""
    if item.opcode not in ("transpose", "copy") or item.operands[0] not in computation.by_name or item.shape.parts:
        return None
    operand = computation.by_name[item.operands[0]].shape
    if operand.layout is None or item.shape.layout is None or len(item.shape.dims) < 2:
        return "rows -> columns" if item.opcode == "transpose" and operand.layout is None else None
    permuted = item.shape.layout
    if item.opcode == "transpose":
        text = item.attributes.get("dimensions", "").strip("{}")
        axes = [int(axis) for axis in text.split(",") if axis.strip().isdecimal()]
        if len(axes) != len(item.shape.dims):
            return None
        permuted = tuple(axes[axis] for axis in item.shape.layout)
    real = [axis for axis in permuted if operand.dims[axis] > 1]
    if real == [axis for axis in operand.layout if operand.dims[axis] > 1]:
        return None
    return f"{_order(operand.layout)} -> {_order(permuted)}"


def _order(layout: Sequence[int]) -> str:
    return "{" + ",".join(map(str, layout)) + "}"
