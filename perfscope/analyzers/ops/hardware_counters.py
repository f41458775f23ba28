"""FLOPs and bytes of ops from hardware counters, to compare with those that follow from shapes.

Counters are recorded per range (`kernel_counters`); an op's value sums the kernels that one call launched.

| value | from |
| --- | --- |
| FLOPs, by precision | add + mul + 2 fma of ``smsp__sass_thread_inst_executed_op_{d,f,h}{add,mul,fma}_pred_on.sum`` |
| bytes through device memory | ``dram__bytes.sum``, else ``dram__bytes_read.sum`` + ``dram__bytes_write.sum`` |
| whether tensor cores worked | ``sm__inst_executed_pipe_tensor.sum``, else the kernel's name |

FLOPs are executed instructions of threads, by NVIDIA's definition of the metrics, without the work of tensor cores.
Compilers load constants with ``HFMA2``, so float32 kernels have float16 FLOPs, too. Bytes exclude accesses that caches
served. FLOPs and bytes by shapes are modelled (`eager_cost`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.ops.achieved import op_costs
from perfscope.analyzers.ops.kernels import uses_tensor_cores
from perfscope.analyzers.time import call_site
from perfscope.model.trace import MISSING, Trace

Floats = npt.NDArray[np.float64]

PRECISIONS = {"float64": "d", "float32": "f", "float16": "h"}
_WEIGHTS = {"add": 1, "mul": 1, "fma": 2}
_INSTRUCTIONS = "smsp__sass_thread_inst_executed_op_{}{}_pred_on.sum"
_TENSOR = "sm__inst_executed_pipe_tensor.sum"
_READ, _WRITTEN, _MOVED = "dram__bytes_read.sum", "dram__bytes_write.sum", "dram__bytes.sum"
_USED = frozenset({_TENSOR, _READ, _WRITTEN, _MOVED}).union(
    _INSTRUCTIONS.format(letter, op) for letter in PRECISIONS.values() for op in _WEIGHTS
)
UNNAMED = "__missing__"
"""The profiler's text for a kernel with unknown name."""

MOST_ROWS = 50
"""Maximum number of ops, and of counter names, kept for a report."""


class CountedCall(Struct, frozen=True, kw_only=True):
    """One call of an op, or a range without an op. ``None``: not counted, or unknown."""

    op: int
    """Row of ``slices``; ``MISSING`` for a range without an op."""
    name: str
    """Name of the op, else of the range."""
    kernels: tuple[str, ...]
    """Names of its ranges, in order."""
    joined: int
    """Number of them with a known launch."""
    basis: str
    flops: dict[str, float | None]
    """Measured, by each precision that was counted."""
    dram_bytes: float | None
    tensor_cores: bool | None
    modelled_flops: int | None
    """FLOPs of products, convolutions and attention, by the shapes."""
    modelled_bytes: int | None
    """Minimum bytes that the op moves."""

    @property
    def total_flops(self) -> float | None:
        """Sum over these precisions."""
        return _sum(self.flops.values()) if self.flops else None


class CountedOp(Struct, frozen=True, kw_only=True):
    """All calls of an op; a value is ``None`` if it is for one of them."""

    name: str
    """The op, else the range."""
    calls: int
    """Calls of the op; ranges where they are of no op."""
    kernels: int
    """Ranges of it."""
    flops: float | None
    """Measured: add + mul + 2 fma instructions of all precisions that were counted, without tensor cores; null
    where it was not counted for all calls."""
    float16_flops: float | None
    """FLOPs in float16; such instructions load constants, too."""
    modelled_flops: int | None
    """By the shapes, of products, convolutions and attention; null where not known for all calls."""
    dram_bytes: float | None
    """Measured: read from and written to device memory."""
    modelled_bytes: int | None
    """The least that the calls move, by the shapes."""
    tensor_cores: bool
    """Whether tensor cores worked: counted, or by the name of a kernel."""
    line: str
    """Place of the call that computes most."""


class CountedWork(Struct, frozen=True, kw_only=True):
    """Hardware counters of one recording, by op."""

    rank: int | None
    ranges: int
    """Kernels, or parts of the program, that were counted."""
    joined: int
    """Number of ranges with known launch."""
    unnamed: int
    """Number of ranges of kernels with unknown name."""
    basis: str
    """How ranges and launches were joined, or why they were not."""
    counters: int
    """Number of counters."""
    metrics: tuple[str, ...]
    """Names of the counters, possibly truncated."""
    ops: tuple[CountedOp, ...]
    """Most compute first; without links to ops, the ranges."""
    left: int
    """Number of further ones."""


def counted_calls(trace: Trace) -> tuple[CountedCall, ...]:
    """Return the calls of ops whose kernels were counted, in the order of their first kernel."""
    counters = trace.rows["kernel_counters"]
    numbers, first, place = np.unique(counters["number"], return_index=True, return_inverse=True)
    names, ops, launches, basis = (counters[name][first].tolist() for name in ("name", "op", "call", "basis"))
    kernels_of: dict[int, list[int]] = defaultdict(list)
    for op, name in zip(ops, names, strict=True):
        if op != MISSING:
            kernels_of[op].append(name)
    costs = op_costs(trace, np.fromiter(kernels_of, np.int64, len(kernels_of)), kernels_of.__getitem__)
    members: dict[int, list[int]] = defaultdict(list)
    for index, op in enumerate(ops):
        owner = costs[op][0] if op in costs else op
        members[-1 - index if op == MISSING else owner].append(index)  # a range without an op stays separate
    cost_of = dict(costs.values())
    group = np.empty(len(numbers), np.int64)
    for number, indices in enumerate(members.values()):
        group[indices] = number
    values = {
        name: _known(np.bincount(group, column, len(members)).astype(np.float64))
        for name, column in _derived(_by_metric(trace, place, len(numbers)), len(numbers)).items()
    }
    precisions = [name for name in PRECISIONS if any(value is not None for value in values[name])]
    slice_names = trace.rows["slices"]["name"]
    calls = []
    for number, (owner, indices) in enumerate(members.items()):
        cost, tensor = cost_of.get(owner), values[_TENSOR][number]
        texts = tuple(trace.text(names[index]) for index in indices)
        calls.append(
            CountedCall(
                op=max(owner, MISSING),
                name=texts[0] if owner < 0 else trace.text(int(slice_names[owner])),
                kernels=texts,
                joined=sum(launches[index] != MISSING for index in indices),
                basis=trace.text(basis[indices[0]]),
                flops={precision: values[precision][number] for precision in precisions},
                dram_bytes=values["dram_bytes"][number],
                tensor_cores=_any(map(uses_tensor_cores, texts)) if tensor is None else tensor > 0,
                modelled_flops=None if cost is None or cost.kind == "memory" else cost.flops,
                modelled_bytes=None if cost is None else cost.bytes,
            )
        )
    return tuple(calls)


def _by_metric(trace: Trace, place: npt.NDArray[np.intp], ranges: int) -> dict[str, Floats]:
    """Return the values of the used counters, by range; NaN if not counted, or negative (invalid)."""
    counters = trace.rows["kernel_counters"]
    result: dict[str, Floats] = {}
    for code in np.unique(counters["metric"]).tolist():
        if trace.text(code) not in _USED:
            continue
        rows = counters["metric"] == code
        value = counters["value"][rows]
        column = result.setdefault(trace.text(code), np.full(ranges, np.nan))
        column[place[rows]] = np.where(value >= 0, value, np.nan)
    return result


def _derived(metrics: dict[str, Floats], ranges: int) -> dict[str, Floats]:
    """Return the values derived from the counters, by range: the only place of these formulas."""
    unknown = np.full(ranges, np.nan)
    result = {_TENSOR: metrics.get(_TENSOR, unknown)}
    for precision, letter in PRECISIONS.items():
        result[precision] = sum(
            (weight * metrics.get(_INSTRUCTIONS.format(letter, op), unknown) for op, weight in _WEIGHTS.items()),
            np.zeros(ranges),
        )
    both = metrics.get(_READ, unknown) + metrics.get(_WRITTEN, unknown)
    whole = metrics.get(_MOVED, unknown)
    result["dram_bytes"] = np.where(np.isnan(whole), both, whole)
    return result


def _known(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _any(values: Iterable[bool | None]) -> bool | None:
    """Return True if one is True, False if all are False, else None."""
    distinct = set(values)
    return True if True in distinct else None if None in distinct else False


def counted_work(trace: Trace) -> CountedWork | None:
    """Return the hardware counters by op, for a report; ``None`` if none were recorded."""
    calls = trace.fact(counted_calls)
    if not calls:
        return None
    by_name: dict[str, list[CountedCall]] = defaultdict(list)
    for call in calls:
        by_name[call.name].append(call)
    ops = sorted(
        ((name, members, _sum(call.total_flops for call in members), _sum(call.dram_bytes for call in members))
         for name, members in by_name.items()),
        key=lambda item: (-(item[2] or 0), -(item[3] or 0), -len(item[1]), item[0]),
    )  # fmt: skip
    metrics = [code for code in np.unique(trace.rows["kernel_counters"]["metric"]).tolist() if code != MISSING]
    return CountedWork(
        rank=trace.source.rank,
        ranges=sum(len(call.kernels) for call in calls),
        joined=sum(call.joined for call in calls),
        unnamed=sum(call.kernels.count(UNNAMED) for call in calls),
        basis=calls[0].basis,
        counters=len(metrics),
        metrics=tuple(sorted(trace.text(code) for code in metrics[:MOST_ROWS])),
        ops=tuple(_counted_op(trace, name, members) for name, members, _, _ in ops[:MOST_ROWS]),
        left=max(0, len(ops) - MOST_ROWS),
    )


def _counted_op(trace: Trace, name: str, calls: Sequence[CountedCall]) -> CountedOp:
    most = max(calls, key=lambda call: (call.total_flops or 0, call.dram_bytes or 0))
    site = call_site(trace, most.op)
    flops = _sum(call.modelled_flops for call in calls)
    moved = _sum(call.modelled_bytes for call in calls)
    return CountedOp(
        name=name,
        calls=len(calls),
        kernels=sum(len(call.kernels) for call in calls),
        flops=_sum(call.total_flops for call in calls),
        float16_flops=_sum(call.flops.get("float16") for call in calls),
        modelled_flops=None if flops is None else int(flops),
        dram_bytes=_sum(call.dram_bytes for call in calls),
        modelled_bytes=None if moved is None else int(moved),
        tensor_cores=any(call.tensor_cores for call in calls),
        line="" if site.file is None else site.where().label(),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum; ``None`` if one value is unknown."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)
