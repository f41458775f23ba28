"""``perfscope compare runs``: what changed from one run to another, how sure that is, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perfscope.commands.compare.outputs import Outputs, check_gates, finish, output_options, own_gates
from perfscope.commands.completion import complete_runs
from perfscope.commands.options import SIDES, Sides, selection_options, spare
from perfscope.model.documents import run_folders
from perfscope.model.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from perfscope.analyzers.readers import Loaded


@click.command()
@click.argument("base", metavar="BASE", required=False, shell_complete=complete_runs)
@click.argument("head", metavar="HEAD", required=False, shell_complete=complete_runs)
@selection_options
@output_options(
    "Exit 1 on: regression (of a count, or a likely one of the time), inconclusive, finding:low|medium|high (new, or "
    "costlier than before); of compiled programs also programs, lost-fusions, hbm-bytes, peak, blocking-collectives, "
    "launches, recompute, collective-bytes, modelled-time, most of them with :PERCENT. none: nothing. Repeatable. "
    "[programs, where both sides were compiled for one target]"
)
def runs(
    base: str | None, head: str | None, outputs: Outputs, steps: str | None, ranks: str | None, time: str | None,
) -> int:  # fmt: skip
    """Show changes from BASE to HEAD, and their lines in the code.

    BASE and HEAD are runs, trace files, folders with the traces of a job's ranks, compiled programs (HLO)
    or memory snapshots: two of one kind. Counts, bytes and findings are compared exactly. The time of one
    launch on each side is likely worse or better where two measurements of it agree, else not judged.

    A model in PyTorch and the same model in JAX are compared layer by layer (`compare port`).

    A folder with several runs is a set of launches: the variation within a set is separated from the change. The
    time of sets that ran in turns, six pairs or more, may fail a build.

    --steps, --ranks and --time choose the same part of both.
    """
    from msgspec.structs import replace

    from perfscope.analyzers.compare import compare_loaded, runs_in
    from perfscope.analyzers.selection import EVERYTHING, load_selected, parse_selection
    from perfscope.dashboards.report.compare import json

    check_gates(outputs.fail_on)
    selection = parse_selection(steps, ranks, time)
    named: Sides = click.get_current_context().meta.get(SIDES, _as_written)(base, head)
    launches = runs_in(named.base), runs_in(named.head)
    if launches != (None, None):
        if selection != EVERYTHING:
            raise UsageError("--steps, --ranks and --time are for one launch a side, not for folders of several runs")
        return _compare_sets(named, launches, outputs)
    chosen = [
        f"{name} {text}"
        for name, text in zip(("--steps", "--ranks", "--time"), (steps, ranks, time), strict=True)
        if text
    ]
    part = [f"only a part of each side was compared: {', '.join(chosen)}"] if chosen else []
    loaded = load_selected(named.base, selection), load_selected(named.head, selection)
    spare(_files(*loaded), outputs.files().values())
    other = _comparer(*loaded)
    if other is not None:
        done: int = other.compare(*loaded, outputs, (*named.notes, *part))
        return done
    comparison = compare_loaded(*loaded)
    comparison = replace(comparison, notes=(*named.notes, *part, *comparison.notes))
    gates = own_gates(comparison, outputs.fail_on)
    document = json.document(comparison, failed=comparison.gates(gates), gates=gates)
    return finish(document, outputs, unsettled=bool(comparison.inconclusive))


def _comparer(base: Loaded, head: Loaded) -> Any:
    """The module of a plug-in that compares sides of different kinds; ``None`` for sides of one kind."""
    from perfscope.analyzers.compare import kind_of
    from perfscope.model.plugins import load, named

    if {kind_of(trace) for trace in base.traces} & {kind_of(trace) for trace in head.traces}:
        return None
    modules = (load(home) for home in named("comparers").values())
    return next((module for module in modules if module.accepts(base, head)), None)


def _as_written(base: str | None, head: str | None) -> Sides:
    if base is None or head is None:
        raise UsageError("compare needs BASE and HEAD")
    return Sides(base=base, head=head)


def _compare_sets(named: Sides, runs: tuple[tuple[Path, ...] | None, tuple[Path, ...] | None], outputs: Outputs) -> int:
    """Compare two sides of which one at least is a folder of several runs: launches of one program."""
    from msgspec.structs import replace

    from perfscope.analyzers.compare import compare_sets, read_one, read_set
    from perfscope.dashboards.report.compare import json

    manifests = [str(file) for side in runs for run in side or () for file in run_folders.manifests(run)]
    spare(manifests, outputs.files().values())
    base, head = (
        read_one(path) if side_runs is None else read_set(path, side_runs)
        for path, side_runs in zip((named.base, named.head), runs, strict=True)
    )
    result = compare_sets(base, head)
    comparison = replace(result.comparison, notes=(*named.notes, *result.comparison.notes))
    result = replace(result, comparison=comparison)
    document = json.sets_document(result, failed=comparison.gates(outputs.fail_on), gates=outputs.fail_on)
    return finish(document, outputs, unsettled=bool(comparison.inconclusive))


def _files(*loaded: Loaded) -> list[str]:
    traces = [trace for side in loaded for trace in side.traces]
    files = [trace.source.path for trace in traces]
    return [*files, *(module.source for trace in traces if trace.source.programs for module in trace.hlo)]
