"""What a list of runs says of each: its manifest and its report in a few words, and nothing of its environment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from perfscope.model.documents.run_folders import ListedRun, step_ns_of, tags_of
from perfscope.model.severity import SEVERITIES

if TYPE_CHECKING:
    from perfscope.model.documents.compile_manifest import Compiled

REPORT_FILE = "report.json"
"""What `perfscope run` and `compile` write beside the manifest."""

MOST_REPORT_BYTES = 64 << 20
SHORT_COMMIT = 8
"""Characters of a commit in a list."""


def row_of(listed: ListedRun) -> dict[str, Any]:
    """What a list says of one run, as JSON; of one that cannot be read its ``problem``. Times in ns."""
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
        "step_ns": step_ns_of(run),
        "captures": sorted(
            {capture.pass_name for process in run.processes for capture in process.captures if capture.artifact}
        ),
        "command": list(run.command),
        "commit": None if run.git is None else run.git.get("commit"),
        "dirty": bool(run.git and run.git.get("dirty")),
        "devices": [str(device.get("name", "")) for device in run.devices],
        **findings_of(listed.directory),
        "notes": list(run.notes),
    }


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
    """What was compiled, in the words of runs: nothing ran, so that there are neither ranks nor steps."""
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


class _Finding(msgspec.Struct):
    """The part of a finding that a list shows."""

    severity: str
    cost_ns: float | None = None
    cost_ns_per_step: float | None = None
    untraced_ns_per_step: float | None = None
    silenced: str | None = None

    def cost(self) -> float | None:
        """ns per step without a profiler, a traced step, or over all; as findings are ordered."""
        costs = (self.untraced_ns_per_step, self.cost_ns_per_step, self.cost_ns)
        return next((cost for cost in costs if cost is not None), None)


class _Outcome(msgspec.Struct):
    rule: str
    findings: list[_Finding]


class _Report(msgspec.Struct):
    outcomes: list[_Outcome]


def findings_of(directory: Path) -> dict[str, Any]:
    """``findings``: how many a report has, ``None`` where there is none that can be read; ``worst_finding``.

    The worst has rule, severity and cost (ns, ``None`` where no time is known) and is ``None`` where there is none.
    """
    file = directory / REPORT_FILE
    try:
        if file.stat().st_size > MOST_REPORT_BYTES:
            return {"findings": None, "worst_finding": None}
        report = msgspec.json.decode(file.read_bytes(), type=_Report)
    except (OSError, msgspec.DecodeError):
        return {"findings": None, "worst_finding": None}
    findings = [
        (finding.cost(), outcome.rule, finding.severity)
        for outcome in report.outcomes
        for finding in outcome.findings
        if finding.silenced is None
    ]
    if not findings:
        return {"findings": 0, "worst_finding": None}
    ranks: tuple[str, ...] = SEVERITIES
    cost, rule, severity = max(
        findings,
        key=lambda item: (-1 if item[0] is None else item[0], ranks.index(item[2]) if item[2] in ranks else -1),
    )
    worst = {"rule": rule, "severity": severity, "cost_ns": cost, "count": len(findings)}
    return {"findings": len(findings), "worst_finding": worst}


def worst_words(row: dict[str, Any]) -> str:
    """The rule of the worst finding, ``none``, or ``no report``; ``""`` of what cannot be read."""
    if "findings" not in row:
        return ""
    worst = row["worst_finding"]
    return str(worst["rule"]) if worst else "no report" if row["findings"] is None else "none"
