"""The advice on precision as blocks: what each recipe keeps, the layers, and how to try it."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.dashboards.report.blocks import Code, Column, Listing, Report, Section, Text, table, tables
from perfscope.dashboards.report.renderers.markdown import inline, open_section, section_markdown
from perfscope.dashboards.report.renderers.text import WIDTH, report_text
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.precision.advice import counts
from perfscope.plugins.precision.document import LayerRow, Precision, RecipeRow

FEW_LAYERS = 24

_RECIPES: tuple[Column[RecipeRow], ...] = (
    Column("recipe", lambda row: row.recipe),
    Column("keeps", lambda row: row.keeps, "share"),
    Column("layers", lambda row: row.layers, "count", 3),
    Column("error", lambda row: _percent(row.median)),
    Column("worst", lambda row: _percent(row.worst)),
    Column("expected", lambda row: _percent(row.expected), drop=4),
    Column("bias", lambda row: f"{row.most_bias:+.1%}", drop=1),
    Column("saturate", lambda row: row.most_overflow or None, "share", drop=1),
    Column("become 0", lambda row: row.most_underflow or None, "share", drop=1),
    Column("worst layer", lambda row: row.worst_layer, "code", 2),
    Column("not proposed", lambda row: row.refused, "text", 2),
)
_LAYERS: tuple[Column[LayerRow], ...] = (
    Column("layer", lambda row: row.layer, "code"),
    Column("proposal", lambda row: row.proposal),
    Column("error", lambda row: "" if row.error is None else _percent(row.error)),
    Column("FLOPs", lambda row: row.flops, "quantity", 2),
    Column("today", lambda row: row.dtype, "text", 3),
    Column("now", lambda row: row.now_ns, "ns", 4),
    Column("then", lambda row: row.then_ns, "ns", 4),
    Column("why not narrower", lambda row: row.reason, "text"),
    Column("line", lambda row: row.line, "place", 1),
)


def render_text(advice: Precision, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """The advice for a terminal."""
    return report_text(report_of(advice), width=width, color=color, verbose=verbose)


def render_markdown(advice: Precision) -> str:
    """The advice as a comment: recipes open, layers folded."""
    report = report_of(advice)
    parts = [f"### perfscope: {inline(sanitize(report.headline))}", *(inline(sanitize(fact)) for fact in report.facts)]
    for number, section in enumerate(report.sections):
        shown = open_section(section, len(advice.recipes)) if number == 0 else section_markdown(section, FEW_LAYERS)
        parts.append(shown)
    return "\n\n".join(parts) + "\n"


def report_of(advice: Precision) -> Report:
    """The advice as blocks."""
    return Report(headline=_headline(advice), facts=tuple(_facts(advice)), sections=tuple(_sections(advice)))


def _headline(advice: Precision) -> str:
    number = counts(advice.layers)
    rest = [f"{count} {'stays' if count == 1 else 'stay'} in {name}" if name == "float32" else f"{count} in {name}"
            for name in ("bf16", "float32") if (count := number.get(name, 0))]  # fmt: skip
    if not advice.recipe:
        return f"precision of {len(advice.layers)} layers: {', '.join(rest) or 'no products of matrices'}"
    share = next(row.keeps for row in advice.recipes if row.recipe == advice.recipe)
    first = f"{number[advice.recipe]} of {len(advice.layers)} layers ({share:.0%} of the FLOPs) may use {advice.recipe}"
    return ", ".join([first, *rest])


def _facts(advice: Precision) -> Iterator[str]:
    yield f"{advice.subject}: products of {advice.framework} measured in {advice.steps} steps, by simulated rounding"
    if advice.target is None:
        yield "times: name a device with --device"
    elif advice.now_ns is None or advice.then_ns is None:
        yield f"times: {advice.target} has no peak for the proposal"
    else:
        then = max(advice.then_ns, 1)
        yield (
            f"products at the peaks of {advice.target} (modelled): {format_ns(advice.now_ns)} per step now, "
            f"{format_ns(advice.then_ns)} with the proposal, {advice.now_ns / then:.2f} times as fast"
        )


def _sections(advice: Precision) -> Iterator[Section]:
    yield Section(
        title="Layers that each recipe keeps",
        summary="share of the FLOPs in them; rounding explains the errors there",
        blocks=tables(table(_RECIPES, advice.recipes, few=len(advice.recipes))),
    )
    yield Section(
        title="Layers",
        summary="the widest first",
        blocks=tables(table(_LAYERS, advice.layers, few=FEW_LAYERS, rest="layers")),
    )
    if advice.framework == "torch" and any(row.proposal != "float32" for row in advice.layers):
        code = (
            "perfscope advise precision RUN --json plan.json",
            "PERFSCOPE_PRECISION_PLAN=plan.json perfscope try --only precision-plan train.py",
        )
        yield Section(title="Try it", summary="the bf16 part, in time and loss", blocks=(Code(code),))
    if advice.notes:
        yield Section(title="Notes", blocks=(Listing(items=advice.notes),))
    yield Section(title="Method", blocks=tuple(Text(text) for text in _METHOD), detail=True)


_METHOD = (
    "The factors of a product are rounded by each recipe, on 16 of their rows with the scales of the whole factors, "
    "and the product is compared with that of the unrounded factors; sums are exact. The largest error of all measured "
    "steps counts, forward and backward.",
    "A recipe keeps a layer if the error of each of its products is at most twice the error on normally "
    "distributed values, and if less than half of an error above that one points in one direction. Delayed scales are "
    "those of earlier measured steps.",
    "Norms, softmax, losses, residual sums and the optimizer were not measured: keep them in float32.",
)


def _percent(value: float) -> str:
    return f"{value:.2%}" if value < 0.1 else f"{value:.1%}"
