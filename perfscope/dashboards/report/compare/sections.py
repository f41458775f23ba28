"""A comparison as sections, the same for every report format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from perfscope.dashboards.report.blocks import (
    Advice,
    Amount,
    Badge,
    Block,
    Column,
    Listing,
    Section,
    Text,
    notes,
    table,
    tables,
)
from perfscope.dashboards.report.charts import falls, launches_plot, waterfall
from perfscope.dashboards.report.compare.words import (
    BY_TIME,
    FINDING_WORDS,
    TONES,
    cause_lines,
    cause_part,
    change_value,
    changed_kernels,
    environment,
    finding_counts,
    kernel_word,
    kinds,
    method_lines,
    metric_rows,
    modelled_line,
    not_compared,
    part_words,
    program_title,
    row_amounts,
    row_title,
    side_text,
    side_title,
    side_value,
    summary_line,
    verdict,
    written_line,
)
from perfscope.dashboards.report.renderers.values import percent, signed_ns
from perfscope.model.documents.causes import LEAST_SHARE, cause_words
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from perfscope.dashboards.report.blocks import Number, Table, Value
    from perfscope.model.documents.compared_programs import ProgramDifference, ProgramRow
    from perfscope.model.documents.comparison import (
        Cause,
        Document,
        FindingChange,
        Kernel,
        Metric,
        Part,
        PathRow,
        Rank,
        Step,
        TreeRow,
        ValueChange,
    )
    from perfscope.model.results import Unit

MOST_ROWS = 40
"""Most rows of a table: more are not read, and the JSON report has all."""

MOST_LINES = 100
"""Most sentences of a listing."""

MOST_PROGRAMS = 8

MOST_ADVISED = 5
"""Most findings whose advice is shown."""

MOST_NAMES = 3
"""Most callers named for a node of the call tree."""

MOST_FALLS = 12
"""Most places in a waterfall; the others become one row."""

NAME_LIMIT = 90
"""Characters of a name or a place: enough to recognise a mangled name."""

ACCOUNT_NOTE = "the mean step as in the report of each side, without steps that compiled"
SECONDARY = "Also measured, never gating"
CHANCE = "one launch each: part of them is chance"

T = TypeVar("T")


def compare_sections(document: Document) -> tuple[Section, ...]:
    """The sections for a decision, most important first: metrics, places, findings."""
    per = "step" if document.step is None else document.step.per
    return (
        *_metrics(document),
        *_programs(document),
        _causes(document.causes, per),
        _findings(document.findings),
    )


def detail_sections(document: Document) -> tuple[Section, ...]:
    """The details: the step in parts, kernels, ranks, what was not compared, and the method."""
    return (
        *_kernels(document.kernels),
        *account_sections(document),
        *step_sections(document),
        *_tree(document),
        *_path(document),
        *_ranks(document),
        *_result_tables(document),
        *_unknown(document),
        _method(document),
    )


def caution_sections(document: Document) -> tuple[Section, ...]:
    """Warnings that must be read before the verdict; empty if there are no warnings."""
    lines = tuple(Text(line, warning=True) for line in document.cautions[:MOST_LINES])
    return (Section(title="Before the verdict", tone="open", blocks=lines),) if lines else ()


def verdict_section(document: Document) -> Section:
    """The verdict, its grounds, and the gates that were not met."""
    gates = tuple(f"gate not met: {line}" for line in document.failed[:MOST_LINES])
    return Section(
        title=document.headline.capitalize(),
        summary=summary_line(document),
        tone=TONES.get(document.headline, "plain"),
        blocks=(Listing(items=gates),) if gates else (),
    )


def _table(
    columns: Sequence[Column[T]], items: Sequence[T], *, left: int = 0, few: int = 8, **options: object
) -> Table:
    """A table of the first items, with the number of items left out."""
    missing = left + max(0, len(items) - MOST_ROWS)
    return table(columns, items[:MOST_ROWS], few=few, left=missing, **options)


def _delta(title: str, value: Callable[[T], Number]) -> Column[T]:
    return Column(title, value, "signed_ns")


METRIC_COLUMNS: tuple[Column[Metric], ...] = (
    Column("verdict", lambda metric: Badge(verdict(metric), TONES.get(verdict(metric), "plain"))),
    Column("metric", lambda metric: metric.name),
    Column("base", lambda metric: side_value(metric, "base"), "count"),
    Column("head", lambda metric: side_value(metric, "head"), "count"),
    Column("change", change_value, "change"),
)


def _metrics(document: Document) -> Iterator[Section]:
    rows, same = metric_rows(document)
    open_ones = [metric for metric in rows if metric.gates and metric.known != "exact"]
    reasons = [
        f"{metric.name} is open: {'; '.join(metric.remarks[:2])}"
        for metric in open_ones
        if metric.verdict == "inconclusive" and metric.remarks
    ]
    reasons += [
        f"about {metric.needed_pairs:,} pairs in all would settle the {metric.name}, by the spread so far"
        for metric in rows
        if metric.needed_pairs is not None
    ]
    if same:
        names = [_unchanged(metric) for metric in same[:MOST_ROWS]]
        names += [f"{len(same) - MOST_ROWS:,} more"] if len(same) > MOST_ROWS else []
        reasons.append(f"no change: {', '.join(names)}")
    blocks: tuple[Block, ...] = (
        *tables(_table(METRIC_COLUMNS, rows, rest="metrics", bar="effects")),
        *notes(*reasons[:MOST_LINES]),
        *tables(_table(METRIC_COLUMNS, document.beside, title=SECONDARY, detail=True, bar="effects")),
    )
    if blocks:
        yield Section(title="Metrics", blocks=blocks)


def _unchanged(metric: Metric) -> str:
    """The metric's name, with both values if they differ by less than the threshold."""
    sides = [side_text(metric, side) for side in ("base", "head")]
    return metric.name if sides[0] == sides[1] else f"{metric.name} ({' → '.join(sides)}: below the threshold)"


PROGRAM_COLUMNS: tuple[Column[ProgramRow], ...] = (
    Column("where", lambda row: row.where() or "no line", "place", limit=NAME_LIMIT),
    Column("amounts", lambda row: Badge(row_amounts(row.amounts), "worse" if row.is_worse else "plain")),
    Column("what changed", lambda row: "; ".join((row_title(row), *row.said[:3]))),
)


def _programs(document: Document) -> Iterator[Section]:
    several = len(document.programs) > 1
    for program in document.programs[:MOST_PROGRAMS]:
        title = f"By instruction, {program.name}" if several else "By instruction"
        yield Section(title=title, summary=program_title(program), blocks=tuple(_program(program)))
    left = len(document.programs) - MOST_PROGRAMS
    if left > 0:
        yield Section(title="By instruction", summary=f"and {left:,} more programs")


def _program(program: ProgramDifference) -> Iterator[Block]:
    yield from tables(_table(PROGRAM_COLUMNS, program.rows, rest="changes", left=program.other_rows.count, few=6))
    yield from notes(written_line(program), modelled_line(program), *program.notes[:MOST_LINES])


def _causes(causes: Sequence[Cause], per: str) -> Section:
    exact = [cause for cause in causes if cause.exact]
    if not exact:
        return Section(title="Changes", summary="all counted metrics are equal")
    columns: tuple[Column[Cause], ...] = (
        Column("where", lambda cause: cause.place, "place", limit=NAME_LIMIT),
        Column(f"time per {per}", lambda cause: cause.delta_ns if cause.parts else None, "signed_ns"),
        Column("what changed", lambda cause: _changes(cause, per)),
    )
    return Section(title="Changes", blocks=(_table(columns, exact, rest="places"),))


def _changes(cause: Cause, per: str) -> str:
    lines, left = cause_lines(cause, per)
    return "; ".join(lines) + (f"; and {left} more" if left else "")


FINDING_COLUMNS: tuple[Column[FindingChange], ...] = (
    Column("change", lambda change: Badge(FINDING_WORDS[change.change], TONES.get(change.change, "plain"))),
    Column("rule", lambda change: change.rule, "code"),
    Column("where", lambda change: change.shown.where.label(""), "place", limit=NAME_LIMIT),
    Column("cost per step", lambda change: None if change.head is None else change.head.cost_ns_per_step, "ns", drop=3),
    Column("was", lambda change: None if change.base is None else change.base.cost_ns_per_step, "ns", drop=2),
    Column("severity", lambda change: change.shown.severity, drop=1),
    Column("what", lambda change: change.shown.title),
)


def _findings(findings: Sequence[FindingChange]) -> Section:
    changed = [change for change in findings if change.change != "unchanged"]
    believed = [change for change in changed if change.carries or not change.by_time]
    advised = [change for change in findings if change.is_worse and change.shown.advice][:MOST_ADVISED]
    return Section(
        title="Findings",
        summary=finding_counts(findings),
        blocks=(
            *tables(_table(FINDING_COLUMNS, believed, rest="findings that changed")),
            *(Advice(_advised(change), change.shown.advice) for change in advised),
            *tables(
                _folded(f"{BY_TIME}: a threshold was crossed, maybe by chance", changed, by_time=True),
                _folded("Unchanged", [change for change in findings if change.change == "unchanged"]),
            ),
        ),
    )


def _folded(title: str, findings: Sequence[FindingChange], *, by_time: bool | None = None) -> Table:
    kept = [change for change in findings if by_time is None or (change.by_time == by_time and not change.carries)]
    return _table(FINDING_COLUMNS, kept, title=f"{title[:1].upper()}{title[1:]} ({len(kept):,})", detail=True)


def _advised(change: FindingChange) -> str:
    where = change.shown.where.label("")
    return f"What to do: {change.rule}{f' at {where}' if where else ''}"


def _both_sides(of: str) -> tuple[Column[tuple[str, int, int]], ...]:
    """Columns for rows of (what, base ns, head ns)."""
    return (
        Column(of, lambda row: row[0]),
        Column("base", lambda row: row[1], "ns"),
        Column("head", lambda row: row[2], "ns"),
        _delta("change", lambda row: row[2] - row[1]),
    )


KIND_COLUMNS = _both_sides("part")
ACCOUNT_COLUMNS = _both_sides("cause")


def step_sections(document: Document) -> Iterator[Section]:
    """The recorded step of both sides in parts; no section if no step was recorded."""
    step = document.step
    if step is None:
        return
    whole = "step" if step.per == "step" else "recording"
    whose = "" if document.worst_rank is None else f"{_rank(step)}, the one in the middle: "
    grown = f"{format_ns(step.base_ns)} → {format_ns(step.head_ns)}, {signed_ns(step.delta_ns)}"
    rows = (*kinds(step), ("sum", step.base_ns, step.head_ns)) if document.account is None else ()
    moved = [part for part in step.parts if part.delta_ns]
    chance = "" if document.method.profiled > 1 else f" ({CHANCE})"
    yield Section(
        title=f"The recorded {whole} in parts",
        summary=f"{whose}{grown}",
        blocks=(
            *tables(table(KIND_COLUMNS, rows, few=len(rows))),
            *notes(_means(step)),
            waterfall(falls(step.base_ns, step.head_ns, _by_place(step))),
            *notes(f"largest differences of measured time{chance}" if moved else ""),
            *tables(_parts(step, moved)),
        ),
    )


def account_sections(document: Document) -> Iterator[Section]:
    """The mean step of both sides by cause; no section if it is unknown."""
    account = document.account
    if account is None:
        return
    rows = [
        (cause_words(cause, on_host=account.on_host), amount.base_ns, amount.head_ns)
        for cause, amount in account.causes.items()
        if max(amount.base_ns, amount.head_ns) >= LEAST_SHARE * max(account.base_ns, account.head_ns)
    ]
    whole = "step" if document.step is None or document.step.per == "step" else "recording"
    grown = f"{format_ns(account.base_ns)} → {format_ns(account.head_ns)}"
    yield Section(
        title=f"Where the {whole} goes",
        summary=f"{grown}, {signed_ns(account.head_ns - account.base_ns)}",
        blocks=(
            table(ACCOUNT_COLUMNS, rows, few=len(rows)),
            *notes(ACCOUNT_NOTE),
        ),
    )


def _means(step: Step) -> str:
    """Explain why the whole may differ from the step time among the metrics."""
    if step.per != "step" or max(step.base_steps, step.head_steps) < 2:
        return ""
    return (
        f"means of {step.base_steps:,} and {step.head_steps:,} recorded steps, because means add up; a step time "
        "without a profiler is the median step"
    )


def _rank(step: Step) -> str:
    return step.device if step.rank is None else f"rank {step.rank}"


def _parts(step: Step, moved: Sequence[Part]) -> Table:
    columns: tuple[Column[Part], ...] = (
        _delta("change", lambda part: part.delta_ns),
        Column("by calls", lambda part: part.count_ns, "signed_ns", drop=1),
        Column("by each call", lambda part: part.each_ns, "signed_ns", drop=1),
        Column("where", lambda part: part.place, "place", limit=NAME_LIMIT),
        Column("what", lambda part: part_words(cause_part(part), step.per)),
    )
    return _table(columns, moved, rest="parts", left=step.other_parts.count)


def _by_place(step: Step) -> list[tuple[str, int]]:
    """Changes by source line, else by module or name; those beyond the largest become one row."""
    result: dict[str, int] = {}
    for part in step.parts:
        result[part.place or part.name] = result.get(part.place or part.name, 0) + part.delta_ns
    others = step.other_parts
    rows = [*result.items(), ("other parts", others.head_ns - others.base_ns)]
    moved = sorted((row for row in rows if row[1]), key=lambda row: -abs(row[1]))
    kept, rest = moved[:MOST_FALLS], moved[MOST_FALLS:]
    return [*kept, (f"{len(rest):,} others", sum(change_ns for _, change_ns in rest))] if rest else kept


def _calls(row: TreeRow) -> str:
    base, head = (f"{calls:,.4g}" for calls in (row.base_calls, row.head_calls))
    return head if base == head else f"{base} → {head}"


def _below(path: Sequence[str]) -> str:
    """The last names of a path; the JSON report has the full path."""
    names = (sanitize(name, NAME_LIMIT) for name in path[-MOST_NAMES:])
    return " > ".join((*(("...",) if len(path) > MOST_NAMES else ()), *names))


TREE_COLUMNS: tuple[Column[TreeRow], ...] = (
    _delta("change", lambda row: row.delta_ns),
    Column("", lambda row: row.change),
    Column("base", lambda row: row.base_ns, "ns", drop=2),
    Column("head", lambda row: row.head_ns, "ns", drop=2),
    Column("calls", _calls, drop=1),
    Column("where", lambda row: _below(row.path) + (f", was {_below(row.was)}" if row.was else "")),
)


def _tree(document: Document) -> Iterator[Section]:
    tree = document.tree
    if tree is None:
        return
    work = {"device": "work launched in its calls", "host": "its calls", "instructions": "its instructions"}[tree.time]
    yield Section(
        title="Call tree",
        summary=f"{tree.equal:,} of {tree.nodes:,} nodes are equal",
        blocks=(
            *notes(f"times are of {work}; a node's change is without that of the nodes below it"),
            *tables(_table(TREE_COLUMNS, tree.rows, rest="nodes", left=tree.others)),
        ),
    )


PATH_COLUMNS: tuple[Column[PathRow], ...] = (
    _delta("change", lambda row: row.head_ns - row.base_ns),
    Column("base", lambda row: row.base_ns, "ns"),
    Column("head", lambda row: row.head_ns, "ns"),
    Column("what", lambda row: row.where, limit=NAME_LIMIT),
    Column("name", lambda row: row.name, "code", limit=NAME_LIMIT),
)


def _path(document: Document) -> Iterator[Section]:
    path = document.path
    if path is None:
        return
    changed = [row for row in path.rows if row.base_ns != row.head_ns]
    grown = f"{format_ns(path.base_ns)} → {format_ns(path.head_ns)}, {signed_ns(path.head_ns - path.base_ns)}"
    blocks = tables(_table(PATH_COLUMNS, changed, rest="names", left=path.other_rows.count))
    yield Section(title="Critical path", summary=grown, blocks=blocks)


KERNEL_COLUMNS: tuple[Column[Kernel], ...] = (
    Column("", lambda kernel: Badge(kernel_word(kernel), TONES.get(kernel.verdict, "plain"))),
    Column("kernel", lambda kernel: kernel.name, "code", limit=NAME_LIMIT),
    Column("base", lambda kernel: kernel.base_ns, "ns"),
    Column("head", lambda kernel: kernel.head_ns, "ns"),
    _delta("change", lambda kernel: kernel.change_ns),
    Column("relative", lambda kernel: kernel.effect, "change"),
    Column("q", lambda kernel: kernel.q, "chance", drop=1),
)


def _kernels(kernels: Sequence[Kernel]) -> Iterator[Section]:
    if kernels:
        changed = changed_kernels(kernels)
        yield Section(
            title="Kernels",
            summary=f"{len(changed):,} of {len(kernels):,} changed (Benjamini-Hochberg over all)",
            blocks=tables(_table(KERNEL_COLUMNS, changed, rest="kernels")),
        )


VALUE_COLUMNS: tuple[Column[ValueChange], ...] = (
    Column("row", lambda value: value.row, "code", limit=60),
    Column("value", lambda value: value.column),
    Column("base", lambda value: _with_unit(value.base, value.unit), "count"),
    Column("head", lambda value: _with_unit(value.head, value.unit), "count"),
)


def _with_unit(value: Number | str | None, unit: Unit) -> Value:
    return value if value is None or isinstance(value, str) else Amount(value, unit)


def _rows(number: int) -> str:
    return "row" if number == 1 else "rows"


def _result_tables(document: Document) -> Iterator[Section]:
    """One section per result table that differs."""
    for changed in document.tables:
        numbers = {"head": changed.added, "base": changed.removed}
        counts = [f"{number:,} {_rows(number)} only in {side}" for side, number in numbers.items() if number]
        yield Section(
            title=changed.title.capitalize(),
            summary=", ".join(counts) or "values of one capture per side, not judged",
            blocks=tables(_table(VALUE_COLUMNS, changed.changes, rest="values", left=changed.changes_left)),
        )


RANK_COLUMNS: tuple[Column[Rank], ...] = (
    Column("rank", lambda rank: rank.rank, "count"),
    Column("base", lambda rank: rank.base_ns, "ns"),
    Column("head", lambda rank: rank.head_ns, "ns"),
    _delta("change", lambda rank: rank.head_ns - rank.base_ns),
)


def _ranks(document: Document) -> Iterator[Section]:
    worst = document.worst_rank
    if worst is None and not document.ranks[1:]:
        return
    grown = ""
    if worst is not None:
        share = percent(worst.delta_ns / worst.base_ns) if worst.base_ns else "from none"
        grown = f"{_rank(worst)} grew most, {signed_ns(worst.delta_ns)} per {worst.per} ({share})"
    ranks = tables(_table(RANK_COLUMNS, document.ranks, title="The step of each rank", rest="ranks", detail=True))
    yield Section(title="Ranks", summary=grown, blocks=ranks)


def _unknown(document: Document) -> Iterator[Section]:
    lines = not_compared(document)
    if lines:
        count = len(document.not_looked)
        yield Section(
            title="Not compared",
            summary=f"{count:,} metric{'' if count == 1 else 's'}",
            blocks=(_listing(lines, "reasons"),),
        )


def _listing(lines: Sequence[str], rest: str, *, detail: bool = True) -> Listing:
    return Listing(items=tuple(lines[:MOST_LINES]), left=max(0, len(lines) - MOST_LINES), rest=rest, detail=detail)


ENVIRONMENT_COLUMNS: tuple[Column[tuple[str, str]], ...] = (
    Column("environment", lambda row: row[0]),
    Column("value", lambda row: row[1]),
)


def _method(document: Document) -> Section:
    lines = [f"{name}: {side_title(document, name)}" for name in ("base", "head")]
    for side, names in (("base", document.base), ("head", document.head)):
        if names.paths and not any(names.paths[0] in line for line in lines[:2]):
            lines.append(f"{side} was read from {names.paths[0]}")
    lines += method_lines(document)
    for metric in document.metrics:
        if metric.known != "exact":
            lines += [f"{metric.name}: {remark}" for remark in metric.remarks]
    launches = launches_plot(document.method.launches)
    blocks: tuple[Block, ...] = (
        *((launches,) if launches else ()),
        *(Text(note, warning=True) for note in document.notes[:MOST_LINES]),
        _listing(list(dict.fromkeys(lines)), "lines"),
        *tables(_table(ENVIRONMENT_COLUMNS, environment(document), title="Environment", detail=True)),
    )
    return Section(title="Method and environment", blocks=blocks)
