"""Programs in a folder of XLA's dumps, of `perfscope run --xla-dump` or of `perfscope compile`, and single files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct

from perfscope.analyzers.hlo import HloModule
from perfscope.analyzers.readers import READERS, read_head, unoptimized_program
from perfscope.model.errors import DataError
from perfscope.plugins.lower.document import Fate
from perfscope.plugins.lower.kernel_code import KERNEL_CODE, code_files
from perfscope.plugins.lower.program import FLOPS_PER_BYTE, Grouped, Program, ProgramStage, fate
from perfscope.plugins.lower.xla.fates import fates_as_written, fates_of
from perfscope.plugins.lower.xla.lines import Lines, Written
from perfscope.plugins.lower.xla.passes import is_pass_dump, passes_of
from perfscope.plugins.lower.xla.written import jaxpr_ops, read_text, stablehlo_ops

_AFTER = re.compile(
    r"^(?P<stem>.+?)\.(?:(?:sm_[\w.]+?|gfx[\w.]+?|cpu|gpu|tpu|[a-z]+)_)*after_opt(?:imizations)?\.(?:hlo\.)?(?:txt|pb)(?:\.gz|\.xz)?$"
)
_COMPILED = re.compile(r"^(?P<stem>\d+\.[^.]+)\.hlo\.pb(?:\.xz|\.gz)?$")
_BEFORE = re.compile(r"^(?P<stem>.+?)\.before_optimizations\.(?:hlo\.)?(?:txt|pb)(?:\.gz|\.xz)?$")
_JAXPR = re.compile(r"^jax_\d+_(?P<name>.+)\.jaxpr\.txt$")
_MLIR = re.compile(r"^jax_ir\d+_(?P<name>.+)_compile\.mlir$")
_SHOW = {
    "jaxpr": "JAX_DUMP_IR_TO=DIR JAX_DUMP_IR_MODES=jaxpr,stablehlo",
    "StableHLO": "JAX_DUMP_IR_TO=DIR JAX_DUMP_IR_MODES=jaxpr,stablehlo",
    "HLO before optimization": "XLA_FLAGS=--xla_dump_to=DIR",
    "HLO after each pass": "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=.*'",
    "HLO after optimization": "XLA_FLAGS=--xla_dump_to=DIR",
    "kernels": "XLA_FLAGS=--xla_dump_to=DIR",
    KERNEL_CODE: "XLA_FLAGS=--xla_dump_to=DIR",
}
"""Stage -> what records it."""


class _Files(Struct, frozen=True, kw_only=True):
    """Files of one program."""

    stem: str
    after: Path | None
    before: Path | None
    folder: Path


class _Listed(Struct, frozen=True, kw_only=True):
    """Names in a folder: begin of the files of each program, and JAX's dumps by the program's name, in order."""

    stems: dict[str, list[str]]
    jaxprs: dict[str, list[Path]]
    mlirs: dict[str, list[Path]]


def programs_in(folder: Path) -> tuple[Program, ...]:
    """The programs of a folder, the largest first; ``DataError`` in one line if a file is damaged."""
    listed: dict[Path, _Listed] = {}
    found = []
    for files in _files(folder):
        if files.folder not in listed:
            listed[files.folder] = _listed(files.folder)
        found.append(_program(files, listed[files.folder]))
    return tuple(sorted(found, key=lambda program: (-program.weight, -_size(program))))


def program_of_file(file: Path) -> Program:
    """The program in one file of HLO; ``DataError`` in one line."""
    match = _AFTER.match(file.name) or _COMPILED.match(file.name)
    stem = match["stem"] if match else file.name
    module = _read(file)
    compiled = module.is_scheduled or module.platform is not None
    files = _Files(stem=stem, after=file if compiled else None, before=None if compiled else file, folder=file.parent)
    return _program(files, _listed(file.parent))


def has_dumps(folder: Path) -> bool:
    """Whether a folder has dumps of XLA."""
    return any(_AFTER.match(file.name) or _BEFORE.match(file.name) for file in folder.rglob("*") if file.is_file())


def _files(folder: Path) -> Iterator[_Files]:
    after: dict[tuple[Path, str], Path] = {}
    before: dict[tuple[Path, str], Path] = {}
    for file in sorted(folder.rglob("*")):
        if not file.is_file() or is_pass_dump(file.name):
            continue
        if (match := _BEFORE.match(file.name)) is not None:
            before.setdefault((file.parent, match["stem"]), file)
        elif (match := _AFTER.match(file.name)) is not None or (
            file.parent.name == "programs" and (match := _COMPILED.match(file.name)) is not None
        ):
            key = (file.parent, match["stem"])
            if key not in after or ".pb" in file.suffixes:  # the proto has the same program, and complete call stacks
                after[key] = file
    for place in dict.fromkeys([*after, *before]):
        yield _Files(stem=place[1], after=after.get(place), before=before.get(place), folder=place[0])


def _program(files: _Files, listed: _Listed) -> Program:
    compiled = None if files.after is None else _read(files.after)
    before = None if files.before is None else _read(files.before)
    if before is None and compiled is not None:
        before = unoptimized_program(str(files.after))
    name = _name(files.stem, compiled or before)
    passes = passes_of(files.folder, files.stem)
    stages = [*_written(files, name, listed)]
    stages.append(
        _missing("HLO before optimization") if before is None
        else ProgramStage(name="HLO before optimization", ops=Written(before).stage_ops(), file=before.source)
    )  # fmt: skip
    stages.append(
        ProgramStage(name="HLO after each pass", size=len(passes.found), file=str(passes.found[0].file))
        if passes.found else _missing("HLO after each pass")
    )  # fmt: skip
    if compiled is None:
        stages += [_missing("HLO after optimization"), _missing("kernels"), _missing(KERNEL_CODE)]
        turns = "" if before is None or Written(before).exact else "; loops of unknown length count once"
        note = f"{name}: not compiled in this input; rows are of the program as written{turns}"
        fates = () if before is None else tuple(fates_as_written(name, before))
        return Program(name=name, stages=tuple(stages), fates=fates, notes=(note,))
    lines = Lines(compiled)
    stages.append(ProgramStage(name="HLO after optimization", ops=lines.stage_ops(), file=compiled.source))
    stages.append(ProgramStage(name="kernels", ops=lines.kernel_ops(), size=len(list(lines.launches()))))
    stages.append(_code(files))
    total = lines.cost.total
    return Program(
        name=name, stages=tuple(stages), fates=(*fates_of(name, before, lines, passes), *_never_hlo(name, stages)),
        weight=total.bytes + total.flops / FLOPS_PER_BYTE,
    )  # fmt: skip


def _listed(folder: Path) -> _Listed:
    """JAX's own dumps are in the folder of those of XLA, or in one below it."""
    stems: dict[str, list[str]] = {}
    jaxprs: dict[str, list[Path]] = {}
    mlirs: dict[str, list[Path]] = {}
    here = sorted(folder.iterdir())
    for file in here:
        match = None if is_pass_dump(file.name) else _BEFORE.match(file.name) or _AFTER.match(file.name)
        if match is not None:
            same = stems.setdefault(_plain(match["stem"]), [])
            same += [match["stem"]] if match["stem"] not in same else []
    for file in (*here, *(file for below in here if below.is_dir() for file in sorted(below.iterdir()))):
        if (match := _JAXPR.match(file.name)) is not None:
            jaxprs.setdefault(match["name"], []).append(file)
        elif (match := _MLIR.match(file.name)) is not None:
            mlirs.setdefault(match["name"], []).append(file)
    return _Listed(stems=stems, jaxprs=jaxprs, mlirs=mlirs)


def _plain(stem: str) -> str:
    return stem.partition(".")[2]


def _written(files: _Files, name: str, listed: _Listed) -> Iterator[ProgramStage]:
    """The jaxpr and the StableHLO of a program; of several with one name, each has the dump at its place in order."""
    same = listed.stems.get(_plain(files.stem), [files.stem])
    module = files.folder / files.stem / "module.mlir"
    dumps = {
        "jaxpr": (jaxpr_ops, listed.jaxprs.get(name.removeprefix("jit_"), [])),
        "StableHLO": (stablehlo_ops, listed.mlirs.get(name, [])),
    }
    for stage, (ops_of, found) in dumps.items():
        if stage == "StableHLO" and not found and module.is_file():
            found, same = [module], [files.stem]
        if not found:
            yield _missing(stage)
        elif len(found) != len(same) or files.stem not in same:
            yield ProgramStage(name=stage, missing=f"dumps with this name: {len(found)}, programs: {len(same)}")
        else:
            file = found[same.index(files.stem)]
            yield ProgramStage(name=stage, ops=ops_of(read_text(file)), file=str(file))


def _never_hlo(name: str, stages: Sequence[ProgramStage]) -> Iterator[Fate]:
    """Lines of the StableHLO without an instruction: folded on the way into HLO, before any pass runs."""
    by_name = {stage.name: stage.ops for stage in stages}
    later = {op.place for stage in ("HLO before optimization", "HLO after optimization") for op in by_name[stage]}
    groups: dict[str, Grouped] = {}
    for op in by_name["StableHLO"]:
        if op.place and op.place not in later:
            groups.setdefault(op.place, Grouped()).add(op.op, phase=op.phase)
    for place, group in groups.items():
        ops = ", ".join([*dict.fromkeys(group.names)][:3])
        yield fate("dropped", name, place, group, f"{ops}: folded on the way from StableHLO to HLO")


def _code(files: _Files) -> ProgramStage:
    """PTX and LLVM IR next to a program: a file per kernel or per program."""
    found = code_files(files.folder, files.stem)
    if not found:
        return _missing(KERNEL_CODE)
    return ProgramStage(name=KERNEL_CODE, size=len(found), file=str(found[0]), stem=files.stem)


def _missing(name: str) -> ProgramStage:
    return ProgramStage(name=name, missing=f"{_SHOW[name]} writes it")


def _read(file: Path) -> HloModule:
    reader = hlo_reader(file)
    if reader is None:
        raise DataError(f"{file}: not a program in HLO")
    (module,) = reader.read(file).hlo
    if not any(computation.instructions for computation in module.computations.values()):
        raise DataError(f"{file}: no instructions")
    return module  # type: ignore[no-any-return]


def hlo_reader(file: Path) -> Any:
    """The reader of a file with HLO, text or proto; ``None`` for other files."""
    head = read_head(file)
    readers = (import_module(READERS[kind]) for kind in ("hlo_text", "hlo_proto"))
    return next((reader for reader in readers if reader.sniff(file, head)), None)


def _name(stem: str, module: HloModule | None) -> str:
    return module.name.partition("(")[0] if module is not None else stem.rpartition(".")[2]


def _size(program: Program) -> int:
    return max((stage.size if stage.size is not None else len(stage.ops) for stage in program.stages), default=0)
