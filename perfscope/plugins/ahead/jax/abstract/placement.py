"""Placement of arrays without data: results of operations and of ``jax.device_put``, and the target's devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from msgspec import Struct

from perfscope.plugins.ahead.jax import compat as compat
from perfscope.plugins.ahead.jax.abstract import array as values
from perfscope.plugins.ahead.jax.abstract.array import AbstractArray

NAMES = {"gpu": ("gpu", "cuda", "rocm"), "tpu": ("tpu",), "cpu": ("cpu",)}
"""Names that a program may use for a platform."""

IGNORED_SETTINGS = ("jax_num_cpu_devices",)
"""Settings that jax refuses after a backend is created, which is the case here before the program begins."""
MEMORY_STATISTICS = (
    "bytes_in_use",
    "peak_bytes_in_use",
    "bytes_limit",
    "largest_alloc_size",
    "num_allocs",
    "bytes_reserved",
)


def abstract_result(aval: Any, sharding: Any, *, committed: bool, known: Any = None, made_up: bool = False) -> Any:
    """The result of an operation; a small unknown one is zeros, marked as made up. Values other than arrays stay."""
    if not hasattr(aval, "dtype"):
        return aval
    if known is None:
        known, made_up = values.placeholder(aval), True
    return AbstractArray(aval, sharding, committed=committed, known=known, made_up=made_up)


def abstract_device_put(value: Any, device: Any) -> Any:
    """``jax.device_put`` of one leaf to a device, a sharding, a format, a memory space, or ``None``."""
    import jax
    from jax.sharding import Sharding, SingleDeviceSharding

    if isinstance(value, AbstractArray) and device is None:
        return value
    before = compat.typeof(value) if not hasattr(value, "aval") else value.aval
    kept = values.known_value(value)
    if kept is not None and not isinstance(value, AbstractArray):
        with compat.computing_on_cpu():
            kept = jax.device_put(value)
            before = compat.typeof(kept)
    doubtful = values.is_placeholder(value)
    target = getattr(device, "sharding", device) if type(device).__name__ == "Format" else device
    aval = compat.update_dp_aval(before, target)
    if isinstance(target, Sharding):
        return abstract_result(aval, target, committed=True, known=kept, made_up=doubtful)
    if target is None:
        default = compat.get_default_device()
        where = getattr(value, "sharding", None) or SingleDeviceSharding(default)
        committed = bool(getattr(value, "_committed", False))
        return abstract_result(aval, where, committed=committed, known=kept, made_up=doubtful)
    if isinstance(target, jax.Device):
        return abstract_result(aval, SingleDeviceSharding(target), committed=True, known=kept, made_up=doubtful)
    where = getattr(value, "sharding", None)
    kind = compat.mem_space_to_kind(target)
    if where is None:
        where = SingleDeviceSharding(compat.get_default_device())
    return abstract_result(aval, where.with_memory_kind(kind), committed=True, known=kept, made_up=doubtful)


# Functions of jax that make arrays from a program's data without an operation; here they use shapes only.


@contextlib.contextmanager
def without_copies() -> Iterator[None]:
    """Inside, these functions do not copy, and read data only for a shape or a small value."""
    import jax

    with contextlib.ExitStack() as stack:
        for name, ours in (
            ("make_array_from_callback", _from_callback),
            ("make_array_from_single_device_arrays", _from_parts),
        ):
            stack.enter_context(compat.patched_interface(name, _unless_real(ours)))
            stack.enter_context(compat.patched(jax, name, _unless_real(ours)))
        stack.enter_context(compat.patched_interface("batched_device_put", _unless_real(_batched)))
        stack.enter_context(compat.patched_interface("full", _abstract_full))
        stack.enter_context(compat.patched(jax.lax, "full", _abstract_full))
        yield


def _unless_real(ours: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    def made_of(real: Any) -> Callable[..., Any]:
        def either(*arguments: Any, **named: Any) -> Any:
            return real(*arguments, **named) if compat.is_computing() else ours(*arguments, **named)

        return either

    return made_of


def _from_callback(shape: Sequence[int], sharding: Any, data_callback: Callable[[Any], Any], dtype: Any = None) -> Any:
    """Replacement of ``jax.make_array_from_callback``.

    The callback is called for one part if the dtype is otherwise unknown, and for a small array replicated on every
    device.
    """
    sharding = getattr(sharding, "sharding", sharding)  # of a Format
    shape = tuple(shape)
    kept = None
    if dtype is None or (sharding.is_fully_replicated and np.prod(shape, dtype=np.int64) <= values.MAX_ELEMENTS):
        index = next(iter(sharding.addressable_devices_indices_map(shape).values()))
        part = compat.canonicalize_value(data_callback(index))
        dtype = part.dtype if dtype is None else dtype
        if sharding.is_fully_replicated:
            kept = _small_value(part)
    return _array(shape, dtype, sharding, committed=True, known=kept)


def _from_parts(shape: Sequence[int], sharding: Any, arrays: Sequence[Any], *, dtype: Any = None) -> Any:
    """``jax.make_array_from_single_device_arrays``."""
    if dtype is None:
        dtype = arrays[0].dtype
    kept = arrays[0] if sharding.is_fully_replicated and arrays else None
    return _array(
        tuple(shape), dtype, sharding, committed=True, known=_small_value(kept), made_up=values.is_placeholder(kept)
    )


def _batched(
    aval: Any, sharding: Any, xs: Sequence[Any], devices: Any, committed: bool = True, enable_x64: Any = None
) -> Any:
    """``pxla.batched_device_put``."""
    del devices, enable_x64
    whole = sharding.is_fully_replicated and len(xs) > 0
    return abstract_result(
        aval, sharding, committed=committed, known=_small_value(xs[0]) if whole else None,
        made_up=whole and values.is_placeholder(xs[0]),
    )  # fmt: skip


def _abstract_full(real: Any) -> Callable[..., Any]:
    """Replacement of ``jax.lax.full``, which places values other than jaxlib's arrays without their sharding."""

    def full(shape: Any, fill_value: Any, dtype: Any = None, *, sharding: Any = None) -> Any:
        import jax

        traces = not compat.trace_state_clean()
        if compat.is_computing() or sharding is None or not sharding._is_concrete or traces:
            return real(shape, fill_value, dtype, sharding=sharding)
        return jax.device_put(real(shape, fill_value, dtype), sharding)

    return full


def _small_value(value: Any) -> Any:
    """The value of an array on the CPU if it is known and small."""
    import jax

    if value is None or isinstance(value, AbstractArray):
        return values.known_value(value)
    if np.size(value) > values.MAX_ELEMENTS:
        return None
    with compat.computing_on_cpu():
        return jax.device_put(np.asarray(value))


def _array(
    shape: tuple[int, ...], dtype: Any, sharding: Any, *, committed: bool, known: Any = None, made_up: bool = False
) -> Any:
    aval = compat.update_aval_with_sharding(compat.ShapedArray(shape, dtype), sharding)
    return abstract_result(aval, sharding, committed=committed, known=known, made_up=made_up)


# Devices of results that were not computed, as far as known before a program is compiled.


class ResultPlacement(Struct, frozen=True, kw_only=True):
    """Placement of a call's results."""

    shardings: tuple[Any, ...]
    committed: bool
    guessed: tuple[bool, ...]
    """Results whose placement is the compiler's choice and was guessed."""


def argument_type(value: Any) -> Any:
    """The type that jax keeps of a compiled function's argument."""
    aval = compat.typeof(value)
    return compat.MetaTy(
        aval,
        getattr(value, "sharding", None),
        None,
        bool(getattr(value, "_committed", True)),
        isinstance(value, np.ndarray),
    )


def result_placement(params: dict[str, Any], types: Sequence[Any]) -> ResultPlacement:
    """Placement of a compiled function's results."""
    unspecified = compat.UNSPECIFIED
    closed = params["jaxpr"]
    taken = compat._resolve_in_shardings(types, params["in_shardings"])
    everywhere, devices = compat.device_assignment(taken, params["out_shardings"], closed.jaxpr, params["ctx_mesh"])
    mesh = _mesh_of(params["ctx_mesh"], everywhere)
    committed = len(devices or ()) > 1 or mesh is not None or any(one is not unspecified for one in everywhere)
    gone = params["donated_invars"]
    given = [
        (type_.aval, where)
        for chosen in (True, False)
        for type_, where, one in zip(types, taken, gone, strict=True)
        if one is chosen and where is not unspecified
    ]
    shardings, guessed = [], []
    for aval, requested in zip(closed.out_avals, params["out_shardings"], strict=True):
        where, sure = _one_result_placement(aval, requested, devices, mesh, given, unspecified)
        shardings.append(where)
        guessed.append(not sure)
    return ResultPlacement(shardings=tuple(shardings), committed=committed, guessed=tuple(guessed))


def _one_result_placement(
    aval: Any, requested: Any, devices: Any, mesh: Any, given: list[tuple[Any, Any]], unspecified: Any
) -> tuple[Any, bool]:
    """Placement of one result, and whether it is certain. One of the arguments in ``given`` is used up."""
    if requested is not unspecified:
        return requested, True
    if devices is not None and len(devices) == 1:
        return SingleDeviceSharding(devices[0]), True
    own = getattr(aval, "sharding", None)
    if mesh is not None and own is not None and not own.mesh.empty and own.mesh.are_all_axes_explicit:
        return NamedSharding(mesh, own.spec), True
    number = not getattr(aval, "shape", ())
    for index, (given_aval, where) in enumerate(given):  # a new state is placed like the old one
        if not number and given_aval.shape == aval.shape and given_aval.dtype == aval.dtype:
            del given[index]
            return where, False
    if mesh is not None:
        return NamedSharding(mesh, PartitionSpec()), number
    return compat.GSPMDSharding.get_replicated(devices), number


def _mesh_of(context: Any, shardings: Sequence[Any]) -> Any:
    """The mesh of a program: the first one named by a sharding, or that of its context; ``None`` without a mesh."""
    from jax.sharding import Mesh

    for sharding in shardings:
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            return sharding.mesh
    return context if isinstance(context, Mesh) and not context.empty else None


def operation_sharding(
    primitive: Any, arguments: Sequence[Any], params: dict[str, Any], avals: Sequence[Any]
) -> tuple[list[Any], bool]:
    """Placement of the results of an operation outside of jit, and whether the program specified it."""
    given = [array for array in arguments if hasattr(array, "_committed")]
    placed = [array for array in given if array._committed]
    if "sharding" in params and isinstance(params["sharding"], NamedSharding):
        from jax.sharding import Mesh

        if isinstance(params["sharding"].mesh, Mesh):
            return [params["sharding"]] * len(avals), True
    if not placed:
        default = compat.get_default_device()
        first = next((array.sharding for array in given), None) or SingleDeviceSharding(default)
        return [first] * len(avals), False
    whole = next((array.sharding for array in placed if len(array.sharding.device_set) > 1), None)
    if whole is None:
        return [placed[0].sharding] * len(avals), True
    mesh = getattr(whole, "mesh", None)
    shardings = []
    for aval in avals:
        own = getattr(aval, "sharding", None)
        same = next((array.sharding for array in placed if array.shape == getattr(aval, "shape", None)), None)
        if mesh is not None and own is not None and not own.mesh.empty and own.mesh.are_all_axes_explicit:
            shardings.append(NamedSharding(mesh, own.spec))
        elif same is not None:
            shardings.append(same)
        else:
            shardings.append(NamedSharding(mesh, PartitionSpec()) if mesh is not None else whole)
    return shardings, True


# Absent devices: jax's answers to a program that lists its devices.


class Backend:
    """Replaces jax's default backend: the target's devices, seen from its first process."""

    def __init__(self, devices: Sequence[Any]) -> None:
        self._devices = list(devices)
        self._client = devices[0].client
        self.platform = str(devices[0].platform)

    def devices(self) -> list[Any]:
        return list(self._devices)

    def local_devices(self) -> list[Any]:
        return [device for device in self._devices if device.process_index == 0]

    def device_count(self) -> int:
        return len(self._devices)

    def local_device_count(self) -> int:
        return len(self.local_devices())

    def process_index(self) -> int:
        return 0

    @property
    def serialize_with_sdy(self) -> bool:
        """How ``jax.export`` writes shardings: compile-only clients lack this attribute, real devices return True."""
        return bool(getattr(self._client, "serialize_with_sdy", True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


@contextlib.contextmanager
def target_devices(devices: Sequence[Any]) -> Iterator[None]:
    """Inside, ``jax.devices()`` and similar functions return ``devices``; ``jax.devices("cpu")`` returns the CPU."""
    backend = Backend(devices)
    names = NAMES.get(backend.platform, (backend.platform,))

    def made(real: Any) -> Any:
        def get_backend(platform: Any = None) -> Any:
            if compat.is_computing() or (platform is not None and platform not in names):
                return real(platform)
            return backend

        get_backend.cache_clear = real.cache_clear  # type: ignore[attr-defined]
        return get_backend

    def canonical(real: Any) -> Any:
        def canonicalize_platform(platform: str) -> str:
            if compat.is_computing() or platform != backend.platform:
                return str(real(platform))
            return str(getattr(devices[0].client, "_raw_platform", platform))  # "cuda" for "gpu"

        return canonicalize_platform

    with (
        compat.patched_interface("get_backend", made),
        compat.patched_interface("canonicalize_platform", canonical),
    ):
        compat.local_devices.cache_clear()
        try:
            yield
        finally:
            compat.local_devices.cache_clear()


# Questions of a program to its machine and job: memory in use, other processes, simulated devices.


@contextlib.contextmanager
def single_process_job(devices: Sequence[Any], question: Callable[[str], None]) -> Iterator[None]:
    """Inside, devices report zero memory in use, and the program is one process; ``question`` is called for either."""
    import jax

    def statistics(real: Any) -> Any:
        def memory_stats(device: Any) -> Any:
            if not str(device.client.runtime_type).startswith("compile_only"):
                return real(device)
            question("memory_stats")
            return dict.fromkeys(MEMORY_STATISTICS, 0)

        return memory_stats

    def alone(_: Any) -> Any:
        def initialize(*_: Any, **__: Any) -> None:
            question("jax.distributed.initialize")

        return initialize

    def settings(real: Any) -> Any:
        def update(config: Any, name: str, value: Any) -> None:
            try:
                real(config, name, value)
            except RuntimeError:
                if name not in IGNORED_SETTINGS:
                    raise

        return update

    with contextlib.ExitStack() as stack:
        with contextlib.suppress(TypeError):  # a jaxlib class whose attributes cannot be replaced
            stack.enter_context(compat.patched(type(devices[0]), "memory_stats", statistics))
        stack.enter_context(compat.patched(jax.distributed, "initialize", alone))
        stack.enter_context(compat.patched(type(jax.config), "update", settings))
        yield
