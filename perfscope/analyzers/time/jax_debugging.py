"""Facts of a JAX run: enabled debugging switches, and interpreted Pallas kernels."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from perfscope.model.documents.run import ProgramFact
from perfscope.model.finding import Where
from perfscope.model.intervals import Intervals, union
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.analyzers.hlo import HloModule, Instruction

INTERPRETED = "pallas_interpret"
"""Name of the fact about an interpreted kernel."""

JIT_DISABLED = "jax_disable_jit"
SWITCHES = frozenset({"jax_check_tracer_leaks", "jax_debug_infs", "jax_debug_nans", JIT_DISABLED, "jax_enable_checks"})


class InterpretedKernel(Struct, frozen=True, kw_only=True):
    """Interpreted Pallas kernels of one line."""

    where: Where
    calls: int
    """Number of kernels lowered in this way."""
    spans: Intervals
    """Times of the loops of that line; empty if the recording has no instructions of them."""


class JaxDebugging(Struct, frozen=True, kw_only=True):
    """Debugging aids that slow a JAX program down."""

    switches: tuple[ProgramFact, ...]
    """Enabled debugging switches of jax's configuration."""
    kernels: tuple[InterpretedKernel, ...]

    @property
    def disable_jit(self) -> ProgramFact | None:
        """The switch that makes every operation a separate program."""
        return next((fact for fact in self.switches if fact.name == JIT_DISABLED), None)


def jax_debugging(trace: Trace) -> JaxDebugging:
    """Return the enabled switches, and the interpreted kernels; a fact of the trace."""
    switches = tuple(fact for fact in trace.program_facts if fact.name in SWITCHES)
    return JaxDebugging(switches=switches, kernels=_interpreted_kernels(trace))


def _interpreted_kernels(trace: Trace) -> tuple[InterpretedKernel, ...]:
    """Return the interpreted kernels, by line."""
    ops = trace.rows["hlo_ops"]
    result = []
    for fact in trace.program_facts:
        if fact.name != INTERPRETED:
            continue
        rows = np.concatenate([_rows(trace, module, fact) for module in trace.hlo] or [np.empty(0, np.int64)])
        spans = union(ops["start_ns"][rows], ops["end_ns"][rows])
        result.append(InterpretedKernel(where=Where(file=fact.file, line=fact.line), calls=fact.count, spans=spans))
    return tuple(result)


def is_interpreted(trace: Trace, instruction: Instruction) -> bool:
    """Whether a loop is that of a kernel which Pallas interprets."""
    return any(fact.name == INTERPRETED and _at(instruction, fact) for fact in trace.program_facts)


def _rows(trace: Trace, module: HloModule, fact: ProgramFact) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    from perfscope.analyzers.hlo import CONTROL, control_runs, rows_of

    inside: set[str] = set()
    for name in control_runs(module):
        for one in module.computations[name].instructions:
            runs = one.opcode in CONTROL and name in inside
            if runs or (one.opcode == "while" and _at(one, fact)):
                inside.update(one.called)
    return rows_of(trace, module, (one.name for name in inside for one in module.computations[name].instructions))


def _at(instruction: Instruction, fact: ProgramFact) -> bool:
    """Whether it is at the fact's line; folders of a file name may differ."""
    if instruction.file is None or fact.file is None or instruction.line != fact.line:
        return False
    return PurePath(instruction.file).name == PurePath(fact.file).name
