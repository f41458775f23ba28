"""Functions of jax's that make arrays out of a program's data without an operation: here they take shapes alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from perfscope.profiler.aot import jax_abstract_compat as compat
from perfscope.profiler.aot import jax_abstract_values as values
from perfscope.profiler.aot.jax_abstract_array import AbstractArray
from perfscope.profiler.aot.jax_abstract_made import made


@contextlib.contextmanager
def without_copies() -> Iterator[None]:
    """Inside, none of them copies or asks for data that is not needed to know a shape or a small value."""
    import jax

    array, lax, pxla = (sys.modules[f"jax._src.{name}"] for name in ("array", "lax.lax", "interpreters.pxla"))
    with contextlib.ExitStack() as stack:
        for name, ours in (
            ("make_array_from_callback", _from_callback),
            ("make_array_from_single_device_arrays", _from_parts),
        ):
            for where in (array, jax):
                stack.enter_context(compat.replaced(where, name, _unless_real(ours)))
        stack.enter_context(compat.replaced(pxla, "batched_device_put", _unless_real(_batched)))
        for where in (lax, jax.lax):
            stack.enter_context(compat.replaced(where, "full", _full))
        yield


def _unless_real(ours: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    def made_of(real: Any) -> Callable[..., Any]:
        def either(*arguments: Any, **named: Any) -> Any:
            return real(*arguments, **named) if compat.is_real() else ours(*arguments, **named)

        return either

    return made_of


def _from_callback(shape: Sequence[int], sharding: Any, data_callback: Callable[[Any], Any], dtype: Any = None) -> Any:
    """``jax.make_array_from_callback``.

    The callback is asked for one part where only that tells the dtype, and for what is small and lies on every device
    whole.
    """
    sharding = getattr(sharding, "sharding", sharding)  # of a Format
    shape = tuple(shape)
    kept = None
    if dtype is None or (sharding.is_fully_replicated and np.prod(shape, dtype=np.int64) <= values.MOST_ELEMENTS):
        at = next(iter(sharding.addressable_devices_indices_map(shape).values()))
        part = compat.get("jax._src.dtypes", "canonicalize_value")(data_callback(at))
        dtype = part.dtype if dtype is None else dtype
        if sharding.is_fully_replicated:
            kept = _small(part)
    return _array(shape, dtype, sharding, committed=True, known=kept)


def _from_parts(shape: Sequence[int], sharding: Any, arrays: Sequence[Any], *, dtype: Any = None) -> Any:
    """``jax.make_array_from_single_device_arrays``."""
    if dtype is None:
        dtype = arrays[0].dtype
    kept = arrays[0] if sharding.is_fully_replicated and arrays else None
    return _array(tuple(shape), dtype, sharding, committed=True, known=_small(kept), made_up=values.made_up(kept))


def _batched(
    aval: Any, sharding: Any, xs: Sequence[Any], devices: Any, committed: bool = True, enable_x64: Any = None
) -> Any:
    """``pxla.batched_device_put``."""
    del devices, enable_x64
    whole = sharding.is_fully_replicated and len(xs) > 0
    return made(
        aval, sharding, committed=committed, known=_small(xs[0]) if whole else None,
        made_up=whole and values.made_up(xs[0]),
    )  # fmt: skip


def _full(real: Any) -> Callable[..., Any]:
    """``jax.lax.full``, which lays out what is no array of jaxlib's without the sharding that is asked for."""

    def full(shape: Any, fill_value: Any, dtype: Any = None, *, sharding: Any = None) -> Any:
        import jax

        clean = compat.get("jax._src.core", "trace_state_clean")
        if compat.is_real() or sharding is None or not sharding._is_concrete or not clean():
            return real(shape, fill_value, dtype, sharding=sharding)
        return jax.device_put(real(shape, fill_value, dtype), sharding)

    return full


def _small(value: Any) -> Any:
    """The value of an array where it is known and small, on the CPU."""
    import jax

    if value is None or isinstance(value, AbstractArray):
        return values.known(value)
    if np.size(value) > values.MOST_ELEMENTS:
        return None
    with compat.for_real():
        return jax.device_put(np.asarray(value))


def _array(
    shape: tuple[int, ...], dtype: Any, sharding: Any, *, committed: bool, known: Any = None, made_up: bool = False
) -> Any:
    core = "jax._src.core"
    aval = compat.get(core, "update_aval_with_sharding")(compat.get(core, "ShapedArray")(shape, dtype), sharding)
    return made(aval, sharding, committed=committed, known=known, made_up=made_up)
