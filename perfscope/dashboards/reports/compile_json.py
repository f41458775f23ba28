"""What torch.compile did, in the JSON report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfscope.analyzers.compile_section import CompileSection
    from perfscope.analyzers.facts.compile_phases import Stage
    from perfscope.analyzers.facts.compile_rows import KernelSummary
    from perfscope.analyzers.facts.compile_summary import CompileSummary, FrameSummary
    from perfscope.model.compile_log import CodeLine


def compile_document(section: CompileSection) -> dict[str, Any]:
    """The section as dicts and lists; times are integer ns."""
    return {
        "ranks": [asdict(one) for one in section.ranks],
        "detail": None if section.detail is None else {"of": section.detail_label, **_detail(section.detail)},
        "left": dict(section.left),
        "left_records": dict(section.left_records),
        "problems": list(section.problems),
    }


def _detail(detail: CompileSummary) -> dict[str, Any]:
    return {
        "path": detail.path,
        "torch_version": detail.torch_version,
        "compiles": detail.compiles,
        "graphs": detail.graphs,
        "graph_kind": detail.graph_kind,
        "total_ns": detail.total_ns,
        "unowned_ns": detail.unowned_ns,
        "stages_ns": _stages(detail.stages_ns),
        "frames": [_frame(one) for one in detail.frames],
        "breaks": [{**asdict(one), "place": _place(one.place)} for one in detail.break_rows],
        "recompiles": [
            {**asdict(one), "place": _place(one.place), "guard_place": _place(one.guard_place)}
            for one in detail.recompile_rows
        ],
        "kernels": [_kernel(one) for one in detail.kernels],
        "corrupt_records": detail.corrupt,
        "unknown_records": dict(detail.unknown),
    }


def _frame(one: FrameSummary) -> dict[str, Any]:
    return {**asdict(one), "place": _place(one.place), "stages_ns": _stages(one.stages_ns)}


def _kernel(one: KernelSummary) -> dict[str, Any]:
    return {**asdict(one), "places": [_place(place) for place in one.places]}


def _stages(stages_ns: Mapping[Stage, int]) -> dict[str, int]:
    """By the stage's name in the code: the words of a stage may change, a key may not."""
    return {stage.name.lower(): spent for stage, spent in stages_ns.items()}


def _place(place: CodeLine | None) -> dict[str, Any] | None:
    """Where it is; the text of the line is the program's and stays there."""
    return None if place is None else {"file": place.file, "line": place.line, "function": place.function}
