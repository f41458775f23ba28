"""The module and the user's line that allocated each block. Vectorised, and computed once per distinct op.

The sources are those of host spans (`time/sites.py`): the op graph has qualified modules and the executed line; Python
spans have modules by class (``Block_3.Linear_7``: numbered by torch.profiler, nested) and the first line of the user's
function; an op of the backward pass has those of its forward op. A recorded stack has the line but no module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.ops import autograd_nodes
from perfscope.analyzers.spans import nearest_ancestor
from perfscope.analyzers.time import graph_op
from perfscope.model.frames import Owner, owner_of, parse_frame, parse_module
from perfscope.model.live_bytes import Int64
from perfscope.model.memory import MemoryPhase, SourceLine
from perfscope.model.trace import MISSING, SliceKind, Trace
from perfscope.model.trace.tables import MemoryCategory

DEEPEST_STACK = 4096
"""Maximum number of frames followed outwards: CPython itself stops at 1000 by default, and a damaged file may have a
cycle.
"""

_MODULE = re.compile(r"(^|/)torch/nn/modules/module\.py$")
_OPTIMIZER = re.compile(r"(^|/)torch/optim/")
_CHECKPOINT = re.compile(r"(^|/)torch/utils/checkpoint\.py$")
_DISTRIBUTED = re.compile(r"(^|/)torch/distributed/(?!run\.py|launch|elastic)")
_LOADER = re.compile(r"(^|/)torch/utils/data/")
_BACKWARD_FILE = re.compile(r"(^|/)torch/(autograd/(graph|__init__)|_tensor)\.py$")

_BACKWARD_NAMES = ("_engine_run_backward", "backward", "_run_backward")
_AGAIN = ("recompute_fn", "unpack_hook", "backward")
_MOVES = ("convert", "_apply", "to_empty")
_ENGINE = "torch::autograd::Engine::evaluate_function"
_COLLECTIVE = re.compile(r"^c10d::")
_SCRATCH = re.compile(r"getNewWorkspace|getCurrentCUDABlasHandle|CUDABlasLtWorkspace|run_conv_plan|cudnnSetDropout")
_ACCUMULATES = re.compile(r"torch::autograd::AccumulateGrad::")
_PARAMETER_INIT = re.compile(r"(^|/)torch/nn/(modules/(?!module\.py)|parameter\.py)")

_ALL = (
    "python", "user", "library", "module", "optimizer", "states", "backward", "again", "moves", "initial", "loader",
    "distributed", "collective", "scratch", "accumulates",
)  # fmt: skip

Value = TypeVar("Value", bound=Hashable)


# Information in the recorded stack of an allocation: its phase of training, the purpose of the block, and the user's
# line.
#
# The frames are those of PyTorch's allocator history, Python's and (``stacks="all"``) C++'s, innermost first. Seen in
# the corpus and in torch's sources:
# - ``torch/optim/adamw.py: _init_group`` makes optimizer state; everything else below ``torch/optim`` is the step.
# - ``torch::autograd::Engine::evaluate_function`` (C++), ``torch/autograd/graph.py: _engine_run_backward`` and
#   ``torch/_tensor.py: backward`` (Python, if it runs in the caller's thread) are the backward pass.
# - ``torch/utils/checkpoint.py: recompute_fn``, ``unpack_hook`` and ``backward`` run forward work again.
# - ``torch/nn/modules/module.py: _call_impl`` is a call of a module, and so is the user's function ``forward``;
#   ``convert`` or ``_apply`` moves a module.
# - ``torch::autograd::AccumulateGrad`` makes a gradient.
# - ``c10d::`` and ``torch/distributed`` as the innermost Python frame are communication: further out they only wrap the
#   whole forward pass (DDP, FSDP).
# - ``getNewWorkspace``, ``CUDABlasLtWorkspace`` and ``cudnn``'s plans are scratch of a library.


def _normal(file: str) -> str:
    return file.replace("\\", "/")


def is_optimizer_file(file: str) -> bool:
    """Whether a file is one of torch's optimizers."""
    return bool(_OPTIMIZER.search(_normal(file)))


@lru_cache(maxsize=65536)
def _is_python(file: str) -> bool:
    return file.endswith(".py") or file.startswith("<ipython")


def nearest_frame(trace: Trace, frames: Int64, wanted: npt.NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """Return, for rows of ``frames``, the row itself or its nearest caller in ``wanted``, and their distance.

    ``wanted``: a mask over the ``frames`` table. ``MISSING`` (and distance 0) without such a frame.
    """
    parents = trace.rows["frames"]["parent"]
    frame_rows = np.array(frames, np.int64)
    distance = np.zeros(len(frame_rows), np.int64)
    active = np.flatnonzero(frame_rows != MISSING)
    for _ in range(DEEPEST_STACK):
        active = active[~wanted[frame_rows[active]]]
        frame_rows[active] = parents[frame_rows[active]]
        distance[active] += 1
        active = active[frame_rows[active] != MISSING]
        if not len(active):
            break
    frame_rows[active] = MISSING
    return frame_rows, np.where(frame_rows == MISSING, 0, distance)


def frames_named(trace: Trace, pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Mask of the rows of ``frames`` whose function name contains the pattern."""
    names = trace.rows["frames"]["name"]
    return np.asarray(np.isin(names, [code for code in np.unique(names).tolist() if pattern.search(trace.text(code))]))


def stack_phases(trace: Trace) -> npt.NDArray[np.uint8]:
    """Return the `MemoryPhase` of each row of ``frames``, from the stack outwards."""
    rows = np.arange(len(trace.rows["frames"]))
    masks = trace.fact(_masks)
    nearest = {name: nearest_frame(trace, rows, masks[name]) for name in ("module", "optimizer", "moves")}
    node, node_out = nearest_frame(trace, rows, masks["backward"])
    again, again_out = nearest_frame(trace, rows, masks["again"])
    phase = np.zeros(len(rows), np.uint8)
    phase[nearest["module"][0] != MISSING] = MemoryPhase.FORWARD
    phase[nearest["optimizer"][0] != MISSING] = MemoryPhase.OPTIMIZER
    phase[node != MISSING] = MemoryPhase.BACKWARD
    # a reentrant checkpoint runs its region again, followed by its own backward pass, inside one frame
    phase[(again != MISSING) & ((node == MISSING) | (again_out < node_out))] = MemoryPhase.RECOMPUTE
    phase[nearest["moves"][0] != MISSING] = MemoryPhase.UNKNOWN
    return phase


def stack_categories(trace: Trace) -> npt.NDArray[np.uint8]:
    """Return the `MemoryCategory` of each row of ``frames`` from the stack alone.

    Unknown if it also depends on the lifetime.
    """
    masks = trace.fact(_masks)
    rows = np.arange(len(trace.rows["frames"]))
    categories = np.zeros(len(rows), np.uint8)
    python, outside = nearest_frame(trace, rows, masks["python"])
    for name, category in (
        ("moves", MemoryCategory.PARAMETER),
        ("initial", MemoryCategory.PARAMETER),
        ("states", MemoryCategory.OPTIMIZER_STATE),
        ("loader", MemoryCategory.INPUT),
    ):
        categories[nearest_frame(trace, rows, masks[name])[0] != MISSING] = category
    innermost = (python != MISSING) & masks["distributed"][python]
    categories[innermost] = MemoryCategory.COMMUNICATION
    for name, category in (
        ("accumulates", MemoryCategory.GRADIENT),
        ("collective", MemoryCategory.COMMUNICATION),
        ("scratch", MemoryCategory.WORKSPACE),
    ):
        row, steps = nearest_frame(trace, rows, masks[name])
        categories[(row != MISSING) & ((python == MISSING) | (steps < outside))] = category
    return categories


def user_frames(trace: Trace) -> Int64:
    """Return, per row of ``frames``, the user's innermost frame outwards, else a library's, else ``MISSING``."""
    masks = trace.fact(_masks)
    rows = np.arange(len(trace.rows["frames"]))
    users = nearest_frame(trace, rows, masks["user"])[0]
    return np.where(users == MISSING, nearest_frame(trace, rows, masks["library"])[0], users)


def _masks(trace: Trace) -> dict[str, npt.NDArray[np.bool_]]:
    """Masks over ``frames`` by kind of frame, computed once per pair of file and function."""
    frames = trace.rows["frames"]
    pairs = np.stack((frames["file"].astype(np.int64), frames["name"].astype(np.int64)), axis=1)
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    kinds = [_kinds(_normal(trace.text(int(file))), trace.text(int(name))) for file, name in distinct]
    return {
        kind: np.array([kind in kinds_of_frame for kinds_of_frame in kinds], bool)[inverse.ravel()] for kind in _ALL
    }


def _kinds(file: str, name: str) -> frozenset[str]:
    if not _is_python(file):
        engine = {"backward"} if name.startswith(_ENGINE) else set()
        native = {"collective": _COLLECTIVE, "scratch": _SCRATCH, "accumulates": _ACCUMULATES}
        return frozenset(engine | {kind for kind, pattern in native.items() if pattern.search(name)})
    kinds = {"python"}
    owner = owner_of(file)
    called = name.rpartition(".")[2]
    if owner is not Owner.FRAMEWORK:
        # stacks of C++ and Python together lack the frames of torch's own module call
        module = {"module"} if called == "forward" else set()
        return frozenset(kinds | module | {"user" if owner is Owner.USER else "library"})
    tests = {
        "module": bool(_MODULE.search(file)) and called in ("_call_impl", "_wrapped_call_impl", "__call__"),
        "moves": bool(_MODULE.search(file)) and called in _MOVES,
        "initial": bool(_PARAMETER_INIT.search(file)) and called in ("__init__", "__new__"),
        "optimizer": bool(_OPTIMIZER.search(file)),
        "states": bool(_OPTIMIZER.search(file)) and called == "_init_group",
        "backward": bool(_BACKWARD_FILE.search(file)) and called in _BACKWARD_NAMES,
        "again": bool(_CHECKPOINT.search(file)) and called in _AGAIN,
        "distributed": bool(_DISTRIBUTED.search(file)),
        "loader": bool(_LOADER.search(file)),
    }
    return frozenset(kinds | {kind for kind, holds in tests.items() if holds})


class Sites(Struct, frozen=True, kw_only=True):
    """Modules and lines of blocks. Shapes (blocks,); ``MISSING`` if unknown."""

    modules: npt.NDArray[np.int64]
    """Number of the module's name."""
    lines: npt.NDArray[np.int64]
    """Index into ``places``."""
    places: tuple[SourceLine, ...]


class Numbered(Generic[Value]):
    """Distinct values by number, in order of appearance; first those of ``known``, which stays unchanged."""

    def __init__(self, known: Sequence[Value] = ()) -> None:
        self.values = list(known)
        self._numbers = {value: number for number, value in enumerate(known)}

    def number(self, value: Value | None) -> int:
        """Return the number of ``value``, a new one if necessary; ``MISSING`` for None and for an empty text."""
        if not value:
            return MISSING
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


def block_sites(trace: Trace, ops: Int64, frames: Int64, names: Numbered[str], *, graph: Trace | None = None) -> Sites:
    """Return the sites of blocks by their rows of ``slices`` and of ``frames``, each ``MISSING`` if unknown.

    ``names``: the modules are added to it. ``graph``: a trace with the same rows and an op graph
    (`memory/categories.py`).
    """
    known: Numbered[SourceLine] = Numbered()
    distinct, inverse = np.unique(ops, return_inverse=True)
    module, line = _of_ops(trace, distinct, names, known)
    if graph is not None and graph.op_graph is not None:
        _of_graph(graph, distinct, module, line, names, known)
    modules, lines = module[inverse], line[inverse]
    stacked = (lines == MISSING) & (frames != MISSING)
    if stacked.any():
        user = trace.fact(user_frames)[frames[stacked]]
        lines[stacked] = _each(user, lambda row: known.number(frame_line(trace, row)))
    return Sites(modules=modules, lines=lines, places=tuple(known.values))


def _of_ops(trace: Trace, ops: Int64, names: Numbered[str], known: Numbered[SourceLine]) -> tuple[Int64, Int64]:
    python, masks = trace.rows["slices"]["kind"] == SliceKind.PYTHON, trace.fact(_python_masks)
    start = _forward_side(trace, ops) if python.any() else np.full(len(ops), MISSING, np.int64)
    user = nearest_ancestor(trace, start, masks["user"])
    user = np.where(user == MISSING, nearest_ancestor(trace, start, masks["library"]), user)
    inside = nearest_ancestor(trace, start, masks["module"])
    module = _each(inside, lambda row: names.number(_module_path(trace, row)))
    return module, _each(user, lambda row: known.number(_span_line(trace, row)))


def _of_graph(
    trace: Trace, ops: Int64, module: Int64, line: Int64, names: Numbered[str], known: Numbered[SourceLine]
) -> None:
    qualified: dict[int, set[int]] = {}
    certain = np.zeros(len(ops), bool)
    for index, row in enumerate(ops.tolist()):
        found = graph_op(trace, row) if row != MISSING else None
        if found is None:
            continue
        if found.module:
            name = names.number(found.module)
            qualified.setdefault(int(module[index]), set()).add(name)
            module[index], certain[index] = name, True
        if found.file is not None:
            line[index] = known.number(SourceLine(file=found.file, line=found.line, function=found.function))
    # ops missing in the graph, in a call whose other ops are all in one module of the graph, are in that module too
    for span, inside in qualified.items():
        if span != MISSING and len(inside) == 1:
            module[~certain & (module == span)] = inside.pop()


def _each(rows: Int64, value_of: Callable[[int], int]) -> Int64:
    """Return ``value_of(row)`` for every row, called once per distinct row; ``MISSING`` stays ``MISSING``."""
    distinct, inverse = np.unique(rows, return_inverse=True)
    values = [MISSING if row == MISSING else value_of(row) for row in distinct.tolist()]
    return np.array(values, np.int64)[inverse]


def frame_line(trace: Trace, row: int) -> SourceLine:
    """Return the line of a row of ``frames``."""
    frames = trace.rows["frames"]
    number = int(frames["line"][row])
    return SourceLine(
        file=trace.text(int(frames["file"][row])),
        line=None if number == MISSING else number,
        function=trace.text(int(frames["name"][row])),
    )


def _span_line(trace: Trace, row: int) -> SourceLine | None:
    frame = parse_frame(trace.text(int(trace.rows["slices"]["name"][row])))
    return None if frame is None else SourceLine(file=frame.file, line=frame.line, function=frame.function)


def _module_path(trace: Trace, row: int) -> str:
    """Return ``Transformer_0.Block_3.Linear_7`` for the row of a module's call: enclosing modules, outermost first."""
    names, parents = trace.rows["slices"]["name"], trace.fact(_module_parents)
    parts = []
    while row != MISSING:
        parts.append(parse_module(trace.text(int(names[row]))) or "")
        row = parents[row]
    return ".".join(reversed(parts))


def _module_parents(trace: Trace) -> dict[int, int]:
    """Map the row of a module's call to the row of the enclosing call, or ``MISSING``."""
    modules = trace.fact(_python_masks)["module"]
    rows = np.flatnonzero(modules)
    around = nearest_ancestor(trace, trace.rows["slices"]["parent"][rows].astype(np.int64), modules)
    return dict(zip(rows.tolist(), around.tolist(), strict=True))


def _forward_side(trace: Trace, ops: Int64) -> Int64:
    """Return each op, or for one inside an autograd node the forward op of that gradient."""
    slices = trace.rows["slices"]
    node = nearest_ancestor(trace, ops, trace.fact(autograd_nodes) & (slices["sequence"] != MISSING))
    numbers, rows = trace.fact(_forward_rows)
    if not len(numbers):
        return ops
    wanted = np.where(node == MISSING, MISSING, slices["sequence"][node])
    index = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    matches = (node != MISSING) & (numbers[index] == wanted)
    return np.where(matches, rows[index], ops)


def _forward_rows(trace: Trace) -> tuple[Int64, Int64]:
    """Return the sorted sequence numbers, and for each the last op outside of the backward pass that has it."""
    slices = trace.rows["slices"]
    numbered = (slices["kind"] == SliceKind.OP) & (slices["sequence"] != MISSING) & (slices["forward_thread"] <= 0)
    rows = np.flatnonzero(numbered)
    rows = rows[np.lexsort((slices["start_ns"][rows], slices["sequence"][rows]))]
    numbers = slices["sequence"][rows]
    last = np.ones(len(rows), bool)
    last[:-1] = numbers[1:] != numbers[:-1]
    return numbers[last].astype(np.int64), rows[last]


def _python_masks(trace: Trace) -> dict[str, npt.NDArray[np.bool_]]:
    """Masks over ``slices`` by kind of Python span, computed once per distinct name."""
    slices = trace.rows["slices"]
    python = slices["kind"] == SliceKind.PYTHON
    codes: dict[str, list[int]] = {"user": [], "library": [], "module": []}
    for code in np.unique(slices["name"][python]).tolist():
        name = trace.text(code)
        frame = parse_frame(name)
        if parse_module(name) is not None:
            codes["module"].append(code)
        elif frame is not None and frame.owner is not Owner.FRAMEWORK:
            codes["user" if frame.owner is Owner.USER else "library"].append(code)
    return {kind: python & np.isin(slices["name"], codes_of_kind) for kind, codes_of_kind in codes.items()}
