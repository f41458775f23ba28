"""Statistics of the ops of a JAX program, computed inside the compiled walk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.model.op_flops import JAX_PRODUCTS
from perfscope.plugins.numerics.counting import distance
from perfscope.plugins.numerics.document import FORMATS, Kind, Loss, ProductKind
from perfscope.plugins.numerics.products import ProductKey
from perfscope.plugins.precision import sample
from perfscope.profiler.jax.jaxpr_walk import LAYOUT, Place, is_float, terms_of, widened

MOST_OPS = 4_000
"""Most examined ops of a program: each is one more reduction to compile."""
MOST_AGAIN = 1 << 24
"""Most elements of a reduction that is computed again in float32."""
MOST_PRODUCTS = 1_000
"""Most products of a program of which rows are kept."""
HALF = ("bfloat16", "float16")
_SAME_VALUES = (LAYOUT - {"convert_element_type"}) | {"name", "rev", "stop_gradient"}
_REDUCTIONS = frozenset({"cumlogsumexp", "cumprod", "cumsum", "reduce_prod", "reduce_sum"})
_POINTWISE = frozenset(
    {"abs", "add", "add_any", "convert_element_type", "div", "exp", "integer_pow", "log", "max", "min", "mul", "neg"}
    | {"pow", "rsqrt", "sqrt", "square", "sub"}
)
_DIVIDES = frozenset({"div", "log", "pow", "rsqrt", "sqrt"})
"""Ops of an optimizer that are examined: other ops make no non-finite values from finite ones."""
_DIFFERENCES = frozenset({"add", "add_any", "sub"})


class HasNumbers(Protocol):
    """An object from which numbers are computed."""

    numbers: Any


@dataclass(slots=True)
class OpNumbers:
    """An op with floating-point results."""

    op: str
    place: Place
    dtype: str
    inputs: tuple[int, ...]
    """Indexes, in `OpStatistics.ops`, of the ops that made its inputs."""
    numbers: Any
    """[rank of its worst value (0: finite, 1: infinite, 2: NaN); that if its inputs are better, else 0; round]."""
    inside: tuple[int, ...] = ()
    """For a scan: the ops of its body."""


@dataclass(slots=True)
class TensorNumbers:
    """A named tensor."""

    kind: Kind
    name: str
    dtype: str
    line: str
    elements: int
    made_by: int | None
    """Index of its op; ``None`` for an argument."""
    numbers: Any
    """[smallest, largest, counts ...]."""


@dataclass(slots=True)
class LossNumbers:
    """A 16-bit value that lost precision."""

    how: Loss
    op: str
    place: Place
    dtype: str
    terms: int
    numbers: Any
    """[error], or for an update [elements that stayed, elements that should not have]."""


@dataclass(slots=True)
class ProductNumbers:
    """A product of matrices. ``numbers``: rows of both factors, and the largest magnitudes of the whole factors."""

    key: ProductKey
    numbers: list[Any]


@dataclass(slots=True)
class OpStatistics:
    """Sees the ops of a walk. ``names``: id of a value -> the argument that it is."""

    names: dict[int, str] = field(default_factory=dict)
    ops: list[OpNumbers] = field(default_factory=list)
    tensors: list[TensorNumbers] = field(default_factory=list)
    losses: list[LossNumbers] = field(default_factory=list)
    products: list[ProductNumbers] = field(default_factory=list)
    sources: dict[int, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    """Id of a value -> its source values, and the pass that made it."""
    left: int = 0
    """Number of ops beyond the limit."""
    backward: bool = False
    """Whether there is a backward pass."""
    used: set[str] = field(default_factory=set)
    """Arguments used by the forward pass of the differentiated function: parameters, not the state of an optimizer."""
    _made_by: dict[int, int] = field(default_factory=dict)
    _held: list[Any] = field(default_factory=list)
    """Values, kept so that their ids are not reused."""
    _ranks: dict[int, Any] = field(default_factory=dict)
    _reduced: dict[int, int] = field(default_factory=dict)
    """Id of a value -> length of the reductions that it consists of, apart from constants."""
    _scopes: dict[str, tuple[Any, str]] = field(default_factory=dict)
    """Named scope -> its last result in the forward pass, and the line."""
    _products: int = 0
    _factors: dict[int, str] = field(default_factory=dict)
    """Id of a value -> the weight that it is multiplied by in the forward pass."""
    _scans: int = 0
    _inside: tuple[int, ...] = ()

    def op(self, eqn: Any, values: list[Any], results: list[Any], place: Place) -> None:
        """Compute the numbers of an op."""
        self._held += [*values, *results]
        self.backward |= place.phase == "backward"
        if "jvp(" in str(eqn.source_info.name_stack):
            self.used |= {self.names[id(value)] for value in values if id(value) in self.names}
        self.sources.update((id(result), (tuple(values), place.phase)) for result in results)
        name, inside, self._inside = eqn.primitive.name, self._inside, ()
        if name in _SAME_VALUES and len(results) == 1:
            self._same(values[0], results[0])
            return
        floats = [result for result in results if is_float(result) and result.size]
        if not floats:
            return
        taken = [value for value in values if is_float(value) and value.size]
        updates = self.backward and place.phase == "forward" and "jvp(" not in str(eqn.source_info.name_stack)
        if len(self.ops) >= MOST_OPS or (updates and name not in _DIVIDES):
            self.left += not updates
            known = [self._made_by[id(value)] for value in taken if id(value) in self._made_by]
            self._made_by.update((id(result), max(known)) for result in floats if known)
            return
        ranks = [_rank(result) for result in floats]
        rank = jnp.stack(ranks).max()
        before = jnp.stack([self._rank(value) for value in taken]).max() if taken else jnp.zeros_like(rank)
        inputs = tuple(sorted({self._made_by[id(value)] for value in taken if id(value) in self._made_by}))
        numbers = jnp.stack([rank, jnp.where(rank > before, rank, 0), jnp.zeros_like(rank)])
        self.ops.append(OpNumbers(name, place, str(floats[0].dtype), inputs, numbers, inside))
        for result, of_result in zip(floats, ranks, strict=True):
            self._made_by[id(result)] = len(self.ops) - 1
            self._ranks[id(result)] = of_result
        if name == "convert_element_type":
            self._rename(values[0], results[0])
        if str(floats[0].dtype) in HALF or name in _REDUCTIONS or name in _POINTWISE:
            self._precision(eqn, values, floats[0], place)
        self._name(name, values, floats[0], place)
        if name == "dot_general" and len(self.products) < MOST_PRODUCTS and place.phase != "again":
            self._product(eqn.params["dimension_numbers"], values, place)

    def _product(self, dimensions: Any, values: list[Any], place: Place) -> None:
        """Keep rows of both factors, with the sum along the last axis."""
        if not all(is_float(value) and value.size for value in values):
            return
        factors = [
            _rows_of(value, summed, shared)
            for value, summed, shared in zip(values, dimensions[0], dimensions[1], strict=True)
        ]
        weights = " + ".join(self.names[id(value)] for value in values if id(value) in self.names)
        known = next((self._factors[id(value)] for value in values if id(value) in self._factors), "")
        kind: ProductKind = "forward"
        if place.phase == "backward":
            kind = "input gradient" if weights else "weight gradient" if known else "gradient"
        elif weights:
            self._factors.update((id(value), weights) for value in values if id(value) not in self.names)
        owner = weights or (known if kind == "weight gradient" else "") or place.scope or place.line
        sizes = (*factors[0].shape[:2], *factors[1].shape[1:])
        key: ProductKey = (kind, owner, "dot_general", place.line, str(values[0].dtype), sizes)
        amax = jnp.stack([jnp.abs(value).max().astype(jnp.float32) for value in values])
        self.products.append(ProductNumbers(key, [*(sample(_take, factor) for factor in factors), amax]))

    def body(self) -> OpStatistics:
        """The observer for the ops in the body of a scan."""
        return OpStatistics()

    def numbers(self) -> list[Any]:
        """Numbers of all ops, tensors and losses; the last results of named scopes become tensors."""
        for scope, (value, line) in self._scopes.items():
            self.tensor("output", scope, value, line)
        self._scopes.clear()
        rows = [array for product in self.products for array in product.numbers]
        return [*(part.numbers for column in self.columns() for part in column), *rows]

    def rounds(self, body: OpStatistics, numbers: list[Any], eqn: Any, results: list[Any], place: Place) -> None:
        """Merge the observations of a body: the worst of all its iterations, and the sum of counts."""
        first, self._scans = len(self.ops), self._scans + 1
        rest = iter(numbers)
        for one in body.ops:
            one.numbers = _worst_round(next(rest))
            one.inputs = tuple(first + index for index in one.inputs)
            one.inside = tuple(first + index for index in one.inside)
            self.ops.append(one)
        for tensor in body.tensors:
            row = next(rest)
            tensor.numbers = jnp.concatenate([row[:, :1].min(0), row[:, 1:2].max(0), row[:, 2:].sum(0)])
            tensor.made_by = None if tensor.made_by is None else first + tensor.made_by
            tensor.name = tensor.name if "/" in tensor.name or place.scope else f"scan {self._scans}, {tensor.name}"
            self.tensors.append(tensor)
        for loss in body.losses:
            loss.numbers = next(rest).max(0)
            self.losses.append(loss)
        for product in body.products:
            arrays = [next(rest) for _ in product.numbers]
            length = arrays[0].shape[0]
            for turn in sorted({0, length // 2, length - 1}):
                key: ProductKey = (product.key[0], f"{product.key[1]}[{turn}]", *product.key[2:])
                self.products.append(ProductNumbers(key, [array[turn] for array in arrays]))
        self.left += body.left
        self.backward |= body.backward
        self._inside = tuple(range(first, len(self.ops)))

    def tensor(self, kind: Kind, name: str, value: Any, line: str = "") -> None:
        """Compute the numbers of a named tensor."""
        if value.size:
            made_by = self._made_by.get(id(value))
            dtype = str(value.dtype)
            self.tensors.append(TensorNumbers(kind, name, dtype, line, int(value.size), made_by, statistics(value)))

    def columns(self) -> tuple[Sequence[HasNumbers], ...]:
        """Ops, tensors and losses."""
        return self.ops, self.tensors, self.losses

    def release(self) -> None:
        """Forget the values of the walk, but keep the meaning of each number."""
        for column in self.columns():
            for part in column:
                part.numbers = None
        for product in self.products:
            product.numbers = []
        for known in (self._factors, self.names, self.sources, self._made_by, self._held, self._ranks, self._reduced):
            known.clear()

    def _rank(self, value: Any) -> Any:
        if id(value) not in self._ranks:
            self._ranks[id(value)] = _rank(value)
        return self._ranks[id(value)]

    def _same(self, value: Any, result: Any) -> None:
        """Record that the result has the values of the argument, in another shape."""
        self._rename(value, result)
        for known in (self._made_by, self._reduced, self._ranks):
            if id(value) in known:
                known[id(result)] = known[id(value)]

    def _rename(self, value: Any, result: Any) -> None:
        if id(value) in self.names:
            self.names[id(result)] = self.names[id(value)]

    def _name(self, op: str, values: list[Any], result: Any, place: Place) -> None:
        """Name matrix products and the results of named scopes."""
        weights = " + ".join(self.names[id(value)] for value in values if id(value) in self.names)
        if place.phase == "forward":
            parts = place.scope.split("/") if place.scope else []
            for depth in range(1, len(parts) + 1):
                self._scopes["/".join(parts[:depth])] = (result, place.line)
            if op in JAX_PRODUCTS and not parts:
                self._products += 1
                self.tensor("output", weights or f"{op} {self._products}", result, place.line)
        elif place.phase == "backward" and op in JAX_PRODUCTS and weights:
            self.tensor("gradient", f"input of {place.scope or weights}", result, place.line)

    def _precision(self, eqn: Any, values: list[Any], result: Any, place: Place) -> None:
        """Compute a reduction from 16 bits to 16 bits again; check a difference of two reductions for cancellation."""
        name, dtype = eqn.primitive.name, str(result.dtype)
        if name in _REDUCTIONS:
            length = terms_of(eqn)
            if length > 1:
                self._reduced[id(result)] = length
            if dtype in HALF and str(values[0].dtype) == dtype and length > 1 and values[0].size <= MOST_AGAIN:
                wide, params = widened(values, eqn.params, jnp.float32)
                exact = eqn.primitive.bind(*wide, **params)
                exact = exact[0] if eqn.primitive.multiple_results else exact
                error = _norm(result.astype(jnp.float32) - exact) / _norm(exact)
                self.losses.append(LossNumbers("rounding", name, place, dtype, length, error.reshape(1)))
            return
        taken = [value for value in values if not self._is_constant(value)]
        if name not in _POINTWISE or not taken or not all(id(value) in self._reduced for value in taken):
            return
        length = self._reduced[id(result)] = max(self._reduced[id(value)] for value in taken)
        if name in _DIFFERENCES and len(taken) > 1 and dtype in HALF:
            largest = jnp.stack([_norm(value) for value in taken]).max()
            lost = largest / _norm(result) * float(jnp.finfo(result.dtype).eps) / 2
            self.losses.append(LossNumbers("cancellation", name, place, dtype, length, lost.reshape(1)))

    def _is_constant(self, value: Any) -> bool:
        return value.ndim == 0 and id(value) not in self.sources and id(value) not in self.names


def _rows_of(value: Any, summed: Any, shared: Any) -> Any:
    """A factor as (batch, rows, terms)."""
    free = [axis for axis in range(value.ndim) if axis not in (*summed, *shared)]
    sizes = (math.prod(value.shape[axis] for axis in axes) for axes in (shared, free, summed))
    return value.transpose(*shared, *free, *summed).reshape(*sizes)


def _take(factor: Any, picked: tuple[list[int], list[int], int]) -> Any:
    batches, rows, terms = picked
    return factor[np.asarray(batches)][:, np.asarray(rows), :terms].astype(jnp.float32)


def wide_dtype() -> Any:
    """dtype of the numbers: float64 if jax has it."""
    return jax.dtypes.canonicalize_dtype("float64")


def statistics(value: Any) -> Any:
    """[smallest, largest; zeros; per format overflow, flushed, subnormal; finite values].

    Counts are over at most ``MOST_COUNTED`` values at equal distances. Smallest and largest are NaN if any value is.
    """
    flat = value.reshape(-1)
    flat = flat.astype(jnp.float32) if str(flat.dtype) in HALF else flat
    magnitudes = jnp.abs(flat[:: distance(flat.size)])
    magnitude_limits = [
        0.0,
        *(limit for item in FORMATS for limit in (item.zero, np.nextafter(item.normal, 0), item.largest)),
    ]
    limits = np.asarray([*magnitude_limits, np.finfo(flat.dtype).max], flat.dtype)
    zero, *within, finite = (magnitudes[None] <= limits[:, None]).sum(1)  # in one pass
    numbers = [flat.min(), flat.max(), zero]
    for flushed, below, largest in zip(within[::3], within[1::3], within[2::3], strict=True):
        numbers += [finite - largest, flushed - zero, below - flushed]
    return jnp.stack([number.astype(wide_dtype()) for number in (*numbers, finite)])


def _rank(value: Any) -> Any:
    """0: finite, 1: infinite, 2: NaN."""
    largest = jnp.abs(value).max()
    return jnp.where(jnp.isnan(largest), 2, jnp.where(jnp.isinf(largest), 1, 0)).astype(wide_dtype())


def _worst_round(rows: Any) -> Any:
    """Worst value, and first round that made one, of rows [rank, rank if its inputs are better, 0]."""
    made = jnp.argmax(rows[:, 1] > 0).astype(rows.dtype)
    return jnp.stack([rows[:, 0].max(), rows[made.astype(int), 1], made])


def _norm(value: Any) -> Any:
    return jnp.sqrt(jnp.square(value.astype(jnp.float32)).sum())
