"""The steps of a recording that plans can be made for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfscope.analyzers.checkpointing.step_model import StepModel
from perfscope.analyzers.checkpointing.step_model_hlo import hlo_step_models
from perfscope.analyzers.checkpointing.step_model_torch import torch_step_model
from perfscope.model.finding import AbstainError
from perfscope.model.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Steps, the largest peak first, and what could not be looked at."""

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
                models += trace.fact(hlo_step_models)
            else:
                models.append(trace.fact(torch_step_model))
        except AbstainError as reason:
            unseen.append(f"{trace.source.path}: {reason}")
    models.sort(key=lambda model: -(model.measured_peak_bytes or 0))
    return Steps(models=tuple(models), unseen=tuple(unseen))
