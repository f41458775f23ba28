"""``perfscope compare`` where BASE or HEAD is a folder of several runs: launches of a program, compared as sets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from perfscope.commands.baselines import Sides
from perfscope.commands.compare_outputs import Outputs, show_screen, write_outputs
from perfscope.commands.inputs import spare
from perfscope.model.documents import run_folders
from perfscope.model.errors import DONE, GATE_NOT_MET, INCONCLUSIVE


def is_set(path: str) -> bool:
    """Whether several runs lie in the folder at ``path``. ``DataError``: traces that are none lie beside them."""
    from perfscope.analyzers.compare.run_sets import runs_in

    return runs_in(path) is not None


def compare_sets(
    named: Sides, fail_on: tuple[str, ...], outputs: Outputs, *, strict: bool, quiet: bool, verbose: bool
) -> int:
    """Compare two sides of which one is a set at least, show the result, and give the exit code."""
    from perfscope.analyzers.compare.run_sets import read_one, read_set, runs_in
    from perfscope.analyzers.compare.sets import compare_sets as compared
    from perfscope.dashboards.reports import compare_document, sets_document

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
    held = sets_document.document(result, failed=failed, gates=fail_on)
    if not write_outputs(held, outputs, quiet=quiet):
        show_screen(compare_document.of(held), failed, verbose=verbose)
    if failed:
        return GATE_NOT_MET
    return INCONCLUSIVE if strict and comparison.inconclusive else DONE


def _manifests(sides: list[tuple[Path, ...] | None]) -> list[str]:
    return [str(file) for runs in sides for run in runs or () for file in run_folders.manifests(run)]
