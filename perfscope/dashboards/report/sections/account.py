"""Where the step went, by cause, in every report format."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape as escape_html
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfscope.dashboards.report.html_page import card, table
from perfscope.dashboards.report.markdown_text import escape, markdown_table
from perfscope.model.trace import MISSING
from perfscope.model.units import format_ns, format_share
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.time import Cause, StepAccount

LEAST_SHARE = 0.0005
"""Of the step: a cause with less rounds to 0.0 % and is left out; the JSON report has all."""

BAR = 24
"""Characters of a bar that stands for the whole step."""

NAME_LIMIT = 40

HEADS = ("where the step goes", "time", "share")

_HTML_HEADS = ("<th>cause</th>", '<th class="n">time</th>', '<th class="n">share</th>', "<th></th>")

_WORDS: dict[Cause, str] = {
    "compute": "compute",
    "exposed_communication": "exposed communication",
    "exposed_copy": "exposed copies",
    "sync": "idle: waited for the device",
    "input": "idle: waited for input",
    "launch": "idle: launching",
    "compilation": "idle: compiling or loading code",
    "memory": "idle: device memory calls",
    "collective_setup": "idle: setting up collectives",
    "garbage_collection": "idle: garbage collection",
    "saving": "idle: saving and logging",
    "sleeping": "idle: host slept or waited for a lock",
    "other_host": "idle: other host work",
    "dependency": "idle: waited for other device work",
    "unexplained": "idle: unexplained",
}
_ON_HOST: dict[Cause, str] = {"compute": "ops on the host", "launch": "between ops"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRow:
    """A cause. ``time_ns`` is the mean of the steps."""

    cause: str
    time_ns: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountView:
    """The account of one device: of several the one that computes least."""

    title: str
    rows: tuple[AccountRow, ...]
    busy: str
    """Sentence for the head of the report."""


def account_view(accounts: Sequence[StepAccount]) -> AccountView | None:
    """The account of the device that computes least; ``None`` where there is none."""
    judged = [account for account in accounts if account.whole_ns]
    if not judged:
        return None
    account = min(judged, key=lambda item: item.total_ns["compute"] / item.whole_ns)
    steps, on_host = max(1, len(account.numbers)), account.device == MISSING
    rows = tuple(
        AccountRow(cause=_words(cause, on_host=on_host), time_ns=value // steps, share=value / account.whole_ns)
        for cause, value in account.total_ns.items()
        if value >= LEAST_SHARE * account.whole_ns
    )
    return AccountView(title=_title(account, len(judged)), rows=rows, busy=_busy(judged))


def _words(cause: Cause, *, on_host: bool) -> str:
    return _ON_HOST.get(cause, _WORDS[cause].removeprefix("idle: ")) if on_host else _WORDS[cause]


def _title(account: StepAccount, devices: int) -> str:
    whose = "the host" if account.device == MISSING else f"{sanitize(account.name, NAME_LIMIT) or 'device'}"
    whose += "" if account.device == MISSING else f" ({account.ordinal})"
    whose += "" if account.rank is None else f", rank {account.rank}"
    whose += f", the one of {devices:,} that computes least" if devices > 1 else ""
    count = len(account.numbers)
    mean = format_ns(account.whole_ns // max(1, count))
    if not count:
        return f"{whose}: whole capture, {mean}"
    return f"{whose}: {f'mean of {count:,} steps' if count > 1 else 'one step'}, {mean}"


def _busy(accounts: Sequence[StepAccount]) -> str:
    of = "the step" if any(account.numbers for account in accounts) else "the capture"
    whole = sum(account.whole_ns for account in accounts)
    if all(account.device == MISSING for account in accounts):
        ops = sum(account.total_ns["compute"] for account in accounts)
        return f"no GPU/TPU activity recorded; ops of the host take {format_share(ops, whole)} of {of}"
    busy = format_share(sum(account.busy_ns for account in accounts), whole)
    count = len(accounts)
    return f"device busy {busy} of {of}" if count == 1 else f"devices busy {busy} of {of} (mean of {count:,})"


def account_text(view: AccountView) -> Iterator[RenderableType]:
    """As a table with bars for a terminal."""
    yield Padding(Text(f"{HEADS[0]}: {view.title}"), (0, 0, 0, 2))
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(no_wrap=True)
    for row in view.rows:
        grid.add_row(row.cause, format_ns(row.time_ns), f"{100 * row.share:.1f}%", "█" * round(BAR * row.share))
    yield Padding(grid, (0, 0, 0, 4))


def account_markdown(view: AccountView) -> str:
    """As a table; its title above."""
    rows = [(escape(row.cause), format_ns(row.time_ns), f"{100 * row.share:.1f}%") for row in view.rows]
    return f"{HEADS[0].capitalize()}: {escape(view.title)}\n\n{markdown_table(HEADS, rows, 'lrr')}"


def account_card(view: AccountView) -> str:
    """As a card with bars."""
    rows = [
        f'<tr><td>{escape_html(row.cause)}</td><td class="n">{escape_html(format_ns(row.time_ns))}</td>'
        f'<td class="n">{100 * row.share:.1f}%</td>'
        f'<td><meter min="0" max="1" value="{row.share:.4f}"></meter></td></tr>'
        for row in view.rows
    ]
    return card("Where the step goes", f"<p>{escape_html(view.title)}</p>{table(_HTML_HEADS, rows)}")


def accounts_document(accounts: Sequence[StepAccount]) -> list[dict[str, Any]]:
    """For the JSON report: per device the causes of each step, ns; per step they sum to it."""
    return [
        {
            "rank": account.rank,
            "device": None if account.device == MISSING else account.ordinal,
            "name": account.name,
            "over": "steps" if account.numbers else "capture",
            "steps": list(account.numbers),
            "whole_ns": account.whole_ns,
            "busy_ns": account.busy_ns,
            "total_ns": account.total_ns,
            "causes_ns": {cause: list(values) for cause, values in account.causes_ns.items() if any(values)},
        }
        for account in accounts
    ]
