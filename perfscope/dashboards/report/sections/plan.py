"""Plans of PyTorch programs as rows and sentences, decided once for every report. Planned, never measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from html import escape as escape_html
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.html_page import card
from perfscope.dashboards.report.markdown_text import escape, in_html
from perfscope.dashboards.report.sections.program import cells_table, html_cells_table
from perfscope.dashboards.report.text_tables import fitting, hanging, table_of
from perfscope.model.torch_plan import EXCLUDED_FROM_PEAK, StepMemory, by_category, category_label, fits
from perfscope.model.units import format_bytes, format_count, format_ns, format_share
from perfscope.model.untrusted_text import sanitize, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from perfscope.analyzers.plans import ExchangeSummary, ExchangeTotals, Work
    from perfscope.analyzers.predict.spans import Range
    from perfscope.analyzers.sections.programs import ApartRow, BreakRow, GraphRow, KernelRow, PlanSection, PlanSummary
    from perfscope.model.torch_plan import PlanLine


# The memory of planned PyTorch steps as rows: the peaks, who holds the one that counts, whether it fits.


NAME = 44
PLACE = 40

Cells = tuple[tuple[str, str], ...]


def peak_rows(plan: PlanSummary) -> Iterator[Cells]:
    """A row for the eager and one for the compiled step."""
    if plan.memory is None:
        return
    for name, step in (("eager", plan.memory.eager), ("compiled", plan.memory.planned)):
        if step is None:
            continue
        yield (
            ("a step", name),
            ("peak, planned", format_bytes(step.peak_bytes)),
            ("of memory", "-" if plan.memory_bytes is None else format_share(step.peak_bytes, plan.memory_bytes)),
            ("fits", {True: "yes", False: "no", None: "not known"}[fits(step, plan.memory_bytes)]),
            ("in", step.phase if step.graph is None else f"{step.phase}, graph {sanitize(step.graph)}"),
            ("asks for it", shorten(sanitize(step.op or "-"), NAME)),
            ("at", place_of(step.file, step.line)),
        )


def holder_rows(plan: PlanSummary) -> Iterator[Cells]:
    """Who holds the peak of the step as the program runs it, by category."""
    step = shown_step(plan)
    if step is None or not step.peak_bytes:
        return
    for row in by_category(step):
        most = row.most
        yield (
            ("at the peak", category_label(row.category)),
            ("bytes", format_bytes(row.bytes)),
            ("share", format_share(row.bytes, step.peak_bytes)),
            ("blocks", f"{row.blocks:,}"),
            ("mostly at", place_of(most.file, most.line)),
            ("there", format_bytes(most.bytes) if most.file is not None else ""),
        )
    if step.left_bytes:
        yield (
            ("at the peak", "others"), ("bytes", format_bytes(step.left_bytes)),
            ("share", format_share(step.left_bytes, step.peak_bytes)), ("blocks", f"{step.left_blocks:,}"),
            ("mostly at", ""), ("there", ""),
        )  # fmt: skip


def memory_notes(plan: PlanSummary) -> Iterator[str]:
    """What is not in the peaks, where there are any."""
    if plan.memory is None:
        yield "this plan is of an earlier perfscope and says nothing of memory: plan it again"
        return
    yield from (f"memory: {sanitize(text)}" for text in plan.memory.uncounted)
    if plan.memory.eager is None and plan.memory.planned is None:
        yield "no step was seen whole: the peak of its memory is not known"
    else:
        yield EXCLUDED_FROM_PEAK


def shown_step(plan: PlanSummary) -> StepMemory | None:
    """The step whose holders are shown: as the program runs it, else the other one."""
    if plan.memory is None:
        return None
    eager, planned = plan.memory.eager, plan.memory.planned
    return (planned or eager) if plan.compiled_by == "program" else (eager or planned)


def file_of(path: str) -> str:
    """The end of a path tells: its folder and name."""
    return shorten(sanitize("/".join(PurePath(path).parts[-2:])), PLACE)


def place_of(file: str | None, line: int | None) -> str:
    """``attention.py:38``; ``-`` where there is none."""
    return "-" if file is None else f"{file_of(file)}:{line}"


# What a planned rank exchanges with the others, as rows and sentences. Bytes are planned, times modelled.


def exchange_cells(plan: PlanSummary) -> Iterator[Cells]:
    """Collectives of the step as the program runs it, by kind and line."""
    summary = plan.exchanges
    for row in () if summary is None else summary.rows:
        yield (
            ("collective", row.kind),
            ("asked for by", sanitize(row.by)),
            ("phase", row.phase),
            ("at", place_of(row.file, row.line)),
            ("runs", f"{row.times:,}"),
            ("ranks", f"{row.group_size:,}"),
            ("bytes", format_bytes(row.bytes)),
            ("takes", span_text(row.busy_ns)),
            ("step waits", span_text(row.exposed_ns)),
            ("beside it", "nothing" if row.blocking == row.times else span_text(row.beside_ns)),
        )


def exchange_sentences(plan: PlanSummary) -> Iterator[str]:
    """What is said of them above and below the rows."""
    summary = plan.exchanges
    if summary is None:
        return
    yield f"planned as rank 0 of {summary.world_size:,} processes ({sanitize(summary.backend or 'no backend named')})"
    for name, totals in (("eager", summary.eager), ("compiled", summary.compiled)):
        if totals is not None and totals.collectives:
            yield _totals(name, totals)
    rows = summary.eager if summary.step == "eager" else summary.compiled
    if rows is not None and rows.blocking:
        yield (
            f"{rows.blocking:,} of {rows.collectives:,} collectives of the {summary.step} step can hide "
            "behind nothing: "
            "the step waits for them before any kernel that could run beside them"
        )
    if summary.buckets is not None:
        yield _buckets(summary)
    if summary.left:
        yield f"and {summary.left:,} more lines of collectives"
    yield from (sanitize(text) for text in summary.notes)


def _totals(name: str, totals: ExchangeTotals) -> str:
    known = "" if totals.known else "; what joins the devices is not known, so times are the least there can be"
    return (
        f"{name} step: {totals.collectives:,} collectives of {format_bytes(totals.bytes)} take "
        f"{span_text(totals.busy_ns)} over the links, and the step waits {span_text(totals.exposed_ns)} for them, "
        f"modelled{known}"
    )


def _buckets(summary: ExchangeSummary) -> str:
    totals = summary.buckets
    if totals is None:
        return ""
    sizes = format_bytes(totals.largest_bytes)
    if totals.smallest_bytes != totals.largest_bytes:
        sizes = f"{format_bytes(totals.smallest_bytes)} to {sizes}"
    count = f"{totals.buckets:,} buckets" if totals.buckets > 1 else "1 bucket"
    gradients = f"{format_bytes(totals.bytes)} of gradients in {count}"
    return f"DistributedDataParallel sums up {gradients} ({sizes})"


def span_text(span: Range) -> str:
    """``'84 us to 257 us'``."""
    low, high = format_ns(span.low), format_ns(span.high)
    return low if low == high else f"{low} to {high}"


REASON = 110
FEW_OPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """One plan."""

    title: str
    headline: str
    steps: tuple[Cells, ...]
    """Eager against compiled, one step each."""
    peaks: tuple[Cells, ...]
    """The peak of memory of each of them."""
    holders: tuple[Cells, ...]
    """Who holds the peak of the step as the program runs it, by category."""
    exchanges: tuple[Cells, ...]
    """Collectives of that step, where there are several processes."""
    exchanged: tuple[str, ...]
    """What is said of them, a sentence each."""
    graphs: tuple[Cells, ...]
    kernels: tuple[Cells, ...]
    apart: tuple[str, ...]
    """Neighbours that inductor would not fuse, a sentence each."""
    breaks: tuple[str, ...]
    notes: tuple[str, ...]
    """What was made up, what is not covered, where it was stopped."""
    left: tuple[str, ...]
    """What is not in the lists."""


def plan_views(section: PlanSection) -> tuple[PlanView, ...]:
    """Every plan as rows; plans that could not be summed up have a view with the reason alone."""
    views = [_view(plan) for plan in section.plans]
    if section.problems and not views:
        views.append(
            PlanView(
                title="planned by torch.compile", headline="", steps=(), peaks=(), holders=(), exchanges=(),
                exchanged=(), graphs=(), kernels=(),
                apart=(), breaks=(), notes=tuple(map(sanitize, section.problems)), left=(),
            )
        )  # fmt: skip
    return tuple(views)


def _view(plan: PlanSummary) -> PlanView:
    by = "as the program compiles it" if plan.compiled_by == "program" else "as if its model were compiled"
    made = ", ".join(f"{name} {plan.versions[name]}" for name in ("torch", "triton") if name in plan.versions)
    return PlanView(
        title=f"planned for {plan.target}, not measured",
        headline=f"what torch.compile would make of {sanitize(plan.name)} on {plan.target}, {by} "
        f"({made}; planned over CPU tensors): no kernel was compiled or run, every time is modelled",
        steps=tuple(_steps(plan)),
        peaks=tuple(peak_rows(plan)),
        holders=tuple(holder_rows(plan)),
        exchanges=tuple(exchange_cells(plan)),
        exchanged=tuple(exchange_sentences(plan)),
        graphs=tuple(map(_graph, plan.graphs)),
        kernels=tuple(map(_kernel, plan.kernels)),
        apart=tuple(_counted(map(_apart, plan.apart))),
        breaks=tuple(_break(break_row, plan) for break_row in plan.breaks)
        + tuple(
            f"compiled again: {sanitize(function)}: {sanitize(reason, REASON)}" for function, reason in plan.recompiles
        ),
        notes=tuple(_notes(plan)),
        left=tuple(f"and {count:,} more {_WHAT.get(name, name)}" for name, count in plan.left.items()),
    )


_WHAT = {
    "apart": "pairs left apart", "breaks": "graph breaks", "recompiles": "recompilations", "made_up": "made-up values",
}  # fmt: skip


def _steps(plan: PlanSummary) -> Iterator[Cells]:
    rows: list[tuple[str, Work | None]] = [
        ("eager", plan.eager),
        ("compiled" if plan.compiled is not None else "planned graphs", plan.compiled or plan.inside),
    ]
    if plan.compiled is not None:
        rows += [("  planned graphs", plan.inside), ("  outside of them", plan.outside)]
    for name, work in rows:
        if work is not None:
            yield (
                ("a step", name),
                ("launches", f"{work.launches:,}"),
                ("bytes", format_bytes(work.bytes)),
                ("FLOPs", format_count(work.flops) if work.flops else "-"),
                ("kernels take", range_text(work.device)),
                ("with launches" if plan.exchanges is None else "with launches and waits", range_text(work.step)),
            )


def _graph(row: GraphRow) -> Cells:
    return (
        ("graph", f"{row.compile_id} {row.direction}"),
        ("of", shorten(sanitize(row.function or "-"), NAME)),
        ("at", _place(row.place)),
        ("runs", f"{row.calls:,}"),
        ("nodes", f"{row.nodes:,}"),
        ("kernels", f"{row.kernels:,} ({row.triton:,} Triton)"),
        ("bytes", format_bytes(row.bytes)),
        ("FLOPs", format_count(row.flops) if row.flops else "-"),
        ("takes", range_text(row.device_ns)),
        ("sizes", "dynamic" if row.dynamic else "fixed"),
    )


def _kernel(row: KernelRow) -> Cells:
    more = f" +{len(row.ops) - FEW_OPS}" if len(row.ops) > FEW_OPS else ""
    moved = format_bytes(row.read_bytes + row.written_bytes)
    if row.reread_bytes:
        moved += f" (+{format_bytes(row.reread_bytes)} read again)"
    what = row.shape or " ".join(op.removeprefix("aten.") for op in row.ops[:FEW_OPS]) + more
    cells = (
        ("kernel", shorten(sanitize(row.name), NAME)),
        ("computes", shorten(sanitize(what), NAME)),
        ("at", ", ".join(_place(plan_line) for plan_line in row.places[:1]) or "-"),
        ("way", row.direction),
        ("nodes", f"{row.members:,}"),
        ("runs", f"{row.calls:,}"),
        ("bytes", moved),
        ("takes", range_text(row.device_ns)),
    )
    registers = row.registers
    if registers is None:
        return (*cells, ("registers", ""), ("block size", ""))
    spilled = f", {format_bytes(registers.spilled_bytes)} spilled" if registers.spilled_bytes else ""
    text = "not compiled" if registers.registers is None else f"{registers.registers}{spilled}"
    return (*cells, ("registers", text), ("block size", sanitize(registers.blocks)))


def _apart(row: ApartRow) -> str:
    text = f" at {_place(row.place)}" if row.place is not None else ""
    return (
        f"not fused{text}: {sanitize(row.first, NAME)} and {sanitize(row.second, NAME)} ({row.direction}), "
        f"{format_bytes(row.shared_bytes)} between them; inductor: {sanitize(row.reason, REASON)}"
    )


def _counted(sentences: Iterable[str]) -> Iterator[str]:
    """Each once: layers that are alike say the same."""
    for sentence, times in Counter(sentences).items():
        yield sentence if times == 1 else f"{sentence} ({times:,} times)"


def _break(row: BreakRow, plan: PlanSummary) -> str:
    verb = "ends" if plan.compiled_by == "program" else "would end"
    text = "" if row.file is None else f" at {file_of(row.file)}:{row.line}"
    eager = "; the whole function stays in eager mode" if row.eager else ""
    return f"{sanitize(row.reason, REASON)} {verb} a graph of {sanitize(', '.join(row.functions))}{text}{eager}"


def _notes(plan: PlanSummary) -> Iterator[str]:
    if plan.failure is not None:
        yield f"the program failed: {sanitize(plan.failure)}"
    yield f"stopped: {sanitize(plan.stopped)}"
    for what, where, answer, times in plan.made_up:
        yield f"made up at {sanitize(where)}: {what} was answered {sanitize(answer)} ({times:,} times)"
    yield from (f"not covered: {sanitize(text)}" for text in plan.not_covered)
    yield from (sanitize(text) for text in plan.notes[1:])
    yield from memory_notes(plan)
    yield (
        "grouping is inductor's own, its Triton backend over CPU tensors may split reductions of backward graphs "
        "otherwise than on the device; library calls are costed by a roofline, and nothing is autotuned"
    )


def range_text(span: Range) -> str:
    """``'84 us to 257 us'``."""
    low, high = format_ns(span.low), format_ns(span.high)
    return low if low == high else f"{low} to {high}"


def _place(plan_line: PlanLine | None) -> str:
    return "-" if plan_line is None else place_of(plan_line.file, plan_line.line)


# Plans of PyTorch programs in the JSON report: counts and bytes exact, times modelled as ``{low, high}`` in ns.


def plans_document(section: PlanSection) -> dict[str, Any]:
    """The section as dicts and lists."""
    return {"plans": [_plan(plan) for plan in section.plans], "problems": list(section.problems)}


def _plan(plan: PlanSummary) -> dict[str, Any]:
    held = asdict(plan)
    held["known_by"] = "planned"
    held["totals"]["bytes"] = plan.totals.bytes
    held["recompiles"] = [{"function": function, "reason": reason} for function, reason in plan.recompiles]
    held["made_up"] = [
        {"what": what, "at": where, "answer": answer, "times": times} for what, where, answer, times in plan.made_up
    ]
    for name in ("inside", "outside", "compiled", "eager"):
        if held[name] is not None:
            held[name]["device_ns"], held[name]["step_ns"] = held[name].pop("device"), held[name].pop("step")
    return held


# A plan of a PyTorch program on a terminal: short by default, every list with ``-v``.


FEW_GRAPHS = 4
FEW_COLLECTIVES = 6
FEW_KERNELS = 6
FEW_LINES = 3

_GIVE_WAY = (
    "phase",
    "beside it",
    "blocks",
    "block size",
    "asks for it",
    "sizes",
    "nodes",
    "way",
    "FLOPs",
    "of",
    "computes",
    "at",
    "registers",
)
"""Columns that go, in this order, where the terminal is too narrow."""


def plan_part(view: PlanView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """A step eagerly and compiled, graphs, the kernels that move most. Ends with an empty line."""
    if view.headline:
        yield f"  {view.title}"
        yield hanging(view.headline)
    if view.steps:
        yield _table(view.steps, width)
        yield ""
    for rows in (view.peaks, view.holders):
        if rows:
            yield _table(rows, width)
            yield ""
    yield from _list(view.exchanges, FEW_COLLECTIVES, width, "lines of collectives", verbose=verbose)
    if view.exchanged:
        yield from map(hanging, view.exchanged)
        yield ""
    yield from _list(view.graphs, FEW_GRAPHS, width, "graphs", verbose=verbose)
    yield from _list(view.kernels, FEW_KERNELS, width, "kernels, which move less", verbose=verbose)
    for sentences in (view.breaks, view.apart, view.notes):
        few = sentences if verbose else sentences[:FEW_LINES]
        yield from map(hanging, few)
        if len(few) < len(sentences):
            yield f"    and {len(sentences) - len(few):,} more: -v shows all"
    if verbose:
        yield from map(hanging, view.left)
    yield ""


def _list(rows: Sequence[Cells], few: int, width: int, what: str, *, verbose: bool) -> Iterator[RenderableType]:
    shown = rows if verbose else rows[:few]
    if not shown:
        return
    yield _table(_filled(shown), width)
    if len(shown) < len(rows):
        yield f"    and {len(rows) - len(shown):,} more {what}: -v shows all"
    yield ""


def _filled(rows: Sequence[Cells]) -> list[Cells]:
    """Without columns that no row fills."""
    kept = {name for cells in rows for name, text in cells if text}
    return [tuple(cell for cell in cells if cell[0] in kept) for cells in rows]


def _table(rows: Sequence[Cells], width: int) -> RenderableType:
    return table_of(fitting([dict(cells) for cells in rows], _GIVE_WAY, width))


# A plan of a PyTorch program in a comment on a pull request: all of it folded below one line.


MOST_ROWS = 8
"""Rows of each list in a comment: an overview, the other formats hold all."""


def plan_details(view: PlanView) -> str:
    """A folded block; its summary is the plan's title and how many graphs break."""
    text = f"torch.compile, {view.title}: {len(view.graphs):,} graphs"
    if view.breaks:
        text += f", {len(view.breaks):,} breaks or recompilations"
    return "\n".join([f"<details><summary>{in_html(text)}</summary>\n", *_body(view), "</details>"])


def _body(view: PlanView) -> Iterator[str]:
    if view.headline:
        yield f"{escape(view.headline)}\n"
    for rows in (view.steps, view.peaks, view.holders, view.exchanges, view.graphs, view.kernels):
        if rows:
            yield cells_table(rows[:MOST_ROWS])
            if len(rows) > MOST_ROWS:
                yield f"- and {len(rows) - MOST_ROWS:,} more\n"
    for sentences in (view.exchanged, view.breaks, view.apart, view.notes):
        yield from (f"- {escape(text)}" for text in sentences[:MOST_ROWS])
        if len(sentences) > MOST_ROWS:
            yield f"- and {len(sentences) - MOST_ROWS:,} more"
    yield ""


# A plan of a PyTorch program in the HTML report.


FIRST_COLLECTIVES = 8
FIRST_GRAPHS = 6
FIRST_KERNELS = 8
FIRST_LINES = 6


def plan_card(view: PlanView) -> str:
    """The section's card."""
    return card(f"torch.compile, {view.title}" if view.headline else view.title, "".join(_body_html_plan(view)))


def _body_html_plan(view: PlanView) -> Iterator[str]:
    if view.headline:
        yield f"<p>{escape_html(view.headline[:1].upper() + view.headline[1:])}.</p>"
    if view.steps:
        yield html_cells_table(view.steps)
    yield from (html_cells_table(rows) for rows in (view.peaks, view.holders) if rows)
    yield from _table_html_plan(view.exchanges, FIRST_COLLECTIVES, "lines of collectives")
    if view.exchanged:
        yield _list_html_plan(view.exchanged)
    yield from _table_html_plan(view.graphs, FIRST_GRAPHS, "graphs")
    yield from _table_html_plan(view.kernels, FIRST_KERNELS, "kernels, which move less")
    for sentences in (view.breaks, view.apart):
        yield _list_html_plan(sentences[:FIRST_LINES])
        if sentences[FIRST_LINES:]:
            yield _folded(f"{len(sentences) - FIRST_LINES:,} more", _list_html_plan(sentences[FIRST_LINES:]))
    notes = (*view.notes, *view.left)
    if notes:
        yield f'<p class="note">{escape_html(" ".join(f"{note[:1].upper()}{note[1:]}." for note in notes))}</p>'


def _table_html_plan(rows: Sequence[Cells], few: int, what: str) -> Iterator[str]:
    if rows:
        yield html_cells_table(rows[:few])
    if rows[few:]:
        yield _folded(f"{len(rows) - few:,} more {what}", html_cells_table(rows[few:]))


def _list_html_plan(texts: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape_html(text)}</li>' for text in texts)}</ul>" if texts else ""


def _folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape_html(summary)}</summary>{body}</details>"
