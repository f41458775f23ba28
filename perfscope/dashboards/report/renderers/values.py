"""How a value is shown in every format: text with its unit, control characters and secrets masked."""

from __future__ import annotations

import math
import re
import textwrap
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.dashboards.report.blocks import Amount, Badge, Effect, Marked, Range, paragraphs
from perfscope.model.finding import ONCE
from perfscope.model.units import format_bytes, format_count, format_ns, format_share
from perfscope.model.untrusted_text import TEXT_LIMIT, clean, sanitize, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perfscope.dashboards.report.blocks import Code, FindingBlock, Head, Listing, Number, Table, Value
    from perfscope.model.finding import Finding
    from perfscope.model.results import Unit
    from perfscope.model.severity import Severity


NAME_LIMIT = 36
"""Characters of a name in a table."""

PLACE_LIMIT = 40
"""Characters of a path, a source line or a scope in a table: its end identifies it."""

NAMES = frozenset({"code", "place"})
"""Units of columns that hold names in the program."""

WORDS = NAMES | {"text"}
"""Units of columns that are aligned left; the others are numbers."""


_METRIC_UNITS: dict[str, Unit] = {"ns": "ns", "bytes": "bytes", "FLOP": "quantity"}

MANY_STEPS = 10
"""From this number of steps it is shown without a decimal."""

MOST_PERCENT = 10
"""From this relative change it is shown without a decimal: +196.0%, but +1,234%."""

_IDENTIFIER = re.compile(r"\w*[_.:/]\w")

ENDS = tuple(step * 10.0**power for power in range(-3, 4) for step in (1, 2, 3, 5))
"""Possible ends of a scale, relative: 0.1% to 5,000%."""

HALF = 10
"""Characters on each side of the middle."""

WORSE, BETTER, PLAIN = "#cf4a32", "#1f8f74", "#8a94a3"

LEAST_PART = 0.01
"""Smaller parts of a whole share one entry of its legend."""

BY_PATH = "by the critical path"
"""Basis of a saving that is bounded by the critical path; one of the modelled values of ``Basis``."""
NOT_ON_PATH = "The saving is not checked on the critical path"
"""Shown if the recorded dependencies do not allow a check; the reason follows."""
NO_TIME = "saving unknown"
"""Shown in place of a saving if the finding was made from the program's code and no time is known."""

TITLE_LIMIT = 320
"""Characters of a title: room for a sentence with a kernel name."""

FIX_LIMIT = 160
"""Characters of a fix in one sentence."""

SENTENCE_END = re.compile(r"(?<=[a-z0-9)`'\]][.;])\s")
"""A space after the end of a sentence or clause."""

CODE_INDENT = 40
"""Columns of indentation that are kept of a line of code."""


def first_sentence(paragraph: str) -> str:
    """Return the first sentence or clause of a paragraph without its end mark; text in backticks stays whole."""
    quotes, begin = 0, 0
    for match in SENTENCE_END.finditer(paragraph):
        quotes += paragraph.count("`", begin, match.start())
        begin = match.start()
        if quotes % 2 == 0:
            return paragraph[:begin].rstrip(".:;")
    return paragraph.rstrip(".:;")


def shown(value: Value, head: Head) -> str:
    """A cell as text, cut to its column's limit."""
    if isinstance(value, Badge):
        return sanitize(value.text, TEXT_LIMIT)
    if isinstance(value, Effect):
        return effect_text(value)
    if not isinstance(value, str):
        return number_text(value, head.unit)
    text = sanitize(value, head.limit or TEXT_LIMIT if head.unit == "text" else TEXT_LIMIT)
    if head.unit == "place":
        return place_end(text, head.limit or PLACE_LIMIT)
    return shorten(text, head.limit or NAME_LIMIT) if head.unit == "code" else text


def number_text(value: Number | Range | Marked | Amount | None, unit: Unit) -> str:
    """A number, a range or a bound with its unit; ``''`` for ``None``."""
    if value is None:
        return ""
    if isinstance(value, Amount):
        return number_text(value.value, value.unit)
    if isinstance(value, Marked):
        space = " " if len(value.mark) > 1 else ""
        return f"{value.mark}{space}{number_text(value.value, unit)}"
    if isinstance(value, Range):
        return range_text(value, unit)
    match unit:
        case "ns":
            return format_ns(value)
        case "signed_ns":
            return signed_ns(value)
        case "change":
            return percent(value)
        case "chance":
            return f"{value:.2g}"
        case "bytes":
            return format_bytes(value)
        case "share":
            return format_share(value, 1)
        case "quantity":
            return format_count(value)
        case "bytes_per_s":
            return f"{value / 1e9:.3g} GB/s"
        case _:
            return number(value)


def amount(unit: str, value: Number) -> Amount:
    """A number with the unit of its metric: ns, bytes, FLOP, else a count."""
    return Amount(value, _METRIC_UNITS.get(unit, "count"))


def amount_text(unit: str, value: Number) -> str:
    """``'3.00 MiB'``."""
    return number_text(amount(unit, value), "count")


def number(value: Number) -> str:
    """A count: without decimals if it is whole, else with two digits."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3g}"


def signed_ns(value: Number) -> str:
    """``+38.7 us``."""
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{format_ns(abs(value))}"


def percent(change: float) -> str:
    """``0.0312`` -> ``+3.1%``."""
    return f"{100 * change:+.1f}%" if abs(change) < MOST_PERCENT else f"{100 * change:+,.0f}%"


def effect_text(effect: Effect) -> str:
    """``+3.0% [+2.0%, +4.0%]``."""
    if effect.low is None or effect.high is None:
        return percent(effect.change)
    return f"{percent(effect.change)} [{percent(effect.low)}, {percent(effect.high)}]"


def range_text(value: Range, unit: Unit = "ns") -> str:
    """``'1.20 to 3.41 ms'``; one number if both ends are shown alike."""
    low, high = number_text(value.low, unit), number_text(value.high, unit)
    if low == high:
        return high
    suffix = high[high.index(" ") :] if " " in high else ""
    return f"{low.removesuffix(suffix) if suffix else low} to {high}"


def place_end(text: str, limit: int = PLACE_LIMIT) -> str:
    """The end of a path or scope that is too long, cut at a slash if possible."""
    if len(text) <= limit:
        return text
    kept = text[-(limit - 2) :]
    return f"…{kept[kept.index('/') :]}" if "/" in kept else shorten(text, limit)


def code_lines(block: Code) -> list[str]:
    """Lines of code with their indentation."""
    return [" " * (len(line) - len(line.lstrip())) + sanitize(line, TEXT_LIMIT) for line in block.lines]


def rest_text(block: Table | Listing, hidden: int) -> str:
    """``'and 12 more kernels, which move less'`` after the rows shown; ``''`` if none are left out."""
    missing = block.left + hidden
    if not missing:
        return ""
    return f"and {missing:,} more" + (f" {sanitize(block.rest)}" if block.rest and missing > 1 else "")


def sentence(text: str) -> str:
    """The text with a full stop, and a capital letter unless it begins with an identifier."""
    first = text[:1] if _IDENTIFIER.match(text) else text[:1].upper()
    return f"{first}{text[1:]}{'' if text.endswith(('.', ':')) else '.'}"


def scale_of(rows: Iterable[Sequence[Value]]) -> float | None:
    """Smallest scale around 0 that holds every interval of a table; ``None`` without intervals."""
    ends = [
        abs(end)
        for row in rows
        for value in row
        if isinstance(value, Effect)
        for end in (value.low, value.high)
        if end is not None
    ]
    return next((end for end in ENDS if end >= max(ends)), ENDS[-1]) if ends else None


def scale_title(end: float) -> str:
    """``-10% … +10%``."""
    return f"-{100 * end:g}% … +{100 * end:g}%"


def text_bar(effect: Effect, end: float) -> str:
    """``··········│··──●──···``: the middle means no change, the ends are ``end``; ``▶`` marks a value beyond it."""
    cells = ["·"] * (2 * HALF + 1)
    if effect.low is None or effect.high is None:
        return ""
    for index in range(_cell(effect.low, end), _cell(effect.high, end) + 1):
        cells[index] = "─"
    cells[HALF] = "│"
    beyond = "▶" if effect.change > 0 else "◀"
    cells[_cell(effect.change, end)] = "●" if abs(effect.change) <= end else beyond
    return "".join(cells)


def _cell(share: float, end: float) -> int:
    return min(max(round(HALF * share / end), -HALF), HALF) + HALF


def swatch(color: str) -> str:
    """A square of a legend."""
    square = f'<rect width="10" height="10" rx="2" fill="{color}"/>'
    return f'<svg class="ps-swatch" width="10" height="10" aria-hidden="true">{square}</svg>'


def interval_bar(effect: Effect, end: float) -> str:
    """The interval as SVG between ``-end`` and ``end``; changes in the middle band are irrelevant."""
    if effect.low is None or effect.high is None:
        return ""

    def across(share: float) -> float:
        return 110 + 104 * min(max(share / end, -1.0), 1.0)

    shapes = []
    if effect.least:
        low, high = across(-effect.least), across(effect.least)
        shapes.append(f'<rect x="{low:.1f}" width="{high - low:.1f}" height="22" fill="{PLAIN}" opacity="0.22"/>')
    shapes.append('<rect x="109.5" width="1" height="22" fill="currentColor" opacity="0.55"/>')
    color = {"worse": WORSE, "better": BETTER}.get(effect.tone, PLAIN)
    low, high = across(effect.low), across(effect.high)
    shapes.append(f'<rect x="{low:.1f}" y="9.5" width="{max(high - low, 1):.1f}" height="3" fill="{color}"/>')
    if abs(effect.change) <= end:
        shapes.append(f'<circle cx="{across(effect.change):.1f}" cy="11" r="5" fill="{color}"/>')
    else:
        tip = 218 if effect.change > 0 else 2
        back = tip - 9 if effect.change > 0 else tip + 9
        shapes.append(f'<path d="M{tip} 11 L{back} 5 L{back} 17 Z" fill="{color}"/>')
    words = f"{percent(effect.change)}, interval {percent(effect.low)} to {percent(effect.high)}"
    return (
        f'<svg class="ps-interval" role="img" aria-label="{escape(words)}" viewBox="0 0 220 22"'
        f' xmlns="http://www.w3.org/2000/svg">{"".join(shapes)}</svg>'
    )


def parts(heads: Sequence[Head], rows: Sequence[Sequence[Value]]) -> list[tuple[str, float]]:
    """(cells in words, share) of rows that are parts of one whole; two or more small parts are summed up."""
    index = next(index for index, head in enumerate(heads) if head.unit == "share")
    each = [
        (
            " ".join(shown(value, head) for value, head in zip(row, heads, strict=True)),
            float(value) if isinstance(value := row[index], int | float) else 0.0,
        )
        for row in rows
    ]
    small = [share for _, share in each if share < LEAST_PART]
    if len(small) < 2:
        return each
    rest = (f"{len(small)} others {number_text(sum(small), 'share')}", sum(small))
    return [*(part for part in each if part[1] >= LEAST_PART), rest]


# The words of a finding.


class FindingWords(Struct, frozen=True, kw_only=True):
    """A finding as every format shows it: masked and cut, but not yet escaped for a format."""

    rule: str
    title: str
    severity: Severity
    basis: str
    saves: str
    """``'6.90 ms'`` per step, ``'6.90 ms in all'``, ``'6.90 ms per run'``, ``'14.0 MiB'``; ``''`` if unknown."""
    share: str
    """``'17.2% of step'``; for a one-time cost ``'as long as 4.1 steps'``; ``''`` if unknown."""
    on_ranks: str
    """``' (ranks 0-7)'``; ``''`` with a single source."""
    moves: str
    """Memory traffic that the finding is about."""
    where: str
    """The shortest form of its place; ``''`` if unknown."""
    place: tuple[tuple[str, str], ...]
    """Known parts of the place: ``('at', 'train.py:88')``, ``('op', 'aten::item')`` ..."""
    detail: str
    advice: str
    fix: str
    """The first sentence of the advice."""
    lead: str
    """Lead word of the fix: ``'Fix'``, or ``'To see more'`` if no fix is known."""
    code: str
    """The line of source code; ``''`` if unknown."""
    around: tuple[str, ...]
    """That line and its neighbours, each with its number; the line of the finding is marked."""
    link: str
    """``file:`` address of the source file on this machine; ``''`` if the file is not here."""

    @property
    def gain(self) -> str:
        """Saving of a fix: time, else memory, else a remark that it is unknown."""
        return self.saves or NO_TIME


def finding_words(block: FindingBlock) -> FindingWords:
    """Build the words of a finding."""
    finding = block.finding
    code, around, link = _code_of(finding)
    advice = shorten(clean(" ".join(filter(None, (finding.advice, finding.record)))), TEXT_LIMIT).strip()
    paragraph = next((part.text for part in paragraphs(advice) if not part.is_code), "")
    where = finding.where.label()
    places = (
        ("at", where if finding.where.file is not None else None),
        ("module", finding.where.module),
        ("op", finding.where.op),
        ("kernel", finding.where.kernel),
    )
    moved = finding.cost_bytes if finding.bytes_are == "moved" else None
    ranks = f" (rank{'s' if len(block.ranks) > 1 else ''} {span_text(block.ranks)})" if block.ranks else ""
    return FindingWords(
        rule=sanitize(block.rule),
        title=sanitize(finding.title, TITLE_LIMIT) + (f" (worst of {finding.count:,})" if finding.count > 1 else ""),
        severity=finding.severity,
        basis=BY_PATH if finding.by_path else finding.basis,
        saves=f"{number_text(block.saves, 'count')}{f' {block.over}' if block.over else ''}",
        share=_share(block),
        on_ranks=ranks,
        moves="" if moved is None else format_bytes(moved),
        where="" if where == "-" else sanitize(where, TEXT_LIMIT),
        place=tuple((what, sanitize(name, TEXT_LIMIT)) for what, name in places if name),
        detail=sanitize(_detail(finding), TEXT_LIMIT),
        advice=advice,
        fix=shorten(first_sentence(paragraph), FIX_LIMIT),
        lead=_lead(finding),
        code=code,
        around=around,
        link=link,
    )


def _share(block: FindingBlock) -> str:
    if block.share is None:
        return ""
    if block.share_of == ONCE:
        return f"as long as {f'{block.share:,.0f}' if block.share >= MANY_STEPS else f'{block.share:.1f}'} steps"
    return f"{format_share(block.share, 1)} of {block.share_of}"


def _lead(finding: Finding) -> str:
    if not finding.advice:
        return "To see more"
    if finding.fix_line is None or finding.where.file is None:
        return "Fix"
    return f"Fix at {sanitize(PurePath(finding.where.file).name, NAME_LIMIT)}:{finding.fix_line}"


def _detail(finding: Finding) -> str:
    if finding.path_reason is None:
        return finding.detail
    return f"{finding.detail} {NOT_ON_PATH}: {finding.path_reason}.".strip()


def _code_of(finding: Finding) -> tuple[str, tuple[str, ...], str]:
    """Return ``code``, ``around`` and ``link``."""
    excerpt = finding.excerpt
    if excerpt is None or finding.where.line is None:
        return "", (), ""
    spread = [line.expandtabs(4) for line in excerpt.lines]
    shown_lines = [
        " " * min(len(line) - len(line.lstrip()), CODE_INDENT) + sanitize(line.strip(), TEXT_LIMIT) for line in spread
    ]
    lines = textwrap.dedent("\n".join(line.rstrip() for line in shown_lines)).split("\n")
    numbered = [(excerpt.first + index, line) for index, line in enumerate(lines)]
    width = len(str(numbered[-1][0]))
    around = [f"{'>' if row == finding.where.line else ' '} {row:>{width}}  {line}" for row, line in numbered]
    return lines[finding.where.line - excerpt.first].strip(), tuple(around), PurePath(excerpt.path).as_uri()


def span_text(numbers: Sequence[int]) -> str:
    """``(0, 1, 2, 5)`` -> ``'0-2, 5'``."""
    runs: list[list[int]] = []
    for value in sorted(set(numbers)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
