"""What the recorded stack of an allocation says: its phase of training, what the block is for, and the user's line.

The frames are those of PyTorch's allocator history, Python's and (``stacks="all"``) C++'s, innermost first. Seen in
the corpus and in torch's sources:

* ``torch/optim/adamw.py: _init_group`` makes optimizer state; everything else below ``torch/optim`` is the step.
* ``torch::autograd::Engine::evaluate_function`` (C++), ``torch/autograd/graph.py: _engine_run_backward`` and
  ``torch/_tensor.py: backward`` (Python, when it runs in the caller's thread) are the backward pass.
* ``torch/utils/checkpoint.py: recompute_fn``, ``unpack_hook`` and ``backward`` run forward work again.
* ``torch/nn/modules/module.py: _call_impl`` is a module being called, and so is the user's function ``forward``;
  ``convert`` or ``_apply`` is one being moved.
* ``torch::autograd::AccumulateGrad`` makes a gradient.
* ``c10d::`` and ``torch/distributed`` as the innermost Python frame are communication: further out they are only a
  wrapper around the whole forward pass (DDP, FSDP).
* ``getNewWorkspace``, ``CUDABlasLtWorkspace`` and ``cudnn``'s plans are scratch of a library.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from perfscope.model.frames import Owner, owner_of
from perfscope.model.memory import Int64, MemoryPhase
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory

DEEPEST_STACK = 4096
"""Frames that are looked at outwards: CPython itself stops at 1000 by default. A damaged file may hold a circle."""

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


def _normal(file: str) -> str:
    return file.replace("\\", "/")


@lru_cache(maxsize=65536)
def _is_python(file: str) -> bool:
    return file.endswith(".py") or file.startswith("<ipython")


def nearest_frame(trace: Trace, frames: Int64, wanted: npt.NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """For rows of ``frames``: the row itself or its nearest caller with ``wanted``, and how many frames out it is.

    ``wanted``: a mask over the ``frames`` table. ``MISSING`` (and distance 0) where there is none.
    """
    parents = trace.rows["frames"]["parent"]
    found = np.array(frames, np.int64)
    distance = np.zeros(len(found), np.int64)
    active = np.flatnonzero(found != MISSING)
    for _ in range(DEEPEST_STACK):
        active = active[~wanted[found[active]]]
        found[active] = parents[found[active]]
        distance[active] += 1
        active = active[found[active] != MISSING]
        if not len(active):
            break
    found[active] = MISSING
    return found, np.where(found == MISSING, 0, distance)


def stack_phases(trace: Trace) -> npt.NDArray[np.uint8]:
    """By row of ``frames``: the `MemoryPhase` that the stack from it outwards says."""
    rows = np.arange(len(trace.rows["frames"]))
    masks = trace.fact(_masks)
    nearest = {name: nearest_frame(trace, rows, masks[name]) for name in ("module", "optimizer", "moves")}
    node, node_out = nearest_frame(trace, rows, masks["backward"])
    again, again_out = nearest_frame(trace, rows, masks["again"])
    phase = np.zeros(len(rows), np.uint8)
    phase[nearest["module"][0] != MISSING] = MemoryPhase.FORWARD
    phase[nearest["optimizer"][0] != MISSING] = MemoryPhase.OPTIMIZER
    phase[node != MISSING] = MemoryPhase.BACKWARD
    # a reentrant checkpoint runs its region again, and then a backward pass of its own, inside one frame
    phase[(again != MISSING) & ((node == MISSING) | (again_out < node_out))] = MemoryPhase.RECOMPUTE
    phase[nearest["moves"][0] != MISSING] = MemoryPhase.UNKNOWN
    return phase


def stack_categories(trace: Trace) -> npt.NDArray[np.uint8]:
    """By row of ``frames``: the `MemoryCategory` that the stack alone says; unknown where it takes the lifetime too."""
    masks = trace.fact(_masks)
    rows = np.arange(len(trace.rows["frames"]))
    found = np.zeros(len(rows), np.uint8)
    python, outside = nearest_frame(trace, rows, masks["python"])
    for name, category in (
        ("moves", MemoryCategory.PARAMETER),
        ("initial", MemoryCategory.PARAMETER),
        ("states", MemoryCategory.OPTIMIZER_STATE),
        ("loader", MemoryCategory.INPUT),
    ):
        found[nearest_frame(trace, rows, masks[name])[0] != MISSING] = category
    innermost = (python != MISSING) & masks["distributed"][python]
    found[innermost] = MemoryCategory.COMMUNICATION
    for name, category in (
        ("accumulates", MemoryCategory.GRADIENT),
        ("collective", MemoryCategory.COMMUNICATION),
        ("scratch", MemoryCategory.WORKSPACE),
    ):
        row, steps = nearest_frame(trace, rows, masks[name])
        found[(row != MISSING) & ((python == MISSING) | (steps < outside))] = category
    return found


def user_frames(trace: Trace) -> Int64:
    """By row of ``frames``: the innermost frame of the user's from it outwards, else a library's, else ``MISSING``."""
    masks = trace.fact(_masks)
    rows = np.arange(len(trace.rows["frames"]))
    users = nearest_frame(trace, rows, masks["user"])[0]
    return np.where(users == MISSING, nearest_frame(trace, rows, masks["library"])[0], users)


def _masks(trace: Trace) -> dict[str, npt.NDArray[np.bool_]]:
    """By kind of frame: a mask over ``frames``. Judged once for each pair of file and function."""
    frames = trace.rows["frames"]
    pairs = np.stack((frames["file"].astype(np.int64), frames["name"].astype(np.int64)), axis=1)
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    kinds = [_kinds(_normal(trace.text(int(file))), trace.text(int(name))) for file, name in distinct]
    return {kind: np.array([kind in one for one in kinds], bool)[inverse.ravel()] for kind in _ALL}


_ALL = (
    "python", "user", "library", "module", "optimizer", "states", "backward", "again", "moves", "initial", "loader",
    "distributed", "collective", "scratch", "accumulates",
)  # fmt: skip


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
