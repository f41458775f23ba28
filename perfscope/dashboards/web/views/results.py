"""The result tables of an analysis, those that have rows, each as a grid."""

from __future__ import annotations

from typing import Any

from perfscope.analyzers.results import result_table
from perfscope.dashboards.report.results import shown
from perfscope.dashboards.web.views import Job
from perfscope.dashboards.web.views._tables import table


def view(job: Job) -> dict[str, Any]:
    """``tables``: by name, with title and meaning; with the rank in front where several ranks have rows."""
    made = {}
    for name, held in job.analysis.tables.items():
        result = result_table(name)
        ranks = len({row["rank"] for row in held.rows}) > 1
        grid = table(shown(result, ranks=ranks), held.rows)
        made[name] = {**grid, "left": grid["left"] + held.left, "title": result.heading, "doc": result.doc}
    return {"tables": made}
