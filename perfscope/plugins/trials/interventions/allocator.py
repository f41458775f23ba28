"""PyTorch's allocator of GPU memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from perfscope.plugins.trials.interventions.base import Facts, Intervention, needs_cuda, set_by_variable

VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"


def _expandable(facts: Facts) -> Mapping[str, str]:
    others = [entry for entry in facts.variables.get(VARIABLE, "").split(",") if entry and "expandable" not in entry]
    return {VARIABLE: ",".join([*others, "expandable_segments:True"])}


EXPANDABLE_SEGMENTS = Intervention(
    name="expandable-segments",
    title="memory segments that grow",
    family="allocator",
    framework="torch",
    answers=("memory_fragmentation", "oom_near"),
    may_change="Nothing; addresses of tensors.",
    code=f"{VARIABLE}=expandable_segments:True python train.py",
    applies=needs_cuda,
    environment=_expandable,
    apply=partial(set_by_variable, name=VARIABLE),
)
