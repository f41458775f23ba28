"""What a program asks of the machine and its job: memory in use, other processes, simulated devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from perfscope.profiler.aot import jax_abstract_compat as compat

IGNORED = ("jax_num_cpu_devices",)
"""Settings that jax refuses once a backend is up, as it is here before the program begins."""
MEMORY = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit", "largest_alloc_size", "num_allocs", "bytes_reserved")


@contextlib.contextmanager
def answered(devices: Sequence[Any], asked: Callable[[str], None]) -> Iterator[None]:
    """Inside, devices say zero of their memory, and the program is one process; ``asked`` is told of either."""
    import jax

    def statistics(real: Any) -> Any:
        def memory_stats(device: Any) -> Any:
            if not str(device.client.runtime_type).startswith("compile_only"):
                return real(device)
            asked("memory_stats")
            return dict.fromkeys(MEMORY, 0)

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
                if name not in IGNORED:
                    raise

        return update

    with contextlib.ExitStack() as stack:
        with contextlib.suppress(TypeError):  # a class of jaxlib's that takes no replacements
            stack.enter_context(compat.replaced(type(devices[0]), "memory_stats", statistics))
        stack.enter_context(compat.replaced(jax.distributed, "initialize", alone))
        stack.enter_context(compat.replaced(type(jax.config), "update", settings))
        yield
