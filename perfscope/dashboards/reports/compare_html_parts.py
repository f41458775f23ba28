"""The larger cards of a comparison's page: metrics with their intervals, findings with advice, the step's change."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.compare_bars import scale_of
from perfscope.dashboards.reports.compare_rows import (
    FINDING_WORDS,
    KIND_WORDS,
    advice_of,
    finding_cost,
    finding_counts,
    idle_causes,
    metric_rows,
    part_words,
    rule_name,
    told,
)
from perfscope.dashboards.reports.compare_svg import axis_of, fall_bar, falls, interval_bar
from perfscope.dashboards.reports.compare_words import change, percent, signed_ns, value, verdict
from perfscope.dashboards.reports.html_findings import advice_html, card, prose, table
from perfscope.dashboards.reports.html_programs import cells_table
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfscope.dashboards.reports.compare_document import Document
    from perfscope.dashboards.reports.compare_types import FindingChange, Metric, Step

MOST_METRICS = 60
MOST_FINDINGS = 40
MOST_PARTS = 40
MOST_FALLS = 12
OPENED = 3
"""Findings whose advice stands open."""


def metric_card(document: Document) -> str:
    """Metrics that say something as a table, those beside it, and the names of those without a change."""
    rows, same = metric_rows(document)
    end = scale_of((*rows, *document.beside))
    body = [_metrics(rows[:MOST_METRICS], end)] if rows else []
    if len(rows) > MOST_METRICS:
        body.append(f'<p class="note">and {len(rows) - MOST_METRICS:,} more</p>')
    for one in rows:
        if one.needed_pairs is not None:
            name = escape(sanitize(one.name))
            body.append(
                f"<p>About {one.needed_pairs:,} pairs in all would settle the {name}, by the spread so far.</p>"
            )
    if document.beside:
        body.append(f"<h3>Beside it, never gating</h3>{_metrics(document.beside[:MOST_METRICS], end)}")
    if end is not None:
        body.append(f'<p class="note">Intervals from -{100 * end:g}% to +{100 * end:g}%; the band does not matter.</p>')
    if same:
        names = ", ".join(sanitize(one.name) for one in same[:MOST_METRICS])
        body.append(f'<p class="note">No change: {escape(names)} ({len(same):,}).</p>')
    return card("Metrics", "".join(body) or "<p>No metric is on both sides.</p>")


def _metrics(metrics: Sequence[Metric], end: float | None) -> str:
    heads = [
        "<th>verdict</th>",
        "<th>metric</th>",
        *(f'<th class="n">{name}</th>' for name in ("base", "head", "change")),
    ]
    if end is not None:
        heads.append(f"<th>-{100 * end:g}% to +{100 * end:g}%</th>")
    drawn = []
    for one in metrics:
        said = verdict(one)
        kind = one.verdict if said == one.verdict else ""
        numbers = (("base", value(one, one.base)), ("head", value(one, one.head)), ("change", change(one)))
        cells = [
            f'<td data-name="verdict"><span class="chip {kind}">{escape(said)}</span></td>',
            f'<td class="t" data-name="metric">{escape(sanitize(one.name))}</td>',
            *(f'<td class="n" data-name="{name}">{escape(held)}</td>' for name, held in numbers),
        ]
        if end is not None:
            judged = said == one.verdict
            cells.append(f'<td class="interval">{interval_bar(one, end) if judged else ""}</td>')
        drawn.append(f"<tr>{''.join(cells)}</tr>")
    return table(heads, drawn, kind="stacks")


def findings_cards(document: Document) -> Iterator[str]:
    """A card each of what is new or worse with what to do; the others in lists."""
    changed = [one for one in document.findings if one.change != "unchanged"]
    believed = [one for one in changed if not one.by_time]
    yield f"<h2>Findings: {escape(finding_counts(document.findings))}</h2>"
    shown_ones = believed[:MOST_FINDINGS]
    yield from (_finding(one, opened=index < OPENED) for index, one in enumerate(shown_ones))
    if len(shown_ones) < len(believed):
        yield card("More", f"<p>{len(believed) - len(shown_ones):,} more changed; the JSON holds all.</p>")
    for title, rows in (
        (
            "By measured time alone: a threshold was crossed, maybe by chance",
            [one for one in changed if one.by_time],
        ),
        ("Unchanged", [one for one in document.findings if one.change == "unchanged"]),
    ):
        if rows:
            items = "".join(f"<li>{_line(one)}</li>" for one in rows[:MOST_FINDINGS])
            left = f'<p class="note">and {len(rows) - MOST_FINDINGS:,} more</p>' if len(rows) > MOST_FINDINGS else ""
            yield (
                f'<section class="card"><details><summary>{escape(title)} ({len(rows):,})</summary>'
                f"<ul>{items}</ul>{left}</details></section>"
            )


def _finding(one: FindingChange, *, opened: bool) -> str:
    held = one.shown
    where = held.where.label()
    place = f"at <code>{escape(sanitize(where))}</code> " if where else ""
    worse = one.change in ("new", "worse", "first looked at")
    severity = held.severity if worse else ""
    advice = ""
    if worse and held.advice:
        text = "".join(advice_html(advice_of(one)))
        advice = f"<details{' open' if opened else ''}><summary>what to do</summary>{text}</details>"
    kind = "improvement" if one.change in ("fixed", "better") else ""
    return (
        f'<article class="card finding {severity}"><div class="row"><div class="saves">'
        f'<span class="chip {severity} {kind}">{escape(FINDING_WORDS[one.change])}</span></div>'
        f'<div class="what"><div class="title">{escape(rule_name(one.rule))}: {prose(sanitize(held.title, 320))}</div>'
        f'<div class="where">{place}{escape(finding_cost(one))}</div></div>'
        f'<div class="chips"><span class="chip {severity}">{held.severity}</span>'
        f'<span class="chip">{escape(sanitize(held.basis))}</span></div></div>{advice}</article>'
    )


def _line(one: FindingChange) -> str:
    where = one.shown.where.label()
    place = f" at <code>{escape(sanitize(where))}</code>" if where else ""
    cost = finding_cost(one)
    said = f"{escape(FINDING_WORDS[one.change])} <b>{escape(rule_name(one.rule))}</b>{place}"
    return f"{said}{f', {escape(cost)}' if cost else ''}: {prose(sanitize(one.shown.title, 320))}"


def step_cards(document: Document) -> Iterator[str]:
    """The change of the step as waterfalls whose rows sum to it, and its largest parts."""
    step = document.step
    if step is None:
        return
    of = "The step" if step.per == "step" else "The recording"
    whose = "" if step.rank is None or document.worst_rank is None else f", rank {step.rank} (the one in the middle)"
    said = f"{of}: {format_ns(step.base_ns)} → {format_ns(step.head_ns)} ({signed_ns(step.delta_ns)}){whose}"
    chance = "" if document.method.profiled > 1 else " One launch each: part of the differences is chance."
    body = f'<p class="note">{escape("Parts sum to the whole exactly." + chance)}</p>'
    kinds, places = _waterfall(step, _by_kind(step)), _waterfall(step, _by_place(step))
    if len(step.by_kind) > 1:
        body += f"{kinds}<details><summary>the same by place in the code</summary>{places}</details>"
    else:  # the host alone: its kind says nothing
        body += places
    parts = _parts(step)
    if parts:
        body += f"<details><summary>the largest parts</summary>{parts}</details>"
    yield card(said, body)
    worst = document.worst_rank
    if worst is not None:
        grown = percent(worst.delta_ns / worst.base_ns) if worst.base_ns else "from none"
        text = f"{signed_ns(worst.delta_ns)} a {worst.per} ({grown})"
        yield card(
            f"The rank that grew most: {worst.rank}", f"<p>{escape(text)}</p>{_waterfall(worst, _by_kind(worst))}"
        )


def _by_kind(step: Step) -> list[tuple[str, int]]:
    """Changes by kind, idle time by its cause; what no written part holds of it is a row of its own."""
    rows = []
    for kind, held in step.by_kind.items():
        change_ns = held.head_ns - held.base_ns
        if kind == "idle":
            causes = idle_causes(step)
            rows += [(f"idle: {name}", head - base) for name, (base, head) in causes.items()]
            change_ns -= sum(head - base for base, head in causes.values())
            kind = "idle: other"
        rows.append((KIND_WORDS.get(kind, sanitize(kind)), change_ns))
    rest = step.delta_ns - sum(change_ns for _, change_ns in rows)
    return _largest([*rows, ("other", rest)])


def _by_place(step: Step) -> list[tuple[str, int]]:
    """Changes by source line, else by module or name."""
    found: dict[str, int] = {}
    for part in step.parts:
        place = sanitize(part.place or part.name)
        found[place] = found.get(place, 0) + part.delta_ns
    others = step.other_parts
    return _largest([*found.items(), ("other parts", others.head_ns - others.base_ns)])


def _largest(rows: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The largest changes, and the sum of all others."""
    moved = sorted((row for row in rows if row[1]), key=lambda row: -abs(row[1]))
    kept, rest = moved[:MOST_FALLS], moved[MOST_FALLS:]
    left = sum(change_ns for _, change_ns in rest)
    return [*kept, (f"{len(rest):,} others", left)] if rest else kept


def _waterfall(step: Step, changes: Sequence[tuple[str, int]]) -> str:
    rows = falls(step.base_ns, step.head_ns, changes)
    axis = axis_of(rows)
    drawn = "".join(
        f'<div class="fall"><div>{escape(row.name)}</div>{fall_bar(row, axis)}'
        f'<div class="n">{escape(format_ns(row.end_ns) if row.whole else signed_ns(row.delta_ns))}</div></div>'
        for row in rows
    )
    begins = f'<p class="note">The axis begins at {escape(format_ns(axis[0]))}, not at zero.</p>' if axis[0] > 0 else ""
    return drawn + begins


def _parts(step: Step) -> str:
    moved = [part for part in step.parts if part.delta_ns]
    kept = moved[:MOST_PARTS]
    if not kept:
        return ""
    rows = [
        (("change", signed_ns(part.delta_ns)), ("of it calls", signed_ns(part.count_ns)),
         ("of it each call", signed_ns(part.each_ns)), ("at", sanitize(part.place)),
         ("what", part_words(told(part), step.per)))
        for part in kept
    ]  # fmt: skip
    left = len(moved) - len(kept) + step.other_parts.count
    return cells_table(rows) + (f'<p class="note">and {left:,} more</p>' if left else "")
