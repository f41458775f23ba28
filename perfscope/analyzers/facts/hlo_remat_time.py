"""Time that recomputation takes: measured where the instructions were recorded, else their roof on the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from perfscope.analyzers.facts.hlo_program import costs
from perfscope.analyzers.facts.hlo_remat import Cloned, Recomputed
from perfscope.analyzers.facts.hlo_roofline import compute_ns, roof_of
from perfscope.analyzers.facts.hlo_saving import Part, price
from perfscope.analyzers.facts.program_device import program_device
from perfscope.analyzers.hlo.cost import InstructionCost, ModuleCost
from perfscope.analyzers.hlo.cost_phase import phase_of
from perfscope.model.trace import Trace


def recomputed_parts(trace: Trace, products: Iterable[Recomputed]) -> list[Part]:
    """Products that ``jax.checkpoint`` runs again, for ``price``; each kernel once, whatever it holds.

    A kernel that is recomputation by its own name goes as a whole. Of one that does other work too, the product's
    arithmetic at the device's peak goes, and no more than the kernel took.
    """
    holders, parts = trace.fact(_holders), {}
    known = trace.fact(program_device)
    for one in products:
        kernel = one.row
        if kernel.place == "inside":
            kernel = holders[id(one.cost)].get(kernel.computation, kernel)
        whole = kernel is one.row or phase_of(kernel.instruction.op_name) == "recompute"
        if whole:
            parts[id(kernel)] = _whole(trace, one.cost, kernel)
        else:
            once = None if known is None else compute_ns(one.row.once, known.device)
            modelled = None if once is None else once * one.row.runs
            parts[id(one)] = Part(module=one.cost.module, instructions=(kernel.instruction.name,), modelled_ns=modelled)
    return list(parts.values())


def cloned_parts(trace: Trace, clones: Iterable[Cloned]) -> list[Part]:
    """Kernels that XLA's own rematerialization added, for ``price``."""
    return [_whole(trace, one.cost, row) for one in clones for row in one.rows]


def part_ns(trace: Trace, parts: Iterable[Part]) -> float | None:
    """What parts take in one run of the program, measured or modelled; None where neither is known."""
    found = price(trace, parts)
    return None if found is None else found.run_ns


def ns_a_mib(spent_ns: float | None, kept_bytes: int) -> float | None:
    """Time lost for each MiB that keeping the values would take; None where no time is known or nothing is kept."""
    return None if spent_ns is None or not kept_bytes else spent_ns / (kept_bytes / (1 << 20))


def _whole(trace: Trace, cost: ModuleCost, row: InstructionCost) -> Part:
    known = trace.fact(program_device)
    modelled = None if known is None else roof_of(row, known.device).roof_ns * row.runs
    return Part(module=cost.module, instructions=(row.instruction.name,), modelled_ns=modelled, whole=True)


def _holders(trace: Trace) -> Mapping[int, Mapping[str, InstructionCost]]:
    """By ``id`` of a program's cost: the launched instruction that holds each computation inside fusions."""
    return {
        id(cost): {
            name: row for row in cost.rows if row.place == "launched" for name in _inside(cost, row.instruction.called)
        }
        for cost in trace.fact(costs)
    }


def _inside(cost: ModuleCost, called: Iterable[str]) -> Iterator[str]:
    for name in called:
        yield name
        body = cost.module.computations.get(name)
        for inner in body.instructions if body is not None else ():
            if inner.called and inner.opcode in ("fusion", "async-start", "call"):
                yield from _inside(cost, inner.called)
