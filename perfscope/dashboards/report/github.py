"""A report or comparison in a GitHub job: annotations on lines of a pull request, and the job's log and summary.

An annotation is a line on stdout (a workflow command), so a line of untrusted text could pass for one. All other output
is therefore printed between ``::stop-commands::`` and its end.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from perfscope.dashboards.report import text
from perfscope.dashboards.report.compare.render import render_markdown
from perfscope.dashboards.report.compare.words import (
    cause_lines,
    change_text,
    finding_cost,
    headline,
    row_of_metric,
    side_text,
)
from perfscope.dashboards.report.renderers.markdown import escape
from perfscope.dashboards.report.renderers.values import finding_words
from perfscope.dashboards.report.summary import summarize
from perfscope.model.errors import DataError
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis
    from perfscope.dashboards.report.blocks import FindingBlock
    from perfscope.model.documents.comparison import Document, FindingChange, Metric
    from perfscope.model.finding import Finding

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"

MOST_OF_A_KIND = 10
"""Most errors, warnings or notices: GitHub shows ten of each per step."""

MOST_SUMMARY = 1 << 20
"""Most bytes of a step's summary: GitHub drops a larger summary entirely."""

LIBRARIES = frozenset({"site-packages", "dist-packages"})
"""Folders of third-party code, whatever their name."""


def render(analysis: Analysis, *, repository: Path | None = None) -> str:
    """Return workflow commands, costliest finding first, then the text report in a group of the log.

    ``repository``: the checkout, by default the working directory. A place is given if it is a file in it.
    """
    summary = summarize(analysis)
    lines = list(_finding_warnings(summary.findings, repository or Path()))
    report = text.render(analysis)
    # A line of the report could look like a command. The runner ignores commands until the token, which no text
    # contains.
    token = hashlib.sha256(report.encode("utf-8", "replace")).hexdigest()
    group = [command("group", {}, f"perfscope: {sanitize(summary.headline, TEXT_LIMIT)}"), f"::stop-commands::{token}"]
    return "".join(f"{line}\n" for line in [*lines, *group, *report.splitlines(), f"::{token}::", "::endgroup::"])


def _finding_warnings(blocks: Sequence[FindingBlock], repository: Path) -> Iterator[str]:
    """Yield one warning per finding. GitHub shows ten per step; beyond that the last one counts the others."""
    kept = len(blocks) if len(blocks) <= MOST_OF_A_KIND else MOST_OF_A_KIND - 1
    for block in blocks[:kept]:
        yield command(
            "warning",
            {**_finding_place(block.finding, repository), "title": f"perfscope: {sanitize(block.rule)}"},
            finding_message(block),
        )
    if kept < len(blocks):
        yield command(
            "warning", {"title": "perfscope"}, f"{len(blocks) - kept} more findings are in the log of this step"
        )


def _finding_place(finding: Finding, repository: Path) -> dict[str, str]:
    path = None if finding.where.file is None else relative(finding.where.file, repository)
    if path is None:
        return {}
    return {"file": path, **({"line": str(finding.where.line)} if finding.where.line else {})}


def finding_message(block: FindingBlock) -> str:
    """Return a finding's title, saving, place and fix, one line each, without markup."""
    words = finding_words(block)
    share = f" ({words.share})" if words.share else ""
    where = f"\nAt {words.where}" if words.where else ""
    fix = f"\n{words.lead}: {words.fix}" if words.fix else ""
    return f"{words.title}{words.on_ranks}\nSaves up to: {words.gain}{share}, {words.basis}{where}{fix}"


# A comparison.


def annotated(document: Document, repository: Path) -> str:
    """Return workflow commands, one per line: regressions as errors, findings as warnings, improvements as notices.

    Places are given if they are files of ``repository``.
    """
    kinds = {
        "error": _errors(document, repository),
        "warning": _warnings(document, repository),
        "notice": _notices(document),
    }
    lines = []
    for kind, messages in kinds.items():
        first = list(islice(messages, MOST_OF_A_KIND + 1))
        kept = first if len(first) <= MOST_OF_A_KIND else first[: MOST_OF_A_KIND - 1]
        lines += [command(kind, properties, message) for properties, message in kept]
        if len(kept) < len(first):
            lines.append(command(kind, {"title": "perfscope"}, "and more: see the summary"))
    return "".join(f"{line}\n" for line in lines)


_Annotation = tuple[dict[str, str], str]


def _errors(document: Document, repository: Path) -> Iterator[_Annotation]:
    """Yield metrics that are worse, each at the first place of its causes; then gates that were not met."""
    worse = [metric for metric in document.metrics if metric.verdict == "regression" and metric.gates]
    for metric in worse:
        moved = _moved(metric)
        why = _why(document, metric)
        title = {"title": f"perfscope: {sanitize(metric.name)}: regression"}
        yield {**_place(why[0], repository), **title}, f"{sanitize(metric.name)}: {moved}{why[1]}"
    gates = {f"{metric.name}: regression" for metric in worse}
    for gate in document.failed:
        if gate not in gates:
            yield {"title": "perfscope: gate not met"}, sanitize(gate, TEXT_LIMIT)


def _why(document: Document, metric: Metric) -> tuple[str, str]:
    """Return (place, words) of the main reason for a metric: a time's first cause, a count's first change."""
    per = "step" if document.step is None else document.step.per
    changed_row = row_of_metric(document, metric.name)
    if changed_row is not None:
        text = f"{sanitize(changed_row.change)}: {sanitize(changed_row.what, 160)}"
        return changed_row.where(), f"; {sanitize(changed_row.where())}: {text}" if changed_row.where() else f"; {text}"
    exact = [cause for cause in document.causes if cause.exact]
    own = [cause for cause in exact if any(part.name == metric.name for part in cause.metrics)]
    if metric.known == "exact" and not own:
        location = metric.places[0].place if metric.places else ""
        return location, f"; most of it at {sanitize(location)}" if location else ""
    if not exact:
        return "", ""
    cause = (own or exact)[0]
    return cause.place, f"; {sanitize(cause.place)}: {'; '.join(cause_lines(cause, per)[0])}"


def _moved(metric: Metric) -> str:
    return f"{side_text(metric, 'base')} → {side_text(metric, 'head')} {change_text(metric)}".rstrip()


def _warnings(document: Document, repository: Path) -> Iterator[_Annotation]:
    for finding in document.findings:
        if finding.is_worse:
            where = finding.shown.where
            position = _place(where.label() if where.file else "", repository)
            yield {**position, "title": _title(finding)}, _words(finding)


def _notices(document: Document) -> Iterator[_Annotation]:
    """Yield improvements, without a place, because their line may be gone."""
    for metric in document.metrics:
        if metric.verdict == "improvement" and metric.gates:
            moved = _moved(metric)
            yield {"title": f"perfscope: {sanitize(metric.name)}: improvement"}, f"{sanitize(metric.name)}: {moved}"
    for finding in document.findings:
        if finding.change in ("fixed", "better") and not finding.by_time:
            yield {"title": _title(finding)}, _words(finding)


def _title(change: FindingChange) -> str:
    return f"perfscope: {sanitize(change.rule)}: {change.change}"


def _words(change: FindingChange) -> str:
    cost = finding_cost(change)
    return sanitize(change.shown.title, 320) + (f" ({cost})" if cost else "")


def _place(location: str, repository: Path) -> dict[str, str]:
    """Return ``file`` and ``line`` of ``train.py:88`` if it is a file of the repository, else nothing."""
    file, _, line = location.rpartition(":")
    if not file or not line.isdecimal():
        file, line = location, ""
    path = relative(file, repository)
    if path is None:
        return {}
    return {"file": path, **({"line": line} if line else {})}


def relative(file: str, repository: Path) -> str | None:
    """Map a path from another checkout to this repository: the longest end of it that is a file here.

    ``None`` if no such file exists, or if the path belongs to a library.
    """
    parts = [part for part in PurePosixPath(file).parts if part not in ("/", ".", "~")]
    if not parts or ".." in parts or LIBRARIES & set(parts) or len(file) > TEXT_LIMIT or "\x00" in file:
        return None
    for start in range(len(parts)):
        end = PurePosixPath(*parts[start:])
        try:
            if (repository / end).is_file():
                return end.as_posix()
        except OSError:  # not a valid file name
            return None
    return None


def command(kind: str, properties: Mapping[str, str], message: str) -> str:
    """``::error file=a.py,line=3,title=t::message``, escaped as the runner's toolkit does."""
    text = ",".join(f"{key}={_property(text)}" for key, text in properties.items())
    return f"::{kind}{f' {text}' if text else ''}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def add_to_summary(document: Document, *, link: str | None = None, file: str | None = None) -> str | None:
    """Append the comment's text to the job's summary: ``file``, else the runner's summary file.

    Return a sentence if there is no summary file or no room in it, ``None`` on success. ``DataError``: cannot be
    written.
    """
    name = file or os.environ.get(SUMMARY_VARIABLE)
    if not name:
        return f"{SUMMARY_VARIABLE} is not set: no summary is written"
    path = Path(name)
    try:
        room = MOST_SUMMARY - (path.stat().st_size if path.exists() else 0)
        text = render_markdown(document, url=link).partition("\n")[2]
        if len(text.encode()) + 2 > room:
            text = f"{escape(headline(document))}\n"
        if len(text.encode()) + 2 > room:
            return f"{SUMMARY_VARIABLE} is full: no summary is written"
        with path.open("a", encoding="utf-8", errors="replace") as stream:
            stream.write(f"\n{text}")
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from error
    return None


def is_job() -> bool:
    """Return whether a GitHub runner reads stdout."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def inert(text: str) -> str:
    """Return ``text`` for a job's stdout such that no line of it is taken for a command."""
    if not is_job():
        return text
    token = secrets.token_hex(16)
    end = "" if text.endswith("\n") else "\n"
    return f"::stop-commands::{token}\n{text}{end}::{token}::\n"
