"""Many short kernels in a row, on a device that has work queued.

Example:
    Before::

        y = F.silu(x + bias) * gate

    After::

        @torch.compile
        def gated(x, bias, gate):
            return F.silu(x + bias) * gate

Why it costs: a kernel needs about 2 us to fill the device and to drain it again, whatever it computes, and
the device needs about 1 us from one kernel to the next. Where kernels run for only a few microseconds, a
good part of the device's time is this ramp.

How it is found: kernels under 10 us that follow each other on one stream with nothing else running, where
the next was launched before the one before it ended. Merging such a pair would save the gap between them
and at most one ramp: the cost is the sum of the gaps and of 2 us (or of the kernel's whole time, if that is
shorter) for every kernel after the first of a row. It is modelled, and an upper bound: not every pair can
be merged. Where the device waits for the host, shorter kernels save nothing: those pairs are not counted
here but in `launch_bound`, so the two costs never hold the same time.

Fix: `torch.compile` merges pointwise and reduction kernels; optimizers take `fused=True` or `foreach=True`;
batch small matmuls (`torch.bmm`, grouped matmul) and small tensors (`torch._foreach_*`); use larger
batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from perfscope.analyzers.examined import launched_records
from perfscope.analyzers.spans import removed_time, rows_by_device, worst_spans
from perfscope.analyzers.time.calls import SHORT_NS, Framework, ShortPairs, framework, short_pairs
from perfscope.analyzers.time.device_time import DeviceTime, device_times
from perfscope.analyzers.time.fixes import situation
from perfscope.analyzers.time.sites import call_site
from perfscope.analyzers.time.steps import timed_cost, whole_ns
from perfscope.model.finding import MOST_ROWS, Cell, Finding, Removed
from perfscope.model.intervals import Int64, union
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_ns

COUNT_SHARE = 0.5
"""Smallest share of a device's compute kernels: with fewer, the program does not consist of short kernels."""

COST_SHARE = 0.05
"""Smallest share of a device's span. The saving is modelled and not all pairs can be merged, so the margin is large."""


_ADVICE = "Fuse them: {compile_model}, {fused} for the optimizer, `torch.bmm` for small matmuls."
_JAX_ADVICE = "Put what follows each other in one `jax.jit`, and batch small products with `jax.vmap`."
_CUDA_ADVICE = "Merge kernels that follow each other, or capture them in {graph_capture}."
_FIX: dict[Framework, str] = {"torch": _ADVICE, "jax": _JAX_ADVICE, "none": _CUDA_ADVICE}


examined = launched_records


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding for the device for which merging short kernels would save most."""
    kernels = trace.rows["kernels"]
    findings: list[Finding] = []
    for device in trace.fact(device_times):
        here = trace.fact(rows_by_device)["kernels"][device.device]
        compute = here[~kernels["communication"][here]]
        short = int((kernels["end_ns"][compute] - kernels["start_ns"][compute] < SHORT_NS).sum())
        if short < COUNT_SHARE * len(compute) or not len(compute):
            continue
        pairs = short_pairs(trace, device.device)
        if pairs.saved_ns.sum() >= COST_SHARE * device.span_ns:
            findings.append(_finding(trace, device, pairs, short, len(compute)))
    return sorted(findings, key=lambda finding: -(finding.cost_ns or 0))[:1]


def _finding(trace: Trace, device: DeviceTime, pairs: ShortPairs, short: int, compute: int) -> Finding:
    cost = int(pairs.saved_ns.sum())
    kernels = trace.rows["kernels"]
    starts, ends = (kernels[key][pairs.kernel] for key in ("start_ns", "end_ns"))
    return Finding(
        subject="short kernels",
        title=f"{short:,} of {compute:,} kernels are shorter than {format_ns(SHORT_NS)}",
        detail="Modelled: the saving by merging consecutive kernels. Only pairs that were queued count; "
        "idle time in which the host was late is in launch_bound.",
        **timed_cost(trace, cost, whole_ns(trace), "modelled"),
        covers_ns={"dependency": int(pairs.gap_ns.sum())},
        advice=trace.fact(situation).for_device(_FIX[framework(trace)]),
        evidence=_evidence(trace, pairs),
        spans=worst_spans(starts - pairs.gap_ns, ends, pairs.saved_ns),
        removes=(
            Removed(table="kernels", rows=pairs.kernel, left=1 - (pairs.saved_ns - pairs.gap_ns) / (ends - starts)),
            removed_time(union(starts - pairs.gap_ns, starts)),
        ),
    )


def _evidence(trace: Trace, pairs: ShortPairs) -> tuple[Mapping[str, Cell], ...]:
    """Return the saved time by op and kernel of the second of a pair."""
    kernels, slices = trace.rows["kernels"], trace.rows["slices"]
    names = kernels["name"][pairs.kernel].astype(np.int64)
    ops = kernels["op"][pairs.kernel]
    op_names = np.where(ops == MISSING, MISSING, slices["name"][np.maximum(ops, 0)]) if len(slices) else ops
    keys, first, index = np.unique(np.stack([names, op_names]), axis=1, return_index=True, return_inverse=True)
    index = index.reshape(-1)
    duration = (kernels["end_ns"] - kernels["start_ns"])[pairs.kernel]
    saved, gap, total = (_summed(values, index, keys.shape[1]) for values in (pairs.saved_ns, pairs.gap_ns, duration))
    count = np.bincount(index, minlength=keys.shape[1])
    return tuple(
        {
            "op": trace.text(int(keys[1, i])) or None,
            "kernel": trace.text(int(keys[0, i])),
            "at": _at(trace, int(ops[first[i]])),
            "kernels": int(count[i]),
            "saved_ns": int(saved[i]),
            "gap_ns": int(gap[i]),
            "duration_ns": int(total[i]),
        }
        for i in np.argsort(-saved, kind="stable")[:MOST_ROWS].tolist()
    )


def _at(trace: Trace, op: int) -> str | None:
    """Return the user's line that called an op, or that a kernel of inductor computes; ``None`` if unknown."""
    site = call_site(trace, op)
    return site.where().label() if site.file is not None else None


def _summed(values: Int64, index: Int64, size: int) -> Int64:
    total = np.zeros(size, np.int64)
    np.add.at(total, index, values)
    return total
