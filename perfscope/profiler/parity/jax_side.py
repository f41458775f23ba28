"""Records a JAX model: an interpreter walks its jaxpr op by op under `jax.vjp`: values and gradients in one pass.

A layer is the result of an op that uses a weight, or of a named scope. To each a zero is added, whose gradient is that
of the layer. A scan over stacked weights is walked layer by layer; other control flow is one op.
"""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.model.documents.parity import RECORDING_SCHEMA, Arrays, Recording, Weight
from perfscope.profiler.parity.side import (
    FLOATS,
    Lines,
    RunRequest,
    SideError,
    Trail,
    cotangents,
    fitted_input,
    fitted_weights,
)

Tag = frozenset[str] | None
"""Weights that a value is made of, and of nothing but weights and constants; ``None``: it depends on the inputs."""
CONSTANT: Tag = frozenset()
_SCOPE = re.compile(r"[\w.-]+")
_LAYOUT = frozenset(
    ("broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "convert_element_type", "copy", "copy_p")
)
"""Primitives that are not in the trail."""
_STRUCTURAL = _LAYOUT | {
    *("concatenate", "dynamic_slice", "dynamic_update_slice", "gather", "iota", "name", "pad", "rev", "select_n"),
    *("slice", "split", "stop_gradient"),
}
"""Primitives that give values of their inputs, without rounding them (a cast is counted with the op before)."""
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "checkpoint": "jaxpr", "remat2": "jaxpr", "remat": "jaxpr"}
_CALLS |= {"closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
"""Primitives that are walked through -> the parameter with their program."""
_CUSTOM = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "custom_vjp_call_jaxpr": "fun_jaxpr"}


class JaxSide:
    """A model in JAX. ``make`` gives (function, parameters, inputs), or (module, inputs) of Flax nnx and Equinox."""

    framework = "jax"

    def __init__(self, make: Callable[[], Any], device: str | None) -> None:
        self._make, self._device = make, device
        self._lines = Lines()

    def _model(self) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
        made = self._make()
        inputs = made[-1] if isinstance(made[-1], tuple | list) else (made[-1],)
        if len(made) == 3:
            function = made[0].apply if hasattr(made[0], "apply") else made[0]  # a Flax linen module
            return function, made[1], tuple(inputs)
        return *_split_module(made[0]), tuple(inputs)

    def describe(self) -> tuple[list[Weight], Arrays]:
        """Floating-point leaves of the parameters, in the order in which the program uses them."""
        function, parameters, inputs = self._model()
        names, leaves, tree = _named(parameters)
        floats = [_is_float(leaf) for leaf in leaves]
        tracked = {name for name, is_float in zip(names, floats, strict=True) if is_float}
        walk = Walk(self._lines, tracked)
        closed = jax.make_jaxpr(lambda leaves, inputs: function(tree.unflatten(leaves), *inputs))(leaves, inputs)
        flat = [*leaves, *jax.tree_util.tree_leaves(inputs)]
        tags = [*(frozenset({name}) for name in names), *(None for _ in flat[len(leaves) :])]
        jax.eval_shape(lambda *values: walk.program(closed, list(values), tags), *flat)
        used = [name.partition("[")[0] for layer in walk.trail.layers for name in layer.weights]
        order = {name: number for number, name in enumerate(dict.fromkeys(used))}
        kept = [(name, leaf) for name, leaf in zip(names, leaves, strict=True) if name in tracked]
        kept.sort(key=lambda pair: order.get(pair[0], len(order)))
        weights = [Weight(name=name, shape=tuple(leaf.shape), dtype=str(leaf.dtype)) for name, leaf in kept]
        return weights, {name: to_numpy(leaf) for name, leaf in kept}

    def run(self, request: RunRequest) -> tuple[Recording, Arrays]:
        """Run it forward, and backward from the fixed cotangents of its outputs."""
        wide = request.wide or request.dtype == "float64"
        before = jax.config.jax_enable_x64
        function, parameters, inputs = self._model()
        weights = self.describe()[0]
        jax.config.update("jax_enable_x64", wide or before)
        try:
            device = jax.devices(self._device)[0] if self._device is not None else None
            with jax.default_device(device):
                return self._run(request, function, parameters, inputs, weights)
        finally:
            jax.config.update("jax_enable_x64", before)

    def _run(
        self, request: RunRequest, function: Callable[..., Any], parameters: Any, inputs: Any, weights: list[Weight]
    ) -> tuple[Recording, Arrays]:
        names, leaves, tree = _named(parameters)
        if request.weights is not None:
            fitted_weights({weight.name: weight.shape for weight in weights}, request.weights)
        own = {weight.name for weight in weights}
        values = [
            _cast((request.weights or {}).get(name, leaf), leaf, request.dtype) if name in own else leaf
            for name, leaf in zip(names, leaves, strict=True)
        ]
        flat, shape = jax.tree_util.tree_flatten(inputs)
        given = flat if request.inputs is None else _replaced(flat, request.inputs)
        arrays = [_cast(array, leaf, request.dtype) for array, leaf in zip(given, flat, strict=True)]
        closed = jax.make_jaxpr(lambda weights, inputs: function(tree.unflatten(weights), *shape.unflatten(inputs)))(
            values, arrays
        )
        recorded = _walked(closed, values, arrays, names, own, self._lines, wide=request.wide)
        stored = recorded.arrays | {f"input:{number}": to_numpy(array) for number, array in enumerate(arrays)}
        stored |= {f"weight:{name}": to_numpy(value) for name, value in zip(names, values, strict=True) if name in own}
        recording = Recording(
            schema=RECORDING_SCHEMA,
            framework=self.framework,
            version=jax.__version__,
            device=str(next(iter(jnp.zeros(()).devices())).platform),
            dtype=request.dtype or next((weight.dtype for weight in weights), "float32"),
            weights=tuple(weights),
            layers=tuple(recorded.trail.layers),
            ops=tuple(recorded.trail.ops),
            outputs=recorded.outputs,
            notes=tuple(recorded.notes),
        )
        return recording, stored


@dataclass(slots=True)
class Recorded:
    """What a walk gives."""

    trail: Trail
    arrays: Arrays
    outputs: int
    notes: list[str]


def _walked(
    closed: Any, values: list[Any], inputs: list[Any], names: list[str], own: set[str], lines: Lines, *, wide: bool
) -> Recorded:
    """Walk the program of (weights, inputs) forward and backward."""
    tags = [*(frozenset({name}) for name in names), *(None for _ in inputs)]
    rehearsal = Walk(lines, own, wide=wide)
    jax.eval_shape(lambda *flat: rehearsal.program(closed, list(flat), tags), *values, *inputs)
    zeros = [jnp.zeros(layer.shape, layer.dtype) for layer in rehearsal.kept]
    walk = Walk(lines, own, wide=wide)

    def forward(weights: list[Any], taps: list[Any]) -> Any:
        walk.reset(taps)
        full = [given if name not in own else weights.pop(0) for name, given in zip(names, values, strict=True)]
        outputs = [out for out in walk.program(closed, [*full, *inputs], tags) if _is_float(out)]
        return outputs, (walk.kept, [value for _, _, value in walk.results])

    floats_named = [name for name in names if name in own]
    floats = [value for name, value in zip(names, values, strict=True) if name in own]
    notes: list[str] = []
    try:
        outputs, kept, results, gradients, taps = jax.jit(_with_gradients, static_argnums=0)(forward, floats, zeros)
    except (NotImplementedError, TypeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0][:200]
        notes.append(f"no gradients: {type(error).__name__}: {reason}")
        outputs, (kept, results) = forward(list(floats), zeros)
        gradients, taps = [], []
    if not outputs:
        raise SideError("the model gives no floating-point array")
    trail = _trail(walk, results)
    arrays = {f"layer:{number}": walk.canonical(number, to_numpy(value)) for number, value in enumerate(kept)}
    arrays |= {f"gradient:{number}": walk.canonical(number, to_numpy(value)) for number, value in enumerate(taps)}
    arrays |= {f"weight_gradient:{name}": to_numpy(g) for name, g in zip(floats_named, gradients, strict=False)}
    for number, out in enumerate(outputs):
        name = f"output {number}" if len(outputs) > 1 else "output"
        arrays[f"layer:{trail.add_layer(name, '', '', str(out.dtype))}"] = to_numpy(out)
    return Recorded(trail, arrays, len(outputs), notes)


def _with_gradients(forward: Callable[..., Any], weights: list[Any], taps: list[Any]) -> tuple[Any, ...]:
    outputs, backward, (kept, results) = jax.vjp(forward, weights, taps, has_aux=True)
    signs = cotangents(tuple(out.shape) for out in outputs)
    return outputs, kept, results, *backward([jnp.asarray(s, out.dtype) for s, out in zip(signs, outputs, strict=True)])


def _trail(walk: Walk, results: list[Any]) -> Trail:
    """The ops with the numbers of their results, now that these are known."""
    trail = Trail(layers=walk.trail.layers, roundings=walk.trail.roundings, terms=walk.trail.terms)
    for (name, line, _), layers, value in zip(walk.results, walk.layers_before, results, strict=True):
        trail.add_op(name, line, to_numpy(value).astype(np.float64), layers)
    return trail


@dataclass(slots=True)
class Walk:
    """Evaluates a jaxpr op by op and keeps the results of layers. ``wide``: casts to narrower dtypes are not made."""

    lines: Lines
    weights: set[str]
    wide: bool = False
    quiet: bool = False
    """Inside of control flow, where values are not concrete."""
    trail: Trail = field(default_factory=Trail)
    kept: list[Any] = field(default_factory=list)
    results: list[tuple[str, str, Any]] = field(default_factory=list)
    layers_before: list[int] = field(default_factory=list)
    taps: list[Any] | None = None
    made_by: dict[int, tuple[Any, int]] = field(default_factory=dict)
    """Id of a value -> itself, so that no other gets its id, and the layer that it is the result of."""
    moves: list[tuple[int, ...] | None] = field(default_factory=list)
    """Permutation that brings a layer's features behind its batch, where its op has them elsewhere."""

    def reset(self, taps: list[Any]) -> None:
        """Begin again, with a zero to add to each layer."""
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
            if made and made[0] is None and _is_float(results[0]):
                scopes.ran(inside, eqn.outvars[0], eqn.primitive.name, at)
        for name, var, op, at in scopes.enter(""):
            env[var] = (self._keep(name, op, at, env[var][0]), None)
        final = [read(atom) for atom in jaxpr.outvars]
        return [pair[0] for pair in final], [pair[1] for pair in final]

    def _apply(
        self, eqn: Any, values: list[Any], tags: list[Tag], scope: str, line: str
    ) -> tuple[list[Any], list[Tag]]:
        name = eqn.primitive.name
        if name in _CALLS:
            inner = eqn.params[_CALLS[name]]
            jaxpr, consts = (inner.jaxpr, list(inner.consts)) if hasattr(inner, "consts") else (inner, [])
            outer = "" if self._is_users(eqn, jaxpr) else line
            return self.jaxpr(jaxpr, [*consts, *values], [*(CONSTANT for _ in consts), *tags], scope, outer)
        if name == "scan" and self._is_over_layers(eqn, tags):
            return self._layers(eqn, values, tags, scope)
        results = self._evaluate(eqn, values, tags)
        depends = any(tag is None for tag in tags)
        used = frozenset().union(*(tag for tag in tags if tag))
        if not depends:
            return results, [frozenset(_sliced(eqn, weight) for weight in used)] * len(results)
        if self.quiet or not _is_float(results[0]):
            return results, [None] * len(results)
        if name not in _STRUCTURAL:
            self.trail.work(_terms(eqn))
        if name not in _LAYOUT:
            self.results.append((name, line, results[0]))
            self.layers_before.append(len(self.kept))
        used = frozenset(weight for weight in used if weight.partition("[")[0] in self.weights)
        follows = self._layer_before(values, tags)
        if used:
            title, move = " + ".join(sorted(used)), _features_last(eqn, tags)
            results = [self._keep(title, name, line, results[0], sorted(used), move, follows), *results[1:]]
        elif name in _LAYOUT and follows is not None:
            self.made_by[id(results[0])] = (results[0], follows)
        return results, [None] * len(results)

    def _layer_before(self, values: list[Any], tags: list[Tag]) -> int | None:
        """The layer whose result an op takes, as it is and with weights alone beside it."""
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
        """Keep a layer's value; the value to go on with."""
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
        """Whether a call is of a function of the user's: jax keeps the lines of the first call of its own functions."""
        called = eqn.params.get("name")
        inner = [frame for each in jaxpr.eqns[:1] for frame in _traceback(each) if frame.function_name == called]
        return called is None or any(self.lines.name([(frame.file_name, frame.line_num)]) for frame in inner)

    def _is_over_layers(self, eqn: Any, tags: list[Tag]) -> bool:
        first = eqn.params["num_consts"] + eqn.params["num_carry"]
        return not self.quiet and any(tags[first:])

    def _layers(self, eqn: Any, values: list[Any], tags: list[Tag], scope: str) -> tuple[list[Any], list[Tag]]:
        """A scan over stacked weights, one layer after the other."""
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
        """Results of one op; with ``wide`` at the widest of the dtypes that go in."""
        params, name = eqn.params, eqn.primitive.name
        if self.wide:
            if name == "convert_element_type" and _is_float(values[0]) and str(np.dtype(params["new_dtype"])) in FLOATS:
                return list(values)
            if any(
                _is_float(value) and value.dtype != atom.aval.dtype
                for value, atom in zip(values, eqn.invars, strict=True)
            ):
                values, params = _widened(values, params)
                if name in _CUSTOM or name in ("scan", "while", "cond"):
                    return self._control(eqn, values, tags)
        bound = eqn.primitive.get_bind_params(params)
        functions: Sequence[Any] = ()
        if isinstance(bound, tuple):  # jax 0.6
            functions, bound = bound
        results = eqn.primitive.bind(*functions, *values, **bound)
        return list(results) if eqn.primitive.multiple_results else [results]

    def _control(self, eqn: Any, values: list[Any], tags: list[Tag]) -> list[Any]:
        """Control flow and custom derivatives whose values are wider than they were traced for."""
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
    """Named scopes of one level of a program: which end before the next op."""

    outer: str
    last: dict[str, tuple[Any, str, str]] = field(default_factory=dict)

    def ran(self, scope: str, var: Any, op: str, line: str) -> None:
        """An op inside of ``scope`` gave ``var``."""
        parts = scope.split("/") if scope else []
        for depth in range(1, len(parts) + 1):
            self.last["/".join(parts[:depth])] = (var, op, line)

    def enter(self, scope: str) -> Iterator[tuple[str, Any, str, str]]:
        """Scopes that are left when ``scope`` is entered, the innermost first: (name, last result, op, line)."""
        left = [name for name in self.last if not f"{scope}/".startswith(f"{name}/")]
        for name in sorted(left, key=len, reverse=True):
            var, op, line = self.last.pop(name)
            yield "/".join(filter(None, (self.outer, name))), var, op, line


def to_numpy(array: Any) -> np.ndarray:
    """Its values; bfloat16 and float16 become float32."""
    return np.asarray(array.astype(jnp.float32) if str(array.dtype) in ("bfloat16", "float16") else array)


def _split_module(module: Any) -> tuple[Callable[..., Any], Any]:
    """(function of parameters and inputs, parameters) of a module that is called itself: Flax nnx, or a pytree."""
    if "flax" in sys.modules and importlib.util.find_spec("flax.nnx") is not None:
        from flax import nnx

        if isinstance(module, nnx.Module):
            graph, state = nnx.split(module)
            return lambda parameters, *inputs: nnx.merge(graph, parameters)(*inputs), state
    if not callable(module):
        raise SideError(f"a {type(module).__name__} is no model: give (function, parameters, inputs)")
    leaves, tree = jax.tree_util.tree_flatten(module)
    arrays = [leaf if hasattr(leaf, "dtype") else None for leaf in leaves]
    names = [_path_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(module)[0]]

    def function(parameters: dict[str, Any], *inputs: Any) -> Any:
        full = [parameters.get(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
        return tree.unflatten(full)(*inputs)

    return function, {name: leaf for name, leaf in zip(names, arrays, strict=True) if leaf is not None}


def _named(parameters: Any) -> tuple[list[str], list[Any], Any]:
    """Names (``blocks/up``), leaves and structure of a pytree."""
    pairs, tree = jax.tree_util.tree_flatten_with_path(parameters)
    return [_path_name(path) for path, _ in pairs], [jnp.asarray(leaf) for _, leaf in pairs], tree


def named_floats(parameters: Any) -> list[tuple[str, Any]]:
    """Names and arrays of the floating-point leaves of a pytree."""
    names, leaves, _ = _named(parameters)
    return [(name, leaf) for name, leaf in zip(names, leaves, strict=True) if _is_float(leaf)]


def _path_name(path: Any) -> str:
    if len(path) > 1 and getattr(path[-1], "name", "") == "value":
        path = path[:-1]  # of a Flax variable
    parts = (str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
    return "/".join(part.lstrip(".") for part in parts)


def _is_float(value: Any) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)


def _cast(array: Any, like: Any, dtype: str | None) -> Any:
    """An array in the dtype of ``like``, or in ``dtype`` if that one is of floating point."""
    return jnp.asarray(array, jnp.dtype(dtype) if dtype is not None and _is_float(like) else jnp.asarray(like).dtype)


def _replaced(own: list[Any], given: Sequence[np.ndarray]) -> list[Any]:
    if len(own) != len(given):
        raise SideError(f"A has {len(given)} inputs and B {len(own)}")
    return [
        fitted_input(array, tuple(np.shape(leaf)), number)
        for number, (leaf, array) in enumerate(zip(own, given, strict=True))
    ]


def _widened(values: list[Any], params: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Values of floating point, and dtypes among the parameters, as float64."""
    wide = [jnp.asarray(value, jnp.float64) if _is_float(value) else value for value in values]
    changed = {
        key: np.dtype("float64")
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
    """The weight, with the index where the op takes one row of the first axis of a stack."""
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


def _terms(eqn: Any) -> int:
    """The reduction length of an op; of control flow the work of all its rounds."""
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
