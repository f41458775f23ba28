"""What step() and region() cost in a program when nobody listens, and when something does.

    python benchmarks/annotate_overhead.py

Prints nanoseconds a call, the least of several rounds: what a call costs, not what else ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable

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


def table(title: str) -> None:
    print(title)
    calls = {"step()": step, "with step()": with_step, "with region()": with_region, "@region": decorated}
    for name, call in calls.items():
        print(f"  {name:14}{cost_ns(call):8.0f} ns")


def main() -> None:
    table("nobody listens, torch not imported")
    import torch

    table("nobody listens, torch imported")
    with torch.autograd.profiler.profile(use_kineto=False):
        global CALLS
        CALLS = 2_000  # every call is kept by the profiler
        table("a torch profiler records")


if __name__ == "__main__":
    main()
