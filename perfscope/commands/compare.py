"""``perfscope compare``: what changed from one run to another, how sure that is, and where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.commands.baselines import Sides, baseline_option, sides
from perfscope.commands.compare_ab import CompareCommand
from perfscope.commands.compare_outputs import Outputs, output_options, show_screen, write_outputs
from perfscope.commands.options import quiet_option, spare, store_option, verbose_option
from perfscope.model.documents import run_folders
from perfscope.model.errors import DONE, GATE_NOT_MET, INCONCLUSIVE, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.compare.runs.comparison import Comparison
    from perfscope.analyzers.readers.load import Loaded


# ``perfscope compare`` where BASE or HEAD is a folder of several runs: launches of a program, compared as sets.


def is_set(path: str) -> bool:
    """Whether several runs lie in the folder at ``path``. ``DataError``: traces that are none lie beside them."""
    from perfscope.analyzers.compare.runs.run_sets import runs_in

    return runs_in(path) is not None


def compare_sets(
    named: Sides, fail_on: tuple[str, ...], outputs: Outputs, *, strict: bool, quiet: bool, verbose: bool
) -> int:
    """Compare two sides of which one is a set at least, show the result, and give the exit code."""
    from perfscope.analyzers.compare.runs.run_sets import read_one, read_set, runs_in
    from perfscope.analyzers.compare.runs.sets import compare_sets as compared
    from perfscope.dashboards.report.compare import document, json

    paths = named.base, named.head
    runs = [runs_in(path) for path in paths]
    spare(_manifests(runs), outputs.files().values())
    base, head = (
        read_one(path) if found is None else read_set(path, found) for path, found in zip(paths, runs, strict=True)
    )
    result = compared(base, head)
    comparison = replace(result.comparison, notes=(*named.notes, *result.comparison.notes))
    result = replace(result, comparison=comparison)
    failed = comparison.gates(fail_on)
    held = json.sets_document(result, failed=failed, gates=fail_on)
    if not write_outputs(held, outputs, quiet=quiet):
        show_screen(document.of(held), failed, verbose=verbose)
    if failed:
        return GATE_NOT_MET
    return INCONCLUSIVE if strict and comparison.inconclusive else DONE


def _manifests(sides: list[tuple[Path, ...] | None]) -> list[str]:
    return [str(file) for runs in sides for run in runs or () for file in run_folders.manifests(run)]


GATES = ("regression", "inconclusive", "finding:low", "finding:medium", "finding:high")
NOTHING = "none"
"""No gate, not even those that programs for one target have of their own accord."""


@click.command(
    cls=CompareCommand,
    epilog="perfscope compare --ab --help: two commits, launched in turns. perfscope compare --programs --help: two "
    "commits, compiled for a machine that is not here.",
)
@click.argument("base", metavar="BASE", required=False)
@click.argument("head", metavar="HEAD", required=False)
@baseline_option
@store_option
@output_options
@click.option(
    "--fail-on",
    "fail_on",
    multiple=True,
    metavar="WHAT",
    help="Exit 1 on: regression (of what does not depend on chance), inconclusive, finding:low|medium|high (new, or "
    "costlier than before); of compiled programs also programs, lost-fusions, hbm-bytes, peak, blocking-collectives, "
    "launches, recompute, collective-bytes, modelled-time, most of them with :PERCENT. none: nothing. Repeatable. "
    "[programs, where both sides were compiled for one target]",
)
@click.option("--strict", is_flag=True, help="Exit 3 if a metric could not be judged.")
@quiet_option
@verbose_option
def compare(
    base: str | None,
    head: str | None,
    baseline: str | None,
    store: str | None,
    fail_on: tuple[str, ...],
    strict: bool,
    outputs: Outputs,
    quiet: bool,
    verbose: bool,
) -> int:
    """Say what changed from BASE to HEAD, and where in the code.

    BASE and HEAD are runs, trace files, folders with the traces of a job's ranks, compiled programs (HLO)
    or memory snapshots: two of one kind. Counts, bytes and findings are compared exactly. The time of one
    launch on each side is split into parts and shown, and never fails a build.

    A folder in which several runs lie is a set of launches: what differs between them is told from what
    changed. The time of sets that ran in turns, six pairs or more, may fail a build.

    Either may be `baseline:NAME`; `--baseline [NAME] HEAD` finds the one that HEAD's code comes from.
    """
    from perfscope.analyzers.compare.runs.comparison import compare as compared
    from perfscope.analyzers.readers.load import load_path

    check_gates(fail_on)
    named = sides(base, head, baseline, store=store)
    if is_set(named.base) or is_set(named.head):
        return compare_sets(named, fail_on, outputs, strict=strict, quiet=quiet, verbose=verbose)
    loaded = load_path(named.base), load_path(named.head)
    spare(_files(*loaded), outputs.files().values())
    comparison = compared(loaded[0].traces, loaded[1].traces)
    comparison = replace(comparison, notes=(*named.notes, *comparison.notes))
    fail_on = own_gates(comparison, fail_on)
    failed = comparison.gates(fail_on)
    _show(comparison, failed, fail_on, outputs, quiet=quiet, verbose=verbose)
    if failed:
        return GATE_NOT_MET
    return INCONCLUSIVE if strict and comparison.inconclusive else DONE


def check_gates(fail_on: Sequence[str]) -> None:
    """``AskedWronglyError`` where one of them is none."""
    from perfscope.analyzers.compare.programs import gates as program_gates

    for one in fail_on:
        if one not in (*GATES, NOTHING) and not program_gates.program_gate(one):
            known = ", ".join((*GATES, *program_gates.GATES, NOTHING))
            raise UsageError(f"--fail-on {one}: not one of {known}")
    if NOTHING in fail_on and len(fail_on) > 1:
        raise UsageError(f"--fail-on {NOTHING}: and {next(one for one in fail_on if one != NOTHING)}?")


def own_gates(comparison: Comparison, fail_on: tuple[str, ...]) -> tuple[str, ...]:
    """The gates that were asked for; where none was, those of programs that were compiled for one target."""
    if fail_on:
        return tuple(one for one in fail_on if one != NOTHING)
    return ("programs",) if comparison.programs and comparison.targets.known else ()


def _files(*loaded: Loaded) -> list[str]:
    traces = [trace for one in loaded for trace in one.traces]
    files = [trace.source.path for trace in traces]
    return [*files, *(module.source for trace in traces if trace.source.programs for module in trace.hlo)]


def _show(
    comparison: Comparison,
    failed: tuple[str, ...],
    gates: tuple[str, ...],
    outputs: Outputs,
    *,
    quiet: bool,
    verbose: bool,
) -> None:
    from perfscope.dashboards.report.compare import document, json

    held = json.document(comparison, failed=failed, gates=gates)
    if not write_outputs(held, outputs, quiet=quiet):
        show_screen(document.of(held), failed, verbose=verbose)
