"""Findings of ``constant_work`` about compiled XLA programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfscope.analyzers.ops.finding_spans import spans_of_parts
from perfscope.analyzers.programs import ConstantWork, Part, constant_work, once_ns, price, priced
from perfscope.analyzers.time import whole_ns
from perfscope.model.finding import MOST_ROWS, Finding, Where, fit_title

if TYPE_CHECKING:
    from perfscope.analyzers.hlo import Instruction, InstructionCost
    from perfscope.model.trace import Trace

_WORDS: dict[str, tuple[str, str]] = {
    "product": (
        "factors of a weight are multiplied out in every call",
        "Apply the factors to the input (`x @ w + (x @ a) @ b`), or merge them once before the loop.",
    ),
    "dequantised": (
        "weights are converted from {dtype} in every call",
        "Convert them once before the loop where memory allows, or multiply in the small dtype and scale the result.",
    ),
    "converted": (
        "weights are converted to another dtype in every call",
        "Convert them once before the loop: `params = jax.tree.map(lambda w: w.astype(dtype), params)`.",
    ),
    "other": (
        "arrays that depend on weights alone are made in every call",
        "Make them once before the loop, in another jitted function, and pass them as arguments.",
    ),
}


def program_findings(trace: Trace, least: float) -> Iterator[Finding]:
    """Yield one finding per program and file with a share of the steps, or of the modelled run, in constant work."""
    once = trace.fact(once_ns)
    for work in trace.fact(constant_work):
        finding = _finding(trace, work, {key[1:]: time for key, time in once.items() if key[0] == work.index})
        whole = finding.run_ns if finding.run_ns is not None else whole_ns(trace)
        if finding.cost_ns and finding.cost_ns >= least * whole:
            yield finding


def _finding(trace: Trace, work: ConstantWork, once: dict[tuple[str, str], float]) -> Finding:
    def time(pair: tuple[InstructionCost, Instruction]) -> float:
        row, _ = pair
        return row.runs * once.get((row.computation, row.instruction.name), 0.0)

    kernels = sorted(work.kernels, key=lambda pair: -time(pair))
    module = trace.hlo[work.index]
    parts = tuple(
        Part(module=module, instructions=(row.instruction.name,), modelled_ns=time((row, at)), whole=True)
        for row, at in kernels
    )
    forward = [(row, at) for row, at in kernels if "transpose(" not in at.op_name]
    place = next((at for _, at in forward if at.file is not None), kernels[0][1])
    title, advice = _WORDS[work.kind]
    count = len(kernels)
    finding = Finding(
        subject="work on weights alone",
        title=fit_title(f"{title.format(dtype=work.dtype)}: {count:,} kernel{'' if count == 1 else 's'}"),
        detail="The result is the same in every call until the weights change.",
        severity="low",
        basis="structural",
        advice=advice,
        where=Where(op=place.name, file=place.file, line=place.line),
        evidence=tuple(
            {
                "line": "" if at.file is None else f"{at.file}:{at.line}",
                "program": module.name,
                "instruction": row.instruction.name,
                "phase": "backward" if "transpose(" in at.op_name else "forward",
                "runs": row.runs,
                "time_ns": round(time((row, at))),
            }
            for row, at in kernels[:MOST_ROWS]
        ),
        spans=spans_of_parts(trace, parts),
    )
    return priced(finding, price(trace, parts))
