"""Plans of PyTorch programs: what torch.compile would produce for a target. Planned, never measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Column, Listing, Section, notes, table, tables
from perfscope.dashboards.report.blocks import Range as Ends
from perfscope.dashboards.report.renderers.values import range_text
from perfscope.model.units import format_bytes
from perfscope.model.untrusted_text import sanitize, shorten

if TYPE_CHECKING:
    from perfscope.analyzers.plans import (
        ExchangeRow,
        ExchangeSummary,
        ExchangeTotals,
        GraphWork,
        PipelineStep,
        StageRank,
        Work,
    )
    from perfscope.analyzers.predict import Range
    from perfscope.analyzers.sections import BreakRow, KernelRuns, PlanSection, PlanSummary
    from perfscope.analyzers.torch_compile import PlannedPair
    from perfscope.dashboards.report.blocks import Block, Table
    from perfscope.model.compile_log import ProgramLine
    from perfscope.model.torch_plan import MemoryHolder, PlannedKernel, StepMemory

NAME, PLACE = 44, 40
"""Characters of a name and of a place."""

REASON = 110
"""Characters of a reason."""

FEW_OPS = 4
"""Most ATen ops named for a kernel."""

_REST = {
    "apart": "pairs left apart", "breaks": "graph breaks", "recompiles": "recompilations", "made_up": "made-up values",
}  # fmt: skip


def plan_sections(section: PlanSection) -> tuple[Section, ...]:
    """A section per plan; a plan that could not be summarised has a section with the reason."""
    plans = (*map(_pipeline, section.pipelines), *map(_plan, section.plans))
    if section.problems and not plans:
        return (Section(title="Planned by torch.compile", blocks=notes(*section.problems)),)
    return plans


STAGES: tuple[Column[StageRank], ...] = (
    Column("rank", lambda row: str(row.rank)),
    Column("stages", lambda row: ", ".join(map(str, row.stages))),
    Column("FLOPs", lambda row: row.flops or "-", "quantity"),
    Column("works", lambda row: ends(row.works_ns), "ns"),
    Column("waits", lambda row: ends(row.waits_ns), "ns"),
    Column("peak", lambda row: row.peak_bytes, "bytes"),
    Column("fits", lambda row: {True: "yes", False: "no", None: "not known"}[row.fits]),
    Column("sends", lambda row: row.sends, "count"),
    Column("bytes", lambda row: row.sent_bytes, "bytes"),
)


def _pipeline(pipeline: PipelineStep) -> Section:
    whole = pipeline.pipeline
    stages = f"{whole.of} stages on {len(pipeline.rows)} ranks, {whole.micro_batches} micro-batches"
    return Section(
        title="Pipeline",
        summary=f"{whole.schedule}: {stages}; per step, modelled",
        blocks=(*tables(table(STAGES, pipeline.rows)), *notes(*_pipelined(pipeline))),
    )


def _pipelined(pipeline: PipelineStep) -> Iterator[str]:
    slowest = pipeline.slowest
    if pipeline.step_ns is None:
        yield f"the time of its step is unknown: {pipeline.problem}"
        return
    yield (
        f"a step takes {range_text(ends(pipeline.step_ns))}; rank {slowest.rank} works longest and waits "
        f"{range_text(ends(slowest.waits_ns))} of it (the bubble, and sends that nothing hides)"
    )
    if pipeline.imbalance > 1:
        yield (
            f"rank {slowest.rank} works {pipeline.imbalance:.2f} times as long as the mean of all ranks: evenly "
            "divided stages would make the step shorter"
        )
    yield f"the plan below is that of rank {slowest.rank}"


def _plan(plan: PlanSummary) -> Section:
    by = "as the program compiles it" if plan.compiled_by == "program" else "as if its model were compiled"
    made = ", ".join(f"{name} {plan.versions[name]}" for name in ("torch", "triton") if name in plan.versions)
    return Section(
        title=f"torch.compile, planned for {plan.target}",
        summary=f"what it would make of {plan.name}, {by} ({made}; planned over CPU tensors); no kernel was compiled "
        "or run, every time is modelled",
        blocks=(*_tables(plan), *_listings(plan)),
    )


def _tables(plan: PlanSummary) -> Iterator[Block]:
    yield from tables(steps_table(plan), *memory_tables(plan))
    exchanges = () if plan.exchanges is None else plan.exchanges.rows
    yield from tables(table(EXCHANGES, exchanges, few=6, rest="lines of collectives"))
    yield from notes(*_exchanged(plan))
    yield from tables(
        table(GRAPHS, plan.graphs, title="graphs", few=4, rest="graphs"),
        table(KERNELS, plan.kernels, title="kernels", few=6, rest="kernels, which move less"),
    )


def _listings(plan: PlanSummary) -> Iterator[Block]:
    again = (f"compiled again: {function}: {sanitize(reason, REASON)}" for function, reason in plan.recompiles)
    breaks = (*(_break(row, plan) for row in plan.breaks), *again)
    left = {name: plan.left.get(name, 0) for name in _REST}
    listings = (
        Listing(items=breaks, few=3, left=left["breaks"] + left["recompiles"], rest="graph breaks and recompilations"),
        Listing(items=tuple(_counted(map(_apart, plan.apart))), few=3, left=left["apart"], rest=_REST["apart"]),
        Listing(items=tuple(_notes(plan)), few=3, left=left["made_up"], rest="notes"),
    )
    yield from (listing for listing in listings if listing.items)


def steps_table(plan: PlanSummary) -> Table:
    """One step, eager and compiled, and the part of it inside the planned graphs."""
    compiled = "compiled" if plan.compiled is not None else "planned graphs"
    rows: list[tuple[str, Work | None]] = [("eager", plan.eager), (compiled, plan.compiled or plan.inside)]
    if plan.compiled is not None:
        rows += [("  planned graphs", plan.inside), ("  outside of them", plan.outside)]
    waits = "with launches" if plan.exchanges is None else "with launches and waits"
    columns: tuple[Column[tuple[str, Work]], ...] = (
        Column("per step", lambda row: row[0]),
        Column("launches", lambda row: row[1].launches, "count"),
        Column("bytes", lambda row: row[1].bytes, "bytes"),
        Column("FLOPs", lambda row: row[1].flops or "-", "quantity", drop=1),
        Column("kernels take", lambda row: ends(row[1].device), "ns"),
        Column(waits, lambda row: ends(row[1].step), "ns"),
    )
    return table(columns, [(name, work) for name, work in rows if work is not None])


def memory_tables(plan: PlanSummary) -> tuple[Table, ...]:
    """Planned peaks of a step, eager and compiled, and the owners at the peak of the step as the program runs it."""
    return (table(_peak_columns(plan), planned_steps(plan)), _holders(plan))


def planned_steps(plan: PlanSummary) -> list[tuple[str, StepMemory]]:
    """(``'eager'`` or ``'compiled'``, its memory) of the steps whose memory is known."""
    if plan.memory is None:
        return []
    steps = (("eager", plan.memory.eager), ("compiled", plan.memory.planned))
    return [(name, step) for name, step in steps if step is not None]


def _peak_columns(plan: PlanSummary) -> tuple[Column[tuple[str, StepMemory]], ...]:
    from perfscope.model.torch_plan import fits

    most = plan.memory_bytes
    fit = {True: "yes", False: "no", None: "not known"}
    return (
        Column("per step", lambda row: row[0]),
        Column("peak, planned", lambda row: row[1].peak_bytes, "bytes"),
        Column("of memory", lambda row: row[1].peak_bytes / most if most else "-", "share"),
        Column("fits", lambda row: fit[fits(row[1], most)]),
        Column("in", lambda row: peak_moment(row[1])),
        Column("requested by", lambda row: row[1].op or "-", "code", drop=1, limit=NAME),
        Column("at", lambda row: place_of(row[1].file, row[1].line), "place", drop=2),
    )


def peak_moment(step: StepMemory) -> str:
    """``'backward'``, ``'backward, graph 0/0'``: position of the peak."""
    return step.phase if step.graph is None else f"{step.phase}, graph {step.graph}"


def _holders(plan: PlanSummary) -> Table:
    from perfscope.model.torch_plan import by_category, category_label

    step = _shown_step(plan)
    peak = step.peak_bytes if step is not None else 0
    holders: list[tuple[str, int, int, MemoryHolder | None]] = []
    if step is not None and peak:
        for row in by_category(step):
            most = None if row.most.file is None else row.most
            holders.append((category_label(row.category), row.bytes, row.blocks, most))
        if step.left_bytes:
            holders.append(("others", step.left_bytes, step.left_blocks, None))
    columns: tuple[Column[tuple[str, int, int, MemoryHolder | None]], ...] = (
        Column("at the peak", lambda row: row[0]),
        Column("bytes", lambda row: row[1], "bytes"),
        Column("share", lambda row: row[1] / peak, "share"),
        Column("blocks", lambda row: row[2], "count", drop=1),
        Column(
            "mostly at", lambda row: None if row[3] is None else place_of(row[3].file, row[3].line), "place", drop=2
        ),
        Column("there", lambda row: None if row[3] is None else row[3].bytes, "bytes", drop=2),
    )
    return table(columns, holders, few=8)


def _shown_step(plan: PlanSummary) -> StepMemory | None:
    """The step whose owners are shown: as the program runs it, else the other one."""
    if plan.memory is None:
        return None
    eager, planned = plan.memory.eager, plan.memory.planned
    return (planned or eager) if plan.compiled_by == "program" else (eager or planned)


def memory_notes(plan: PlanSummary) -> Iterator[str]:
    """Memory that the peaks do not include."""
    from perfscope.model.torch_plan import EXCLUDED_FROM_PEAK

    if plan.memory is None:
        yield "this plan was made by an earlier perfscope and has no memory: plan it again"
        return
    yield from (f"memory: {text}" for text in plan.memory.uncounted)
    if plan.memory.eager is None and plan.memory.planned is None:
        yield "no step was seen whole: the peak of its memory is not known"
    else:
        yield EXCLUDED_FROM_PEAK


def place_of(file: str | None, line: int | None) -> str:
    """``models/attention.py:38``: the end of a path identifies it; ``-`` without a path."""
    return "-" if file is None else f"{shorten(sanitize('/'.join(PurePath(file).parts[-2:])), PLACE)}:{line}"


def _place(line: ProgramLine | None) -> str:
    return "-" if line is None else place_of(line.file, line.line)


def ends(span: Range) -> Ends:
    """A modelled range as a cell value."""
    return Ends(span.low, span.high)


EXCHANGES: tuple[Column[ExchangeRow], ...] = (
    Column("collective", lambda row: row.kind),
    Column("requested by", lambda row: row.by, "code"),
    Column("phase", lambda row: row.phase, drop=1),
    Column("at", lambda row: place_of(row.file, row.line), "place", drop=3),
    Column("runs", lambda row: row.times, "count"),
    Column("ranks", lambda row: row.group_size, "count"),
    Column("bytes", lambda row: row.bytes, "bytes"),
    Column("takes", lambda row: ends(row.busy_ns), "ns"),
    Column("step waits", lambda row: ends(row.exposed_ns), "ns"),
    Column("overlapped by", lambda row: "nothing" if row.blocking == row.times else ends(row.beside_ns), "ns", drop=2),
)


def _exchanged(plan: PlanSummary) -> Iterator[str]:
    """Exchanges of the planned rank with others. Bytes are planned, times modelled."""
    summary = plan.exchanges
    if summary is None:
        return
    backend = summary.backend or "no backend named"
    yield f"planned as rank {summary.planned_rank} of {summary.world_size:,} processes ({backend})"
    for name, totals in (("eager", summary.eager), ("compiled", summary.compiled)):
        if totals is not None and totals.collectives:
            yield _totals(name, totals)
    rows = summary.eager if summary.step == "eager" else summary.compiled
    if rows is not None and rows.blocking:
        yield (
            f"{rows.blocking:,} of {rows.collectives:,} collectives of the {summary.step} step overlap with nothing: "
            "the step waits for them before any kernel that could run at the same time"
        )
    yield from _buckets(summary)
    if summary.left:
        yield f"and {summary.left:,} more lines of collectives"
    yield from summary.notes


def _totals(name: str, totals: ExchangeTotals) -> str:
    known = "" if totals.known else "; the link between the devices is unknown, so times are lower bounds"
    return (
        f"{name} step: {totals.collectives:,} collectives of {format_bytes(totals.bytes)} take "
        f"{range_text(ends(totals.busy_ns))} over the links, and the step waits {range_text(ends(totals.exposed_ns))} "
        f"for them, modelled{known}"
    )


def _buckets(summary: ExchangeSummary) -> Iterator[str]:
    totals = summary.buckets
    if totals is None:
        return
    sizes = format_bytes(totals.largest_bytes)
    if totals.smallest_bytes != totals.largest_bytes:
        sizes = f"{format_bytes(totals.smallest_bytes)} to {sizes}"
    count = f"{totals.buckets:,} buckets" if totals.buckets > 1 else "1 bucket"
    yield f"DistributedDataParallel sums up {format_bytes(totals.bytes)} of gradients in {count} ({sizes})"


GRAPHS: tuple[Column[GraphWork], ...] = (
    Column("graph", lambda row: f"{row.graph.compile_id} {row.graph.direction}"),
    Column("of", lambda row: row.graph.function or "-", "code", drop=4, limit=NAME),
    Column("at", lambda row: _place(row.graph.place), "place", drop=5),
    Column("runs", lambda row: row.graph.calls, "count"),
    Column("nodes", lambda row: row.graph.nodes, "count", drop=2),
    Column("kernels", lambda row: f"{len(row.graph.kernels):,} ({row.graph.triton_kernels:,} Triton)", "count"),
    Column("bytes", lambda row: row.once.bytes, "bytes"),
    Column("FLOPs", lambda row: row.once.flops or "-", "quantity", drop=3),
    Column("takes", lambda row: ends(row.once.device), "ns"),
    Column("sizes", lambda row: "dynamic" if row.graph.dynamic else "fixed", drop=1),
)

KERNELS: tuple[Column[KernelRuns], ...] = (
    Column("kernel", lambda row: row.kernel.name, "code", limit=NAME),
    Column("computes", lambda row: _computes(row.kernel), "code", drop=4, limit=NAME),
    Column("at", lambda row: ", ".join(_place(line) for line in row.kernel.places[:1]) or "-", "place", drop=5),
    Column("direction", lambda row: row.graph.direction, drop=3),
    Column("nodes", lambda row: len(row.kernel.members), "count", drop=2),
    Column("runs", lambda row: row.calls, "count"),
    Column("bytes", lambda row: _moved(row.kernel), "bytes"),
    Column("takes", lambda row: ends(row.device_ns), "ns"),
)


def _computes(kernel: PlannedKernel) -> str:
    more = f" +{len(kernel.ops) - FEW_OPS}" if len(kernel.ops) > FEW_OPS else ""
    return kernel.shape or " ".join(op.removeprefix("aten.") for op in kernel.ops[:FEW_OPS]) + more


def _moved(kernel: PlannedKernel) -> str:
    again = f" (+{format_bytes(kernel.reread_bytes)} read again)" if kernel.reread_bytes else ""
    return format_bytes(kernel.bytes) + again


def _apart(pair: PlannedPair) -> str:
    where = f" at {_place(pair.place)}" if pair.place is not None else ""
    names = f"{sanitize(pair.first.name, NAME)} and {sanitize(pair.second.name, NAME)}"
    return (
        f"not fused{where}: {names} ({pair.graph.direction}), "
        f"{format_bytes(pair.value_bytes)} between them; inductor: {sanitize(pair.refusal.reason, REASON)}"
    )


def _counted(sentences: Iterable[str]) -> Iterator[str]:
    """Each sentence once, with its count, because similar layers produce equal sentences."""
    for sentence, times in Counter(sentences).items():
        yield sentence if times == 1 else f"{sentence} ({times:,} times)"


def _break(row: BreakRow, plan: PlanSummary) -> str:
    verb = "ends" if plan.compiled_by == "program" else "would end"
    where = "" if row.file is None else f" at {place_of(row.file, row.line)}"
    eager = "; the whole function stays in eager mode" if row.eager else ""
    return f"{sanitize(row.reason, REASON)} {verb} a graph of {', '.join(row.functions)}{where}{eager}"


def _notes(plan: PlanSummary) -> Iterator[str]:
    if plan.failure is not None:
        yield f"the program failed: {plan.failure}"
    yield f"stopped: {plan.stopped}"
    for what, where, answer, times in plan.made_up:
        yield f"made up at {where}: {what} was answered {answer} ({times:,} times)"
    yield from (f"not covered: {text}" for text in plan.not_covered)
    yield from plan.notes[1:]
    yield from memory_notes(plan)
    yield (
        "grouping is inductor's own, its Triton backend over CPU tensors may split reductions of backward graphs "
        "otherwise than on the device; library calls are costed by a roofline, and nothing is autotuned"
    )
