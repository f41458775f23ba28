"""A transformer through torch.compile, and what the allocator hands out while it trains on the CPU.

    python benchmarks/plan_peaks_program.py [--policy full --size tiny ...]

The program that ``plan_peaks.py`` plans. With ``PLAN_PEAKS_TO=FILE`` in the environment it is run, first without
torch.compile and then with it, under torch's profiler from the first tensor on, and the peaks of both are written.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile, record_function

from perfscope.workloads import transformer
from perfscope.workloads.options import Options

ENDS = "a step ends"
MEMORY = "[memory]"
GRAPH = "## Call CompiledFxGraph"
"""The profiler's range around inductor's code of a graph."""

plain = transformer.build


def compiled(options: Options) -> Any:
    """The model through torch.compile."""
    return torch.compile(plain(options))


def peaks(build: Callable[[Options], Any], options: Options) -> dict[str, list[int]]:
    """Bytes handed out at the peak of each step: from one optimizer step to the end of the next.

    ``all``, and ``between``: without what an op that a compiled graph calls allocates and frees before it returns.
    """
    transformer.build = build
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        transformer.train(options)
    found, todo = [], [(event, False, None) for event in recorded.profiler.kineto_results.experimental_event_tree()]
    while todo:
        event, in_graph, op = todo.pop()
        if event.name in (MEMORY, ENDS):
            found.append((event, op))
        op = op or (id(event) if in_graph and event.name.startswith("aten::") else None)
        todo += [(child, in_graph or event.name.startswith(GRAPH), op) for child in event.children]
    found.sort(key=lambda one: one[0].start_time_ns)
    return {"all": _peaks(found, set()), "between": _peaks(found, _inside(found))}


def _inside(found: list[tuple[Any, int | None]]) -> set[int]:
    """Places of allocations and frees of blocks that live within one op."""
    made: dict[int, tuple[int, int | None]] = {}
    inside = set()
    for at, (event, op) in enumerate(found):
        if event.name == ENDS:
            continue
        block = event.extra_fields.ptr
        if event.extra_fields.alloc_size > 0:
            made[block] = (at, op)
        elif block in made:
            first, maker = made.pop(block)
            if maker is not None and maker == op:
                inside |= {first, at}
    return inside


def _peaks(found: list[tuple[Any, int | None]], left_out: set[int]) -> list[int]:
    steps, total = [0], 0
    for at, (event, _) in enumerate(found):
        if event.name == ENDS:
            steps.append(total)
            continue
        if at not in left_out:
            total += event.extra_fields.alloc_size
            steps[-1] = max(steps[-1], total)
    return steps[:-1]


def main() -> None:
    """Train, or measure."""
    options, place = transformer.parse(), os.environ.get("PLAN_PEAKS_TO")
    if place is None:
        transformer.build = compiled
        transformer.train(options)
        return
    register_optimizer_step_post_hook(lambda *_: record_function(ENDS).__enter__().__exit__(None, None, None))
    Path(place).write_text(json.dumps({"eager": peaks(plain, options), "compiled": peaks(compiled, options)}))


if __name__ == "__main__":
    sys.exit(main())
