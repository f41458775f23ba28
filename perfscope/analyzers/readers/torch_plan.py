"""Torch plans: ``plans/*.json`` of a folder that `perfscope compile` wrote for a PyTorch program."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from perfscope.analyzers.compile_log import GraphBreak, Place
from perfscope.analyzers.op_graph import OpGraph
from perfscope.analyzers.readers.op_graph import read_op_graph
from perfscope.analyzers.readers.torch_log import breaks
from perfscope.analyzers.readers.torch_log.unit import Unit
from perfscope.analyzers.torch_plan import HeldPlan, PlanBreak, TorchPlan
from perfscope.analyzers.trace import Source, Trace
from perfscope.profiler.aot.torch_plan_file import read_plan
from perfscope.profiler.errors import DataError

if TYPE_CHECKING:
    from perfscope.profiler.aot.compiled_file import Compiled

FORMAT = "torch plan"
FOLDER = "plans"
MOST_PLANS = 100
"""Of a folder; one program makes one plan."""


def read_plans(folder: Path) -> tuple[TorchPlan, ...]:
    """The plans of a run folder, in the order of their names; ``DataError`` for the first that is damaged."""
    return tuple(read_plan(path) for path in _files(folder))


def read_folder(folder: Path, manifest: Compiled | None = None) -> Trace:
    """The plans of a run folder and the ops beside them as one trace without times.

    A plan that is damaged is left out and said in the source's notes; ``DataError`` if none is left.
    """
    problems: list[str] = []
    held = []
    for path in _files(folder):
        try:
            plan = read_plan(path)
        except DataError as error:
            problems.append(f"{FOLDER}/{path.name} is not read: {str(error).removeprefix(f'{path}: ')}")
            continue
        eager = _ops(path.parent, plan.eager_file, problems)
        outside = _ops(path.parent, plan.outside_file, problems)
        held.append(HeldPlan(plan=plan, breaks=tuple(map(_break, plan.breaks)), eager=eager, outside=outside))
    if not held:
        raise DataError(f"{folder}: {problems[0] if problems else 'no plan is in it'}")
    first = held[0]
    graph = first.outside if first.plan.compiled_by == "program" else first.eager
    recorded = {"torch_plan"} | ({"op_graph"} if graph is not None else set())
    notes = [note for one in held for note in (*one.plan.notes, *_not_covered(one.plan))]
    trace = Trace(
        source=Source(
            path=str(folder),
            format=FORMAT,
            rank=None,
            events_read=sum(len(graph.kernels) for one in held for graph in one.plan.graphs),
            events_unplaced=0,
            notes=tuple(dict.fromkeys((*notes, *problems))),
        ),
        strings=[],
        rows={},
        recorded=frozenset(recorded),
        op_graph=graph,
    )
    trace.torch_plans = tuple(held)
    return trace


def _break(one: PlanBreak) -> tuple[str | None, GraphBreak]:
    at = one.place
    place = None if at is None else Place(file=at.file, line=at.line, function=at.function)
    unit = Unit(compile_id=one.compile_id, function=one.function, place=place)
    return one.function, breaks.parse(one.text, unit, None)


def _not_covered(plan: TorchPlan) -> list[str]:
    return [f"not covered by the plan: {text}" for text in plan.not_covered]


def _files(folder: Path) -> list[Path]:
    every = sorted((folder / FOLDER).glob("*.json")) + sorted((folder / FOLDER).glob("*.json.gz"))
    found = [path for path in every if ".opgraph." not in path.name]
    if len(found) > MOST_PLANS:
        raise DataError(f"{folder / FOLDER}: {len(found)} plans, more than {MOST_PLANS}: not a folder of ours")
    return found


def _ops(folder: Path, name: str | None, problems: list[str]) -> OpGraph | None:
    """The op graph beside a plan. A name that leads elsewhere is none of ours."""
    if name is None:
        return None
    if len(PurePosixPath(name).parts) != 1 or "\\" in name or name in (".", ".."):
        problems.append(f"the ops beside a plan are not read: {name[:80]!r} leads out of its folder")
        return None
    try:
        return read_op_graph(folder / name)
    except DataError as error:
        problems.append(f"{FOLDER}/{name} is not read: {str(error).partition(': ')[2]}")
        return None
