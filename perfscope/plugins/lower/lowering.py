"""The document from what was read: stages, fates, and the path of one line or op."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from perfscope.analyzers.hlo import is_library
from perfscope.model.errors import DataError
from perfscope.plugins.lower import compile_time
from perfscope.plugins.lower.document import SCHEMA, Fate, Lowering, OnLine, Op, Stage
from perfscope.plugins.lower.inputs import Read
from perfscope.plugins.lower.kernel_code import KERNEL_CODE, KERNEL_SOURCE, kernel_code
from perfscope.plugins.lower.program import Program, ProgramStage, StageOp, code_at, is_at

_PACKAGES = re.compile(r"(?<![\w.-])/[^\s,;:]*/(?:site|dist)-packages/")
"""Folder of installed packages in a path."""

MOST_PARTS = 2_000
"""Parts of the compile time that are kept, the longest first."""

MOST_OPS = 12
"""Most ops of a stage in the path of a line."""


def of(found: Read, subject: str, *, line: str | None, op: str | None) -> Lowering:
    """The document. ``DataError``: no stage has the asked line or op."""
    folders = _folders(found.programs)
    programs = tuple(_shortened(program, folders) for program in _named_apart(found.programs))
    asked = f"line {line}" if line is not None else f"op {op}" if op is not None else ""
    path = tuple(_path(programs, line, op)) if asked else ()
    if asked and not path:
        lines = sorted({place for program in programs for stage in program.stages for item in stage.ops
                        if (place := item.place)})  # fmt: skip
        known = f"; lines with ops: {', '.join(lines[:8])}{' ...' if len(lines) > 8 else ''}" if line else ""
        raise DataError(f"{subject}: no stage has {asked}{known}")
    here = Path(subject).parent if subject.endswith(".py") else Path()
    fates = [
        fate if fate.code else replace(fate, code=code_at(str(here / fate.place)))
        for program in programs for fate in program.fates
    ]  # fmt: skip
    if line is not None:
        fates = [fate for fate in fates if is_at(fate.place, line)]
    elif asked:
        names = {item.name for held in path for item in held.ops}
        fates = [fate for fate in fates if names & {*fate.ops}]
    times = compile_time.table(found.spent)
    cut = [f"the compile time of {len(times) - MOST_PARTS:,} parts that take least is left out"][
        : len(times) > MOST_PARTS
    ]
    return Lowering(
        schema=SCHEMA,
        subject=subject,
        framework=found.framework,
        asked=asked,
        stages=tuple(stage for program in programs for stage in _stages(program)),
        fates=tuple(fates),
        path=path,
        times=times[:MOST_PARTS],
        caches=found.answers,
        failed=found.failed,
        notes=tuple(dict.fromkeys([*found.remarks, *(note for program in programs for note in program.notes), *cut])),
    )


def _named_apart(programs: tuple[Program, ...]) -> Iterator[Program]:
    """The programs with a number after a name that occurred before."""
    seen: Counter[str] = Counter()
    for program in programs:
        seen[program.name] += 1
        number = seen[program.name]
        name = program.name if number == 1 else f"{program.name} #{number}"
        yield replace(program, name=name, fates=tuple(replace(fate, program=name) for fate in program.fates))


def _stages(program: Program) -> Iterator[Stage]:
    for stage in program.stages:
        yield Stage(
            program=program.name, name=stage.name, ops=len(stage.ops) if stage.size is None else stage.size,
            lines=len({item.place for item in stage.ops if item.place}), file=stage.file, missing=stage.missing,
        )  # fmt: skip


def _path(programs: tuple[Program, ...], line: str | None, op: str | None) -> Iterator[OnLine]:
    for program in programs:
        hits = [(stage, [item for item in stage.ops if _is_asked(item, line, op)]) for stage in program.stages]
        if not any(items for _, items in hits):
            continue
        kernels = {item.inside or item.name for _, items in hits for item in items}
        for stage, items in hits:
            if stage.name == KERNEL_CODE and not stage.missing:
                items = kernel_code(stage, kernels)
            elif stage.name == KERNEL_SOURCE:
                items = [item for item in stage.ops if item.inside in kernels]
            elif stage.missing or (stage.size is not None and not stage.ops):
                continue
            yield OnLine(
                program=program.name, stage=stage.name, left=max(0, len(items) - MOST_OPS),
                ops=tuple(
                    Op(name=item.name, op=item.op, result=item.result, phase=item.phase, inside=item.inside,
                       text=item.text)
                    for item in items[:MOST_OPS]
                ),
            )  # fmt: skip


def _is_asked(item: StageOp, line: str | None, op: str | None) -> bool:
    if line is not None:
        return bool(item.place) and is_at(item.place, line)
    return (
        op is not None
        and op != ""
        and (op in (item.name, item.op, item.inside) or op in item.scope or op in item.op.split("."))
    )


def _shortened(program: Program, folders: tuple[str, ...]) -> Program:
    """The program with files named from the working directory, or from the folder of the program."""
    return replace(
        program,
        stages=tuple(_short_stage(stage, folders) for stage in program.stages),
        fates=tuple(_short_fate(fate, folders) for fate in program.fates),
    )


def _short_stage(stage: ProgramStage, folders: tuple[str, ...]) -> ProgramStage:
    return replace(
        stage, ops=tuple(replace(item, file=_short(item.file, folders)) if item.file else item for item in stage.ops)
    )


def _short_fate(fate: Fate, folders: tuple[str, ...]) -> Fate:
    return replace(fate, place=_short(fate.place, folders), reason=_short(fate.reason, folders))


def _short(text: str, folders: tuple[str, ...]) -> str:
    for folder in folders:
        text = text.replace(folder, "")
    return _PACKAGES.sub("", text)


def _folders(programs: tuple[Program, ...]) -> tuple[str, ...]:
    """The working directory, and the folder that all other files of the user are below."""
    here = f"{Path.cwd()}{os.sep}"
    files = {Path(fate.place.rpartition(":")[0]) for program in programs for fate in program.fates}
    away = {file.parent for file in files
            if file.is_absolute() and not str(file).startswith(here) and not is_library(str(file))}  # fmt: skip
    common = os.path.commonpath(away) if away else ""
    return (here, f"{common}{os.sep}") if len(common) > 1 else (here,)
