"""Makes a view of traces as the server's child does, without a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfscope.analyzers.engine import analyze
from perfscope.dashboards.report import json_report
from perfscope.dashboards.web.views import Gathered, Job, Place, view_module
from perfscope.model.trace import Trace


def view_of(name: str, traces: Sequence[Trace], folder: Path) -> Any:
    """The view of ``name``, as it comes back from JSON."""
    module = view_module(name)
    gather = getattr(module, "gather", None)
    gathered = []
    for number, trace in enumerate(traces):
        place = Place(folder=folder / str(number), number=number)
        place.folder.mkdir(parents=True, exist_ok=True)
        if gather is not None:
            gathered.append(Gathered(source=trace.source, place=place, held=gather(trace, place)))
    analysis = analyze(traces)
    job = Job(analysis=analysis, traces=traces, report=json_report.document(analysis), gathered=gathered, folder=folder)
    return json.loads(json.dumps(module.view(job), allow_nan=False))
