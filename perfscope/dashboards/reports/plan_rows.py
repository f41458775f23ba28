"""Plans of PyTorch programs as rows and sentences, decided once for every report. Planned, never measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfscope.dashboards.reports.plan_collective_rows import exchange_cells, exchange_sentences
from perfscope.dashboards.reports.plan_memory_rows import file_of, holder_rows, memory_notes, peak_rows, place_of
from perfscope.model.torch_plan import planning_mode_text
from perfscope.model.units import format_bytes, format_count, format_ns
from perfscope.model.untrusted_text import sanitize, shorten

if TYPE_CHECKING:
    from perfscope.analyzers.estimate.spans import Range
    from perfscope.analyzers.facts.plan_time import Work
    from perfscope.analyzers.plan_section import ApartRow, BreakRow, GraphRow, KernelRow, PlanSection, PlanSummary
    from perfscope.model.torch_plan import PlanLine

NAME = 44
"""Characters of a kernel's or function's name."""
REASON = 110
FEW_OPS = 4

Cells = tuple[tuple[str, str], ...]


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
    of = "" if plan.way == "cpu-triton" else f" of {plan.target}"
    return PlanView(
        title=f"planned for {plan.target}, not measured",
        headline=f"what torch.compile would make of {sanitize(plan.name)} on {plan.target}, {by} "
        f"({made}; planned {planning_mode_text(plan.way)}{of}): no kernel was compiled or run, every time is modelled",
        steps=tuple(_steps(plan)),
        peaks=tuple(peak_rows(plan)),
        holders=tuple(holder_rows(plan)),
        exchanges=tuple(exchange_cells(plan)),
        exchanged=tuple(exchange_sentences(plan)),
        graphs=tuple(map(_graph, plan.graphs)),
        kernels=tuple(map(_kernel, plan.kernels)),
        apart=tuple(_counted(map(_apart, plan.apart))),
        breaks=tuple(_break(one, plan) for one in plan.breaks)
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
        ("at", ", ".join(_place(place) for place in row.places[:1]) or "-"),
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
    said = "not compiled" if registers.registers is None else f"{registers.registers}{spilled}"
    return (*cells, ("registers", said), ("block size", sanitize(registers.blocks)))


def _apart(row: ApartRow) -> str:
    at = f" at {_place(row.place)}" if row.place is not None else ""
    return (
        f"not fused{at}: {sanitize(row.first, NAME)} and {sanitize(row.second, NAME)} ({row.direction}), "
        f"{format_bytes(row.shared_bytes)} between them; inductor: {sanitize(row.reason, REASON)}"
    )


def _counted(sentences: Iterable[str]) -> Iterator[str]:
    """Each once: layers that are alike say the same."""
    for sentence, times in Counter(sentences).items():
        yield sentence if times == 1 else f"{sentence} ({times:,} times)"


def _break(row: BreakRow, plan: PlanSummary) -> str:
    verb = "ends" if plan.compiled_by == "program" else "would end"
    at = "" if row.file is None else f" at {file_of(row.file)}:{row.line}"
    eager = "; the whole function stays in eager mode" if row.eager else ""
    return f"{sanitize(row.reason, REASON)} {verb} a graph of {sanitize(', '.join(row.functions))}{at}{eager}"


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
        "grouping is inductor's own, "
        + (
            "its Triton backend over CPU tensors may split reductions of backward graphs otherwise than on the device"
            if plan.way == "cpu-triton"
            else "which took the tensors for those of the device"
        )
        + "; library calls are costed by a roofline, and nothing is autotuned"
    )


def range_text(span: Range) -> str:
    """``'84 us to 257 us'``."""
    low, high = format_ns(span.low), format_ns(span.high)
    return low if low == high else f"{low} to {high}"


def _place(place: PlanLine | None) -> str:
    return "-" if place is None else place_of(place.file, place.line)
