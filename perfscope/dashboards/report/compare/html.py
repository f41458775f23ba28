"""A comparison as one HTML file: opens offline, loads nothing, reads well on a phone and in the dark.

It is bounded however large the document is: rows are capped, and what is left out is said.
"""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

from perfscope.dashboards.report.blocks import Column
from perfscope.dashboards.report.blocks import table as rows_of
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
from perfscope.dashboards.report.renderers.html import blocks_html
from perfscope.dashboards.report.svg import swatch
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize, sanitize_value
from perfscope.model.version import package_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfscope.dashboards.report.compare.document import Document
    from perfscope.dashboards.report.compare.types import Cause, FindingChange, Kernel, Metric, Part, Rank, Step


# The document that a page carries: the whole where it is small, else cut, and still one whose parts sum.


MOST_CHARACTERS = 120_000
"""Of the JSON in a page: with it the page of the largest recordings opens on a phone at once."""

CUTS = ((200, 4, 1_000), (60, 2, 400), (20, 1, 200), (5, 1, 80), (1, 0, 40))
"""(entries of a list, keys of a part, characters of a text), tried in turn until it fits."""

_LISTS = ("programs", "causes", "findings", "kernels", "ranks", "not_looked", "notes", "metrics", "beside", "failed")


def embedded(document: Document) -> str:
    """JSON for a ``<script>`` block: no ``<`` is in it; ``left_out`` says what was cut."""
    values: dict[str, Any] = msgspec.to_builtins(document)
    left: dict[str, int] = {}
    text = ""
    if len(msgspec.json.encode(document)) <= MOST_CHARACTERS:  # else cleaning all of it would be for nothing
        text = _text(sanitize_value(values))
    for cut in CUTS:
        if text and len(text) <= MOST_CHARACTERS:
            break
        values = _cut(values, left, *cut)  # of what is cut already: its texts are short and clean
        texts = [f"{count:,} of {name}" for name, count in left.items() if count]
        texts.append(f"keys of a part beyond {cut[1]}, texts beyond {cut[2]} characters")
        text = _text(values | {"left_out": texts})
    return text


def _text(values: dict[str, Any]) -> str:
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _cut(whole: dict[str, Any], left: dict[str, int], entries: int, keys: int, characters: int) -> dict[str, Any]:
    """Shorter; what is left out is added to ``left``."""
    values = dict(whole)
    for name in _LISTS:
        left[name] = left.get(name, 0) + max(0, len(values[name]) - entries)
        values[name] = values[name][:entries]
    for name in ("base", "head"):
        values[name] = values[name] | {"paths": values[name]["paths"][:entries]}
    values["causes"] = [cause | {part: cause[part][:entries] for part in ("parts", "metrics", "findings")}
                      for cause in values["causes"]]  # fmt: skip
    values["programs"] = [_fewer_rows(program, entries, left) for program in values["programs"]]
    values["metrics"] = [metric | {"places": metric["places"][:entries]} for metric in values["metrics"]]
    for name in ("step", "worst_rank"):
        if values[name] is not None:
            values[name], parts = _fewer_parts(values[name], entries, keys)
            left[f"the parts of {name}"] = left.get(f"the parts of {name}", 0) + parts
    result: dict[str, Any] = sanitize_value(values, characters)
    result["schema"] = whole["schema"]
    return result


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
    for amount in (*others["amounts"], *(amount for row in rest for amount in row["amounts"])):
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
    for row in rows:
        if row.needed_pairs is not None:
            name = escape(sanitize(row.name))
            body.append(
                f"<p>About {row.needed_pairs:,} pairs in all would settle the {name}, by the spread so far.</p>"
            )
    if document.beside:
        body.append(f"<h3>Beside it, never gating</h3>{_metrics(document.beside[:MOST_METRICS], end)}")
    if end is not None:
        body.append(f'<p class="note">Intervals from -{100 * end:g}% to +{100 * end:g}%; the band does not matter.</p>')
    if same:
        names = ", ".join(sanitize(metric.name) for metric in same[:MOST_METRICS])
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
    for metric in metrics:
        text = verdict(metric)
        kind = metric.verdict if text == metric.verdict else ""
        numbers = (
            ("base", value(metric, metric.base)),
            ("head", value(metric, metric.head)),
            ("change", change(metric)),
        )
        cells = [
            f'<td data-name="verdict"><span class="chip {kind}">{escape(text)}</span></td>',
            f'<td class="t" data-name="metric">{escape(sanitize(metric.name))}</td>',
            *(f'<td class="n" data-name="{name}">{escape(text)}</td>' for name, text in numbers),
        ]
        if end is not None:
            judged = text == metric.verdict
            cells.append(f'<td class="interval">{interval_bar(metric, end) if judged else ""}</td>')
        drawn.append(f"<tr>{''.join(cells)}</tr>")
    return table(heads, drawn, kind="stacks")


def findings_cards(document: Document) -> Iterator[str]:
    """A card each of what is new or worse with what to do; the others in lists."""
    changed = [finding for finding in document.findings if finding.change != "unchanged"]
    believed = [finding for finding in changed if not finding.by_time]
    yield f"<h2>Findings: {escape(finding_counts(document.findings))}</h2>"
    shown_ones = believed[:MOST_FINDINGS]
    yield from (_finding(finding, opened=index < OPENED) for index, finding in enumerate(shown_ones))
    if len(shown_ones) < len(believed):
        yield card("More", f"<p>{len(believed) - len(shown_ones):,} more changed; the JSON holds all.</p>")
    for title, rows in (
        (
            "By measured time alone: a threshold was crossed, maybe by chance",
            [finding for finding in changed if finding.by_time],
        ),
        ("Unchanged", [finding for finding in document.findings if finding.change == "unchanged"]),
    ):
        if rows:
            items = "".join(f"<li>{_line(row)}</li>" for row in rows[:MOST_FINDINGS])
            left = f'<p class="note">and {len(rows) - MOST_FINDINGS:,} more</p>' if len(rows) > MOST_FINDINGS else ""
            yield (
                f'<section class="card"><details><summary>{escape(title)} ({len(rows):,})</summary>'
                f"<ul>{items}</ul>{left}</details></section>"
            )


def _finding(change: FindingChange, *, opened: bool) -> str:
    finding = change.shown
    where = finding.where.label()
    label = f"at <code>{escape(sanitize(where))}</code> " if where else ""
    worse = change.change in ("new", "worse", "first looked at")
    severity = finding.severity if worse else ""
    advice = ""
    if worse and finding.advice:
        text = "".join(advice_html(advice_of(change)))
        advice = f"<details{' open' if opened else ''}><summary>what to do</summary>{text}</details>"
    kind = "improvement" if change.change in ("fixed", "better") else ""
    return (
        f'<article class="card finding {severity}"><div class="row"><div class="saves">'
        f'<span class="chip {severity} {kind}">{escape(FINDING_WORDS[change.change])}</span></div>'
        f'<div class="what"><div class="title">{escape(rule_name(change.rule))}: '
        f"{prose(sanitize(finding.title, 320))}</div>"
        f'<div class="where">{label}{escape(finding_cost(change))}</div></div>'
        f'<div class="chips"><span class="chip {severity}">{finding.severity}</span>'
        f'<span class="chip">{escape(sanitize(finding.basis))}</span></div></div>{advice}</article>'
    )


def _line(change: FindingChange) -> str:
    where = change.shown.where.label()
    shown_at = f" at <code>{escape(sanitize(where))}</code>" if where else ""
    cost = finding_cost(change)
    text = f"{escape(FINDING_WORDS[change.change])} <b>{escape(rule_name(change.rule))}</b>{shown_at}"
    return f"{text}{f', {escape(cost)}' if cost else ''}: {prose(sanitize(change.shown.title, 320))}"


def step_cards(document: Document) -> Iterator[str]:
    """The change of the step as waterfalls whose rows sum to it, and its largest parts."""
    step = document.step
    if step is None:
        return
    of = "The step" if step.per == "step" else "The recording"
    whose = "" if step.rank is None or document.worst_rank is None else f", rank {step.rank} (the one in the middle)"
    sentence = f"{of}: {format_ns(step.base_ns)} → {format_ns(step.head_ns)} ({signed_ns(step.delta_ns)}){whose}"
    chance = "" if document.method.profiled > 1 else " One launch each: part of the differences is chance."
    body = f'<p class="note">{escape("Parts sum to the whole exactly." + chance)}</p>'
    kinds, by_place = _waterfall(step, _by_kind(step)), _waterfall(step, _by_place(step))
    if len(step.by_kind) > 1:
        body += f"{kinds}<details><summary>the same by place in the code</summary>{by_place}</details>"
    else:  # the host alone: its kind says nothing
        body += by_place
    parts = _parts(step)
    if parts:
        body += f"<details><summary>the largest parts</summary>{parts}</details>"
    yield card(sentence, body)
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
    for kind, amount in step.by_kind.items():
        change_ns = amount.head_ns - amount.base_ns
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
    result: dict[str, int] = {}
    for part in step.parts:
        location = sanitize(part.place or part.name)
        result[location] = result.get(location, 0) + part.delta_ns
    others = step.other_parts
    return _largest([*result.items(), ("other parts", others.head_ns - others.base_ns)])


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
    columns: tuple[Column[Part], ...] = (
        Column("change", lambda part: signed_ns(part.delta_ns), "ns"),
        Column("of it calls", lambda part: signed_ns(part.count_ns), "ns"),
        Column("of it each call", lambda part: signed_ns(part.each_ns), "ns"),
        Column("at", lambda part: part.place, "place"),
        Column("what", lambda part: part_words(told(part), step.per)),
    )
    left = len(moved) - len(kept) + step.other_parts.count
    return "".join(blocks_html((rows_of(columns, kept, few=MOST_PARTS, left=left),)))


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
    texts = [sanitize(method.kind)]
    if method.pairs:
        texts.append(pair_words(method))
    devices = dict.fromkeys((*document.base.devices, *document.head.devices))
    texts += [sanitize(device) for device in list(devices)[:4]]
    return " · ".join(texts)


def _verdict(document: Document) -> str:
    text = said_of(document.metrics)
    failed = "".join(f"<li>{escape(sanitize(line))}</li>" for line in document.failed[:MOST_LINES])
    gates = f"<p><b>Gate not met</b></p><ul>{failed}</ul>" if failed else ""
    return (
        f'<section class="card verdict {document.headline.replace(" ", "-")}"><div class="big">'
        f"{escape(document.headline)}</div><p>{escape(text)}</p>{gates}</section>"
    )


def _tiles(document: Document) -> Iterator[str]:
    for metric in document.metrics[:1]:
        if metric.unit == "ns":
            text = verdict(metric)
            note = f"was {value(metric, metric.base)}; {change(metric) or 'the same'}" + (
                f"; {text}" * (NO_VERDICT in text)
            )
            yield _tile(metric.name, value(metric, metric.head), note)
    exact = [metric for metric in document.metrics if metric.known == "exact"]
    moved = [metric for metric in exact if metric.verdict != "no change"]
    if exact:
        yield _tile("exact metrics", f"{len(moved)} of {len(exact)}", "differ")
    causes = [cause for cause in document.causes if cause.exact]
    yield _tile("places", str(len(causes)), "where counts, findings or exact metrics changed")
    new = sum(finding.is_worse for finding in document.findings)
    yield _tile("new or worse findings", str(new), finding_counts(document.findings))


def _tile(name: str, value: str, note: str) -> str:
    return (
        f'<div class="card"><div class="tile">{escape(sanitize(name))}</div><div class="big">{escape(value)}</div>'
        f'<div class="note">{escape(note)}</div></div>'
    )


def _causes(causes: Sequence[Cause], per: str) -> Iterator[str]:
    exact = [cause for cause in causes if cause.exact]
    if not exact:
        yield "<p>Nothing changed in what can be counted.</p>"
        return
    drawn = [cause_card(cause, per) for cause in exact[:MOST_CAUSES]]
    yield "".join(drawn[:FIRST_CAUSES])
    left = f'<p class="note">and {len(exact) - len(drawn):,} more</p>' if len(drawn) < len(exact) else ""
    if drawn[FIRST_CAUSES:]:
        rest = "".join(drawn[FIRST_CAUSES:])
        yield f"<details><summary>{len(drawn) - FIRST_CAUSES} more places</summary>{rest}{left}</details>"


def cause_card(cause: Cause, per: str) -> str:
    """A place with what changed there; ``per``: what its time is of."""
    row = cause_row(cause, per)
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
    columns: tuple[Column[Kernel], ...] = (
        Column("kernel", lambda kernel: kernel.name, "code", limit=TEXT_LIMIT),
        Column("base", lambda kernel: kernel.base_ns, "ns"),
        Column("head", lambda kernel: kernel.head_ns, "ns"),
        Column("change", lambda kernel: signed_ns(kernel.change_ns), "ns"),
        Column("relative", lambda kernel: "" if kernel.effect is None else percent(kernel.effect), "share"),
        Column("q", lambda kernel: "" if kernel.q is None else f"{kernel.q:.2g}", "count"),
        Column("it is", kernel_word),
    )
    kept = changed[:MOST_KERNELS]
    if kept:
        yield from blocks_html((rows_of(columns, kept, few=MOST_KERNELS, left=len(changed) - len(kept)),))


def _ranks(document: Document) -> Iterator[str]:
    columns: tuple[Column[Rank], ...] = (
        Column("rank", lambda rank: rank.rank, "count"),
        Column("base", lambda rank: rank.base_ns, "ns"),
        Column("head", lambda rank: rank.head_ns, "ns"),
        Column("change", lambda rank: signed_ns(rank.head_ns - rank.base_ns), "ns"),
    )
    title = f"the step of each of {len(document.ranks):,} ranks"
    left = max(0, len(document.ranks) - MOST_RANKS)
    yield from blocks_html((rows_of(columns, document.ranks[:MOST_RANKS], title=title, detail=True, left=left),))


def _method(document: Document) -> Iterator[str]:
    chart = launches_chart(document.method.launches)
    if chart is not None:
        drawn, low, high = chart
        sides = "".join(f"<span>{swatch(color)} {name}</span>" for name, color in (("base", BASE), ("head", HEAD)))
        yield f'<div class="legend">{sides}<span>a column a pair of launches, in order</span></div>'
        yield f'<div class="ends"><span>slowest {format_ns(high)}</span></div>{drawn}'
        phases = dict.fromkeys(sanitize(launch.phase) for launch in document.method.launches if launch.ns is not None)
        text = f"<span>fastest {format_ns(low)}</span><span>{escape(', then '.join(phases))}</span>"
        yield f'<div class="ends">{text}</div>'
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
        f'<tr><th scope="row">{escape(key)}</th><td class="t">{escape(text)}</td></tr>'
        for key, text in environment(document)[:MOST_LINES]
    )
    if rows:
        yield f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div>'


def _origin() -> str:
    return f"perfscope {package_version()}. This file loads nothing; the comparison as JSON is embedded in it."
