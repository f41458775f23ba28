"""Try: interventions tried on a program: verdict, remaining step time of each, the code to write, the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from dash import html
from msgspec import Struct

from perfscope.dashboards.report.blocks import Section
from perfscope.dashboards.report.renderers.html import blocks_html
from perfscope.dashboards.web.pages import PageRequest, address
from perfscope.dashboards.web.pages._parts import message, tab
from perfscope.dashboards.web.server.shelf import Shelf, key_of
from perfscope.dashboards.web.server.works import documents
from perfscope.dashboards.web.ui import Fragment
from perfscope.model.errors import DataError
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.trials.document import FILE, Trial, Try, load
from perfscope.plugins.trials.sections import TONES, report_of, rungs

TITLE = "Try"
VIEW = None
KEY = "y"
NOTHING = (
    "No result of perfscope try is open here. Run perfscope try train.py in the folder that has perfscope-runs: it "
    "tries interventions on the program, and the results are shown here."
)
COLORS = {"better": "#2e8b57", "worse": "#c4372b", "open": "#b8860b", "plain": "#7b8794"}
ROOM = 1.04
"""Width of a row by its longest bar."""
FEW = 0.1
"""Remaining step time, as a share, below which a decimal is shown."""


class Bar(Struct, frozen=True, kw_only=True):
    """An intervention as a bar: the remaining share of the step time, and the ends of its interval."""

    name: str
    title: str
    remaining: float
    more: float = 0.0
    less: float = 0.0
    tone: str
    said: tuple[str, ...]


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
    command, *facts = report.facts
    written, folded = _parted(report.sections)
    return [
        title,
        *_tabs(chooser),
        html.Section(
            [
                html.H2(f"{report.headline[:1].upper()}{report.headline[1:]}"),
                html.P(html.Code(sanitize(command))),
                *_rows(document),
            ],
            className="ps-card ps-tries",
        ),
        *(_section(section) for section in written),
        html.Details(
            [
                html.Summary("numbers and method"),
                *(html.P(sanitize(fact), className="ps-soft ps-note") for fact in facts),
                *(_section(section) for section in folded),
            ]
        ),
    ]


def _parted(sections: Sequence[Section]) -> tuple[list[Section], list[Section]]:
    """Sections to read at once (code to write, interventions that were not tried), and tables with the method."""
    first = [section for section in sections if section.title in ("To write", "Not tried")]
    return first, [section for section in sections if section not in first]


def _section(section: Section) -> Any:
    return html.Section(
        [html.H2(section.title), *(Fragment(html=text) for text in blocks_html(section.blocks))], className="ps-card"
    )


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


def _rows(document: Try) -> list[Any]:
    """A bar per intervention: the remaining step time with its interval, and a mark at the unchanged step time."""
    bars = _bars(document)
    highest = ROOM * max((1.0, *(bar.remaining + bar.more for bar in bars)))
    unchanged = "the unchanged program" if document.ladder else "without the change"
    note = html.P(f"Bars: step time with the change. The line is at 100%, {unchanged}.", className="ps-soft ps-note")
    return [*([note] if bars else []), *(_row(bar, highest) for bar in bars)]


def _row(bar: Bar, highest: float) -> Any:
    def across(share: float) -> str:
        return f"{100 * share / highest:.2f}%"

    left = f"{bar.remaining:{'.0%' if bar.remaining >= FEW else '.1%'}}"
    low, high = bar.remaining - bar.less, bar.remaining + bar.more
    interval = {"left": across(low), "width": across(high - low)}
    return html.Div(
        [
            html.Div([html.B(bar.name), html.Span(f" {bar.title}", className="ps-soft")]),
            html.Div(
                [
                    html.Div(style={"width": across(bar.remaining), "background": COLORS[bar.tone]}),
                    *([html.Div(className="ps-try-interval", style=interval)] if high > low else []),
                    html.Div(className="ps-try-whole", style={"left": across(1.0)}),
                ],
                className="ps-try-bar",
                **{"aria-hidden": "true"},
            ),
            html.Div(
                [html.B(f"{left} of the step time"), *(f"; {text}" for text in bar.said)], className="ps-try-said"
            ),
        ],
        className="ps-reason",
    )


def _bars(document: Try) -> list[Bar]:
    """Rungs of a ladder, else the interventions with a measured effect."""
    if document.ladder:
        return [
            Bar(name=name, title="", remaining=left, tone="better" if name.startswith("+") else "plain", said=())
            for name, left in rungs(document)
        ]
    return [
        Bar(
            name=trial.name,
            title=trial.title if trial.title != trial.name else "",
            remaining=1 + trial.effect,
            more=0.0 if trial.high is None else trial.high - trial.effect,
            less=0.0 if trial.low is None else trial.effect - trial.low,
            tone=TONES[trial.state],
            said=tuple(_said(trial)),
        )
        for trial in document.trials
        if trial.effect is not None
    ]


def _said(trial: Trial) -> Iterator[str]:
    """The verdict, the times, and the costs of the change."""
    yield trial.state
    if trial.base_ns is not None and trial.head_ns is not None:
        yield f"{format_ns(trial.base_ns)} → {format_ns(trial.head_ns)} in {trial.pairs:,} pairs of launches"
    if trial.results is not None:
        yield f"results {trial.results.state}"
    if trial.startup_ns is not None and trial.startup_ns > 0:
        yield f"starts {format_ns(trial.startup_ns)} later"
    if trial.payback_steps is not None:
        yield f"pays back after {trial.payback_steps:,} steps"
