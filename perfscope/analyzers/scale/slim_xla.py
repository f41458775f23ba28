"""Compiled programs and the recordings of their runs, cut down to what comparing and the sections read.

A recording of one process is compared with no other by its rows: its section of programs, its devices side by side and
its checkpoint policies are derived before the rows and the instructions go. Its communication kernels stay, because
exposed communication outside of a job is told beside the job's.

A process whose collectives reach devices of other processes is kept whole: the runs of all of them are put together
by their instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perfscope.analyzers.facts.exposure import exposed_communication
from perfscope.analyzers.facts.hlo_collectives import collectives
from perfscope.analyzers.facts.hlo_remat_policies import candidates, peaks
from perfscope.analyzers.facts.hot_instructions import hot_instructions
from perfscope.analyzers.facts.kernel_instruction import communication_instructions, communication_names
from perfscope.analyzers.facts.programs import programs
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.ranks.devices import device_set
from perfscope.analyzers.ranks.processes import is_process
from perfscope.analyzers.scale.cut_rows import moved_to, places, with_columns
from perfscope.analyzers.trace import MISSING, Rows, Trace

_DERIVED: tuple[Callable[[Trace], Any], ...] = (programs, hot_instructions, device_set, candidates, peaks)


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaCut:
    """What is kept of a trace beside what is kept of any."""

    hlo: tuple[HloModule, ...] = ()
    rows: Mapping[str, Rows] = field(default_factory=dict)
    facts: Mapping[Any, Any] = field(default_factory=dict)
    whole: bool = False
    """All rows are kept."""


def xla_cut(trace: Trace) -> XlaCut:
    """What comparing reads of a trace's programs and their runs; nothing where there are none."""
    ran = len(trace.rows["hlo_ops"])
    if not trace.hlo and not ran:
        return XlaCut()
    if is_process(trace):
        return XlaCut(hlo=trace.hlo, whole=True, facts={one: trace.fact(one) for one in (programs, hot_instructions)})
    facts: dict[Any, Any] = {derive: trace.fact(derive) for derive in _DERIVED}
    facts[collectives] = ()
    rows: dict[str, Rows] = {}
    if ran:
        kept, exposed, names, instructions = _communication(trace)
        rows = {**kept, "hlo_ops": _one_run(trace)}
        facts |= {
            exposed_communication: exposed, communication_names: names, communication_instructions: instructions
        }  # fmt: skip
    return XlaCut(hlo=tuple(map(_husk, trace.hlo)), rows=rows, facts=facts)


def _husk(module: HloModule) -> HloModule:
    """What names a program and its file: no instruction is left in it."""
    return replace(
        module, computations={}, buffer_assignment=None, aliases=(), donors=(), fusion_refusals={}, thunks=None
    )


def _one_run(trace: Trace) -> Rows:
    """The first run of an instruction: it tells a recording of programs from others."""
    first = trace.rows["hlo_ops"].take(np.zeros(1, np.int64))
    return with_columns(first, {"kernel": MISSING, "copy": MISSING, "slice": MISSING})


def _communication(trace: Trace) -> tuple[dict[str, Rows], np.ndarray, dict[int, str], dict[int, Any]]:
    """Communication kernels and what is known of them: rows, exposed ns by row, instructions' names, instructions."""
    kernels, held = trace.rows["kernels"], trace.rows["collectives"]
    chosen = np.flatnonzero(kernels["communication"])
    at = places(len(kernels), chosen)
    of_kernel = np.flatnonzero(held["kernel"] != MISSING)
    linked = held.take(of_kernel[at[held["kernel"][of_kernel]] != MISSING])
    rows = {
        "kernels": with_columns(kernels.take(chosen), {"call": MISSING, "op": MISSING}),
        "collectives": with_columns(linked, {"kernel": moved_to(linked["kernel"], at), "slice": MISSING}),
    }
    names = {int(at[row]): name for row, name in trace.fact(communication_names).items()}
    instructions = {int(at[row]): one for row, one in trace.fact(communication_instructions).items()}
    return rows, trace.fact(exposed_communication)[chosen], names, instructions
