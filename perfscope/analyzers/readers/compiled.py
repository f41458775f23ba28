"""Compiled: a directory from `perfscope compile`, programs for a machine that is not present, as one trace.

```
20261122-042726-train-7f3a/
  compile.json                                   the manifest: target, source, missing files
  programs/00.jit_step.hlo.pb                    after optimization, with its memory assigned
  programs/00.jit_step.before_optimizations.hlo.pb
  programs/00.jit_step.priority_fusion_dump.txt  GPU: XLA's reasons for not fusing
  programs/00.jit_step.thunk_sequence.txt        GPU: the launches in order
  programs/00.jit_step.passes.textproto          time of each pass of the compiler
  plans/00.*.json                                PyTorch: what torch.compile would make of it, read by `torch_plan`
```
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perfscope.analyzers.devices import Target, described_target
from perfscope.analyzers.readers.hlo import proto
from perfscope.analyzers.readers.hlo.program import join_programs
from perfscope.analyzers.readers.op_graph import read_op_graph
from perfscope.analyzers.readers.torch_log import breaks
from perfscope.model.compile_log import CodeLine, Compile, GraphBreak
from perfscope.model.documents import run_folders
from perfscope.model.documents.compile_manifest import Compiled, load
from perfscope.model.documents.torch_plan import read_plan
from perfscope.model.errors import DataError
from perfscope.model.op_graph import OpGraph
from perfscope.model.torch_plan import LoadedPlan, PlanBreak, TorchPlan
from perfscope.model.trace import Trace, TraceBuilder

if TYPE_CHECKING:
    from perfscope.model.documents.compile_manifest import Compiled


FORMAT = "compiled"
MOST_NAMED = 3
"""Maximum number of named programs that were not compiled; beyond it, only their count is reported."""

PLAN_FORMAT = "torch plan"

PLAN_FOLDER = "plans"

MOST_PLANS = 100
"""Maximum number of plans of a folder; one program makes one plan."""


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the path is a directory with such a manifest."""
    return path.is_dir() and run_folders.is_compiled(path)


def read(path: Path) -> Trace:
    """Return the programs and plans of the folder as one trace, with the target that they are judged for.

    A corrupt one is left out and named in the source's notes. ``DataError`` with the manifest's notes if nothing is
    left.
    """
    manifest = load(path)
    trace = read_plan_folder(path, manifest) if manifest.framework == "torch" else _programs(path, manifest)
    notes = (*_manifest_notes(manifest), *trace.source.notes)
    return replace(
        trace,
        source=replace(trace.source, path=str(path), format=FORMAT, notes=tuple(dict.fromkeys(notes))),
        target=_target(path, manifest),
        checkpoint=None if manifest.checkpoint is None else manifest.checkpoint.policy,
        judged_device=manifest.target.device,
    )


def _programs(path: Path, manifest: Compiled) -> Trace:
    read, problems = [], []
    for program in manifest.programs:
        file = path / program.file
        try:
            if not file.is_file():
                raise DataError(f"{file}: no such file")
            read.append(proto.read(file))
        except DataError as error:
            problems.append(f"{program.file} was not read: {str(error).removeprefix(f'{file}: ')}")
    if not read:
        raise DataError(f"{path}: {problems[0] if problems else _why_nothing(manifest)}")
    return join_programs(read, str(path)).noted(*problems)


def _target(path: Path, manifest: Compiled) -> Target | None:
    if not manifest.target.description:
        return None
    try:
        return described_target(manifest.target.description)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _why_nothing(manifest: Compiled) -> str:
    for not_compiled in manifest.not_compiled:
        return f"nothing was compiled: {not_compiled.name}: {not_compiled.reason}"
    return f"nothing was compiled{': ' + manifest.notes[-1] if manifest.notes else ''}"


def _manifest_notes(manifest: Compiled) -> list[str]:
    """Return how the programs were made, as notes for a reader of the report."""
    target = manifest.target
    several = f"{target.count} x " if target.count > 1 else ""
    notes = [f"compiled for {several}{target.device} on a machine without it: no kernel was tuned by timing it"]
    if not manifest.complete:
        notes.append("incomplete: the compilation did not finish")
    left = manifest.not_compiled
    if left:
        named = "; ".join(f"{not_compiled.name}: {not_compiled.reason}" for not_compiled in left[:MOST_NAMED])
        more = f"; and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        notes.append(f"not compiled: {named}{more}")
    return [*notes, *manifest.notes]


# Torch plans: ``plans/*.json`` of a folder that `perfscope compile` wrote for a PyTorch program.


def read_plan_folder(folder: Path, manifest: Compiled | None = None) -> Trace:
    """Return the plans of a run folder and their ops as one trace without times.

    A corrupt plan is left out and named in the source's notes; ``DataError`` if none is left.
    """
    problems: list[str] = []
    held = []
    for path in _plan_files(folder):
        try:
            plan = read_plan(path)
        except DataError as error:
            problems.append(f"{PLAN_FOLDER}/{path.name} was not read: {str(error).removeprefix(f'{path}: ')}")
            continue
        eager = _op_graph_of(path.parent, plan.eager_file, problems)
        outside = _op_graph_of(path.parent, plan.outside_file, problems)
        held.append(LoadedPlan(plan=plan, breaks=tuple(map(_graph_break, plan.breaks)), eager=eager, outside=outside))
    if not held:
        raise DataError(f"{folder}: {problems[0] if problems else 'no plan is in it'}")
    first = held[0]
    graph = first.outside if first.plan.compiled_by == "program" else first.eager
    builder = TraceBuilder(str(folder), PLAN_FORMAT)
    builder.events = sum(len(graph.kernels) for plan in held for graph in plan.plan.graphs)
    notes = [note for plan in held for note in (*plan.plan.notes, *_not_covered(plan.plan))]
    builder.note(*dict.fromkeys((*notes, *problems)))
    builder.record("torch_plan", *(("op_graph",) if graph is not None else ()))
    return builder.build(op_graph=graph, torch_plans=tuple(held))


def _graph_break(plan_break: PlanBreak) -> tuple[str | None, GraphBreak]:
    plan_line = plan_break.place
    place = (
        None if plan_line is None else CodeLine(file=plan_line.file, line=plan_line.line, function=plan_line.function)
    )
    frame = Compile(compile_id=plan_break.compile_id, function=plan_break.function, place=place)
    return plan_break.function, breaks.parse_break(plan_break.text, frame)


def _not_covered(plan: TorchPlan) -> list[str]:
    return [f"not covered by the plan: {text}" for text in plan.not_covered]


def _plan_files(folder: Path) -> list[Path]:
    every = sorted((folder / PLAN_FOLDER).glob("*.json")) + sorted((folder / PLAN_FOLDER).glob("*.json.gz"))
    found = [path for path in every if ".opgraph." not in path.name]
    if len(found) > MOST_PLANS:
        raise DataError(f"{folder / PLAN_FOLDER}: {len(found)} plans, more than {MOST_PLANS}: not a folder of ours")
    return found


def _op_graph_of(folder: Path, name: str | None, problems: list[str]) -> OpGraph | None:
    """Return the op graph next to a plan, unless its name leads out of the folder."""
    if name is None:
        return None
    if len(PurePosixPath(name).parts) != 1 or "\\" in name or name in (".", ".."):
        problems.append(f"the ops of a plan were not read: {name[:80]!r} leads out of its folder")
        return None
    try:
        return read_op_graph(folder / name)
    except DataError as error:
        problems.append(f"{PLAN_FOLDER}/{name} was not read: {str(error).partition(': ')[2]}")
        return None
