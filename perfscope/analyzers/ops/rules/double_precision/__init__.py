"""Ops compute in float64 where float32 may do.

Example:
    Before::

        x = torch.from_numpy(array)             # float64, numpy's default

    After::

        x = torch.from_numpy(array).float()

Why it costs:
    A float64 number has twice the bytes of a float32 number, and processors multiply half as many per cycle; GPUs for
    workstations and inference have 1/32 or 1/64 of their float32 rate. NumPy makes float64 arrays by default, and
    `torch.from_numpy`, `torch.tensor(array)` and `torch.as_tensor` keep the type, so float64 enters by accident.

How it is found:
    In compiled XLA programs by the types of their instructions: half the time in which instructions with float64
    operands or results run in the recording. The place is the line that sets `jax_enable_x64` (`perfscope run` records
    it), else the line of the longest instruction.

    Otherwise by the dtypes of ops, from the op graph of a run or the shapes of a trace. The cost is half the time of
    ops with float64 operands: on the host their own time where it is more than dispatch, on a device the exposed time
    of their kernels. It is modelled; a GPU with a low float64 rate saves more. The place is the line that converts the
    model or the default dtype (`perfscope run` records `.double()` and `torch.set_default_dtype`), else the first op
    that makes float64 of other types, else the first that takes a float64 tensor from outside of the step.

Fix:
    Convert the data where it is read, and keep the model in float32::

        x = torch.from_numpy(array).float()        # or array.astype(np.float32)
        model = Net()                              # not Net().double()

    In JAX leave `jax_enable_x64` off, or give the arrays of the model their dtype::

        params = jnp.zeros(shape, jnp.float32)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from perfscope.analyzers.examined import op_records
from perfscope.analyzers.ops.op_class import op_class
from perfscope.analyzers.spans import op_times, time_of, worst_spans
from perfscope.analyzers.time import step_windows, timed_cost, whole_ns
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, Where, fit_title
from perfscope.model.trace import MISSING, Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp, OpGraph

LEAST_SHARE = 0.05
"""Smallest share of the step: intended sums, schedules and metrics in float64 take less."""

DISPATCH_NS = 20_000
"""Smallest self time of an op on the host: shorter ones are dispatch, which float32 does not reduce."""

HALF = 0.5
"""Saved share of the time: half the bytes, and at least twice the rate."""

PRODUCTS = frozenset({"matrix product", "convolution", "attention"})

examined = op_records


class _Wide(Struct, kw_only=True):
    """Ops of one name with float64 operands."""

    name: str
    calls: int = 0
    time_ns: int = 0
    saved_ns: int = 0
    rows: list[int] = field(default_factory=list)
    """Rows of ``kernels`` if there are any, else of ``slices``."""


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding for all ops in float64."""
    if "hlo" in trace.recorded:
        from perfscope.analyzers.ops.rules.double_precision.program import program_findings

        yield from program_findings(trace)
        return
    shares = _float64_shares(trace)
    found = _on_device(trace, shares) if len(trace.rows["kernels"]) else _on_host(trace, shares)
    cost, whole = sum(wide.saved_ns for wide in found), whole_ns(trace)
    if cost < LEAST_SHARE * whole or not cost:
        return
    found.sort(key=lambda wide: -wide.time_ns)
    where, why = _entrance(trace)
    work = trace.rows["kernels" if len(trace.rows["kernels"]) else "slices"]
    rows = np.array([row for wide in found for row in wide.rows], np.int64)
    starts, ends = work["start_ns"][rows], work["end_ns"][rows]
    most = found[0].name
    products = sum(wide.calls for wide in found if op_class(wide.name) in PRODUCTS)
    steps = max(1, trace.fact(step_windows).count)
    count = round((products or sum(wide.calls for wide in found)) / steps)
    what = f"{count:,} {'matrix product' if products else 'op'}{'s' if count != 1 else ''} per step"
    yield Finding(
        subject="float64",
        title=fit_title(f"{what} in float64, most time in {most}", most),
        detail=why,
        **timed_cost(trace, cost, whole, "modelled"),
        where=where,
        evidence=tuple(
            {"op": wide.name, "calls": wide.calls, "time_ns": wide.time_ns, "saved_ns": wide.saved_ns}
            for wide in found[:MOST_ROWS]
        ),
        spans=worst_spans(starts, ends, ends - starts),
        advice="Use float32 unless the result needs 53 bits: remove `.double()` and float64 defaults. Convert data "
        "where it is read, `torch.from_numpy(array).float()`.",
    )


def _float64_shares(trace: Trace) -> dict[str, float]:
    """Return, by op name, the share of its calls with a float64 operand; only names with some."""
    if trace.op_graph is not None:
        graph = trace.op_graph
        calls = Counter(_profiled(op) for op in graph.ops)
        wide = Counter(_profiled(op) for op in graph.ops if _is_float64(graph, op))
    else:
        source = trace if "shapes" in trace.recorded else trace.detail
        if source is None or "shapes" not in source.recorded:
            raise AbstainError("dtypes of ops were not recorded (record_shapes=True)", ("shapes",))
        slices = source.rows["slices"]
        typed = slices["dtypes"] != MISSING
        doubles = [code for code, text in enumerate(source.strings) if "double" in text or "float64" in text]
        is_wide = np.isin(slices["dtypes"], doubles)
        calls, wide = (_by_text(source, slices["name"][rows]) for rows in (typed, typed & is_wide))
    return {name: count / calls[name] for name, count in wide.items()}


def _by_text(trace: Trace, codes: npt.NDArray[np.integer[Any]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for code, count in Counter(codes.tolist()).items():
        counts[trace.text(code)] += count
    return counts


def _profiled(op: GraphOp) -> str:
    """Return the profiler's name of an op: ``aten::add`` for ``aten.add.Tensor``."""
    namespace, _, rest = op.name.partition(".")
    return f"{namespace}::{rest.partition('.')[0]}"


def _is_float64(graph: OpGraph, op: GraphOp) -> bool:
    return any(graph.tensors[index].dtype == "float64" for index in (*op.inputs, *op.outputs))


def _on_host(trace: Trace, shares: dict[str, float]) -> list[_Wide]:
    times, names = trace.fact(op_times), trace.rows["slices"]["name"]
    result: dict[str, _Wide] = {}
    by_code = {code: shares.get(trace.text(code), 0.0) for code in np.unique(names[times.row]).tolist()}
    for row, self_ns in zip(times.row.tolist(), times.self_ns.tolist(), strict=True):
        share = by_code[int(names[row])]
        if share and self_ns >= DISPATCH_NS:
            wide = result.setdefault(trace.text(int(names[row])), _Wide(name=trace.text(int(names[row]))))
            wide.calls += 1
            wide.rows.append(row)
            wide.time_ns += round(share * self_ns)
    for wide in result.values():
        wide.saved_ns = round(HALF * wide.time_ns)
    return list(result.values())


def _on_device(trace: Trace, shares: dict[str, float]) -> list[_Wide]:
    kernels, slices = trace.rows["kernels"], trace.rows["slices"]
    members: dict[str, list[int]] = defaultdict(list)
    linked = np.flatnonzero(kernels["op"] != MISSING)
    for row, code in zip(linked.tolist(), slices["name"][kernels["op"][linked]].tolist(), strict=True):
        if trace.text(code) in shares:
            members[trace.text(code)].append(row)
    result = []
    for name, rows in members.items():
        exposed = round(shares[name] * time_of(trace, "kernels", np.array(rows)).exposed_ns)
        result.append(_Wide(name=name, calls=len(rows), time_ns=exposed, saved_ns=round(HALF * exposed), rows=rows))
    return result


def _entrance(trace: Trace) -> tuple[Where, str]:
    """Return the line at which float64 enters, and how."""
    for fact in trace.program_facts:
        if fact.name == "float64" and fact.file is not None:
            return Where(file=fact.file, line=fact.line), f"float64 is set here: {fact.value}."
    graph = trace.op_graph
    if graph is None:
        return Where(), "Where float64 enters was not recorded."
    for op in graph.ops:
        wide = [index for index in op.inputs if graph.tensors[index].dtype == "float64"]
        makes = any(graph.tensors[index].dtype == "float64" for index in op.outputs)
        if op.phase != "optimizer" and (makes or wide):
            how = "takes a float64 tensor that was made before" if wide else "makes a float64 tensor of another type"
            return Where(op=op.name, file=op.file, line=op.line), f"The first op in float64, {op.name}, {how}."
    return Where(), "Where float64 enters was not recorded."
