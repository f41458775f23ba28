"""The report in a GitHub job: a warning on the line of each finding, and the short report folded in the job's log."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.dashboards.report import text
from perfscope.dashboards.report.compare.github import MOST_OF_A_KIND, command, relative
from perfscope.dashboards.report.summary import SHARE_OF, FindingRow, summarize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfscope.analyzers.engine import Analysis
    from perfscope.model.finding import Finding

SUFFIXES = ()


def render(analysis: Analysis, *, repository: Path | None = None) -> str:
    """Workflow commands, the costliest finding first, then the text report in a group of the log.

    ``repository``: the checkout, the working directory if left out; a place is given where it is a file of it.
    """
    summary = summarize(analysis)
    findings = [finding for _, finding in analysis.findings()]
    lines = list(_warnings(summary.findings, findings, repository or Path()))
    report = text.render(analysis)
    # A line of the report could be a command: the runner reads none until the token, which no text of it can hold.
    token = hashlib.sha256(report.encode("utf-8", "replace")).hexdigest()
    group = [command("group", {}, f"perfscope: {summary.headline}"), f"::stop-commands::{token}"]
    return "".join(f"{line}\n" for line in [*lines, *group, *report.splitlines(), f"::{token}::", "::endgroup::"])


def _warnings(rows: Sequence[FindingRow], findings: Sequence[Finding], repository: Path) -> Iterator[str]:
    """GitHub shows ten warnings of a step: of more the last one says how many are left."""
    kept = len(rows) if len(rows) <= MOST_OF_A_KIND else MOST_OF_A_KIND - 1
    for row, finding in zip(rows[:kept], findings, strict=False):
        yield command("warning", {**_place(finding, repository), "title": f"perfscope: {row.rule}"}, _message(row))
    if kept < len(rows):
        yield command(
            "warning", {"title": "perfscope"}, f"{len(rows) - kept} more findings are in the log of this step"
        )


def _place(finding: Finding, repository: Path) -> dict[str, str]:
    path = None if finding.where.file is None else relative(finding.where.file, repository)
    if path is None:
        return {}
    return {"file": path, **({"line": str(finding.where.line)} if finding.where.line else {})}


def _message(row: FindingRow) -> str:
    share = f" ({row.share} {SHARE_OF[row.per_step]})" if row.share else ""
    where = "" if row.where == "-" else f"\nAt {row.where}"
    fix = f"\nFix: {row.fix}" if row.fix else ""
    return f"{row.title}{row.on_ranks}\nSaves up to: {row.gain}{share}, {row.basis}{where}{fix}"
