"""The memory of planned PyTorch steps as rows: the peaks, who holds the one that counts, whether it fits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from perfscope.model.torch_plan import EXCLUDED_FROM_PEAK, StepMemory, by_category, category_label, fits
from perfscope.model.units import format_bytes, format_share
from perfscope.model.untrusted_text import sanitize, shorten

if TYPE_CHECKING:
    from perfscope.analyzers.plan_section import PlanSummary

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
