"""One name per source file of an analysis, because recordings name the same file in several ways.

Stacks have paths relative to the program; compiled XLA programs and logs of torch.compile have absolute paths. An
absolute path loses the folder of the program: the working directory, the folder of the runs, or a folder that follows
from another name of the same file, in a finding or in a stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from msgspec.structs import replace

from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.finding import PLACE_KEYS, Cell, Finding, Outcome
from perfscope.model.trace import MISSING, Trace


def files_in_stacks(traces: Iterable[Trace]) -> frozenset[str]:
    """Return the names of all source files in the stacks of the traces."""
    return frozenset(
        trace.text(code)
        for trace in traces
        for code in np.unique(trace.rows["frames"]["file"]).tolist()
        if code != MISSING
    )


def one_name_per_file(
    outcomes: Sequence[Outcome], sources: Sequence[str] = (), stacks: Iterable[str] = ()
) -> tuple[Outcome, ...]:
    """Return the outcomes with one name per file, no line below 1, and each finding of a rule once.

    ``sources``: paths of the recordings. ``stacks``: files in their stacks.
    """
    names = {finding.where.file for outcome in outcomes for finding in outcome.findings if finding.where.file}
    names |= {
        cell.partition(":")[0] for outcome in outcomes for finding in outcome.findings for cell in _places(finding)
    }
    roots = _roots(names | set(stacks) if any(name.startswith("/") for name in names) else names, sources)
    return tuple(
        replace(outcome, findings=tuple(_once(_renamed(finding, roots) for finding in outcome.findings)))
        for outcome in outcomes
    )


def _roots(names: Iterable[str], sources: Sequence[str]) -> tuple[str, ...]:
    """Return the folders of the program, longest first, each with a final slash."""
    runs = (
        [parent.parent for parent in Path(sources[0]).absolute().parents if parent.name == RUNS_FOLDER]
        if sources
        else []
    )
    roots = {f"{folder.as_posix().rstrip('/')}/" for folder in (Path().absolute(), *runs)}
    known = set(names)
    relative = {PurePosixPath(name).name: name for name in known if name and not name.startswith("/")}
    for name in known:
        short = relative.get(PurePosixPath(name).name) if name.startswith("/") else None
        if short is not None and name.endswith(f"/{short}"):
            roots.add(name[: -len(short)])
    return tuple(sorted(roots - {"/"}, key=len, reverse=True))


def _short(text: str, roots: Sequence[str]) -> str:
    root = next((root for root in roots if text.startswith(root)), "")
    return text[len(root) :] or text


def _places(finding: Finding) -> Iterable[str]:
    return (
        cell for row in finding.evidence for key, cell in row.items() if key in PLACE_KEYS and isinstance(cell, str)
    )


def _renamed(finding: Finding, roots: Sequence[str]) -> Finding:
    where, rows = finding.where, finding.evidence
    if where.file is not None:
        line = where.line if where.line is not None and where.line > 0 else None
        where = replace(where, file=_short(where.file, roots), line=line)
    if any(cell.startswith("/") for cell in _places(finding)):
        rows = tuple({key: _cell(key, cell, roots) for key, cell in row.items()} for row in rows)
    return (
        finding if where == finding.where and rows is finding.evidence else replace(finding, where=where, evidence=rows)
    )


def _cell(key: str, cell: Cell, roots: Sequence[str]) -> Cell:
    return _short(cell, roots) if key in PLACE_KEYS and isinstance(cell, str) else cell


def _once(findings: Iterable[Finding]) -> Iterable[Finding]:
    """Yield the findings without repetitions for the same place; the costliest is kept."""
    seen: set[tuple[str, str, object]] = set()
    for finding in findings:
        key = (finding.subject, finding.title, finding.where)
        if finding.where.file is None or key not in seen:
            seen.add(key)
            yield finding
