"""Temporaries of an optimizer that steps with lists of tensors, and gradients that outlive the step they were made for.

A ``foreach`` optimizer makes each intermediate value for all parameters at once: one or two copies of the parameters
are alive within the step. The ``fused`` one keeps none. Gradients that are cleared with zeros, or never, are alive
through the next forward pass beside its activations; set to None they are made again when the backward pass gets there.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.facts.avoidable_blocks import Avoidable
from perfscope.analyzers.facts.memory_categories import memory_phases
from perfscope.analyzers.facts.memory_phases import NEVER
from perfscope.analyzers.facts.memory_stacks import nearest_frame
from perfscope.analyzers.facts.nesting import nearest_ancestor
from perfscope.model.memory import MemoryPhase, MemoryTimeline
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory

_FOREACH_OP = re.compile(r"aten::_foreach_\w+")
_FOREACH_FUNCTION = re.compile(r"_multi_tensor_\w+")
_OPTIMIZER_FILE = re.compile(r"(^|/)torch/optim/")


def optimizer_temporaries(trace: Trace, timeline: MemoryTimeline) -> Avoidable | None:
    """What a ``foreach`` optimizer makes and frees within its step."""
    recorded, blocks = timeline.of(trace), timeline.blocks
    within = (blocks["phase"] == MemoryPhase.OPTIMIZER) & (blocks["category"] == MemoryCategory.TEMPORARY)
    if not within.any():
        return None
    # the op that asks may be another one: on the CPU the lists are worked through tensor by tensor
    lists = [code for code, text in enumerate(recorded.strings) if _FOREACH_OP.fullmatch(text)]
    inside_op = np.isin(recorded.rows["slices"]["name"], lists)
    foreach = nearest_ancestor(recorded, blocks["op"].astype(np.int64), inside_op) != MISSING
    framed = blocks["frame"] != MISSING
    if framed.any():
        masks = recorded.fact(_multi_tensor_frames)
        inside = np.zeros(len(blocks), bool)
        inside[framed] = nearest_frame(recorded, blocks["frame"][framed].astype(np.int64), masks)[0] != MISSING
        foreach |= inside
    rows = np.flatnonzero(within & foreach)
    if not len(rows):
        return None
    return Avoidable(
        kind="temporaries of the optimizer",
        said="values that the foreach optimizer makes for all parameters at once",
        advice="Use torch.optim.AdamW(model.parameters(), fused=True): it updates each parameter in one kernel and "
        "keeps no such values (SGD, Adam, AdamW and Adagrad have it); foreach=False keeps those of one parameter at a "
        "time, and takes longer",
        rows=rows,
    )


def lasting_gradients(trace: Trace, timeline: MemoryTimeline) -> Avoidable | None:
    """Gradients that are alive in the forward pass behind the optimizer's step."""
    blocks = timeline.blocks
    phases = memory_phases(trace, timeline)
    forwards = np.flatnonzero(phases.phase == MemoryPhase.FORWARD)
    backwards = np.flatnonzero(phases.phase == MemoryPhase.BACKWARD)
    optimizers = np.flatnonzero(phases.phase == MemoryPhase.OPTIMIZER)
    if not len(forwards) or not len(backwards) or len(optimizers) < len(backwards):
        return None  # several backward passes for one step add up what must not be cleared between them
    gradients = np.flatnonzero(blocks["category"] == MemoryCategory.GRADIENT)
    start, end = blocks["start"][gradients], blocks["end"][gradients]
    begins = np.concatenate((phases.starts[forwards], [NEVER]))
    finished = np.concatenate((phases.ends[backwards], [NEVER]))
    rows, until, since = [], [], []
    # between each use by the optimizer and the end of the next backward pass they would not be there
    for done in (timeline.first, *phases.ends[optimizers].tolist()):
        forward = int(begins[np.searchsorted(begins[:-1], done, side="left")])
        again = int(finished[np.searchsorted(finished[:-1], forward, side="left")])
        held = blocks["before"][gradients] if done == timeline.first else start < done
        lasting = gradients[held & (end > forward)] if forward != NEVER else gradients[:0]
        rows.append(lasting)
        until.append(np.full(len(lasting), done, np.int64))
        since.append(np.full(len(lasting), again, np.int64))
    if not any(len(one) for one in rows):
        return None
    return Avoidable(
        kind="gradients of the step before",
        said="gradients that outlive the optimizer's step",
        advice="Call optimizer.zero_grad(set_to_none=True), its default, right behind optimizer.step(): gradients are "
        "then made when the backward pass gets there, while it lets activations go",
        rows=np.concatenate(rows),
        until=np.concatenate(until),
        since=np.concatenate(since),
    )


def _multi_tensor_frames(trace: Trace) -> npt.NDArray[np.bool_]:
    """Mask over ``frames``: functions of torch's optimizers that work on lists of tensors."""
    frames = trace.rows["frames"]
    files = {code for code in np.unique(frames["file"]).tolist()
             if _OPTIMIZER_FILE.search(trace.text(code).replace("\\", "/"))}  # fmt: skip
    names = {code for code in np.unique(frames["name"]).tolist() if _FOREACH_FUNCTION.search(trace.text(code))}
    return np.asarray(np.isin(frames["file"], list(files)) & np.isin(frames["name"], list(names)))
