"""A plan as blocks: the front, the account of the best meshes, their exchanges, and what would change the order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from perfscope.dashboards.report.blocks import (
    Badge,
    Column,
    Dot,
    Legend,
    Listing,
    Plot,
    Range,
    Report,
    Section,
    Table,
    Text,
    table,
)
from perfscope.dashboards.report.charts import FITS, TOO_MUCH, peaks_plot
from perfscope.dashboards.report.renderers.html import report_html
from perfscope.dashboards.report.renderers.markdown import inline, section_markdown
from perfscope.dashboards.report.renderers.text import WIDTH, report_text
from perfscope.dashboards.report.renderers.values import range_text
from perfscope.model.units import format_bytes, format_ns, format_share
from perfscope.plugins.plan.document import Plan, PlannedCandidate, dump

FEW, COMPARED = 10, 3
"""Meshes shown at once, and those whose accounts are shown next to each other."""

MOST_STAGES = 8
"""Stages whose layers are listed one by one."""

GATHERED = {True: "every use", False: "once per step"}


def render_text(plan: Plan, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """The plan for a terminal."""
    return report_text(report_of(plan), width=width, color=color, verbose=verbose)


def render_html(plan: Plan) -> str:
    """The plan as one page that loads nothing."""
    return report_html(report_of(plan), data_id="perfscope-plan", data=dump(plan).decode())


def render_markdown(plan: Plan) -> str:
    """The plan as Markdown."""
    report = report_of(plan)
    parts = [f"### {inline(report.headline)}", "\n".join(f"- {inline(fact)}" for fact in report.facts)]
    return "\n\n".join([*parts, *(section_markdown(section, FEW) for section in report.sections)]) + "\n"


def report_of(plan: Plan) -> Report:
    """The plan as blocks."""
    return Report(headline=_headline(plan), facts=tuple(_facts(plan)), sections=tuple(_sections(plan)))


def mesh_words(row: PlannedCandidate) -> str:
    """``fsdp 8, tensor 8``."""
    return row.candidate.mesh.words


def _headline(plan: Plan) -> str:
    best = plan.candidates[0]
    step = range_text(Range(best.step_low_ns, best.step_high_ns))
    fits = "" if best.fits else ", if it fits"
    return f"{plan.name} on {plan.target}: {mesh_words(best)} takes {step} per step{fits}"


def _facts(plan: Plan) -> Iterator[str]:
    active = "" if not plan.experts else f", {plan.active_parameters / 1e9:.1f} active"
    if plan.parameters:
        size = f"{plan.parameters / 1e9:.1f} billion parameters{active}"
        yield f"{size}; {plan.global_batch:,} sequences of {plan.sequence:,} tokens per step"
    best = plan.candidates[0]
    if plan.parameters:
        order = f"; from neighbouring devices to distant ones: {', '.join(best.candidate.order)}"
        yield f"run it with {best.candidate.how}{order if best.candidate.order else ''}"
    if len(best.layers) > 1:
        yield f"stages so that the slowest is as fast as possible: {stage_layers(best)}"
    same = [one for one in plan.candidates[1:] if one.equal_to_best]
    others = len(plan.candidates) - 1
    if same:
        yield f"{len(same)} of the {others} other meshes listed are equal to it: no order holds under all assumptions"
    elif others:
        yield f"it is faster than each of the {others} other meshes listed under all assumptions"
    if not plan.parameters:
        yield "memory is the compiler's peak; times are modelled from the compiled programs, not measured"
        return
    basis = f"narrowed by {plan.calibrated_by}" if plan.calibrated_by else "not calibrated"
    yield f"times are modelled, not measured ({basis}); memory is modelled, from a low to a high end"
    if not plan.candidates[0].fits:
        yield "no candidate surely fits: the high end of every one exceeds the memory that is left"
    if not plan.searched.complete:
        yield "the budget of time ended the search: candidates that were not reached may be better"


def _sections(plan: Plan) -> Iterator[Section]:
    yield Section(title="Meshes", summary=_counts(plan), blocks=(*_picture(plan), _meshes(plan)))
    if plan.candidates[0].account:
        yield Section(
            title="Where the time of a step goes",
            summary="parts of one scenario add up to its step; ends of different parts need not be of one scenario",
            blocks=(_accounts(plan.candidates[:COMPARED]),),
        )
    if plan.candidates[0].exchanges:
        yield Section(title="Exchanges of the first mesh", summary="per device and step", blocks=(_exchanges(plan),))
    if plan.candidates[0].memory:
        yield Section(title="Memory of a device", blocks=(_memory(plan.candidates[:COMPARED]),))
    if plan.sensitivities:
        yield Section(title="Sensitivity of the order", blocks=(_order(plan), Listing(items=_measure(plan))))
    notes = (*plan.notes, *(f"assumed: {text}" for text in plan.assumptions))
    yield Section(
        title="How it is known", blocks=(Text(_METHOD if plan.parameters else _COMPILED), Listing(items=notes, few=6))
    )


_METHOD = (
    "Every candidate is priced by closed formulas under the same scenarios: all combinations of the ends of the "
    "assumptions. A mesh is called faster only if it is faster in each of them. docs/plan.md has the formulas, their "
    "sources, and how published runs compare."
)


_COMPILED = (
    "Every mesh was compiled for the target: its memory is the compiler's peak, its time modelled from the compiled "
    "program. A mesh is called faster only if it is in every scenario (JAX), or if their ranges do not overlap "
    "(PyTorch). docs/plan.md and docs/compile-model.md have the rest."
)


def _counts(plan: Plan) -> str:
    found = plan.searched
    return (
        f"{found.candidates:,} candidates: {found.too_large:,} cannot fit, {found.cannot_win:,} cannot win, "
        f"{found.front:,} on the front; the best of each mesh"
    )


def _meshes(plan: Plan) -> Table:
    columns: list[Column[PlannedCandidate]] = [
        Column("", lambda one: _badge(plan, one)),
        Column("mesh", mesh_words),
        Column("micro-batch", lambda one: one.candidate.micro_batch or None, "count", 5),
        Column("checkpoint", lambda one: one.candidate.policy, drop=6),
        Column("schedule", _schedule, drop=4),
        Column(
            "weights gathered",
            _gathered,
            drop=3,
        ),
        Column(
            "precision", lambda one: one.candidate.precision if one.candidate.precision != "bfloat16" else None, drop=7
        ),
        Column("on the host", lambda one: one.candidate.offload if one.candidate.offload != "none" else None, drop=7),
        Column("step", lambda one: Range(one.step_low_ns, one.step_high_ns), "ns"),
        Column("tokens/s", _rate, "quantity", 1),
        Column("price of 1M tokens", _price, drop=2),
        Column("memory", lambda one: Range(one.memory_low, one.memory_high), "bytes"),
        Column("fits", lambda one: Badge("yes") if one.fits else Badge("maybe", "open")),
    ]
    return table(columns, plan.candidates, few=FEW)


def _badge(plan: Plan, one: PlannedCandidate) -> Badge | None:
    if one is plan.candidates[0]:
        return Badge("first", "better")
    return Badge("equal", "open") if one.equal_to_best else None


def stage_layers(one: PlannedCandidate) -> str:
    """The layers of the stages: ``8, 9, 9 and 6 layers``, ``20 layers in each of 4``."""
    *first, last = one.layers
    if len(set(one.layers)) == 1:
        return f"{last} layers in each of {len(one.layers)}"
    runs = [f"{len(list(group))} x {count}" for count, group in groupby(one.layers)]
    counts = runs if len(one.layers) > MOST_STAGES else [*map(str, first), str(last)]
    return f"{', '.join(counts[:-1])} and {counts[-1]} layers"


def _gathered(one: PlannedCandidate) -> str | None:
    """When weights are gathered; a compiled program decides it itself."""
    modelled = one.basis == "modelled" and one.candidate.mesh.shards > 1
    return GATHERED[one.candidate.regather] if modelled else None


def _schedule(one: PlannedCandidate) -> str | None:
    run = one.candidate
    if run.mesh.pipeline == 1:
        return None
    return f"{run.schedule} x{run.chunks}" if run.chunks > 1 else run.schedule


def _rate(one: PlannedCandidate) -> Range | None:
    if one.tokens_per_s_low is None or one.tokens_per_s_high is None:
        return None
    return Range(one.tokens_per_s_low, one.tokens_per_s_high)


def _price(one: PlannedCandidate) -> str | None:
    if one.price_low is None or one.price_high is None:
        return None
    return f"{one.price_low:,.4g} to {one.price_high:,.4g}"


def _accounts(candidates: Sequence[PlannedCandidate]) -> Table:
    names = list(dict.fromkeys(part.name for one in candidates for part in one.account))

    def value(one: PlannedCandidate, name: str) -> Range | None:
        part = next((part for part in one.account if part.name == name), None)
        return None if part is None else Range(part.low_ns, part.high_ns)

    columns: list[Column[str]] = [Column("part", lambda name: PART_WORDS.get(name, name))]
    columns += [
        Column(mesh_words(one), lambda name, one=one: value(one, name), "ns", 2 if place else 0)  # type: ignore[misc]
        for place, one in enumerate(candidates)
    ]
    return table(columns, names, few=len(names))


PART_WORDS = {
    "weights": "weights and gradients, exposed",
    "activations": "tensor parallelism, exposed",
    "tokens": "keys, values, routed tokens, exposed",
    "bubble": "bubble of the pipeline",
    "sends": "sends between stages, exposed",
    "host copies": "copies to the host, exposed",
}


def _exchanges(plan: Plan) -> Table:
    rows = plan.candidates[0].exchanges
    return table(
        (
            Column("what", lambda row: row.exchange.what),
            Column("kind", lambda row: row.exchange.kind),
            Column("along", lambda row: ", ".join(row.exchange.axes)),
            Column("devices", lambda row: row.devices, "count"),
            Column("nodes", lambda row: row.nodes, "count"),
            Column("bytes", lambda row: row.exchange.bytes, "bytes"),
            Column("times", lambda row: row.exchange.times, "count"),
            Column("together, hidden or not", lambda row: Range(row.low_ns, row.high_ns), "ns"),
        ),
        rows,
        few=len(rows),
    )


def _memory(candidates: Sequence[PlannedCandidate]) -> Table:
    names = [part.name for part in candidates[0].memory]

    def value(one: PlannedCandidate, name: str) -> Range | None:
        part = next((part for part in one.memory if part.name == name), None)
        return None if part is None else Range(part.low, part.high)

    columns: list[Column[str]] = [Column("category", lambda name: name)]
    columns += [
        Column(mesh_words(one), lambda name, one=one: value(one, name), "bytes", 2 if place else 0)  # type: ignore[misc]
        for place, one in enumerate(candidates)
    ]
    return table(columns, names, few=len(names))


def _order(plan: Plan) -> Table:
    return table(
        (
            Column("against the first", lambda row: mesh_words(plan.candidates[row.other])),
            Column("assumption", lambda row: row.assumption),
            Column("at its fast end", lambda row: f"x{row.ratio_low:.2f}"),
            Column("at its slow end", lambda row: f"x{row.ratio_high:.2f}"),
            Column("alone", lambda row: _turns(row.changes_order, row.at)),
        ),
        plan.sensitivities,
        few=len(plan.sensitivities),
    )


def _turns(changes: bool, at: float | None) -> str:
    if not changes:
        return "does not change it"
    return "changes it" if at is None else f"changes it at {format_share(at, 1)} of its range"


def _measure(plan: Plan) -> tuple[str, ...]:
    found: dict[str, list[str]] = {}
    for row in plan.sensitivities:
        found.setdefault(row.measurement, []).append(mesh_words(plan.candidates[row.other]))
    return tuple(
        f"to decide against {'; '.join(dict.fromkeys(meshes))}: measure {measurement}"
        for measurement, meshes in found.items()
    )


def _picture(plan: Plan) -> Iterator[Plot]:
    dots = [
        Dot(
            x=one.step_middle_ns, low=one.step_low_ns, high=one.step_high_ns, y=one.memory_high,
            title=f"{mesh_words(one)}: {format_ns(one.step_low_ns)} to {format_ns(one.step_high_ns)}, "
            f"{format_bytes(one.memory_high)}",
            color=FITS if one.fits else TOO_MUCH, ring=place == 0,
        )
        for place, one in enumerate(plan.candidates)
    ]  # fmt: skip
    limits = [(float(plan.usable_bytes), "memory without headroom")]
    yield peaks_plot(
        dots, [], limits, logarithmic=True, legend=Legend(), note=_CAPTION,
        words=f"{len(dots)} meshes: memory of a device against modelled time of a step; the table has the numbers",
    )  # fmt: skip


_CAPTION = (
    "The high end of a device's memory upwards, the modelled time of a step to the right; a bar reaches from its "
    "fastest to its slowest scenario. Ringed: the first of the table. Grey: it may not fit."
)
