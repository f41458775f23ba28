"""Arrays without data as results: of operations, and of ``jax.device_put``."""

from __future__ import annotations

from typing import Any

from perfscope.profiler.aot import jax_abstract_compat as compat
from perfscope.profiler.aot import jax_abstract_values as values
from perfscope.profiler.aot.jax_abstract_array import AbstractArray


def made(aval: Any, sharding: Any, *, committed: bool, known: Any = None, made_up: bool = False) -> Any:
    """The result of an operation; a small one that nobody knows is zeros, and made up. What is no array stays."""
    if not hasattr(aval, "dtype"):
        return aval
    if known is None:
        known, made_up = values.zeros(aval), True
    return AbstractArray(aval, sharding, committed=committed, known=known, made_up=made_up)


def put(value: Any, device: Any) -> Any:
    """``jax.device_put`` of one leaf: a device, a sharding, a format, a space of memory, or ``None``."""
    import jax
    from jax.sharding import Sharding, SingleDeviceSharding

    core = "jax._src.core"
    if isinstance(value, AbstractArray) and device is None:
        return value
    before = compat.get(core, "typeof")(value) if not hasattr(value, "aval") else value.aval
    kept = values.known(value)
    if kept is not None and not isinstance(value, AbstractArray):
        with compat.for_real():
            kept = jax.device_put(value)
            before = compat.get(core, "typeof")(kept)
    doubtful = values.made_up(value)
    asked = getattr(device, "sharding", device) if type(device).__name__ == "Format" else device
    aval = compat.get("jax._src.dispatch", "update_dp_aval")(before, asked)
    if isinstance(asked, Sharding):
        return made(aval, asked, committed=True, known=kept, made_up=doubtful)
    if asked is None:
        default = compat.get("jax._src.interpreters.pxla", "get_default_device")()
        where = getattr(value, "sharding", None) or SingleDeviceSharding(default)
        committed = bool(getattr(value, "_committed", False))
        return made(aval, where, committed=committed, known=kept, made_up=doubtful)
    if isinstance(asked, jax.Device):
        return made(aval, SingleDeviceSharding(asked), committed=True, known=kept, made_up=doubtful)
    where = getattr(value, "sharding", None)
    kind = compat.get(core, "mem_space_to_kind")(asked)
    if where is None:
        where = SingleDeviceSharding(compat.get("jax._src.interpreters.pxla", "get_default_device")())
    return made(aval, where.with_memory_kind(kind), committed=True, known=kept, made_up=doubtful)
