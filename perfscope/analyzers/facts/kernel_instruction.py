"""The instruction of a compiled program that a communication kernel runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfscope.analyzers.facts.hlo_time import hlo_time
from perfscope.analyzers.hlo.module import HloModule, Instruction
from perfscope.model.trace import MISSING, Trace


def communication_names(trace: Trace) -> Mapping[int, str]:
    """Row of ``kernels`` -> name of the instruction, for communication kernels whose profile says it.

    The program itself need not be there. A name begins with its opcode: ``all-gather-start.3``.
    """
    return {kernel: trace.text(int(trace.rows["hlo_ops"]["name"][row])) for kernel, row in trace.fact(_rows).items()}


def communication_instructions(trace: Trace) -> Mapping[int, Instruction]:
    """Row of ``kernels`` -> instruction, for communication kernels whose program the trace has."""
    ops = trace.rows["hlo_ops"]
    places = {(one.module, one.program_id, one.instruction): one for one in trace.fact(hlo_time).instructions}
    found = {}
    for kernel, row in trace.fact(_rows).items():
        program = int(ops["program_id"][row])
        name = trace.text(int(ops["name"][row]))
        place = places[trace.text(int(ops["module"][row])), None if program == MISSING else program, name]
        if place.module_index is not None and place.computation is not None:
            found[kernel] = _named(trace.hlo[place.module_index], place.computation, name)
    return found


def _named(module: HloModule, computation: str, name: str) -> Instruction:
    """The instruction; of one that only wraps a collective or awaits it, what it wraps or awaits, for its path."""
    held = module.computations[computation].by_name
    one = held[name]
    while not one.op_name and one.opcode.endswith(("-done", "-update")) and one.operands:
        one = held[one.operands[0]]
    if not one.op_name and one.opcode == "async-start" and one.called:
        return module.computations[one.called[0]].root
    return one


def _rows(trace: Trace) -> Mapping[int, int]:
    """Communication kernel -> its row of ``hlo_ops``."""
    ops, kernels = trace.rows["hlo_ops"], trace.rows["kernels"]
    linked = np.flatnonzero(ops["kernel"] != MISSING) if len(ops) else np.empty(0, np.int64)
    linked = linked[kernels["communication"][ops["kernel"][linked]]] if len(linked) else linked
    return {int(ops["kernel"][row]): int(row) for row in linked.tolist()}
