"""Ops of PyTorch that compute nothing: they join, copy, fill or pick data. By cause and place in the program.

The time is that of kernels and of copies inside a device, by the op that launched them; without an accelerator it is
the self time of ops. The enclosing ops determine the cause: ``aten::fill_`` in ``SelectBackward0`` clears the gradient
of an index, ``aten::copy_`` in ``aten::reshape`` changes a layout. Work of data loaders is excluded.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.graph import short_name, trace_flow
from perfscope.analyzers.ops.cache_copies import ATTENTION, attention_functions, cache_copies, is_attention
from perfscope.analyzers.spans import input_slices, named_slices, nearest_ancestor, op_times
from perfscope.analyzers.time import (
    CallSite,
    account_windows,
    call_site,
    detail_row,
    graph_op,
    graph_ops_inside,
    kind_of_slice,
)
from perfscope.model.frames.kinds import FrameKind
from perfscope.model.intervals import Int64, covered, union
from perfscope.model.op_flops import PLAIN_PRODUCTS
from perfscope.model.trace import MISSING, CopyKind, SliceKind, Trace

MovementKind = Literal[
    "index_gradient",
    "pick_gradient",
    "embedding_gradient",
    "one_hot",
    "cache_join",
    "cache_copy",
    "row_pick",
    "page_gather",
    "kept_join",
    "join",
    "head_repeat",
    "repeat",
    "dequantise",
    "convert",
    "layout",
    "clone",
    "assign",
    "clear",
    "search",
    "scatter",
    "gather",
    "shift",
]
"""``kept_join``: a value kept before the step and a new one are joined and kept for the next step; ``cache_join``:
attention also reads the result. ``cache_copy``: a cache is written again as a whole; ``row_pick``: by an index of its
rows; ``page_gather``: its pages are joined for attention. ``head_repeat``: keys and values are copied for each query
head.
"""

MOST_SITES = 1_000
"""Maximum number of ops whose line is looked up, most time first: each takes about 0.1 ms. The others of a cause get
the line with most of its time.
"""

LEAST_PART = 0.01
"""Smallest share of the steps for a cause."""

_VIEW_GRADIENT = re.compile(
    r"(?:autograd::engine::evaluate_function: )?"
    r"(?:Select|Slice|Unfold|Diagonal|AsStrided|Narrow)Backward\d*"
)
_PICK_GRADIENT = re.compile(r"(?:autograd::engine::evaluate_function: )?IndexBackward\d*")
_COLLECTIVES = ("_c10d_functional::", "c10d::")
"""Beginnings of ops that exchange data between ranks, or wait for it."""
_JOINS = frozenset({"cat", "stack", "_cat", "concat", "hstack", "vstack"})
_FILLS = frozenset({"fill", "zero", "fill_scalar"})
_GATHERS = frozenset({"index", "index_select", "gather", "take", "take_along_dim", "masked_select"})
_SCATTERS = frozenset({
    "index_put", "_index_put_impl", "_unsafe_index_put", "scatter", "scatter_add", "scatter_reduce", "index_add",
    "index_copy", "masked_scatter", "index_fill", "put",
})  # fmt: skip
_SEARCHES = frozenset({"nonzero", "nonzero_numpy", "argwhere"})
_SHIFTS = frozenset({"roll", "flip"})
_CONVERSIONS = frozenset({"_to_copy", "to", "type_as"})
_ARITHMETIC = frozenset({"add", "sub", "rsub", "mul", "div", "true_divide", "pow", "addcmul", "addcdiv", "lerp",
                         "remainder", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"})  # fmt: skip
"""Ops that accept a number instead of a tensor."""
_LAYOUTS = frozenset({"contiguous", "reshape", "flatten", "as_strided_copy"})
_REPEATS = frozenset({"repeat", "repeat_interleave", "tile"})
_SMALL_INTEGERS = frozenset({"signed char", "unsigned char", "int8", "uint8", "c10::Float8_e4m3fn",
                             "c10::Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2"})  # fmt: skip
"""dtypes of weights that are stored in a small type and converted for computing."""


_MOVES = (
    _JOINS | _FILLS | _GATHERS | _SCATTERS | _SEARCHES | _SHIFTS | _CONVERSIONS | _LAYOUTS | _REPEATS
    | {
        "copy", "clone", "narrow", "select", "slice", "as_strided", "expand", "expand_as", "view", "unsqueeze",
        "squeeze",
        "permute", "transpose", "t", "movedim", "unfold", "split", "chunk", "unbind", "empty", "empty_like",
        "empty_strided", "new_empty", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full",
        "full_like", "new_full", "resize", "set", "detach", "lift_fresh", "alias", "_unsafe_view", "pad",
        "constant_pad_nd", "float", "half", "bfloat16", "int", "long", "slice_scatter", "select_scatter", "where",
        "broadcast_to", "_reshape_alias", "_reshape_copy", "item", "_local_scalar_dense",
    }
)  # fmt: skip
"""Ops that compute nothing: copies inside other ops belong to those ops."""


class Movement(Struct, frozen=True, kw_only=True, eq=False):
    """Ops of one cause in one function of the program."""

    kind: MovementKind
    op: str
    """Op with most of the time, as recorded."""
    cause: str
    """Enclosing op or autograd node that is the reason: ``SelectBackward0``; ``""``: the op itself."""
    site: CallSite
    """Call site of most of the time."""
    rows: Int64
    """Rows of ``slices``, costliest first."""
    times_ns: Int64
    """Time of each row."""
    lines: tuple[tuple[str, int, int], ...]
    """(line or ``""``, calls of ``op``, ns), costliest first."""
    backward: bool
    """Whether it is in the backward pass."""
    attention: bool
    """Whether it is in the function of an attention."""
    onto: Literal["grows", "stays"] = "stays"
    """Whether the kept result of a join becomes longer."""

    @property
    def time_ns(self) -> int:
        """Time in all steps."""
        return int(self.times_ns.sum())

    @property
    def calls(self) -> int:
        """Calls of ``op`` in all steps."""
        return sum(calls for _, calls, _ in self.lines)


def times_of_ops(trace: Trace) -> tuple[Int64, Int64]:
    """Return (row of ``slices``, ns) of each op with work in the steps: launched device work, else self time."""
    windows = trace.fact(account_windows)
    steps = union(windows.starts, windows.ends)
    slices = trace.rows["slices"]
    total = np.zeros(len(slices), np.int64)
    for table in ("kernels", "copies"):
        work = trace.rows[table]
        mine = work["op"] != MISSING
        if table == "copies":
            mine &= np.isin(work["kind"], [CopyKind.DEVICE_TO_DEVICE, CopyKind.MEMSET])
        np.add.at(total, work["op"][mine], covered(steps, work["start_ns"][mine], work["end_ns"][mine]))
    if not len(trace.rows["kernels"]):
        times = trace.fact(op_times)
        inside = covered(steps, slices["start_ns"][times.row], slices["end_ns"][times.row]) > 0
        total[times.row[inside]] = times.self_ns[inside]
    rows = np.flatnonzero(total)
    return rows, total[rows]


def movements(trace: Trace) -> tuple[Movement, ...]:
    """Return the movements that take at least ``LEAST_PART`` of the steps, costliest first."""
    rows, times = trace.fact(times_of_ops)
    whole = trace.fact(account_windows).whole_ns
    causes = _causes(trace, rows)
    causes[np.isin(rows, trace.fact(_products_of_one_hot))] = "one_hot"
    copies = trace.fact(cache_copies)
    for kind, ops in (("cache_copy", copies.copies), ("row_pick", copies.picks), ("page_gather", copies.gathers)):
        causes[np.isin(rows, _rows_of(trace, ops))] = kind
    found: list[Movement] = []
    for kind in dict.fromkeys(causes.tolist()):
        mine = np.flatnonzero(causes == kind)
        if not kind or times[mine].sum() < LEAST_PART * whole:
            continue
        found += _placed(trace, kind, rows[mine], times[mine])
    return tuple(sorted(found, key=lambda item: -item.time_ns))


def _products_of_one_hot(trace: Trace) -> Int64:
    """Return rows of ``slices`` with conversions and products of one-hot rows and their gradients, by the op graph."""
    graph, flow = trace.op_graph, trace.fact(trace_flow)
    made = graph_ops_inside(trace, frozenset({"aten::one_hot"}))
    if graph is None or flow is None or not made:
        return np.empty(0, np.int64)
    readers, open_ = set[int](), set(made)
    while open_:
        following = {reader for op in open_ for reader in flow.consumers[op]} - readers - made
        readers |= {op for op in following if short_name(graph.ops[op]) in PLAIN_PRODUCTS}
        open_ = {op for op in following if short_name(graph.ops[op]) in ("_to_copy", "clone", "copy_")}
        readers |= open_
    numbers = {graph.ops[op].sequence for op in readers} - {None}
    readers |= {op.index for op in graph.ops if op.phase == "backward" and op.sequence in numbers}
    return _rows_of(trace, readers)


def _rows_of(trace: Trace, ops: Collection[int]) -> Int64:
    """Return rows of ``slices`` with these ops of the op graph, of those with most time."""
    if not ops:
        return np.empty(0, np.int64)
    rows, times = trace.fact(times_of_ops)
    longest = rows[np.argsort(-times, kind="stable")][:MOST_SITES].tolist()
    return np.array([row for row in longest if (op := graph_op(trace, row)) is not None and op.index in ops], np.int64)


def _plain(name: str) -> str:
    return name.rpartition("::")[2].rstrip("_") if name.startswith("aten::") else name


def _causes(trace: Trace, rows: Int64) -> npt.NDArray[np.str_]:
    """Return the kind of each row by the names of the enclosing ops; ``""``: it computes."""
    kinds = trace.rows["slices"]["kind"] == SliceKind.OP

    def own(names: frozenset[str]) -> npt.NDArray[np.bool_]:
        return named_slices(trace, lambda name: name.startswith("aten::") and _plain(name) in names)[rows]

    def within(matches: Callable[[str], object]) -> npt.NDArray[np.bool_]:
        return np.asarray(nearest_ancestor(trace, rows, named_slices(trace, matches) & kinds) != MISSING)

    def inside(names: frozenset[str]) -> npt.NDArray[np.bool_]:
        return within(lambda name: name.startswith("aten::") and _plain(name) in names)

    copies, backward = own(frozenset({"copy"})), within(_is_backward)
    loads = np.zeros(len(trace.rows["slices"]), bool)
    loads[input_slices(trace)] = True
    computing = within(lambda name: name.startswith("aten::") and _plain(name) not in _MOVES)
    skipped = (nearest_ancestor(trace, rows, loads) != MISSING) | inside(frozenset({"pin_memory", "_pin_memory"}))
    skipped |= within(lambda name: name.startswith(_COLLECTIVES))  # a join of gathered parts waits for them
    tests: tuple[tuple[npt.NDArray[np.bool_], MovementKind | Literal[""]], ...] = (
        (skipped, ""),
        (within(_VIEW_GRADIENT.fullmatch), "index_gradient"),
        (within(_PICK_GRADIENT.fullmatch), "pick_gradient"),
        (inside(frozenset({"embedding_dense_backward"})), "embedding_gradient"),
        (inside(frozenset({"one_hot"})), "one_hot"),
        (copies & inside(_CONVERSIONS), "convert"),
        (copies & inside(_LAYOUTS), "layout"),
        (computing, ""),
        (inside(_REPEATS), "repeat"),
        (inside(_JOINS) & ~backward, "join"),
        (copies & inside(frozenset({"clone"})), "clone"),
        (copies & ~backward, "assign"),
        (own(_FILLS) & ~backward, "clear"),
        (own(_SEARCHES), "search"),
        (own(_SCATTERS), "scatter"),
        (own(_GATHERS), "gather"),
        (own(_SHIFTS), "shift"),
    )
    return np.select([test for test, _ in tests], [np.array(kind) for _, kind in tests], default=np.array(""))


def _is_backward(name: str) -> bool:
    return name.startswith("autograd::engine::evaluate_function") or "Backward" in name


def _placed(trace: Trace, kind: str, rows: Int64, times: Int64) -> Iterator[Movement]:
    """Yield the rows of a cause by function of the program."""
    order = np.argsort(-times, kind="stable")
    rows, times = rows[order], times[order]
    sites = [call_site(trace, row) for row in rows[:MOST_SITES].tolist()]
    usual = _usual(sites, times)
    groups: dict[tuple[str, str | None, str | None], list[int]] = defaultdict(list)
    refined = [_refined(trace, kind, row) for row in rows[:MOST_SITES].tolist()]
    common = Counter(refined).most_common(1)[0][0]
    for index in range(len(rows)):
        site = sites[index] if index < MOST_SITES else usual
        exact = refined[index] if index < MOST_SITES else common
        if exact:
            groups[exact, site.file, site.function or site.module].append(index)
    for (exact, _, _), members in groups.items():
        chosen = np.array(members, np.int64)
        yield _movement(trace, exact, rows[chosen], times[chosen], [*sites, usual], chosen)


def _usual(sites: list[CallSite], times: Int64) -> CallSite:
    spent: dict[CallSite, int] = defaultdict(int)
    for site, time in zip(sites, times.tolist(), strict=False):
        spent[site] += time
    return max(spent, key=lambda site: spent[site])


def _movement(trace: Trace, kind: str, rows: Int64, times: Int64, sites: list[CallSite], chosen: Int64) -> Movement:
    names = trace.rows["slices"]["name"][rows]
    spent = np.bincount(names, times)
    longest = int(rows[np.flatnonzero(names == int(spent.argmax()))[0]])
    by_line: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    counted = set(chosen[names == names[rows == longest][0]].tolist())
    for index, time in zip(chosen.tolist(), times.tolist(), strict=True):
        site = sites[min(index, len(sites) - 1)]
        label = "" if site.file is None else site.where().label()
        by_line[label][0] += index in counted
        by_line[label][1] += time
    lines = sorted(((line, calls, ns) for line, (calls, ns) in by_line.items()), key=lambda item: -item[2])
    at_line = [sites[min(i, len(sites) - 1)] for i in chosen.tolist()]
    site = next((s for s in at_line if s.file is not None and s.where().label() == lines[0][0]), at_line[0])
    attention = trace.fact(attention_functions)
    near = (site.file, site.function) in attention if site.function else bool(ATTENTION.search(site.module or ""))
    near = near or _attention_reads(trace, longest)
    exact, onto = _kept(trace, kind, rows, near=near)
    if exact == "repeat" and near and _rank(trace, longest) != 2:
        exact = "head_repeat"
    return Movement(
        kind=exact, op=trace.text(int(trace.rows["slices"]["name"][longest])), cause=_cause(trace, longest), site=site,
        rows=rows, times_ns=times, lines=tuple(lines), backward=_in_backward(trace, longest), attention=near, onto=onto,
    )  # fmt: skip


def _lineage_ops(trace: Trace, row: int) -> Iterator[tuple[int, str]]:
    slices = trace.rows["slices"]
    while row != MISSING:
        if slices["kind"][row] == SliceKind.OP:
            yield row, trace.text(int(slices["name"][row]))
        row = int(slices["parent"][row])


def _cause(trace: Trace, row: int) -> str:
    """Return the outermost op of the program, or the autograd node, around a row; ``""``: itself."""
    names = [name for _, name in _lineage_ops(trace, row)][1:]
    nodes = [name for name in names if _is_backward(name) and not name.startswith("autograd::engine")]
    outer = [name for name in names if not name.startswith("autograd::engine")]
    return nodes[0] if nodes else outer[-1] if outer else ""


def _in_backward(trace: Trace, row: int) -> bool:
    return any(_is_backward(name) for _, name in _lineage_ops(trace, row))


def _attention_reads(trace: Trace, row: int) -> bool:
    """Whether attention, fused or not, reads the result of an op, by the op graph."""
    op, graph, flow = graph_op(trace, row), trace.op_graph, trace.fact(trace_flow)
    if op is None or graph is None or flow is None:
        return False
    readers = [graph.ops[index] for index in flow.consumers[op.index]]
    return any(is_attention(trace, reader) for reader in readers)


def _refined(trace: Trace, kind: str, row: int) -> str:
    """Refine the kind by shapes, strides and dtypes: a copy of an expanded tensor, of a quantised one.

    ``""``: it moves no data of the program.
    """
    if kind in ("layout", "clone") and _expanded(trace, row):
        return "" if _in_backward(trace, row) else "repeat"  # the gradient of a mean is expanded: no code to change
    if kind == "convert" and _converts_a_number(trace, row):
        return ""
    if kind == "assign" and _of_autograd(trace, row):
        return ""
    if kind == "convert" and any(dtype in _SMALL_INTEGERS for dtype in _source_dtypes(trace, row)):
        return "dequantise"
    return kind


def _of_autograd(trace: Trace, row: int) -> bool:
    """Whether the engine of the backward pass copies, as DDP does between its buckets and the gradients."""
    detail = detail_row(trace, row)
    return detail is not None and kind_of_slice(trace.detail or trace, detail) is FrameKind.AUTOGRAD


def _recorded(trace: Trace, row: int, column: str) -> list[object]:
    code = int(trace.rows["slices"][column][row])
    try:
        value = json.loads(trace.text(code)) if code != MISSING else []
    except ValueError:
        return []
    return value if isinstance(value, list) else []


def _converts_a_number(trace: Trace, row: int) -> bool:
    """Whether a conversion is of a Python number: on a CPU ``x.mul_(0.9)`` converts 0.9.

    By the recorded shape, else by the op graph: the enclosing arithmetic has operands of one dtype, or of one element.
    """
    around = next((name for _, name in _lineage_ops(trace, row) if _plain(name) not in _MOVES), "")
    if _plain(around) not in _ARITHMETIC or len(trace.rows["kernels"]):
        return False
    shape = next(iter(_recorded(trace, row, "shapes")), None)
    if isinstance(shape, list):
        return math.prod(size for size in shape if isinstance(size, int)) == 1
    op = graph_op(trace, row)
    if op is None or trace.op_graph is None:
        return True  # tensors of two dtypes are rare there
    inputs = [trace.op_graph.tensors[index] for index in op.inputs]
    return len({tensor.dtype for tensor in inputs if math.prod(tensor.shape) > 1}) < 2


def _source_dtypes(trace: Trace, row: int) -> list[str]:
    """Return the dtypes that a copy reads: of the graph's op, else of the second operand as recorded."""
    op = graph_op(trace, row)
    if op is not None and trace.op_graph is not None:
        return [trace.op_graph.tensors[index].dtype.removeprefix("torch.") for index in op.inputs]
    return [str(dtype) for dtype in _recorded(trace, row, "dtypes")[1:2]]


def _expanded(trace: Trace, row: int) -> bool:
    """Whether a copy reads a tensor in which a dimension has stride 0, so that it writes more than it reads."""
    op, graph = graph_op(trace, row), trace.op_graph
    if op is not None and graph is not None and op.inputs and op.outputs:
        return 2 * graph.tensors[op.inputs[-1]].bytes <= graph.tensors[op.outputs[0]].bytes
    strides, shapes = _recorded(trace, row, "strides")[1:2], _recorded(trace, row, "shapes")[1:2]
    if not strides or not isinstance(strides[0], list) or not shapes or not isinstance(shapes[0], list):
        return False
    return any(step == 0 and size > 1 for step, size in zip(strides[0], shapes[0], strict=False))


def _rank(trace: Trace, row: int) -> int | None:
    """Return the number of dimensions of an op's result; ``None`` if unknown."""
    op, graph = graph_op(trace, row), trace.op_graph
    if op is not None and graph is not None and op.outputs:
        return len(graph.tensors[op.outputs[0]].shape)
    shape = next(iter(_recorded(trace, row, "shapes")), None)
    return len(shape) if isinstance(shape, list) and shape else None


def _kept(trace: Trace, kind: str, rows: Int64, *, near: bool) -> tuple[MovementKind, Literal["grows", "stays"]]:
    """Return whether a join extends a value of the previous step and keeps it for the next one."""
    if kind != "join":
        return kind, "stays"  # type: ignore[return-value]  # a member of MovementKind
    grown = _kept_in_graph(trace, rows) or _kept_by_shapes(trace, rows)
    if grown is None:
        return "join", "stays"
    return ("cache_join" if near else "kept_join"), grown


def _kept_in_graph(trace: Trace, rows: Int64) -> Literal["grows", "stays"] | None:
    """Return the same by the op graph: most of the inputs existed before the step, and the result outlives it."""
    graph, flow = trace.op_graph, trace.fact(trace_flow)
    if graph is None or flow is None or graph.storages is None:
        return None
    ops = {op.index: op for row in rows[:MOST_SITES].tolist() if (op := graph_op(trace, row)) is not None}
    kept = []
    for op in ops.values():
        if not op.inputs or not op.outputs:
            continue
        most = max((graph.tensors[index] for index in op.inputs), key=lambda tensor: tensor.bytes)
        out = graph.tensors[op.outputs[0]]
        before = graph.storages[most.storage].born is None and most.storage not in graph.parameters
        if before and out.storage in graph.live_out and 2 * most.bytes > out.bytes:
            kept.append(out.bytes > graph.storages[most.storage].bytes)
    if not kept or 2 * len(kept) < len(ops):
        return None
    return "grows" if any(kept) else "stays"


def _kept_by_shapes(trace: Trace, rows: Int64) -> Literal["grows"] | None:
    """Return the same by recorded shapes: the result of one join is most of the input of a later one."""
    slices = trace.rows["slices"]
    made: Counter[tuple[int, ...]] = Counter()
    follow = 0
    ordered = rows[np.argsort(slices["start_ns"][rows], kind="stable")]
    for row in ordered[:MOST_SITES].tolist():
        parts = next(iter(_recorded(trace, row, "shapes")), None)
        shapes = [tuple(part) for part in parts if isinstance(part, list)] if isinstance(parts, list) else []
        if len(shapes) < 2 or not all(len(shape) == len(shapes[0]) for shape in shapes):
            continue
        differ = [axis for axis in range(len(shapes[0])) if len({shape[axis] for shape in shapes}) > 1]
        if len(differ) != 1:
            continue
        first = max(shapes, key=lambda shape: shape[differ[0]])
        total = sum(shape[differ[0]] for shape in shapes)
        if made[first]:
            made[first] -= 1
            follow += 1
        made[(*first[: differ[0]], total, *first[differ[0] + 1 :])] += 1
    return "grows" if 3 * follow >= len(rows) and follow else None
