"""Why a JAX function was compiled again, in words, and the change that avoids it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from perfscope.analyzers.torch_compile.jax_compilations import (
    Cause,
    Compilation,
    CompiledFunction,
    compiled_functions,
    growing_dimension,
    joined,
)
from perfscope.analyzers.torch_compile.summary import MOST_VALUES, RecompileSummary
from perfscope.model.compile_log import CodeLine
from perfscope.model.trace import Trace

MOST_NAMED = 3
"""Maximum number of arguments and values named in a sentence."""

UNEXPLAINED = "jax gives no reason."

_FIX: dict[Cause, str] = {
    "made anew": "Call jax.jit once, before the loop, and call the function that it returns. A lambda, a "
    "functools.partial, a bound method or a function defined in the loop is a new function each time; pass what "
    "changes as an argument.",
    "control flow": "Put the whole step in one function with @jax.jit: loops and branches inside of it are compiled "
    "once, with it.",
    "weak type": "Give {argument} its dtype where it is made: jnp.asarray(0.0, dtype=jnp.float32), not a Python "
    "number. Then the first call has the types of all later ones.",
    "dtype": "Cast {argument} to one dtype before the call, also in the first one.",
    "sharding": "Before the first call, place {argument} where the step leaves it: jax.device_put({argument}, "
    "sharding). Or set out_shardings (jax.jit) so that results keep the placement of the arguments.",
    "placement": "Before the first call, place the arguments where the step leaves them: jax.device_put(state, "
    "sharding) once. Or jit the function that makes them with out_shardings.",
    "static value": "Pass {argument} as an array (jnp.int32(i)), not as a static argument. If it determines shapes, "
    "use few values.",
    "shape": "Pad {argument} to a few sizes (the next power of two) and mask the padding; drop or pad a last, "
    "smaller batch.",
    "structure": "Give the function the same tree in each call: make optional entries (None, missing keys) before "
    "the loop.",
    "setting": "Set it once, before the first call, and not in a context manager inside the loop.",
    "unknown": "Pad shapes to a few sizes, and pass numbers that change as arrays (jnp.int32(i)), not as static "
    "arguments. Make the jitted function once, outside the loop.",
}

_PREALLOCATE = (
    "Allocate {argument} once at its greatest length and write into it: jax.lax.dynamic_update_slice_in_dim(cache, "
    "new, position, axis=0). The position is an array, and later places are masked. Or run the loop inside "
    "jax.lax.scan. Each new length is a new program."
)


_MAKE_ONCE = (
    "Make {argument} once, before the loop: an object without __eq__ and __hash__ equals only itself, so that each new "
    "one is a new program. Or give its class both, as @dataclass(frozen=True) does."
)
_OBJECT = re.compile(r"<([\w.]{1,200}) object at 0x[0-9a-f]{1,16}>")
"""How Python shows an object whose class does not say how: its type and its address."""


class CompiledAgain(Struct, frozen=True, kw_only=True):
    """The recompilations of a function that count."""

    function: CompiledFunction
    rows: tuple[Compilation, ...]
    cause: Cause
    repeated: bool
    """Whether they occur in several steps; False if they end after a few."""

    @property
    def of_cause(self) -> tuple[Compilation, ...]:
        """Recompilations with the most frequent cause."""
        return tuple(row for row in self.rows if row.cause == self.cause)


def arguments(again: CompiledAgain) -> list[str]:
    """Return the arguments that differ for the cause, most frequent first."""
    names = Counter(one.argument for row in again.of_cause for one in row.differences if one.argument)
    return [argument(name) for name, _ in names.most_common()]


def argument(path: str) -> str:
    """Return ``n`` for ``[1]['n']``, a path in (positional, named) arguments; ``argument 1`` for ``[0][1]``."""
    if path.startswith("[1]['"):
        return path.removeprefix("[1]['").partition("'")[0]
    if path.startswith("[0]["):
        return f"argument {path.removeprefix('[0][').partition(']')[0]}"
    return path


def reason_words(again: CompiledAgain) -> str:
    """Return a sentence about the cause; ``''`` if jax gives none."""
    names, differences = arguments(again), [one for row in again.of_cause for one in row.differences]
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    shown = ", ".join(names[:MOST_NAMED]) + more
    first = differences[0] if differences else None
    match again.cause:
        case "made anew":
            return "Each call passes jax.jit a new function object, which has no compiled program yet. "
        case "control flow":
            return "Outside of jit, jax compiles the loop or branch alone; a body made in each call is a new program. "
        case "weak type" if first is not None:
            return f"{shown}: a Python number at first, {first.now} from the step's result later. "
        case "dtype" | "sharding" if first is not None:
            return f"{shown}: {first.before} at first, then {first.now}. "
        case "placement":
            return (
                "Types are the same and jax does not trace again: an argument is on another device, was not committed "
                "to its device by jax.device_put, or has another sharding. "
            )
        case "static value" if first is not None:
            values = list(dict.fromkeys(_OBJECT.sub(r"a new \1", one.now) for one in differences))
            return f"Values of {shown}: {', '.join(values[:MOST_NAMED])}{' ...' if values[MOST_NAMED:] else ''}. "
        case "shape" if first is not None:
            shapes = list(dict.fromkeys(one.now for one in differences if one.argument == first.argument))
            rest = f" ... {shapes[-1]}" if shapes[MOST_NAMED:] else ""
            return f"{argument(first.argument)}: {', '.join(shapes[:MOST_NAMED])}{rest}. "
        case "structure" if first is not None:
            return f"The tree of arguments changes at {shown}: {first.before[:80]} at first, then {first.now[:80]}. "
        case "setting":
            return f"A setting of jax changes between calls: {shown or 'jax does not name it'}. "
    return ""


def fix_words(again: CompiledAgain) -> str:
    """Return the advice that avoids the new compilations."""
    grows = growing_dimension(again.of_cause) if again.cause == "shape" else None
    text = _PREALLOCATE if grows else _FIX[again.cause]
    if again.cause == "static value" and any(
        _OBJECT.search(one.now) for row in again.of_cause for one in row.differences
    ):
        text = _MAKE_ONCE
    names = arguments(again)
    return text.replace("{argument}", grows[0] if grows else names[0] if names else "it")


def jax_recompile_rows(trace: Trace) -> tuple[RecompileSummary, ...]:
    """Return the compilations after the first one, a row per function and cause."""
    return tuple(_row(again) for again in _all_again(trace))


def _all_again(trace: Trace) -> Iterator[CompiledAgain]:
    for function in trace.fact(compiled_functions):
        causes: dict[Cause, list[Compilation]] = {}
        for row in function.again:
            causes.setdefault(row.cause, []).append(row)
        for cause, rows in causes.items():
            yield CompiledAgain(function=function, rows=tuple(rows), cause=cause, repeated=len(rows) > 1)


def _row(again: CompiledAgain) -> RecompileSummary:
    places = Counter((row.file, row.line) for row in again.rows if row.file is not None and row.line is not None)
    (file, line), _ = next(iter(places.most_common(1)), ((None, None), 0))
    differences = [one for row in again.rows for one in row.differences]
    first = [one for one in differences if one.argument == differences[0].argument]
    values = [value for one in first for value in (one.before, one.now) if value]
    return RecompileSummary(
        function=again.function.name,
        place=None if file is None or line is None else CodeLine(file=file, line=line),
        guard=again.rows[0].reason,
        guard_place=None,
        values=tuple(dict.fromkeys(values))[:MOST_VALUES] if again.cause != "weak type" else (),
        count=len(again.rows),
        cause=_changes(again),
        fix=fix_words(again),
        time_ns=joined(again.rows).total(),
    )


def _changes(again: CompiledAgain) -> str:
    """Return a sentence without values, or the reason in jax's sense."""
    if again.cause in ("shape", "dtype", "sharding", "static value") and (names := arguments(again)):
        kind = "value" if again.cause == "static value" else again.cause
        return f"The {kind} of {names[0]} changes."
    return reason_words(again).strip() or UNEXPLAINED
