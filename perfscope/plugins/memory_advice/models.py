"""The steps of a recording for which plans can be made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.model.finding import AbstainError
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.plugins.memory_advice.step_model import StepModel


NO_GRAPH = "no op graph: record with perfscope run, which takes one in its structure pass"


class Steps(Struct, frozen=True, kw_only=True):
    """Steps, largest peak first, and what could not be analysed."""

    models: tuple[StepModel, ...]
    unseen: tuple[str, ...]
    """One sentence each, naming the source."""


def step_models(traces: Iterable[Trace]) -> Steps:
    """The steps of all traces."""
    models: list[StepModel] = []
    unseen: list[str] = []
    for trace in traces:
        try:
            if trace.op_graph is None and trace.hlo:
                from perfscope.plugins.memory_advice.step_model_hlo import hlo_step_models

                models += trace.fact(hlo_step_models)
            elif trace.op_graph is not None or "op_graph" in trace.recorded:
                from perfscope.plugins.memory_advice.step_model_torch import torch_step_model

                models.append(trace.fact(torch_step_model))
            else:
                raise AbstainError(trace.why_no_step or NO_GRAPH, ("op_graph",))
        except AbstainError as reason:
            unseen.append(f"{trace.source.path}: {reason}")
    models.sort(key=lambda model: -(model.measured_peak_bytes or 0))
    return Steps(models=tuple(models), unseen=tuple(unseen))
