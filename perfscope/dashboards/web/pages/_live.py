"""A program that runs: its steps, step time and memory from its manifest, before anything of it can be read."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from dash import html

from perfscope.dashboards.web.server.shelf import Item
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Run
from perfscope.model.documents.run_list import listed_run
from perfscope.model.units import format_bytes, format_ns
from perfscope.model.untrusted_text import sanitize


def running(item: Item | None) -> list[Any]:
    """Progress of a running program with the speed of its last steps, or the end of a failed one."""
    run = None if item is None or item.kind != "run" else listed_run(item.path).run
    if item is None or run is None:
        return []
    seen = max((process.steps_seen for process in run.processes), default=0)
    if item.running():
        tiles = [_tile(value, what) for what, value in _now(run, seen)]
        parts = [html.B("Still running: the state so far"), html.Div(tiles, className="ps-live-now")]
        return [html.Div(parts, className="ps-card ps-over-now", role="status")]
    if not run.exit_code:
        return []
    why = f": {sanitize(run.error, 300)}" if run.error else ""
    parts = [html.B("The program failed "), f"with exit code {run.exit_code} after {seen:,} steps{why}"]
    return [html.P(parts, className="ps-card ps-over-now ps-over-failed", role="status")]


def _tile(value: str, what: str) -> Any:
    return html.Div([html.Div(value, className="ps-live-value"), html.Div(what)])


def _now(run: Run, seen: int) -> list[tuple[str, str]]:
    """Names and values of what is known."""
    recent = run_folders.recent_of(run)
    memory = max((process.resident_bytes or 0 for process in run.processes), default=0)
    held = [("steps", f"{seen:,}")]
    if recent is not None:
        count, step_ns, tokens = recent
        held.append((f"per step, median of the last {count:,}", format_ns(step_ns)))
        if tokens is not None:
            held.append(("tokens/s", f"{tokens:,.0f}"))
    if memory:
        held.append(("largest resident memory of a process", format_bytes(memory)))
    began = _began(run)
    if began is not None:
        held.append(("since the start", format_ns(max(0, round(1e9 * (time.time() - began))))))
    return held


def _began(run: Run) -> float | None:
    """Start of the run, s since 1970; ``None`` if its manifest has no valid time."""
    try:
        return datetime.fromisoformat(run.created_utc).timestamp()
    except ValueError:
        return None
