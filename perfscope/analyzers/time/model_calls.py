"""Calls of the model in a recording without step marks: the steps of inference and generation loops.

Kineto names a call of a module ``nn.Module: Llama_0`` if Python stacks or modules were recorded. The calls from outside
of all modules of the module with most time are the steps, unless the recording has a backward pass, because one
training step may call its model several times.

The tokens of a call are the shape of the indices of its first embedding, batch x length, if shapes were recorded. A
call with several tokens per sequence before calls with one is the *prefill* of a prompt; calls with one token are
*decode*.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from perfscope.analyzers.spans import named_slices, outermost, subtree_ends
from perfscope.model.frames import parse_module
from perfscope.model.intervals import Int64
from perfscope.model.op_flops import PRODUCTS
from perfscope.model.trace import MISSING, SliceKind, Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import GraphOp, OpGraph

LEAST_CALLS = 3
"""Minimum number of calls: fewer may be parts of one step."""

BACKWARD = "autograd::engine::evaluate_function"
_EMBEDDINGS = ("aten::embedding",)


class ModelCall(Struct, frozen=True, kw_only=True):
    """One call of the model with everything up to the next one. Times in ns."""

    start_ns: int
    """On the clock of its trace."""
    end_ns: int
    sequences: int | None
    """Batch size; ``None`` if unknown."""
    length: int | None
    """Tokens of each sequence in this call."""
    idle: int = 0
    """Sequences that have ended and only fill the batch, as far as known."""

    @property
    def tokens(self) -> int:
        """Tokens of all sequences that have not ended; 0 if unknown."""
        return max(0, (self.sequences or 0) - self.idle) * (self.length or 0)


class Generation(Struct, frozen=True, kw_only=True):
    """Calls of a loop that generates tokens."""

    traced: bool
    """Whether a profiler was on, which makes them longer."""
    prefills: tuple[ModelCall, ...]
    decodes: tuple[ModelCall, ...]

    @property
    def first_token_ns(self) -> float:
        """Time to first token: median of the prefills."""
        return median(call.end_ns - call.start_ns for call in self.prefills)

    @property
    def output_token_ns(self) -> float:
        """Time per output token of one sequence: median of the decodes."""
        return median(call.end_ns - call.start_ns for call in self.decodes)

    @property
    def tokens_per_s(self) -> float:
        """Tokens generated per second of decoding, of all sequences of a batch together."""
        return 1e9 * sum(call.tokens for call in self.decodes) / sum(c.end_ns - c.start_ns for c in self.decodes)


Tokens = tuple[int, int] | None
"""(sequences, tokens of each) of a call; ``None`` if unknown."""


def call_tokens(trace: Trace) -> tuple[Tokens, ...]:
    """Return the tokens of the model's calls; of calls without a profiler if known."""
    if any(trace.step_tokens):
        return trace.step_tokens
    calls = trace.fact(model_calls)
    return tuple(
        None if call.sequences is None or call.length is None else (call.sequences, call.length) for call in calls
    )


FEWEST_GROWING = 4
"""Minimum number of calls that each are one token longer: three may be a growing chat."""


def recomputed_lengths(trace: Trace) -> list[int]:
    """Return the tokens of calls that each recompute the previous call's tokens and one more.

    Empty without any.
    """
    lengths = growing(call_tokens(trace))
    backward = named_slices(trace, lambda name: name.startswith(BACKWARD)).any()
    return lengths if len(lengths) >= FEWEST_GROWING and not backward else []


def growing(calls: Sequence[Tokens]) -> list[int]:
    """Return the lengths of the longest sequence of calls that are each one token longer than the previous one."""
    best: list[int] = []
    row: list[int] = []
    for before, call in pairwise([None, *calls]):
        follows = before is not None and call is not None and call == (before[0], before[1] + 1) and before[1] > 1
        row = [*row, call[1]] if follows and call is not None else [call[1]] if call is not None else []
        best = max(best, row, key=len)
    return best


def one_generation(trace: Trace) -> bool:
    """Whether the known calls generate tokens of one batch of sequences: each has one new token per sequence.

    After another call it has length 1 (with a cache) or is longer by 1 (without). Memory that a loop keeps for its
    tokens ends with the sequences; growth over several generations is kept by the program.
    """
    lengths = [call[1] for call in call_tokens(trace) if call is not None]
    return len(lengths) >= LEAST_CALLS and all(after in (1, before + 1) for before, after in pairwise(lengths))


def model_calls(trace: Trace) -> tuple[ModelCall, ...]:
    """Return the calls of the model, in order; empty with fewer than ``LEAST_CALLS``, or with a backward pass."""
    slices = trace.rows["slices"]
    modules = named_slices(trace, parse_module)
    if not modules.any() or named_slices(trace, lambda name: name.startswith(BACKWARD)).any():
        return ()
    outer = outermost(trace, modules)
    by_module: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in outer.tolist():
        by_module[int(slices["thread"][row]), int(slices["name"][row])].append(row)
    spent = {key: int((slices["end_ns"][calls] - slices["start_ns"][calls]).sum()) for key, calls in by_module.items()}
    calls = np.array(by_module[max(spent, key=lambda key: spent[key])])
    if len(calls) < LEAST_CALLS:
        return ()
    starts = slices["start_ns"][calls]
    ends = np.concatenate((starts[1:], [_last_end(trace, int(slices["end_ns"][calls[-1]]))]))
    shapes = _token_shapes(trace, calls)
    return tuple(
        ModelCall(start_ns=start, end_ns=end, sequences=shape[0], length=shape[1])
        for start, end, shape in zip(starts.tolist(), ends.tolist(), shapes, strict=True)
    )


def generation(trace: Trace) -> Generation | None:
    """Return prefills and decodes, from steps without a profiler if known; ``None`` unless both exist."""
    free = _generation(_free_calls(trace), traced=False)
    return free or _generation(trace.fact(model_calls), traced=True)


def _free_calls(trace: Trace) -> tuple[ModelCall, ...]:
    """Return the calls that a run timed without a profiler, as if each began at the end of the previous one."""
    if len(trace.step_tokens) != len(trace.step_times_ns):
        return ()
    ends = np.cumsum(trace.step_times_ns, dtype=np.int64).tolist()
    calls = []
    idle = trace.step_idle_rows if len(trace.step_idle_rows) == len(ends) else (None,) * len(ends)
    for end, duration, tokens, rows in zip(ends, trace.step_times_ns, trace.step_tokens, idle, strict=True):
        sequences, length = tokens or (None, None)
        begin = end - duration
        calls.append(ModelCall(start_ns=begin, end_ns=end, sequences=sequences, length=length, idle=rows or 0))
    return tuple(calls)


def _generation(calls: Sequence[ModelCall], *, traced: bool) -> Generation | None:
    prefills = tuple(
        call for call, after in pairwise(calls) if call.length is not None and call.length > 1 and after.length == 1
    )
    decodes = tuple(call for call in calls if call.length == 1)
    return Generation(traced=traced, prefills=prefills, decodes=decodes) if prefills and decodes else None


def _last_end(trace: Trace, end: int) -> int:
    """Return the end of the last call: of its range, or of the device work after it."""
    ends = [int(trace.rows[table]["end_ns"].max()) for table in ("kernels", "copies") if len(trace.rows[table])]
    return max([end, *ends])


def _token_shapes(trace: Trace, calls: Int64) -> list[tuple[int | None, int | None]]:
    """Return (sequences, length) of each call, by the first embedding in it."""
    slices = trace.rows["slices"]
    chosen = named_slices(trace, lambda name: name in _EMBEDDINGS) & (slices["kind"] == SliceKind.OP)
    rows = np.flatnonzero(chosen & (slices["shapes"] != MISSING))
    first = np.searchsorted(rows, calls)  # the contents of a call follow it in the table
    until = np.searchsorted(rows, trace.fact(subtree_ends)[calls])
    return [
        _indices(trace.text(int(slices["shapes"][rows[index]]))) if index < end else (None, None)
        for index, end in zip(first.tolist(), until.tolist(), strict=True)
    ]


def _indices(shapes: str) -> tuple[int | None, int | None]:
    """Return the shape of the second input of an embedding, batch x length; unknown unless it has two dimensions."""
    try:
        indices = json.loads(shapes)[1]
    except (ValueError, IndexError, TypeError):
        return (None, None)
    two = isinstance(indices, list) and len(indices) == 2 and all(isinstance(size, int) for size in indices)
    return (indices[0], indices[1]) if two else (None, None)


# Calls of one row whose answer the host reads before the next: a policy in an environment, tokens one by one.


FEWEST_ANSWERS = 8
"""Minimum number of calls per step: fewer are not a loop."""

_ANSWERS = frozenset({"item", "to_host", "bool"})
_PRODUCTS = PRODUCTS - {"bmm", "baddbmm"}
"""A batch of products has several rows for one request too."""


def rows_of_product(graph: OpGraph, op: GraphOp) -> int | None:
    """Return the rows of a product with a parameter; ``None`` for other ops."""
    if op.name.partition(".")[2].partition(".")[0] not in _PRODUCTS or not op.outputs:
        return None
    if not any(graph.tensors[index].storage in graph.parameters for index in op.inputs):
        return None
    return math.prod(graph.tensors[op.outputs[0]].shape[:-1])


class AnsweredCalls(Struct, frozen=True, kw_only=True):
    """Calls of a model for one row each, in one step that trains it."""

    products: tuple[GraphOp, ...]
    """Products of the forward pass, in order."""
    answers: tuple[GraphOp, ...]
    """For each call the first read on the host after it."""


def answered_calls(trace: Trace) -> AnsweredCalls | None:
    """Return the calls of one row per step, each with a read after it; ``None`` if there are few or larger ones."""
    graph = trace.op_graph
    if graph is None:
        return None
    products: list[GraphOp] = []
    answers: list[GraphOp] = []
    waiting = False
    for op in graph.ops:
        if op.phase == "forward" and (rows := rows_of_product(graph, op)) is not None:
            if rows != 1:
                return None
            products.append(op)
            waiting = True
        elif waiting and op.host_read in _ANSWERS:
            answers.append(op)
            waiting = False
    return None if len(answers) < FEWEST_ANSWERS else AnsweredCalls(products=tuple(products), answers=tuple(answers))
