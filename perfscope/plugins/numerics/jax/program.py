"""A jitted function and its walk: the same program op by op, which returns numbers in place of results."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from perfscope.plugins.numerics.document import Kind
from perfscope.plugins.numerics.jax.observer import HALF, LossNumbers, OpStatistics, wide_dtype
from perfscope.plugins.numerics.products import ProductKey
from perfscope.profiler.jax.calls import NotWatchedError, Signature, quickly_compiled, strong
from perfscope.profiler.jax.jaxpr_walk import Place, Walk, is_float
from perfscope.profiler.trail import Lines

MOST_SEARCHED = 2_000
"""Most values searched for the gradient of a parameter."""


@dataclass(frozen=True, slots=True)
class Walked:
    """Result of a walk: the numbers of ``plan``'s ops, tensors and losses, each a list."""

    plan: OpStatistics
    ops: list[list[float]]
    tensors: list[list[float]]
    losses: list[list[float]]
    gradient_norm: float | None
    products: list[tuple[ProductKey, list[Any]]]
    """Rows of both factors, and their largest magnitudes; still on the device."""


class WalkedProgram:
    """The walk of a function for arguments of one shape. ``jit``: jax's own."""

    def __init__(self, jit: Any, traced: Any, signature: Signature, lines: Lines) -> None:
        """`NotWatchedError` if running the function twice would have visible effects."""
        self._closed = traced.jaxpr
        if self._closed.effects:
            raise NotWatchedError(f"it has effects ({', '.join(sorted(map(str, self._closed.effects)))})"[:120])
        if len(self._closed.in_avals) != len(signature.arguments):
            raise NotWatchedError("its arguments are not those of its program")
        self._signature, self._lines = signature, lines
        self._plan = OpStatistics()
        self._norms = False
        self._sizes: list[list[int]] = []
        self.kinds: dict[int, Kind] = {}
        """Argument -> kind of its successor among the results; after the first walk."""
        self._run = jit(self._walk, compiler_options=quickly_compiled())

    @property
    def trains(self) -> bool:
        """Whether it has a backward pass; after the first walk."""
        return self._plan.backward

    def __call__(self, leaves: Sequence[Any]) -> Walked:
        """Walk it with these arguments."""
        vector, rows = self._run(*map(strong, leaves, (aval.dtype for aval in self._closed.in_avals)))
        plan, rest = self._plan, iter(np.asarray(vector).tolist())
        columns = [[[next(rest) for _ in range(size)] for size in sizes] for sizes in self._sizes]
        ops, tensors, losses = columns
        norm = next(rest) if self._norms else None
        products = list(zip((product.key for product in plan.products), rows, strict=True))
        return Walked(plan, ops, tensors, losses, norm, products)

    def _walk(self, *leaves: Any) -> Any:
        signature = self._signature
        states = dict(signature.states)
        names = {
            id(leaf): signature.arguments[index] for index, leaf in enumerate(leaves) if not states or index in states
        }
        plan = OpStatistics(names=names)
        walk = Walk(self._lines, set(), quiet=True, observer=plan)
        results = walk.program(self._closed, list(leaves), [None] * len(leaves))
        plan.numbers()
        norms = list(self._add_named(plan, leaves, results))
        self._norms = bool(norms)
        parts = [[part.numbers for part in column] for column in plan.columns()]
        self._sizes = [[int(numbers.size) for numbers in column] for column in parts]
        numbers = [numbers.astype(wide_dtype()) for column in parts for numbers in column]
        if norms:
            numbers.append(jnp.sqrt(jnp.stack(norms).sum()).astype(wide_dtype()).reshape(1))
        rows = [product.numbers for product in plan.products]
        plan.release()
        self._plan = plan
        return jnp.concatenate(numbers) if numbers else jnp.zeros(0), rows

    def _add_named(self, plan: OpStatistics, leaves: Sequence[Any], results: list[Any]) -> Iterator[Any]:
        """Add arguments and results to the tensors; add squared norms of parameter gradients."""
        signature = self._signature
        claimed: set[int] = set()
        successors = dict(signature.states) if plan.backward else {}
        for index, (name, leaf) in enumerate(zip(signature.arguments, leaves, strict=True)):
            if is_float(leaf) and index not in successors:
                plan.tensor("input", name, leaf)
        for before, after in sorted(successors.items(), key=lambda pair: signature.arguments[pair[0]] not in plan.used):
            name, result = signature.arguments[before], results[after]
            if not is_float(result):
                continue
            updated, gradient = _lineage(plan, result, leaves[before])
            if plan.backward and updated and name not in plan.used:
                continue  # the state of an optimizer
            if gradient is not None and id(gradient) not in claimed:
                claimed.add(id(gradient))
                plan.tensor("parameter gradient", name, gradient)
                yield jnp.square(gradient.astype(jnp.float32)).sum()
                if updated and str(result.dtype) in HALF:
                    moved = gradient != 0
                    same = jnp.stack([(moved & (result == leaves[before])).sum(), moved.sum()])
                    place = Place(name, "", "forward")
                    plan.losses.append(LossNumbers("update", "", place, str(result.dtype), 1, same))
            self.kinds[before] = "parameter gradient" if gradient is not None and not updated else "parameter"
            if updated:
                plan.tensor("parameter", name, result)
            elif gradient is None:  # equal shape by chance
                plan.tensor("output", signature.results[after], result)
                del self.kinds[before]
        for index, (name, result) in enumerate(zip(signature.results, results, strict=True)):
            if is_float(result) and index not in successors.values():
                trains = plan.backward and index == signature.loss
                plan.tensor("loss" if trains else "output", "loss" if trains else name, result)


def _lineage(plan: OpStatistics, result: Any, before: Any) -> tuple[bool, Any | None]:
    """Whether ``result`` depends on ``before``, and its gradient: the nearest backward value in its shape.

    The search does not go through values of the backward pass.
    """
    queue, seen = deque([result]), {id(result)}
    updated, gradient = False, None
    while queue and len(seen) < MOST_SEARCHED:
        value = queue.popleft()
        if value is before:
            updated = True
            continue
        sources, phase = plan.sources.get(id(value), ((), "forward"))
        if phase != "forward":
            if gradient is None and value.shape == before.shape and is_float(value):
                gradient = value
            continue
        for source in sources:
            if id(source) not in seen:
                seen.add(id(source))
                queue.append(source)
    return updated, gradient


def culprit(walked: Walked, made_by: int | None) -> int | None:
    """The op that first made a non-finite value, among those whose such values reach the op ``made_by``.

    In the body of a scan it may be any op, because the next iteration may get the value from it: the earliest counts.
    """
    if made_by is None:
        return None
    ops, numbers = walked.plan.ops, walked.ops
    scan_of = {inner: index for index, op in enumerate(ops) for inner in op.inside}
    queue, seen = [made_by], set()
    best: tuple[float, ...] = (math.inf,)
    found = None
    while queue:
        index = queue.pop()
        if index in seen or not numbers[index][0]:
            continue
        seen.add(index)
        op, scan = ops[index], scan_of.get(index)
        queue += (*op.inputs, *op.inside, *(() if scan is None else (scan,)))
        inside = any(numbers[inner][1] for inner in op.inside)
        key = (index if scan is None else ops[scan].inside[0], numbers[index][2], index)
        if numbers[index][1] and not inside and key < best:
            best, found = key, index
    return found
