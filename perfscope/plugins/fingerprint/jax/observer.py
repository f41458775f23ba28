"""Sees the ops of a walk of a JAX program and computes the numbers of their values in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from perfscope.plugins.fingerprint.document import MOST_OPS
from perfscope.plugins.fingerprint.jax.measure import is_key, measure, row_of
from perfscope.profiler.jax.jaxpr_walk import LAYOUT, Place, is_float

MOST_WALKED = 4_000
"""Most ops of a program: each is several more reductions to compile."""
MOST_ROUNDS = 128
"""Most rounds of a scan whose ops are recorded."""
MOST_TEXT = 200
_SAME_VALUES = (LAYOUT - {"convert_element_type"}) | {"name", "stop_gradient"}
_PARAMETERS = (
    *("accuracy", "algorithm", "axes", "axis", "dimension", "dimension_numbers", "exponent", "fft_type"),
    *("limit_indices", "mode", "new_dtype", "padding", "precision", "window_dimensions", "window_strides", "y"),
)
"""Parameters of primitives that are recorded: plain values without source locations."""


@dataclass(slots=True)
class ValuePlan:
    """A value of the walk."""

    dtype: str
    shape: tuple[int, ...]
    floating: bool
    base: int | None = None
    """The value that it is a view of."""


@dataclass(slots=True)
class OpPlan:
    """An op with the indexes of its values."""

    name: str
    place: Place
    arguments: str
    inputs: list[int]
    outputs: list[int]


@dataclass(slots=True)
class Prints:
    """The ops of a walk, or of the body of a scan, with the numbers of their values while it is traced."""

    values: list[ValuePlan] = field(default_factory=list)
    events: list[OpPlan | Prints] = field(default_factory=list)
    """Ops in order; the body of a scan before the scan itself."""
    left: int = 0
    """Ops beyond the limit."""
    _numbers: list[Any] = field(default_factory=list)
    _rounds: list[Any] = field(default_factory=list)
    _known: dict[int, int] = field(default_factory=dict)
    """Id of a value -> its index."""
    _held: list[Any] = field(default_factory=list)
    """Values, kept so that their ids are not reused."""
    _base: dict[int, int] = field(default_factory=dict)
    """Id of a value in another shape -> index of the value that it was made from."""

    def op(self, eqn: Any, values: list[Any], results: list[Any], place: Place) -> None:
        """Compute the numbers of an op."""
        self._held += [*values, *results]
        if eqn.primitive.name in _SAME_VALUES and len(results) == 1:
            known = self._known.get(id(values[0]), self._base.get(id(values[0])))
            if known is not None:
                self._base[id(results[0])] = known
            return
        if len(self.events) >= MOST_WALKED:
            self.left += 1
            return
        inputs = [self.value(value) for value in values if hasattr(value, "dtype")]
        outputs = [self.value(result) for result in results]
        self.events.append(OpPlan(eqn.primitive.name, place, _text(eqn.params), inputs, outputs))

    def value(self, value: Any) -> int:
        """Index of a value."""
        index = self._known.get(id(value))
        if index is None:
            index = self._known[id(value)] = len(self.values)
            self._held.append(value)
            dtype = "generator" if is_key(value) else str(value.dtype)
            base = self._base.get(id(value))
            self.values.append(ValuePlan(dtype, tuple(value.shape), is_float(value), base))
            self._numbers.append(measure(value))
        return index

    def body(self) -> Prints:
        """The observer for the ops in the body of a scan."""
        return Prints()

    def numbers(self) -> Any:
        """The numbers of all values, and of the bodies of scans."""
        return jnp.stack(self._numbers) if self._numbers else jnp.zeros((0, 0), jnp.uint32), self._rounds

    def rounds(self, body: Prints, numbers: Any, eqn: Any, results: list[Any], place: Place) -> None:
        """Keep the body of a scan; its numbers have a leading axis of rounds."""
        self.events.append(body)
        self._rounds.append(numbers)
        self.left += body.left

    def release(self) -> None:
        """Forget the values of the walk, but keep the meaning of each number."""
        for known in (self._numbers, self._rounds, self._known, self._held, self._base):
            known.clear()
        for event in self.events:
            if isinstance(event, Prints):
                event.release()


class Lines:
    """Lines of the document of a step, with values numbered through."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.ops = 0
        self.left = 0
        self._values = 0

    def value(self, plan: ValuePlan, numbers: np.ndarray, base: int | None = None) -> int:
        """Add a value."""
        hashed, row, sketch = row_of(numbers, floating=plan.floating)
        self.rows.append(["v", self._values, base, plan.dtype, plan.shape, hashed, row, sketch])
        self._values += 1
        return self._values - 1

    def generator(self, hashed: str) -> int:
        """Add the state of a random generator, or one hash of several values."""
        self.rows.append(["v", self._values, None, "several", (), hashed, hashed, None])
        self._values += 1
        return self._values - 1

    def op(
        self, name: str, place: Place, inputs: list[int], outputs: list[int], *, arguments: str = "", names: Any = ()
    ) -> None:
        """Add an op."""
        if self.ops >= MOST_OPS:
            self.left += 1
            return
        self.ops += 1
        phase = "" if place.phase == "forward" else place.phase
        self.rows.append(["o", name, place.line, place.scope, phase, arguments, inputs, outputs, list(names)])


def write_walk(plan: Prints, numbers: Any, lines: Lines) -> None:
    """Add the ops of a walk with the numbers that it gave."""
    table, bodies = np.asarray(numbers[0]), iter(numbers[1])
    known: dict[int, int] = {}

    def number(index: int) -> int:
        if index not in known:
            value = plan.values[index]
            base = None if value.base is None else number(value.base)
            known[index] = lines.value(value, table[index], base)
        return known[index]

    for event in plan.events:
        if isinstance(event, Prints):
            for part in _each_round(next(bodies)):
                write_walk(event, part, lines)
            continue
        inputs, outputs = [number(index) for index in event.inputs], [number(index) for index in event.outputs]
        lines.op(event.name, event.place, inputs, outputs, arguments=event.arguments)


def _each_round(numbers: Any) -> Iterator[Any]:
    table, bodies = numbers
    table = np.asarray(table)
    for index in range(min(len(table), MOST_ROUNDS)):
        yield table[index], [_at(body, index) for body in bodies]


def _at(numbers: Any, index: int) -> Any:
    table, bodies = numbers
    return np.asarray(table)[index], [_at(body, index) for body in bodies]


def _text(params: Any) -> str:
    parts = [f"{key}={params[key]}" for key in _PARAMETERS if params.get(key) is not None]
    return ", ".join(parts)[:MOST_TEXT]
