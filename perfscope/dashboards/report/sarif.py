"""The report as SARIF 2.1.0, which code scanning and editors read: findings at lines of a checkout.

Code scanning refuses a file in which a result lacks a location. Findings without a file of the checkout are therefore
notifications of the tool, as are findings about the recording. Silenced findings are left out.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.rule_page import sections_of
from perfscope.dashboards.report.github import finding_message, relative
from perfscope.dashboards.report.summary import summarize
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize
from perfscope.model.version import package_version

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis
    from perfscope.model.finding import Finding
    from perfscope.model.severity import Severity

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
"""Address of the schema, as the standard gives it; it is not fetched."""

LEVELS: dict[Severity, str] = {"high": "error", "medium": "warning", "low": "note"}
"""Severity -> level of a result."""

FINGERPRINT = "perfscopeFinding/v1"
"""Key of the fingerprint; the number changes with the parts that are hashed."""


def render(analysis: Analysis, *, repository: Path | None = None) -> str:
    """Return one SARIF log, costliest finding first.

    ``repository``: the checkout, by default the working directory. A finding is a result if its file is in it.
    """
    results: list[dict[str, Any]] = []
    notifications: list[dict[str, Any]] = []
    repeated: Counter[str] = Counter()
    for block in summarize(analysis).findings:
        finding, message = block.finding, {"text": finding_message(block)}
        path = None if finding.where.file is None else relative(finding.where.file, repository or Path())
        if path is None:
            notifications.append(_notification(block.rule, finding, message))
            continue
        print_ = fingerprint(block.rule, finding, path)
        repeated[print_] += 1
        results.append(
            {
                "ruleId": block.rule,
                "level": LEVELS[finding.severity],
                "message": message,
                "locations": [{"physicalLocation": _place(path, finding.where.line)}],
                "partialFingerprints": {FINGERPRINT: f"{print_}:{repeated[print_]}"},
                "properties": {"basis": finding.basis, "cost_ns_per_step": finding.cost_ns_per_step},
            }
        )
    for rule, finding in analysis.of_recording():
        notifications.append(_notification(rule, finding, {"text": sanitize(finding.title, TEXT_LIMIT)}))
    index = {rule: number for number, rule in enumerate(sorted({result["ruleId"] for result in results}))}
    for result in results:
        result["ruleIndex"] = index[result["ruleId"]]
    return json.dumps(_log(results, notifications, index), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def fingerprint(rule: str, finding: Finding, path: str) -> str:
    """Hash what remains equal when lines are added above a finding: its key, and the text of its line if known."""
    where, excerpt = finding.where, finding.excerpt
    line = str(where.line)
    if excerpt is not None and where.line is not None:
        line = "".join(excerpt.lines[where.line - excerpt.first : where.line - excerpt.first + 1]).strip()
    parts = (rule, finding.subject, path, where.op, where.kernel, where.module, line)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _log(results: list[dict[str, Any]], notifications: list[dict[str, Any]], rules: Iterable[str]) -> dict[str, Any]:
    driver = {"name": "perfscope", "version": package_version(), "rules": [_rule(rule) for rule in rules]}
    invocation = {"executionSuccessful": True, "toolExecutionNotifications": notifications}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _notification(rule: str, finding: Finding, message: dict[str, str]) -> dict[str, Any]:
    return {"descriptor": {"id": rule}, "level": LEVELS[finding.severity], "message": message}


def _place(path: str, line: int | None) -> dict[str, Any]:
    region = {"region": {"startLine": line}} if line else {}
    return {"artifactLocation": {"uri": quote(path), "uriBaseId": "%SRCROOT%"}, **region}


def _rule(rule: str) -> dict[str, Any]:
    """Return the metadata of a rule: its page as help."""
    page = inspect.cleandoc(load_rule(rule).doc).replace("::\n", ":\n").replace("``", "`")
    first, *_ = page.partition("\n\n")
    sections = [
        f"## {title}\n\n{text[:1].upper()}{text[1:]}" if title else text for title, text in sections_of(page).items()
    ]
    return {
        "id": rule,
        "shortDescription": {"text": " ".join(first.split())},
        "fullDescription": {"text": " ".join(first.split())},
        "help": {"text": page, "markdown": "\n\n".join(sections)},
        "properties": {"tags": ["performance"]},
    }
