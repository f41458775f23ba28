"""The graph around a finding: instructions or ops with the bytes between them; current and possible kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from perfscope.dashboards.report.blocks import Column, FindingBlock
from perfscope.dashboards.report.renderers.values import finding_words
from perfscope.dashboards.report.summary import summarize
from perfscope.dashboards.web.views import Job, Place
from perfscope.dashboards.web.views._graph_hlo import program_subjects
from perfscope.dashboards.web.views._graph_torch import inductor_subjects, op_subjects
from perfscope.dashboards.web.views._graphs import Subject
from perfscope.dashboards.web.views._tables import table
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import sanitize

MOST_SUBJECTS = 40
MOST_TRACES = 2
"""Most ranks whose graphs are drawn: all run one program, or one of two stages."""


COLUMNS: tuple[Column[dict[str, Any]], ...] = (
    Column("picture", lambda edge: edge["subject"], "count", key="subject", width=90),
    Column("size", lambda edge: edge["bytes"], "bytes", key="bytes", width=130),
    Column("from", lambda edge: edge["from"]["name"], "code", key="from"),
    Column("to", lambda edge: edge["to"]["name"], "code", key="to", width=260),
    Column("what", lambda edge: edge["said"], key="said", width=190),
    Column("line (from)", lambda edge: edge["from"]["line"], "code", key="from_line", width=220),
    Column("line (to)", lambda edge: edge["to"]["line"], "code", key="to_line", width=220),
)


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """Candidate pictures of one rank, from which the findings choose, and what the rank lacks."""
    subjects: list[Subject] = []
    if place.number < MOST_TRACES:
        subjects = [*program_subjects(trace), *inductor_subjects(trace), *op_subjects(trace)]
    has = {
        "hlo": bool(trace.hlo),
        "op_graph": trace.op_graph is not None,
        "compile_log": trace.compile_log is not None,
        "kernels": trace.compile_log is not None and bool(trace.compile_log.kernels),
        "refusals": trace.compile_log is not None and trace.compile_log.has_refusals,
        "why": trace.why_no_step or "",
    }
    return {"subjects": subjects, "has": has}


def view(job: Job) -> dict[str, Any]:
    """``subjects``: pictures, those of findings first; ``tables``: their edges as rows; ``lacks``: in words."""
    result: dict[tuple[str, str, str], Subject] = {}
    alike: Counter[tuple[str, str, str]] = Counter()
    for item in job.gathered:
        rank: Counter[tuple[str, str, str]] = Counter()
        for subject in item.held["subjects"]:
            key = (subject.kind, subject.title, subject.why)
            result.setdefault(key, subject)
            rank[key] += 1
        alike |= rank
    findings = summarize(job.analysis).findings
    matches = {key: _findings(subject, findings) for key, subject in result.items()}
    order = sorted(result, key=lambda key: (not matches[key], matches[key][0][1] if matches[key] else 0))
    kept = order[:MOST_SUBJECTS]
    subjects = []
    for key in kept:
        rows = [(by_line, index, finding_words(findings[index])) for by_line, index in matches[key][:3]]
        made = result[key].plain() | {"alike": alike[key] - 1}
        subjects.append(
            made
            | {
                "findings": [
                    {"at": index, "rule": words.rule, "title": words.title, "line": bool(by_line)}
                    for by_line, index, words in rows
                ]
            }
        )
    edges = [row for number, subject in enumerate(subjects) for row in _edges(number, subject)]
    return {
        "subjects": subjects,
        "left": len(order) - len(kept),
        "tables": {"edges": table(COLUMNS, edges)},
        "lacks": _lacks([item.held["has"] for item in job.gathered], drawn=bool(subjects)),
    }


def _findings(subject: Subject, findings: Sequence[FindingBlock]) -> list[tuple[int, int]]:
    """(0, finding) that names an instruction, op or kernel of the picture; (1, finding) that only shares its line."""
    result = []
    for index, block in enumerate(findings):
        finding = block.finding
        cells = {sanitize(value) for cells in finding.evidence for value in cells.values() if isinstance(value, str)}
        names = {part for cell in cells for part in cell.split(", ")}
        if names & subject.names:
            result.append((0, index))
        elif finding.where.label() in subject.lines:
            result.append((1, index))
    return result


def _edges(number: int, subject: dict[str, Any]) -> list[dict[str, Any]]:
    """The edges of a picture with their nodes, most bytes first."""
    nodes = subject["nodes"]
    edges = [
        {
            "subject": number + 1,
            "bytes": edge["bytes"],
            "said": edge["said"] or ("inside one kernel" if edge["bytes"] is None else ""),
            "from": nodes[edge["from"]],
            "to": nodes[edge["to"]],
        }
        for edge in subject["edges"]
    ]
    return sorted(edges, key=lambda edge: -(edge["bytes"] or 0))


def _lacks(rows: list[dict[str, Any]], *, drawn: bool) -> list[str]:
    if not any(row["hlo"] or row["op_graph"] or row["compile_log"] for row in rows):
        return [
            "No graph was recorded. perfscope run train.py records the op graph of a step and what torch.compile "
            "decided (PyTorch), or the compiled programs (JAX); programs that XLA dumped "
            "(XLA_FLAGS=--xla_dump_to=DIR) can be opened directly."
        ]
    sentences = []
    if not drawn and not any(row["hlo"] or row["op_graph"] for row in rows):
        why = next((row["why"] for row in rows if row["why"]), "")
        sentences.append(
            "torch.compile's log names no kernels (inductor makes them), and there is no op graph of a step"
            + (f": {sanitize(why, 400)}." if why else ", which perfscope run train.py records.")
        )
    if any(row["kernels"] and not row["refusals"] for row in rows):
        sentences.append(
            "Why inductor kept kernels apart was not recorded: perfscope run train.py records it, TORCH_TRACE does not."
        )
    return sentences
