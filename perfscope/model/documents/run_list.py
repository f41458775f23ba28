"""The list of runs and compiled programs in a folder; a row is a summary of manifest and report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from perfscope.model.documents import compile_manifest
from perfscope.model.documents.run_folders import is_compiled, is_run, kept_directories, read, step_ns_of, tags_of
from perfscope.model.errors import DataError
from perfscope.model.severity import SEVERITIES

if TYPE_CHECKING:
    from perfscope.model.documents.compile_manifest import Compiled
    from perfscope.model.documents.run import Run

REPORT_FILE = "report.json"
"""The report that `perfscope run` and `compile` write next to the manifest."""

MOST_REPORT_BYTES = 64 << 20
SHORT_COMMIT = 8
"""Characters of a commit in a list."""


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A directory as a listing shows it: a run or a compiled program; ``problem``: why its manifest cannot be read."""

    directory: Path
    run: Run | None
    problem: str | None = None
    compiled: Compiled | None = None


def list_runs(root: Path) -> list[ListedRun]:
    """All that is kept below ``root``, the newest first; corrupt ones are listed with their problem."""
    return [listed_run(directory) for directory in kept_directories(root)]


def listed_run(directory: Path) -> ListedRun:
    """Read a directory for a listing."""
    try:
        if is_compiled(directory) and not is_run(directory):
            return ListedRun(directory=directory, run=None, compiled=compile_manifest.load(directory))
        return ListedRun(directory=directory, run=read(directory))
    except DataError as error:
        return ListedRun(directory=directory, run=None, problem=str(error))


def row_of(listed: ListedRun) -> dict[str, Any]:
    """One run of a list, as JSON; its ``problem`` if the run cannot be read. Times in ns."""
    if listed.compiled is not None:
        return _compiled_row(listed.directory, listed.compiled)
    if listed.run is None:
        return {"id": listed.directory.name, "state": "unreadable", "problem": listed.problem}
    run = listed.run
    return {
        "id": listed.directory.name,
        "name": run.name,
        "tags": list(tags_of(listed.directory)),
        "created_utc": run.created_utc,
        "state": run.state,
        "exit_code": run.exit_code,
        "ranks": len(run.processes),
        "steps": max((process.steps_seen for process in run.processes), default=0),
        "captures": sorted(
            {capture.pass_name for process in run.processes for capture in process.captures if capture.artifact}
        ),
        "command": list(run.command),
        "commit": None if run.git is None else run.git.get("commit"),
        "dirty": bool(run.git and run.git.get("dirty")),
        "devices": [str(device.get("name", "")) for device in run.devices],
        **_reported(listed.directory, run),
        "notes": list(run.notes),
    }


def _reported(directory: Path, run: Run) -> dict[str, Any]:
    """``step_ns`` and findings as in the report of the run; without a report the step time of the manifest."""
    report = _report_of(directory)
    timed = None if report is None else report.step_time
    return {"step_ns": step_ns_of(run) if timed is None else round(timed.ns), **_findings(report)}


def state_words(row: dict[str, Any]) -> str:
    """``finished``, ``failed (1)``, ``killed (137)``, ``finished, empty``, ``compiled for h100``."""
    if "target" in row:
        return f"{row['state']} for {row['target']}{'' if row['complete'] else ', not all'}"
    state = str(row["state"])
    if row.get("exit_code"):
        state = f"{'failed' if state == 'finished' else state} ({row['exit_code']})"
    empty = "captures" in row and not row["captures"] and not row["steps"] and row["state"] != "running"
    return f"{state}, empty" if empty else state


def device_words(row: dict[str, Any]) -> str:
    """``8x NVIDIA H100``."""
    devices = Counter(row.get("devices", ()))
    return ", ".join(f"{count}x {name}" if count > 1 else name for name, count in devices.items())


def commit_words(row: dict[str, Any]) -> str:
    """The first digits of the commit, with ``+`` where files were changed."""
    return (row.get("commit") or "")[:SHORT_COMMIT] + ("+" if row.get("dirty") else "")


def _compiled_row(directory: Path, compiled: Compiled) -> dict[str, Any]:
    """A compiled program as a row of the list; it has neither ranks nor steps, because it did not run."""
    return {
        "id": directory.name,
        "name": compiled.name,
        "tags": list(tags_of(directory)),
        "created_utc": compiled.created_utc,
        "state": "compiled" if compiled.framework == "jax" else "planned",
        "complete": compiled.complete,
        "target": compiled.target.asked,
        "programs": [program.name for program in compiled.programs],
        "command": list(compiled.command),
        **findings_of(directory),
        "notes": list(compiled.notes),
    }


class _Once(msgspec.Struct):
    steps: int | None = None


class _Finding(msgspec.Struct):
    """The part of a finding that a list shows."""

    severity: str
    cost_ns: float | None = None
    cost_ns_per_step: float | None = None
    untraced_ns_per_step: float | None = None
    once: _Once | None = None
    silenced: str | None = None

    def cost(self) -> float | None:
        """ns per step without a profiler, a profiled step, or over all."""
        costs = (self.untraced_ns_per_step, self.cost_ns_per_step, self.cost_ns)
        return next((cost for cost in costs if cost is not None), None)

    def order(self) -> float:
        """Sort key of findings: a cost paid once is divided by the known steps; -1 if no time is known."""
        cost = self.cost()
        steps = 1 if self.once is None else max(1, self.once.steps or 1)
        return -1 if cost is None else cost / steps


class _Outcome(msgspec.Struct):
    rule: str
    findings: list[_Finding]


class _StepTime(msgspec.Struct):
    ns: float


class _Report(msgspec.Struct):
    outcomes: list[_Outcome]
    step_time: _StepTime | None = None


def _report_of(directory: Path) -> _Report | None:
    """The report of a run; ``None`` if it is missing or unreadable."""
    file = directory / REPORT_FILE
    try:
        if file.stat().st_size > MOST_REPORT_BYTES:
            return None
        return msgspec.json.decode(file.read_bytes(), type=_Report)
    except (OSError, msgspec.DecodeError):
        return None


def findings_of(directory: Path) -> dict[str, Any]:
    """``findings``: number in the report, ``None`` without a readable report; ``worst_finding``.

    The worst has rule, severity and cost (ns, ``None`` if unknown); it is ``None`` without findings.
    """
    return _findings(_report_of(directory))


def reported(document: Mapping[str, Any]) -> dict[str, Any]:
    """``step_ns`` and findings of a report that is not in a run; ``step_ns``: ``None`` without steps."""
    report = msgspec.convert(document, type=_Report)
    return {"step_ns": None if report.step_time is None else round(report.step_time.ns), **_findings(report)}


def _findings(report: _Report | None) -> dict[str, Any]:
    if report is None:
        return {"findings": None, "worst_finding": None}
    findings = [
        (finding.order(), finding.cost(), outcome.rule, finding.severity)
        for outcome in report.outcomes
        for finding in outcome.findings
        if finding.silenced is None
    ]
    if not findings:
        return {"findings": 0, "worst_finding": None}
    ranks: tuple[str, ...] = SEVERITIES
    _, cost, rule, severity = max(
        findings, key=lambda item: (item[0], ranks.index(item[3]) if item[3] in ranks else -1)
    )
    worst = {"rule": rule, "severity": severity, "cost_ns": cost, "count": len(findings)}
    return {"findings": len(findings), "worst_finding": worst}


def worst_words(row: dict[str, Any]) -> str:
    """The rule of the worst finding, ``none``, or ``no report``; ``""`` for an unreadable run."""
    if "findings" not in row:
        return ""
    worst = row["worst_finding"]
    return str(worst["rule"]) if worst else "no report" if row["findings"] is None else "none"
