"""Comparison of two trainings: where losses and gradient norms diverge, and by how much."""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.dashboards.report.blocks import Badge, Column, Report, Section, Text, Tone, table
from perfscope.dashboards.report.renderers.text import WIDTH, report_text
from perfscope.plugins.parity.training import Block, Metric, Training

TONES: dict[str, Tone] = {"same": "better", "within noise": "better", "parts": "worse", "cannot tell": "open"}
ONE_RUN = (
    "one run per side: a difference cannot be separated from the effect of another seed. Give folders with "
    "several runs per side, of different seeds"
)


def render_text(document: Training, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """The document for a terminal."""
    facts = (f"A {document.a}: {_runs(document.runs_a)}", f"B {document.b}: {_runs(document.runs_b)}")
    report = Report(headline=_headline(document), facts=facts, sections=tuple(_sections(document)))
    return report_text(report, width=width, color=color, verbose=verbose)


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _headline(document: Training) -> str:
    parting = [metric for metric in document.metrics if metric.parts_at is not None]
    if parting:
        first = min(parting, key=lambda metric: metric.parts_at.first if metric.parts_at else 0)
        return f"A and B part: {_words(first)}"
    if all(metric.verdict == "same" for metric in document.metrics):
        return "A and B are equal to the last bit"
    if document.open:
        return f"A and B differ from step {_first(document)} on; whether by more than noise is unknown"
    return "A and B differ no more than runs of one side"


def _first(document: Training) -> int:
    return min(metric.first_different for metric in document.metrics if metric.first_different is not None)


def _words(metric: Metric) -> str:
    block = metric.parts_at
    return "" if block is None else f"the {metric.name} in steps {_steps(block)}, {_change(block)}"


def _change(block: Block) -> str:
    return f"{block.a:.4g} to {block.b:.4g}" + ("" if block.noise is None else f", runs differ by {block.noise:.2g}")


def _steps(block: Block) -> str:
    return str(block.first) if block.end == block.first + 1 else f"{block.first}-{block.end - 1}"


def _sections(document: Training) -> Iterator[Section]:
    metrics: tuple[Column[Metric], ...] = (
        Column("value", lambda metric: metric.name),
        Column("verdict", lambda metric: Badge(metric.verdict, TONES[metric.verdict])),
        Column("steps", lambda metric: metric.steps, "count"),
        Column("not equal from step", lambda metric: "-" if metric.first_different is None else metric.first_different),
        Column("parts in steps", lambda metric: "-" if metric.parts_at is None else _steps(metric.parts_at)),
    )
    note = Text(
        "t tests of the means of stretches of steps, from all down to sixteenths, with the spread between runs pooled "
        "over both sides, corrected for the number of tests: by chance both values together part in at most 5% of "
        "comparisons (assuming normal values). The difference began in or before the named stretch",
        detail=True,
    )
    yield Section(
        title="Values",
        blocks=(table(metrics, document.metrics), note, *([Text(ONE_RUN)] if document.open else [])),
    )
    blocks: tuple[Column[Block], ...] = (
        Column("steps", _steps),
        Column("A", lambda block: f"{block.a:.5g}"),
        Column("B", lambda block: f"{block.b:.5g}"),
        Column("runs differ by", lambda block: "" if block.noise is None else f"{block.noise:.2g}"),
        Column("p", lambda block: "" if block.p is None else f"{block.p:.2g}"),
    )
    for metric in document.metrics:
        yield Section(
            title=metric.name.capitalize(), blocks=(table(blocks, metric.blocks, few=0, rest="stretches"),), detail=True
        )
