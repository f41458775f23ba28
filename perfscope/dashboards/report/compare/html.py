"""A comparison as one HTML file: opens offline, loads nothing, reads well on a phone and in the dark.

It is bounded however large the document is: rows are capped, and what is left out is said.
"""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

from perfscope.dashboards.report.compare.program_formats import program_cards
from perfscope.dashboards.report.compare.rows import (
    FINDING_WORDS,
    KIND_WORDS,
    advice_of,
    cause_row,
    changed_kernels,
    environment,
    finding_cost,
    finding_counts,
    headline,
    idle_causes,
    kernel_word,
    method_lines,
    metric_rows,
    not_looked,
    pair_words,
    part_words,
    rule_name,
    short_titles,
    side_title,
    told,
)
from perfscope.dashboards.report.compare.svg import (
    BASE,
    HEAD,
    STYLE,
    axis_of,
    fall_bar,
    falls,
    interval_bar,
    launches_chart,
    scale_of,
)
from perfscope.dashboards.report.compare.wording import NO_VERDICT, change, percent, said_of, signed_ns, value, verdict
from perfscope.dashboards.report.html_findings import advice_html
from perfscope.dashboards.report.html_page import card, page, table
from perfscope.dashboards.report.prose import prose
from perfscope.dashboards.report.sections.program import html_cells_table
from perfscope.dashboards.report.svg import swatch
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize, sanitize_value
from perfscope.model.version import package_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfscope.dashboards.report.compare.document import Document
    from perfscope.dashboards.report.compare.types import Cause, FindingChange, Kernel, Metric, Step


# The document that a page carries: the whole where it is small, else cut, and still one whose parts sum.


MOST_CHARACTERS = 120_000
"""Of the JSON in a page: with it the page of the largest recordings opens on a phone at once."""

CUTS = ((200, 4, 1_000), (60, 2, 400), (20, 1, 200), (5, 1, 80), (1, 0, 40))
"""(entries of a list, keys of a part, characters of a text), tried in turn until it fits."""

_LISTS = ("programs", "causes", "findings", "kernels", "ranks", "not_looked", "notes", "metrics", "beside", "failed")


def embedded(document: Document) -> str:
    """JSON for a ``<script>`` block: no ``<`` is in it; ``left_out`` says what was cut."""
    held: dict[str, Any] = msgspec.to_builtins(document)
    left: dict[str, int] = {}
    text = ""
    if len(msgspec.json.encode(document)) <= MOST_CHARACTERS:  # else cleaning all of it would be for nothing
        text = _text(sanitize_value(held))
    for cut in CUTS:
        if text and len(text) <= MOST_CHARACTERS:
            break
        held = _cut(held, left, *cut)  # of what is cut already: its texts are short and clean
        said = [f"{count:,} of {name}" for name, count in left.items() if count]
        said.append(f"keys of a part beyond {cut[1]}, texts beyond {cut[2]} characters")
        text = _text(held | {"left_out": said})
    return text


def _text(held: dict[str, Any]) -> str:
    text = json.dumps(held, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _cut(whole: dict[str, Any], left: dict[str, int], entries: int, keys: int, characters: int) -> dict[str, Any]:
    """Shorter; what is left out is added to ``left``."""
    held = dict(whole)
    for name in _LISTS:
        left[name] = left.get(name, 0) + max(0, len(held[name]) - entries)
        held[name] = held[name][:entries]
    for name in ("base", "head"):
        held[name] = held[name] | {"paths": held[name]["paths"][:entries]}
    held["causes"] = [one | {part: one[part][:entries] for part in ("parts", "metrics", "findings")}
                      for one in held["causes"]]  # fmt: skip
    held["programs"] = [_fewer_rows(one, entries, left) for one in held["programs"]]
    held["metrics"] = [one | {"places": one["places"][:entries]} for one in held["metrics"]]
    for name in ("step", "worst_rank"):
        if held[name] is not None:
            held[name], parts = _fewer_parts(held[name], entries, keys)
            left[f"the parts of {name}"] = left.get(f"the parts of {name}", 0) + parts
    found: dict[str, Any] = sanitize_value(held, characters)
    found["schema"] = whole["schema"]
    return found


def _fewer_parts(step: dict[str, Any], entries: int, keys: int) -> tuple[dict[str, Any], int]:
    """The step with its first parts; the others are added to those that were left out before."""
    kept, rest = step["parts"][:entries], step["parts"][entries:]
    others = step["other_parts"]
    sums = {f"{side}_ns": others[f"{side}_ns"] + sum(part[side]["ns"] for part in rest) for side in ("base", "head")}
    fewer = [part | {side: _fewer_keys(part[side], keys) for side in ("base", "head")} for part in kept]
    return step | {"parts": fewer, "other_parts": {"count": others["count"] + len(rest), **sums}}, len(rest)


def _fewer_rows(program: dict[str, Any], entries: int, left: dict[str, int]) -> dict[str, Any]:
    """The program with its first rows; the others are added to those that were left out before."""
    kept, rest = program["rows"][:entries], program["rows"][entries:]
    others = program["other_rows"]
    sums: dict[str, dict[str, Any]] = {}
    for amount in (*others["amounts"], *(one for row in rest for one in row["amounts"])):
        known = sums.setdefault(amount["name"], amount | {"base": 0, "head": 0})
        sums[amount["name"]] = known | {side: known[side] + amount[side] for side in ("base", "head")}
    left["the rows of programs"] = left.get("the rows of programs", 0) + len(rest)
    names = ("base_names", "head_names", "said")
    return program | {
        "rows": [row | {name: row[name][:entries] for name in names} for row in kept],
        "other_rows": {"count": others["count"] + len(rest), "amounts": list(sums.values())},
        "written": None if program["written"] is None else program["written"][:entries],
        "notes": program["notes"][:entries],
    }


def _fewer_keys(side: dict[str, Any], keys: int) -> dict[str, Any]:
    left = side["keys_left"] + max(0, len(side["keys"]) - keys)
    return side | {"keys": side["keys"][:keys], "keys_left": left}


# The larger cards of a comparison's page: metrics with their intervals, findings with advice, the step's change.


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
    return html_cells_table(rows) + (f'<p class="note">and {left:,} more</p>' if left else "")


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
        said.append(pair_words(method))
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
        yield html_cells_table(rows)
    if len(rows) < len(changed):
        yield f'<p class="note">and {len(changed) - len(rows):,} more</p>'


def _ranks(document: Document) -> Iterator[str]:
    rows = [
        (("rank", str(one.rank)), ("base", format_ns(one.base_ns)), ("head", format_ns(one.head_ns)),
         ("change", signed_ns(one.head_ns - one.base_ns)))
        for one in document.ranks[:MOST_RANKS]
    ]  # fmt: skip
    left = len(document.ranks) - len(rows)
    drawn = html_cells_table(rows) + (f'<p class="note">and {left:,} more</p>' if left else "")
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
    return f"perfscope {package_version()}. This file loads nothing; the comparison as JSON is embedded in it."
