"""A comparison as one HTML file: opens offline, loads nothing, reads well on a phone and in the dark.

It is bounded however large the document is: rows are capped, and what is left out is said.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.compare_embedded import embedded
from perfscope.dashboards.reports.compare_html_parts import findings_cards, metric_card, step_cards
from perfscope.dashboards.reports.compare_program_html import program_cards
from perfscope.dashboards.reports.compare_rows import (
    cause_row,
    changed_kernels,
    environment,
    finding_counts,
    headline,
    kernel_word,
    method_lines,
    not_looked,
    short_titles,
    side_title,
)
from perfscope.dashboards.reports.compare_svg import BASE, HEAD, STYLE, launches_chart
from perfscope.dashboards.reports.compare_words import NO_VERDICT, change, percent, said_of, signed_ns, value, verdict
from perfscope.dashboards.reports.html_findings import card, prose
from perfscope.dashboards.reports.html_page import page
from perfscope.dashboards.reports.html_programs import cells_table
from perfscope.dashboards.reports.svg import swatch
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfscope.dashboards.reports.compare_document import Document
    from perfscope.dashboards.reports.compare_types import Cause, Kernel

FIRST_CAUSES = 6
MOST_CAUSES = 40
MOST_KERNELS = 60
MOST_RANKS = 128
MOST_LINES = 100

OWN_STYLE = (
    STYLE
    + """
section>details:first-child{border:0;margin:0;padding:0}
.verdict{border-left:6px solid var(--line)}
.verdict.regression{border-left-color:var(--high)}.verdict.improvement{border-left-color:var(--clean)}
.verdict.inconclusive{border-left-color:#c98714}
.chip.regression{background:var(--high-ground);color:var(--high)}.chip.improvement{color:var(--clean)}
.chip.inconclusive{background:var(--medium-ground);color:var(--medium)}
.cause{display:grid;grid-template-columns:minmax(0,1fr) auto;gap:2px 16px;padding:10px 0;
border-bottom:1px solid var(--line)}
.cause:last-of-type{border-bottom:0}
.cause b{font-weight:600}.cause ul{grid-column:1/-1}
.cause .time{font-variant-numeric:tabular-nums;white-space:nowrap}
.fall{display:grid;grid-template-columns:minmax(0,16em) minmax(0,1fr) 6.5em;gap:2px 14px;align-items:center;
padding:3px 0;font-size:13px}
.fall .n{font-variant-numeric:tabular-nums}
@media (max-width:640px){
.fall{grid-template-columns:minmax(0,1fr) auto}.fall svg{grid-column:1/-1;grid-row:2}
.stacks td.interval{display:block}.stacks td.interval::before{content:none}
.stacks td.interval svg{width:100%;height:auto}
}
"""
)


def render(document: Document) -> str:
    """The whole page. Every text is escaped; the policy forbids any request."""
    data = embedded(document)
    return page(_page(document), title=headline(document), data_id="perfscope-comparison", data=data, style=OWN_STYLE)


def _page(document: Document) -> Iterator[str]:
    yield f"<header><h1><b>perfscope</b> <span>{escape(' → '.join(short_titles(document)))}</span></h1>"
    yield f'<p class="sub">{escape(_about(document))}</p></header>'
    yield from top_cards(document)
    yield from program_cards(document)
    per = "step" if document.step is None else document.step.per
    yield card("What changed", "".join(_causes(document.causes, per)))
    yield metric_card(document)
    yield from findings_cards(document)
    yield from step_cards(document)
    if document.kernels:
        yield card("Kernels", "".join(_kernels(document.kernels)))
    yield from after_cards(document)
    yield f"<footer>{escape(_origin())}</footer>"


def top_cards(document: Document) -> Iterator[str]:
    """The verdict with the gates that were not met, and the numbers at the top."""
    yield _verdict(document)
    yield f'<section class="tiles">{"".join(_tiles(document))}</section>'


def after_cards(document: Document) -> Iterator[str]:
    """Ranks, what could not be compared, and how it was compared."""
    if document.ranks[1:]:
        yield card("Ranks", "".join(_ranks(document)))
    blind = not_looked(document)
    if blind:
        items = "".join(f"<li><b>{escape(names)}</b>: {prose(reason)}</li>" for names, reason in blind[:MOST_LINES])
        yield card("Could not look", f"<p>These are not compared.</p><ul>{items}</ul>", kind="unseen")
    yield card("Method", "".join(_method(document)))


def _about(document: Document) -> str:
    method = document.method
    said = [sanitize(method.kind)]
    if method.pairs:
        confirming = f" and {method.confirming_pairs} to confirm" if method.confirming_pairs else ""
        said.append(f"{method.pairs} pairs{confirming}")
    devices = dict.fromkeys((*document.base.devices, *document.head.devices))
    said += [sanitize(one) for one in list(devices)[:4]]
    return " · ".join(said)


def _verdict(document: Document) -> str:
    said = said_of(document.metrics)
    failed = "".join(f"<li>{escape(sanitize(one))}</li>" for one in document.failed[:MOST_LINES])
    gates = f"<p><b>Gate not met</b></p><ul>{failed}</ul>" if failed else ""
    return (
        f'<section class="card verdict {document.headline.replace(" ", "-")}"><div class="big">'
        f"{escape(document.headline)}</div><p>{escape(said)}</p>{gates}</section>"
    )


def _tiles(document: Document) -> Iterator[str]:
    for one in document.metrics[:1]:
        if one.unit == "ns":
            said = verdict(one)
            note = f"was {value(one, one.base)}; {change(one) or 'the same'}" + (f"; {said}" * (NO_VERDICT in said))
            yield _tile(one.name, value(one, one.head), note)
    exact = [one for one in document.metrics if one.known == "exact"]
    moved = [one for one in exact if one.verdict != "no change"]
    if exact:
        yield _tile("exact metrics", f"{len(moved)} of {len(exact)}", "differ")
    places = [one for one in document.causes if one.exact]
    yield _tile("places", str(len(places)), "where counts, findings or exact metrics changed")
    new = sum(one.is_worse for one in document.findings)
    yield _tile("new or worse findings", str(new), finding_counts(document.findings))


def _tile(name: str, held: str, note: str) -> str:
    return (
        f'<div class="card"><div class="tile">{escape(sanitize(name))}</div><div class="big">{escape(held)}</div>'
        f'<div class="note">{escape(note)}</div></div>'
    )


def _causes(causes: Sequence[Cause], per: str) -> Iterator[str]:
    exact = [one for one in causes if one.exact]
    if not exact:
        yield "<p>Nothing changed in what can be counted.</p>"
        return
    drawn = [cause_card(one, per) for one in exact[:MOST_CAUSES]]
    yield "".join(drawn[:FIRST_CAUSES])
    left = f'<p class="note">and {len(exact) - len(drawn):,} more</p>' if len(drawn) < len(exact) else ""
    if drawn[FIRST_CAUSES:]:
        rest = "".join(drawn[FIRST_CAUSES:])
        yield f"<details><summary>{len(drawn) - FIRST_CAUSES} more places</summary>{rest}{left}</details>"


def cause_card(one: Cause, per: str) -> str:
    """A place with what changed there; ``per``: what its time is of."""
    row = cause_row(one, per)
    items = "".join(f"<li>{escape(line)}</li>" for line in row.lines)
    left = f'<li class="note">and {row.left} more</li>' if row.left else ""
    time = f"{row.time} a {per}" if row.time else ""
    return (
        f'<div class="cause"><div><code>{escape(row.place)}</code></div><div class="time">{escape(time)}</div>'
        f"<ul>{items}{left}</ul></div>"
    )


def _kernels(kernels: Sequence[Kernel]) -> Iterator[str]:
    changed = changed_kernels(kernels)
    yield f"<p>{len(changed):,} of {len(kernels):,} changed, corrected for how many there are (Benjamini-Hochberg).</p>"
    rows = [
        (
            ("kernel", sanitize(one.name)), ("base", format_ns(one.base_ns)),
            ("head", format_ns(one.head_ns)), ("change", signed_ns(one.change_ns)),
            ("relative", "" if one.effect is None else percent(one.effect)),
            ("q", "" if one.q is None else f"{one.q:.2g}"), ("it is", kernel_word(one)),
        )
        for one in changed[:MOST_KERNELS]
    ]  # fmt: skip
    if rows:
        yield cells_table(rows)
    if len(rows) < len(changed):
        yield f'<p class="note">and {len(changed) - len(rows):,} more</p>'


def _ranks(document: Document) -> Iterator[str]:
    rows = [
        (("rank", str(one.rank)), ("base", format_ns(one.base_ns)), ("head", format_ns(one.head_ns)),
         ("change", signed_ns(one.head_ns - one.base_ns)))
        for one in document.ranks[:MOST_RANKS]
    ]  # fmt: skip
    left = len(document.ranks) - len(rows)
    drawn = cells_table(rows) + (f'<p class="note">and {left:,} more</p>' if left else "")
    yield f"<details><summary>the step of each of {len(document.ranks):,} ranks</summary>{drawn}</details>"


def _method(document: Document) -> Iterator[str]:
    chart = launches_chart(document.method.launches)
    if chart is not None:
        drawn, low, high = chart
        sides = "".join(f"<span>{swatch(color)} {name}</span>" for name, color in (("base", BASE), ("head", HEAD)))
        yield f'<div class="legend">{sides}<span>a column a pair of launches, in order</span></div>'
        yield f'<div class="ends"><span>slowest {format_ns(high)}</span></div>{drawn}'
        phases = dict.fromkeys(sanitize(one.phase) for one in document.method.launches if one.ns is not None)
        said = f"<span>fastest {format_ns(low)}</span><span>{escape(', then '.join(phases))}</span>"
        yield f'<div class="ends">{said}</div>'
    lines = [f"{name}: {side_title(document, name)}" for name in ("base", "head")]
    for side, names in (("base", document.base), ("head", document.head)):
        if names.paths and sanitize(names.paths[0]) not in lines[0] + lines[1]:
            lines.append(f"{side} was read from {sanitize(names.paths[0])}")
    lines += method_lines(document)
    for metric in document.metrics:
        if metric.known != "exact":
            lines += [f"{sanitize(metric.name)}: {sanitize(remark, TEXT_LIMIT)}" for remark in metric.remarks]
    lines += [sanitize(note, TEXT_LIMIT) for note in document.notes]
    yield f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in dict.fromkeys(lines[:MOST_LINES]))}</ul>"
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td class="t">{escape(held)}</td></tr>'
        for key, held in environment(document)[:MOST_LINES]
    )
    if rows:
        yield f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div>'


def _origin() -> str:
    import perfscope

    return f"perfscope {perfscope.__version__}. This file loads nothing; the comparison as JSON is embedded in it."
