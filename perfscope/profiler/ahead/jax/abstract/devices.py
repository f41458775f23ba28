"""Devices that are not there: what jax answers a program that asks which it has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from perfscope.profiler.ahead.jax import compat as compat

NAMES = {"gpu": ("gpu", "cuda", "rocm"), "tpu": ("tpu",), "cpu": ("cpu",)}
"""What a program may call a platform."""


class Backend:
    """Stands for jax's default backend: the target's devices, seen from the first of its processes."""

    def __init__(self, devices: Sequence[Any]) -> None:
        self._devices = list(devices)
        self._client = devices[0].client
        self.platform = str(devices[0].platform)

    def devices(self) -> list[Any]:
        """All devices."""
        return list(self._devices)

    def local_devices(self) -> list[Any]:
        """Those of the first process."""
        return [one for one in self._devices if one.process_index == 0]

    def device_count(self) -> int:
        """How many there are."""
        return len(self._devices)

    def local_device_count(self) -> int:
        """How many the first process has."""
        return len(self.local_devices())

    def process_index(self) -> int:
        """The first process."""
        return 0

    @property
    def serialize_with_sdy(self) -> bool:
        """How ``jax.export`` writes shardings: clients that only compile do not say, those of devices say yes."""
        return bool(getattr(self._client, "serialize_with_sdy", True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


@contextlib.contextmanager
def target_devices(devices: Sequence[Any]) -> Iterator[None]:
    """``jax.devices()`` and its like answer with ``devices`` inside; ``jax.devices("cpu")`` with the CPU, as ever."""
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
            return compat.raw_platform(devices[0], platform)  # "cuda" for "gpu"

        return canonicalize_platform

    with (
        compat.patched_interface("get_backend", made),
        compat.patched_interface("canonicalize_platform", canonical),
    ):
        compat.clear_device_cache()
        try:
            yield
        finally:
            compat.clear_device_cache()


# What a program asks of the machine and its job: memory in use, other processes, simulated devices.


IGNORED_SETTINGS = ("jax_num_cpu_devices",)
"""Settings that jax refuses once a backend is up, as it is here before the program begins."""
MEMORY_STATISTICS = (
    "bytes_in_use",
    "peak_bytes_in_use",
    "bytes_limit",
    "largest_alloc_size",
    "num_allocs",
    "bytes_reserved",
)


@contextlib.contextmanager
def single_process_job(devices: Sequence[Any], asked: Callable[[str], None]) -> Iterator[None]:
    """Inside, devices report zero memory in use, and the program is one process; ``asked`` is called for either."""
    import jax

    def statistics(real: Any) -> Any:
        def memory_stats(device: Any) -> Any:
            if not str(device.client.runtime_type).startswith("compile_only"):
                return real(device)
            asked("memory_stats")
            return dict.fromkeys(MEMORY_STATISTICS, 0)

        return memory_stats

    def alone(_: Any) -> Any:
        def initialize(*_: Any, **__: Any) -> None:
            asked("jax.distributed.initialize")

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
        with contextlib.suppress(TypeError):  # a class of jaxlib's that takes no replacements
            stack.enter_context(compat.patched(type(devices[0]), "memory_stats", statistics))
        stack.enter_context(compat.patched(jax.distributed, "initialize", alone))
        stack.enter_context(compat.patched(type(jax.config), "update", settings))
        yield
