"""Cost of step() and region(), and of reads and calls of jax, with and without a listener.

    python benchmarks/annotate_overhead.py

Prints nanoseconds per call, the least of several rounds: the cost of a call without other activity.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from perfscope import region, step

ROUNDS = 7
CALLS = 100_000


def with_region() -> None:
    with region("a"):
        pass


def with_step() -> None:
    with step():
        pass


@region("a")
def decorated() -> None:
    pass


def nothing() -> None:
    pass


def cost_ns(call: Callable[[], object]) -> float:
    """Nanoseconds a call, without those of an empty function in the same loop."""

    def least(function: Callable[[], object]) -> float:
        rounds = []
        for _ in range(ROUNDS):
            begin = time.perf_counter_ns()
            for _ in range(CALLS):
                function()
            rounds.append((time.perf_counter_ns() - begin) / CALLS)
        return min(rounds)

    return least(call) - least(nothing)


MARKS = {"step()": step, "with step()": with_step, "with region()": with_region, "@region": decorated}


def table(title: str, calls: Mapping[str, Callable[[], object]]) -> None:
    print(title)
    for name, call in calls.items():
        print(f"  {name:14}{cost_ns(call):8.0f} ns")


def jax_calls() -> None:
    """A read with and without the interceptor, and a jitted call with and without the hook."""
    import jax
    import jax.numpy as jnp

    from perfscope.profiler.jax import compat, host_syncs
    from perfscope.profiler.jax.record_log import CallSites

    value = jnp.float32(1)
    function = jax.jit(lambda x: x + 1)
    function(value)
    calls = {"read": value.block_until_ready, "jitted call": lambda: function(value), "step()": step}
    table("jax, nobody listens", calls)
    syncs = host_syncs.SyncLog(CallSites(Path.cwd()), lambda: 0)
    syncs.start()
    undo = compat.on_fast_call(lambda called: None)
    assert undo is not None
    table("jax, syncs are looked for and calls are hooked", calls)
    syncs.stop()
    undo()


def main() -> None:
    global CALLS
    table("nobody listens, torch not imported", MARKS)
    CALLS = 20_000
    jax_calls()
    CALLS = 100_000
    import torch

    table("nobody listens, torch imported", MARKS)
    with torch.autograd.profiler.profile(use_kineto=False):
        CALLS = 2_000  # every call is kept by the profiler
        table("a torch profiler records", MARKS)


if __name__ == "__main__":
    main()
