"""An interpreter that runs the jaxpr of a JAX program op by op.

A layer is the result of an op that uses a weight, or of a named scope. A scan over stacked weights is run layer by
layer; other control flow is one op. An observer sees every op, and the ops inside a scan with those of all iterations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.profiler.trail import FLOATS, Lines, Trail

Tag = frozenset[str] | None
"""Weights of a value that consists only of weights and constants; ``None``: it depends on the inputs."""
CONSTANT: Tag = frozenset()
_SCOPE = re.compile(r"[\w.-]+")
LAYOUT = frozenset(
    ("broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "convert_element_type", "copy", "copy_p")
)
"""Primitives that are not recorded."""
_STRUCTURAL = LAYOUT | {
    *("concatenate", "dynamic_slice", "dynamic_update_slice", "gather", "iota", "name", "pad", "rev", "select_n"),
    *("slice", "split", "stop_gradient"),
}
"""Primitives whose results are input values, unrounded (a cast counts with the previous op)."""
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "checkpoint": "jaxpr", "remat2": "jaxpr", "remat": "jaxpr"}
_CALLS |= {"closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
"""Primitives whose inner program is interpreted -> the parameter that holds it."""
_CUSTOM = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr"}


class Place(NamedTuple):
    """Source place of an op."""

    scope: str
    """Named scopes, outermost first, joined by ``/``."""
    line: str
    """``model.py:38`` in the user's code."""
    phase: str
    """``forward``, ``backward``, or ``again``: forward work that a checkpoint repeats in the backward."""


class Observer(Protocol):
    """Sees the ops of a walk in order; values that it computes become part of the interpreted program."""

    def op(self, eqn: Any, values: list[Any], results: list[Any], place: Place) -> None:
        """Handle an evaluated op."""

    def body(self) -> Observer:
        """The observer for the ops in the body of a scan, in one iteration."""

    def numbers(self) -> Any:
        """Its computed values, a pytree of arrays."""

    def rounds(self, body: Any, numbers: Any, eqn: Any, results: list[Any], place: Place) -> None:
        """Handle the end of a scan. ``numbers``: of ``body``, with a leading axis of iterations; ``op`` follows."""


@dataclass(slots=True)
class Walk:
    """Evaluates a jaxpr op by op and keeps the results of layers. ``wide``: skip casts to narrower dtypes."""

    lines: Lines
    weights: set[str]
    wide: bool = False
    quiet: bool = False
    """Keep nothing: inside control flow, where values are not concrete, or for an observer."""
    observer: Observer | None = None
    phase: str = "forward"
    """Phase of ops that do not carry one."""
    trail: Trail = field(default_factory=Trail)
    kept: list[Any] = field(default_factory=list)
    results: list[tuple[str, str, Any]] = field(default_factory=list)
    layers_before: list[int] = field(default_factory=list)
    taps: list[Any] | None = None
    made_by: dict[int, tuple[Any, int]] = field(default_factory=dict)
    """Id of a value -> the value, so that its id is not reused, and the layer whose result it is."""
    moves: list[tuple[int, ...] | None] = field(default_factory=list)
    """Permutation that moves a layer's features after its batch, if its op has them elsewhere."""

    def reset(self, taps: list[Any]) -> None:
        """Start again, with a zero to add to each layer."""
        self.trail, self.kept, self.results, self.layers_before, self.moves = Trail(), [], [], [], []
        self.taps, self.made_by = taps, {}

    def canonical(self, number: int, array: np.ndarray) -> np.ndarray:
        """A layer's array with its features last."""
        move = self.moves[number]
        return array if move is None else np.ascontiguousarray(array.transpose(move))

    def program(self, closed: Any, values: list[Any], tags: list[Tag], scope: str = "") -> list[Any]:
        """Results of a closed jaxpr."""
        consts = list(closed.consts)
        results, _ = self.jaxpr(closed.jaxpr, [*consts, *values], [*(CONSTANT for _ in consts), *tags], scope)
        return results

    def jaxpr(
        self, jaxpr: Any, values: list[Any], tags: list[Tag], scope: str, line: str = ""
    ) -> tuple[list[Any], list[Tag]]:
        """Results and their tags. ``values``: of constants and arguments; ``line``: of all its ops, else their own."""
        env: dict[Any, tuple[Any, Tag]] = dict(
            zip((*jaxpr.constvars, *jaxpr.invars), zip(values, tags, strict=True), strict=True)
        )
        scopes = Scopes(scope)

        def read(atom: Any) -> tuple[Any, Tag]:
            return (jnp.asarray(atom.val, atom.aval.dtype), CONSTANT) if hasattr(atom, "val") else env[atom]

        for eqn in jaxpr.eqns:
            inside = _scope_of(eqn)
            for name, var, op, at in scopes.enter(inside):
                env[var] = (self._keep(name, op, at, env[var][0]), None)
            pairs = [read(atom) for atom in eqn.invars]
            at = line or self.lines.name(_frames(eqn))
            path = "/".join(filter(None, (scope, inside)))
            results, made = self._apply(eqn, [pair[0] for pair in pairs], [pair[1] for pair in pairs], path, at)
            env.update(zip(eqn.outvars, zip(results, made, strict=True), strict=True))
            if made and made[0] is None and is_float(results[0]):
                scopes.ran(inside, eqn.outvars[0], eqn.primitive.name, at)
        for name, var, op, at in scopes.enter(""):
            env[var] = (self._keep(name, op, at, env[var][0]), None)
        final = [read(atom) for atom in jaxpr.outvars]
        return [pair[0] for pair in final], [pair[1] for pair in final]

    def _apply(
        self, eqn: Any, values: list[Any], tags: list[Tag], scope: str, line: str
    ) -> tuple[list[Any], list[Tag]]:
        name = eqn.primitive.name
        if name in _CALLS or (self.observer is not None and name in _CUSTOM):
            inner = eqn.params[{**_CALLS, **_CUSTOM}[name]]
            jaxpr, consts = (inner.jaxpr, list(inner.consts)) if hasattr(inner, "consts") else (inner, [])
            outer = "" if self._is_users(eqn, jaxpr) else line
            before, self.phase = self.phase, self._phase_of(eqn)
            made = self.jaxpr(jaxpr, [*consts, *values], [*(CONSTANT for _ in consts), *tags], scope, outer)
            self.phase = before
            return made
        if name == "scan" and self._is_over_layers(eqn, tags):
            return self._layers(eqn, values, tags, scope)
        place = Place(scope, line, self._phase_of(eqn))
        if self.observer is not None and name == "scan":
            results = self._rounds(eqn, values, place, self.observer)
        else:
            results = self._evaluate(eqn, values, tags)
        if self.observer is not None:
            self.observer.op(eqn, values, results, place)
        depends = any(tag is None for tag in tags)
        used = frozenset().union(*(tag for tag in tags if tag))
        if not depends:
            return results, [frozenset(_sliced(eqn, weight) for weight in used)] * len(results)
        if self.quiet or not is_float(results[0]):
            return results, [None] * len(results)
        if name not in _STRUCTURAL:
            self.trail.work(terms_of(eqn))
        if name not in LAYOUT:
            self.results.append((name, line, results[0]))
            self.layers_before.append(len(self.kept))
        used = frozenset(weight for weight in used if weight.partition("[")[0] in self.weights)
        follows = self._layer_before(values, tags)
        if used:
            title, move = " + ".join(sorted(used)), _features_last(eqn, tags)
            results = [self._keep(title, name, line, results[0], sorted(used), move, follows), *results[1:]]
        elif name in LAYOUT and follows is not None:
            self.made_by[id(results[0])] = (results[0], follows)
        return results, [None] * len(results)

    def _phase_of(self, eqn: Any) -> str:
        stack = str(eqn.source_info.name_stack)
        if "rematted_computation" in stack:
            return "again"
        return "backward" if "transpose(" in stack else self.phase

    def _rounds(self, eqn: Any, values: list[Any], place: Place, observer: Observer) -> list[Any]:
        """A scan, with the values that an observer computes from the ops of each iteration."""
        params = eqn.params
        consts, carries, closed = params["num_consts"], params["num_carry"], params["jaxpr"]
        start = values[consts : consts + carries]
        seen: list[Observer] = []

        def body(carry: list[Any], taken: list[Any]) -> tuple[list[Any], tuple[list[Any], Any]]:
            inner = observer.body()
            seen.append(inner)  # jax may trace it more than once
            walk = Walk(self.lines, self.weights, quiet=True, observer=inner, phase=place.phase)
            given = [*values[:consts], *carry, *taken]
            made = walk.program(closed, given, [None] * len(given), place.scope)
            pairs = zip(made, start, strict=False)  # a body also returns rows
            after = [v if v.dtype == before.dtype else jnp.asarray(v, before.dtype) for v, before in pairs]
            return after, (made[carries:], inner.numbers())

        end, (rows, numbers) = jax.lax.scan(
            body, start, values[consts + carries :], length=params["length"], reverse=params["reverse"]
        )
        results = [*end, *rows]
        observer.rounds(seen[-1], numbers, eqn, results, place)
        return results

    def _layer_before(self, values: list[Any], tags: list[Tag]) -> int | None:
        """The layer whose result an op uses unchanged, with only weights as other inputs."""
        inputs = [value for value, tag in zip(values, tags, strict=True) if tag is None]
        return self.made_by.get(id(inputs[0]), (None, None))[1] if len(inputs) == 1 else None

    def _keep(
        self,
        name: str,
        op: str,
        line: str,
        value: Any,
        weights: Sequence[str] = (),
        move: tuple[int, ...] | None = None,
        follows: int | None = None,
    ) -> Any:
        """Keep a layer's value; return the value to continue with."""
        if self.quiet:
            return value
        number = self.trail.add_layer(name, op, line, str(value.dtype), weights, follows)
        self.moves.append(move)
        if self.taps is not None:
            value = value + self.taps[number]
        self.kept.append(value)
        self.made_by[id(value)] = (value, number)
        return value

    def _is_users(self, eqn: Any, jaxpr: Any) -> bool:
        """Whether a call is to a user's function: jax's own functions keep the lines of their first call."""
        called = eqn.params.get("name")
        inner = [frame for each in jaxpr.eqns[:1] for frame in _traceback(each) if frame.function_name == called]
        return called is None or any(self.lines.name([(frame.file_name, frame.line_num)]) for frame in inner)

    def _is_over_layers(self, eqn: Any, tags: list[Tag]) -> bool:
        first = eqn.params["num_consts"] + eqn.params["num_carry"]
        return not self.quiet and any(tags[first:])

    def _layers(self, eqn: Any, values: list[Any], tags: list[Tag], scope: str) -> tuple[list[Any], list[Tag]]:
        """A scan over stacked weights, one layer after another."""
        params = eqn.params
        consts, carries = params["num_consts"], params["num_carry"]
        inner, length = params["jaxpr"], params["length"]
        carry, carry_tags = values[consts : consts + carries], tags[consts : consts + carries]
        rows: list[list[Any]] = [[] for _ in range(len(eqn.outvars) - carries)]
        for index in reversed(range(length)) if params["reverse"] else range(length):
            taken = [value[index] for value in values[consts + carries :]]
            taken_tags = [
                tag if tag is None else frozenset(f"{weight}[{index}]" for weight in tag)
                for tag in tags[consts + carries :]
            ]
            given = [*inner.consts, *values[:consts], *carry, *taken]
            given_tags = [*(CONSTANT for _ in inner.consts), *tags[:consts], *carry_tags, *taken_tags]
            results, made = self.jaxpr(inner.jaxpr, given, given_tags, f"{scope}[{index}]" if scope else f"[{index}]")
            carry, carry_tags = results[:carries], made[:carries]
            for row, value in zip(rows, results[carries:], strict=True):
                row.append(value)
        stacked = [jnp.stack(row[::-1] if params["reverse"] else row) for row in rows]
        return [*carry, *stacked], [*carry_tags, *(None for _ in stacked)]

    def _evaluate(self, eqn: Any, values: list[Any], tags: list[Tag]) -> list[Any]:
        """Results of one op; with ``wide`` at the widest of the input dtypes."""
        params, name = eqn.params, eqn.primitive.name
        if self.wide:
            if name == "convert_element_type" and is_float(values[0]) and str(np.dtype(params["new_dtype"])) in FLOATS:
                return list(values)
            if any(
                is_float(value) and value.dtype != atom.aval.dtype
                for value, atom in zip(values, eqn.invars, strict=True)
            ):
                values, params = widened(values, params, jnp.float64)
                if name in _CUSTOM or name in ("scan", "while", "cond"):
                    return self._control(eqn, values, tags)
        bound = eqn.primitive.get_bind_params(params)
        functions: Sequence[Any] = ()
        if isinstance(bound, tuple):  # jax 0.6
            functions, bound = bound
        results = eqn.primitive.bind(*functions, *values, **bound)
        return list(results) if eqn.primitive.multiple_results else [results]

    def _control(self, eqn: Any, values: list[Any], tags: list[Tag]) -> list[Any]:
        """Control flow and custom derivatives whose values are wider than at tracing."""
        inner = Walk(self.lines, self.weights, wide=True, quiet=True)
        name, params = eqn.primitive.name, eqn.params

        def run(closed: Any, arguments: Sequence[Any], like: Sequence[Any] = ()) -> list[Any]:
            made = inner.program(closed, list(arguments), [None] * len(arguments))
            cast = [jnp.asarray(value, wanted.dtype) for value, wanted in zip(made, like)]  # noqa: B905
            return [*cast, *made[len(like) :]]

        if name == "scan":
            consts, carries = params["num_consts"], params["num_carry"]
            start = values[consts : consts + carries]

            def body(carry: list[Any], taken: list[Any]) -> tuple[list[Any], list[Any]]:
                made = run(params["jaxpr"], [*values[:consts], *carry, *taken], start)
                return made[:carries], made[carries:]

            end, rows = jax.lax.scan(
                body, start, values[consts + carries :], length=params["length"], reverse=params["reverse"]
            )
            return [*end, *rows]
        if name == "while":
            tests, bodies = params["cond_nconsts"], params["body_nconsts"]
            start = values[tests + bodies :]
            return list(
                jax.lax.while_loop(
                    lambda carry: run(params["cond_jaxpr"], [*values[:tests], *carry])[0],
                    lambda carry: run(params["body_jaxpr"], [*values[tests : tests + bodies], *carry], start),
                    start,
                )
            )
        if name == "cond":
            branches = [lambda *arguments, branch=branch: run(branch, arguments) for branch in params["branches"]]
            return list(jax.lax.switch(values[0], branches, *values[1:]))
        return run(params[_CUSTOM[name]], values)


@dataclass(slots=True)
class Scopes:
    """Named scopes of one level of a program, to find those that end before the next op."""

    outer: str
    last: dict[str, tuple[Any, str, str]] = field(default_factory=dict)

    def ran(self, scope: str, var: Any, op: str, line: str) -> None:
        """An op inside of ``scope`` returned ``var``."""
        parts = scope.split("/") if scope else []
        for depth in range(1, len(parts) + 1):
            self.last["/".join(parts[:depth])] = (var, op, line)

    def enter(self, scope: str) -> Iterator[tuple[str, Any, str, str]]:
        """Scopes left when ``scope`` is entered, innermost first: (name, last result, op, line)."""
        left = [name for name in self.last if not f"{scope}/".startswith(f"{name}/")]
        for name in sorted(left, key=len, reverse=True):
            var, op, line = self.last.pop(name)
            yield "/".join(filter(None, (self.outer, name))), var, op, line


def is_float(value: Any) -> bool:
    """Whether it is an array of floating point."""
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)


def widened(values: list[Any], params: dict[str, Any], dtype: Any) -> tuple[list[Any], dict[str, Any]]:
    """Floating-point values, and dtypes among the parameters, as ``dtype``."""
    wide = [jnp.asarray(value, dtype) if is_float(value) else value for value in values]
    changed = {
        key: np.dtype(dtype)
        for key in ("new_dtype", "preferred_element_type", "dtype")
        if params.get(key) is not None and str(np.dtype(params[key])) in FLOATS
    }
    return wide, {**params, **changed}


def _scope_of(eqn: Any) -> str:
    """The named scopes of an op, outermost first, without those of transformations and of einsum."""
    return "/".join(part for part in str(eqn.source_info.name_stack).split("/") if _SCOPE.fullmatch(part))


def _traceback(eqn: Any) -> Sequence[Any]:
    traceback = eqn.source_info.traceback
    return traceback.frames if traceback is not None else ()


def _frames(eqn: Any) -> Iterator[tuple[str, int]]:
    return ((frame.file_name, frame.line_num) for frame in _traceback(eqn))


def _sliced(eqn: Any, weight: str) -> str:
    """The weight, with the index if the op takes one row of the first axis of a stack."""
    if eqn.primitive.name == "slice" and "[" not in weight:
        first, last = eqn.params["start_indices"], eqn.params["limit_indices"]
        shape: tuple[int, ...] = eqn.invars[0].aval.shape
        if last[0] - first[0] == 1 and shape[0] > 1 and tuple(last[1:]) == tuple(shape[1:]) and not any(first[1:]):
            return f"{weight}[{first[0]}]"
    return weight


def _features_last(eqn: Any, tags: list[Tag]) -> tuple[int, ...] | None:
    """Axes of a product of activations and a weight: batch and activation first, those of the weight last."""
    if eqn.primitive.name == "conv_general_dilated":
        out = eqn.params["dimension_numbers"].out_spec
        return (out[0], *out[2:], out[1])
    if eqn.primitive.name != "dot_general" or tags[0] is None:
        return None
    (left, _), (batch, _) = eqn.params["dimension_numbers"]
    ndim, shared = len(eqn.outvars[0].aval.shape), len(batch)
    free = len(eqn.invars[0].aval.shape) - len(left) - shared
    return (*range(shared), *range(shared + free, ndim), *range(shared, shared + free))


def terms_of(eqn: Any) -> int:
    """The reduction length of an op; for control flow that of all its iterations."""
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        shape: tuple[int, ...] = eqn.invars[0].aval.shape
        return math.prod(shape[axis] for axis in params["dimension_numbers"][0][0])
    if name == "conv_general_dilated":
        shape, spec = eqn.invars[1].aval.shape, params["dimension_numbers"].rhs_spec
        return int(math.prod(shape) // max(shape[spec[0]], 1))
    if name.startswith(("reduce_", "cum", "arg")):
        size, made = math.prod(eqn.invars[0].aval.shape), math.prod(eqn.outvars[0].aval.shape)
        return int(eqn.invars[0].aval.shape[params["axis"]] if name.startswith("cum") else max(size // max(made, 1), 1))
    if name == "scan":
        return int(params["length"]) * len(params["jaxpr"].jaxpr.eqns)
    return 1
