"""Try: interventions tried on a program: the ladder as a picture, the table, the code to write."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from dash import html

from perfscope.dashboards.figures.drawing import graph_objects, laid_out, plain
from perfscope.dashboards.report.renderers.html import blocks_html
from perfscope.dashboards.web.pages import PageRequest, address
from perfscope.dashboards.web.pages._parts import chart, message, tab
from perfscope.dashboards.web.server.shelf import Shelf, key_of
from perfscope.dashboards.web.server.works import documents
from perfscope.dashboards.web.ui import Fragment
from perfscope.model.errors import DataError
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.trials.document import FILE, Try, load
from perfscope.plugins.trials.sections import TONES, report_of, rungs

TITLE = "Try"
VIEW = None
KEY = "y"
CHART = "tries-picture"
NOTHING = (
    "No result of perfscope try is open here. Run perfscope try train.py in the folder that has perfscope-runs: it "
    "tries interventions on the program, and the results are shown here."
)
COLORS = {"better": "#2e8b57", "worse": "#c4372b", "open": "#b8860b", "plain": "#7b8794"}
ROW_PX, FRAME_PX = 34, 90
FEW = 0.1
"""Remaining step time, as a share, below which a decimal is shown."""
ROOM = "\u2007"
"""Space before a label: plotly measures labels a little narrower than the page draws them."""


def layout(request: PageRequest, view: None) -> Any:
    """The page; ``try`` in the address selects one of several documents."""
    title = html.H1(TITLE, className="ps-title")
    files = _tries(request.shelf)
    if not files:
        return [title, message(NOTHING)]
    file = next((path for path in files if _key(path) == request.parameters.get("try")), files[0])
    chooser = [
        tab(
            sanitize(_title(path)),
            address(request.base_path, "tries", request.whose, **{"try": _key(path)}),
            here=path == file,
        )
        for path in files
    ]
    try:
        document = _load(file, file.stat().st_mtime_ns)
    except (DataError, OSError) as error:
        return [title, *_tabs(chooser), message(sanitize(str(error)))]
    report = report_of(document, bars=False)
    drawn = _picture(document)
    return [
        title,
        *_tabs(chooser),
        html.P(sanitize(report.headline)),
        *(html.P(sanitize(fact), className="ps-soft ps-note") for fact in report.facts),
        *([] if drawn is None else [drawn]),
        *(
            html.Section(
                [html.H2(section.title), *(Fragment(html=text) for text in blocks_html(section.blocks))],
                className="ps-card",
            )
            for section in report.sections
        ),
    ]


def _tries(shelf: Shelf) -> tuple[Path, ...]:
    """Documents in the paths that the server was started with, newest first."""
    return documents(shelf, "try", FILE, "try-*")


def mark(request: PageRequest) -> str:
    """Changes with the documents."""
    return " ".join(f"{_key(path)}{_changed(path)}" for path in _tries(request.shelf))


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=16)
def _load(path: Path, _changed_ns: int) -> Try:
    return load(path)


def _tab(request: PageRequest, path: Path, *, here: bool) -> Any:
    return tab(
        sanitize(_title(path)), address(request.base_path, "tries", request.whose, **{"try": _key(path)}), here=here
    )


def _title(path: Path) -> str:
    return path.parent.name if path.name == FILE else path.name


def _key(path: Path) -> str:
    return key_of(path.parent if path.name == FILE else path)


def _tabs(chooser: list[Any]) -> list[Any]:
    return [html.Div(chooser, className="ps-tabs")] if len(chooser) > 1 else []


def _picture(document: Try) -> Any:
    """The remaining step time: by rung of a ladder, else by intervention with its interval."""
    bars = _bars(document)
    if not bars:
        return None
    names, remaining, more, less, colors = zip(*bars, strict=True)
    figure = graph_objects().Figure()
    figure.add_bar(
        x=remaining,
        y=[
            f"{plain(name)}  {left:{'.0%' if left >= FEW else '.1%'}}"
            for name, left in zip(names, remaining, strict=True)
        ],
        orientation="h",
        marker_color=colors,
        error_x={"type": "data", "symmetric": False, "array": more, "arrayminus": less, "visible": any(more)},
        hovertemplate="%{y}<extra></extra>",
    )
    laid_out(figure, title="", x=f"step time; 100%: {'unchanged' if document.ladder else 'without the change'}")
    highest = max(1.0, *(share + interval for share, interval in zip(remaining, more, strict=True)))
    figure.update_xaxes(tickformat=".0%", range=[0, 1.05 * highest])
    figure.add_vline(1, line={"color": COLORS["plain"], "dash": "dot"})
    figure.update_yaxes(autorange="reversed", type="category", tickprefix=ROOM)
    figure.update_layout(height=FRAME_PX + ROW_PX * len(bars), margin={"t": 10}, showlegend=False)
    return chart(CHART, figure, "remaining step time; the table below has the numbers")


def _bars(document: Try) -> list[tuple[str, float, float, float, str]]:
    """Name, remaining step time, upper and lower uncertainty, and colour of each bar."""
    if document.ladder:
        return [
            (name, remaining, 0.0, 0.0, COLORS["better" if name.startswith("+") else "plain"])
            for name, remaining in rungs(document)
        ]
    return [
        (
            trial.name,
            1 + trial.effect,
            0.0 if trial.high is None else trial.high - trial.effect,
            0.0 if trial.low is None else trial.effect - trial.low,
            COLORS[TONES[trial.state]],
        )
        for trial in document.trials
        if trial.effect is not None
    ]
