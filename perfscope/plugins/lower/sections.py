"""The lowering as blocks: why lines run twice, where transposes and dtypes come from, the stages, the compile time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from msgspec.structs import replace

from perfscope.dashboards.report.blocks import Block, Column, Listing, Report, Section, Text, table, tables
from perfscope.model.units import format_ns
from perfscope.plugins.lower.document import CacheAnswer, Fate, Lowering, OnLine, Op, Part, Stage
from perfscope.plugins.lower.program import FLOPS_PER_BYTE

FEW = 5
"""Rows of a question on the first screen."""
FEW_PARTS = 8

_QUESTIONS: dict[str, tuple[str, str]] = {
    "recomputed": ("Lines that run again", "in the backward or to save memory; FLOPs done again"),
    "duplicated": ("Lines that several kernels compute again", "FLOPs of the copies after the first"),
    "resharded": ("Lines whose values move between devices", "exchanges that the program does not call"),
    "transposed": ("Where transposes and layout changes come from", "bytes of the values that are rearranged"),
    "converted": ("Why values are in another dtype", "bytes of the converted values"),
    "split": ("Lines split into several kernels", "bytes that these kernels pass to each other through memory"),
    "materialised": ("Lines whose values go through memory", "written by one kernel and read by another"),
    "merged": ("Lines written twice and computed once", "common subexpressions, also of checkpoints"),
    "dropped": ("Lines of which nothing is left", "folded, simplified away, or only views"),
}
_DETAIL = frozenset({"dropped"})
_LAST = frozenset({"split", "materialised", "merged", "dropped"})
"""Questions after the others, whatever their bytes: every program has such lines."""

_FATES: tuple[Column[Fate], ...] = (
    Column("line", lambda fate: fate.place or "(no line)", "place"),
    Column("from -> to", lambda fate: f"{fate.before} -> {fate.after}" if fate.before else ""),
    Column("times", lambda fate: fate.times, "count", 2),
    Column("bytes", lambda fate: fate.bytes or None, "bytes"),
    Column("FLOPs", lambda fate: fate.flops or None, "quantity", 4),
    Column("why", lambda fate: fate.reason, "text"),
    Column("code", lambda fate: fate.code, "code", 3, 60),
    Column("kernels", lambda fate: ", ".join(fate.kernels[:2]), "code", 1, 40),
)
_PROGRAM: Column[Fate] = Column("program", lambda fate: fate.program, "code", 2, 24)
_STAGES: tuple[Column[Stage], ...] = (
    Column("program", lambda stage: stage.program, "code"),
    Column("stage", lambda stage: stage.name),
    Column("ops", lambda stage: None if stage.missing else stage.ops, "count"),
    Column("lines", lambda stage: stage.lines or None, "count"),
    Column("missing", lambda stage: stage.missing, "text"),
    Column("file", lambda stage: stage.file and PurePath(stage.file).name, "code", 1, 60),
)
_OPS: tuple[Column[Op], ...] = (
    Column("op", lambda op: op.op, "code"),
    Column("result", lambda op: op.result, "code", 3),
    Column("phase", lambda op: op.phase, "text", 2),
    Column("kernel", lambda op: op.inside, "code", 1, 40),
    Column("as it is there", lambda op: op.text, "code", 4, 120),
)
_PARTS: tuple[Column[Part], ...] = (
    Column("function", lambda part: part.function or "(any)", "code"),
    Column("layer", lambda part: part.layer),
    Column("part", lambda part: part.name, "text", 0, 60),
    Column("calls", lambda part: part.calls, "count", 1),
    Column("cold", lambda part: part.cold_ns, "ns"),
    Column("warm", lambda part: part.warm_ns, "ns"),
)
_FUNCTIONS = tuple(column for column in _PARTS if column.title != "part")
_CACHES: tuple[Column[CacheAnswer], ...] = (
    Column("cache", lambda answer: answer.cache),
    Column("run", lambda answer: answer.run),
    Column("hits", lambda answer: answer.hits, "count"),
    Column("misses", lambda answer: answer.misses, "count"),
)


_KERNELS = ("kernels", "kernel code", "kernel source")
_COMPILED = (*_KERNELS, "HLO after optimization")


def rank(fate: Fate) -> float:
    """Order of a row: its bytes, or its FLOPs at `FLOPS_PER_BYTE`, whichever is more."""
    return max(fate.bytes, fate.flops / FLOPS_PER_BYTE)


def report_of(lowering: Lowering, *, all_stages: bool = False) -> Report:
    """The lowering as blocks."""
    sections = [*_fates(lowering.fates)]
    if lowering.asked:
        sections += _path(lowering)
    sections += _stages(lowering, all_stages=all_stages)
    if not lowering.asked:
        sections += _times(lowering)
    if lowering.notes:
        sections.append(Section(title="Notes", blocks=(Listing(items=lowering.notes),)))
    return Report(headline=_headline(lowering), facts=tuple(_facts(lowering)), sections=tuple(sections))


def _headline(lowering: Lowering) -> str:
    words = {
        "recomputed": "run again", "duplicated": "computed again in several kernels",
        "resharded": "exchanged between devices", "transposed": "transposed or copied to another layout",
        "converted": "converted",
    }  # fmt: skip
    counted = []
    for what, word in words.items():
        places = {fate.place for fate in lowering.fates if fate.what == what and fate.place}
        if places:
            counted.append(f"{len(places)} {word}")
    about = f" {lowering.asked}" if lowering.asked else ""
    found = f"lines: {', '.join(counted)}" if counted else "no line runs twice or changes its layout or dtype"
    if not counted:
        there = {stage.name for stage in lowering.stages if not stage.missing}
        if not there & {*_COMPILED}:
            found = "not compiled: only the stages before the compiler are here"
        elif not there - {*_KERNELS}:
            found = "kernels only: what runs twice or in another dtype is unknown here"
    return f"{lowering.subject}{about}: {found}"


def _facts(lowering: Lowering) -> Iterator[str]:
    if lowering.failed:
        yield f"{lowering.failed}; shown is what it compiled until then"
    yield "bytes and FLOPs are structural: counted in the compiled program, for one run of it"
    cold = sum(part.cold_ns or 0 for part in lowering.times if not part.name)
    warm = [part.warm_ns or 0 for part in lowering.times if not part.name]
    if cold:
        again = f", {format_ns(sum(warm))} with warm caches" if any(part.warm_ns for part in lowering.times) else ""
        yield f"compile time, measured here: {format_ns(cold)} cold{again}"


def _fates(fates: Sequence[Fate]) -> Iterator[Section]:
    by_what: dict[str, list[Fate]] = defaultdict(list)
    for fate in fates:
        by_what[fate.what].append(fate)
    for what in sorted(by_what, key=lambda what: (what in _LAST, -max(map(rank, by_what[what])))):
        title, summary = _QUESTIONS[what]
        rows = sorted(_joined(by_what[what]), key=lambda fate: (fate.group, -rank(fate)))
        yield Section(
            title=title,
            summary=summary,
            blocks=tables(table(_columns(rows), rows, few=FEW, rest="lines, which cost less")),
            detail=what in _DETAIL,
        )


def _columns(rows: Sequence[Fate]) -> tuple[Column[Fate], ...]:
    """The columns; the program only if there are several."""
    return _FATES if len({row.program for row in rows}) == 1 else (_FATES[0], _PROGRAM, *_FATES[1:])


def _joined(fates: Sequence[Fate]) -> Iterator[Fate]:
    """One row for all that the compiler did for one reason at several lines."""
    groups: dict[tuple[str, str, str], list[Fate]] = defaultdict(list)
    for fate in fates:
        if fate.by == "program" or fate.what != "converted":
            yield fate
        else:
            groups[fate.before, fate.after, fate.reason].append(fate)
    for same in groups.values():
        first = max(same, key=rank)
        lines = {fate.place for fate in same}
        yield first if len(lines) == 1 else replace(
            first, place=f"{len(lines)} lines", code=f"most at {first.place}", times=sum(fate.times for fate in same),
            bytes=sum(fate.bytes for fate in same), flops=sum(fate.flops for fate in same),
        )  # fmt: skip


def _stages(lowering: Lowering, *, all_stages: bool) -> Iterator[Section]:
    programs = list(dict.fromkeys(stage.program for stage in lowering.stages))
    shown = programs if all_stages else programs[:1]
    rows = [stage for stage in lowering.stages if stage.program in shown]
    left = len(programs) - len(shown)
    more = f"of the largest program; {left} more with --stages" if left else ""
    yield Section(title="Stages", summary=more, blocks=tables(table(_STAGES, rows, few=len(rows))))


def _times(lowering: Lowering) -> Iterator[Section]:
    if not lowering.times and not lowering.caches:
        return
    functions = [part for part in lowering.times if not part.name]
    parts = [part for part in lowering.times if part.name]
    yield Section(
        title="Compile time",
        summary="measured while the program compiled here",
        blocks=(
            *tables(table(_FUNCTIONS, functions, few=FEW, title="By function", rest="functions, which take less")),
            *tables(table(_PARTS, parts, few=FEW_PARTS, title="By pass", rest="passes, which take less")),
            *tables(table(_CACHES, lowering.caches, few=len(lowering.caches), title="Caches")),
        ),
    )


def _path(lowering: Lowering) -> Iterator[Section]:
    for item in lowering.path:
        yield Section(title=_title(item), blocks=_ops(item))


def _title(item: OnLine) -> str:
    return f"{item.program}: {item.stage}"


def _ops(item: OnLine) -> tuple[Block, ...]:
    if not item.ops:
        return (Text("nothing of it is here"),)
    return tables(table(_OPS, item.ops, few=len(item.ops), left=item.left, rest="ops"))
