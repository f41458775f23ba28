"""Findings about instructions of compiled programs that only move data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from perfscope.analyzers.ops.finding_spans import spans_of_parts
from perfscope.analyzers.programs import price, priced, program_movements
from perfscope.analyzers.time import whole_ns
from perfscope.model.finding import MOST_ROWS, Finding, Where, fit_title

if TYPE_CHECKING:
    from perfscope.analyzers.programs import ProgramMovement
    from perfscope.model.trace import Trace

LEAST_SHARE = 0.1
"""Smallest share of the steps, or of the modelled run of the program, for avoidable causes."""

LEAST_SHARE_OF_NEEDED = 0.2
"""Smallest share for causes that a program may need."""

_NEEDED = frozenset({"join", "convert", "layout", "scatter"})

_WORDS: dict[str, tuple[str, str]] = {
    "cache_join": (
        "the cache of keys and values is copied by `concatenate` for each new part",
        "Allocate the cache once at its full length and write each step's part with `jax.lax.dynamic_update_slice`; "
        "donate it (`jax.jit(step, donate_argnames=...)`), or it is copied all the same.",
    ),
    "loop_copy": (
        "a loop takes an array apart and puts it together again, to change a small part of it",
        "Hold the array (a cache) in the carry of the loop in place of `xs` and `ys`, and write the new part in place: "
        "`jax.lax.dynamic_update_slice` with the number of the turn, or `cache.at[layer, :, n].set(k)`.",
    ),
    "kept_join": (
        "`concatenate` copies all that was kept before, in each call",
        "Write new parts into an array of the full size with `jax.lax.dynamic_update_slice`, and donate it "
        "(`jax.jit(step, donate_argnames=...)`).",
    ),
    "join": (
        "`concatenate` copies its parts into one array",
        "Apply what follows to the parts and add the results (a product: the weight in slices). Or write the parts "
        "into one array with `jax.lax.dynamic_update_slice`.",
    ),
    "head_repeat": (
        "keys and values are copied for each query head",
        "Pass fewer heads of keys and values as they are to `jax.nn.dot_product_attention`. In an einsum give the "
        "queries an axis of groups: `q.reshape(B, T, K, G, D)`.",
    ),
    "repeat": (
        "an array is written several times over",
        "Leave the repetition to the op that reads it: a separate axis in `jnp.einsum`, or broadcasting.",
    ),
    "dequantise": (
        "weights are converted from a small dtype in every call",
        "Convert them once before the loop where memory allows, or multiply in the small dtype and scale the result.",
    ),
    "convert": (
        "an array is converted between dtypes in every call",
        "Convert once, before the loop, or keep it in the dtype that the program computes in.",
    ),
    "layout": (
        "an array is copied to change the order of its axes",
        "Keep the array in the order that the product reads (heads before positions, contracted axis last).",
    ),
    "scatter": (
        "rows are added or written one index at a time",
        "Sort the indices once before the loop and use `jax.ops.segment_sum(..., indices_are_sorted=True)`.",
    ),
}  # fmt: skip


def program_findings(trace: Trace) -> Iterable[Finding]:
    """Yield a finding per cause in a file of the program with a large part of the steps, or of a run."""
    for movement in program_movements(trace):
        finding = _finding(trace, movement)
        whole = finding.run_ns if finding.run_ns is not None else whole_ns(trace)
        least = LEAST_SHARE_OF_NEEDED if movement.kind in _NEEDED else LEAST_SHARE
        if finding.cost_ns and finding.cost_ns >= least * whole:
            yield finding


def _finding(trace: Trace, movement: ProgramMovement) -> Finding:
    title, advice = _WORDS[movement.kind]
    _, first, _, _ = movement.instructions[0]
    count = len({item.name for _, item, _, _ in movement.instructions})
    finding = Finding(
        subject=movement.kind.replace("_", " "),
        title=fit_title(f"{title}: {count:,} instruction{'' if count == 1 else 's'}"),
        severity="low",
        basis="structural",
        advice=advice,
        where=Where(op=first.name, file=movement.place.file, line=movement.place.line),
        evidence=tuple(
            {
                "program": trace.hlo[index].name,
                "instruction": item.name,
                "line": "" if item.file is None else f"{item.file}:{item.line}",
                "runs": runs,
                "result_bytes": item.shape.bytes,
                "time_ns": round(time),
            }
            for index, item, time, runs in movement.instructions[:MOST_ROWS]
        ),
        spans=spans_of_parts(trace, movement.parts),
    )
    return priced(finding, price(trace, movement.parts))
