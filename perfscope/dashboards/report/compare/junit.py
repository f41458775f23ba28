"""A comparison as JUnit XML, for tools that show test results: one case per metric and one per severity of findings.

A regression of a metric is a failure; a metric that could not be judged is skipped, with the reason. New and worse
findings fail a case if ``--fail-on finding:SEVERITY`` was given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from perfscope.analyzers.compare import ProgramGate, program_gate
from perfscope.dashboards.report.compare.words import (
    SINGLE,
    change_text,
    headline,
    method_lines,
    not_compared,
    side_text,
    title,
    verdict,
)
from perfscope.model.errors import UsageError
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from perfscope.model.documents.comparison import Document, FindingChange, Metric

SUITE = "perfscope compare"
SEVERITIES = ("high", "medium", "low")
MOST_CASES = 1_000
MOST_LINES = 50


def render(document: Document) -> str:
    """Return the XML text, without characters that XML does not allow."""
    cases = [_metric(metric) for metric in document.metrics[:MOST_CASES]]
    cases += [_gate(document, severity) for severity in SEVERITIES]
    cases += _program_gates(document)
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": "0",
    }
    whole = ET.Element("testsuites", {"name": SUITE, **counts})
    skipped = sum(case.find("skipped") is not None for case in cases)
    suite = ET.SubElement(whole, "testsuite", {"name": title(document), **counts, "skipped": str(skipped)})
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = "\n".join(_output_lines(document))
    ET.indent(whole)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(whole, encoding="unicode") + "\n"


def _case(kind: str, name: str) -> ET.Element:
    return ET.Element("testcase", {"classname": f"perfscope.{kind}", "name": name, "time": "0"})


def _metric(metric: Metric) -> ET.Element:
    case = _case("metric", sanitize(metric.name))
    text = verdict(metric)
    moved = f"{side_text(metric, 'base')} → {side_text(metric, 'head')}"
    grown = change_text(metric)
    words = f"{text}: {moved}" + (f", {grown}" if grown else "")
    lines = [sanitize(remark, TEXT_LIMIT) for remark in metric.remarks[:MOST_LINES]]
    lines += [f"{sanitize(part.place)}: {part.base:g} → {part.head:g}" for part in metric.places[:MOST_LINES]]
    if metric.verdict == "regression" and metric.gates:
        ET.SubElement(case, "failure", {"type": "regression", "message": words}).text = "\n".join(lines)
    elif metric.verdict == "inconclusive" or not metric.gates:
        why = words if metric.known != SINGLE else f"{words}; one launch each"
        ET.SubElement(case, "skipped", {"message": why})
    else:
        ET.SubElement(case, "system-out").text = "\n".join([words, *lines])
    return case


def _gate(document: Document, severity: str) -> ET.Element:
    """The case for new or worse findings of exactly this severity."""
    case = _case("finding", f"no new or worse finding of {severity} severity")
    changes = [finding for finding in document.findings if finding.is_worse and finding.shown.severity == severity]
    if not changes:
        return case
    lines = "\n".join(map(_finding, changes[:MOST_LINES]))
    least = SEVERITIES.index(severity)
    gated = {f"finding:{severity}" for severity in SEVERITIES[least:]} & set(document.gates)
    if gated:
        message = f"{len(changes)} new or worse"
        ET.SubElement(case, "failure", {"type": "finding", "message": message}).text = lines
    else:
        message = f"{len(changes)} new or worse; not asked for with --fail-on finding:{severity}"
        ET.SubElement(case, "skipped", {"message": message})
        ET.SubElement(case, "system-out").text = lines
    return case


def _program_gates(document: Document) -> list[ET.Element]:
    """One case per gate on compiled programs given with ``--fail-on``."""
    names = dict.fromkeys(gate.name for text in document.gates for gate in _gates_of(text))
    cases = []
    for name in names if document.programs else ():
        case = _case("program", name)
        failed = [sanitize(line, TEXT_LIMIT) for line in document.failed if f"{name}: " in f"{line}"]
        if failed:
            lines = "\n".join(failed[:MOST_LINES])
            ET.SubElement(case, "failure", {"type": "program", "message": failed[0]}).text = lines
        cases.append(case)
    return cases


def _gates_of(text: str) -> tuple[ProgramGate, ...]:
    """Parse a gate named in a document; gates of other kinds give ``()``."""
    try:
        return program_gate(text)
    except UsageError:
        return ()


def _finding(change: FindingChange) -> str:
    where = change.shown.where.label("")
    shown_at = f" at {sanitize(where)}" if where else ""
    return f"{change.change}: {sanitize(change.rule)}{shown_at}: {sanitize(change.shown.title, 320)}"


def _output_lines(document: Document) -> list[str]:
    """The verdict, its method, and what was not compared."""
    lines = [headline(document), *(f"gate not met: {sanitize(line)}" for line in document.failed[:MOST_LINES])]
    lines += [sanitize(line, TEXT_LIMIT) for line in method_lines(document)]
    return lines + [sanitize(f"not compared: {line}", TEXT_LIMIT) for line in not_compared(document)[:MOST_LINES]]
