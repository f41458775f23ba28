"""The process itself: Python's garbage collector and the number of threads."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from functools import partial
from typing import Any

from perfscope.plugins.trials.interventions.base import Application, Facts, Intervention
from perfscope.profiler.patching import wrap

GARBAGE_COLLECTION = "garbage collection"
COLLECT_EVERY = 100
"""Steps between two collections if the automatic collector is off."""


def _freeze(application: Application) -> None:
    """Exclude everything alive after the warm-up from garbage collection."""
    done = [False]

    def freeze(_number: int) -> None:
        if not done[0]:
            done[0] = True
            gc.collect()
            gc.freeze()
            application.changed(f"gc.freeze() after the warm-up: {gc.get_freeze_count():,} objects")

    application.on_step.append(freeze)


def _off(application: Application) -> None:
    """Run the collector only between steps, every hundredth."""

    def between(number: int) -> None:
        if gc.isenabled():
            gc.disable()
            application.changed(f"gc.disable(), and gc.collect() each {COLLECT_EVERY} steps")
        if number % COLLECT_EVERY == 0:
            gc.collect()

    application.on_step.append(between)


def _threads(count: int | None, application: Application) -> None:
    """Set the number of threads now, and again whenever the program sets it."""
    import torch

    from perfscope.plugins.trials.interventions.base import available_cores

    threads = available_cores() if count is None else count

    def make(original: Any) -> Any:
        def set_num_threads(number: int) -> None:
            if number != threads:
                application.changed(f"torch.set_num_threads({number}) is {threads}")
            original(threads)

        return set_num_threads

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    if before != threads:
        application.changed(f"{threads} threads in torch, not {before}")
    wrap(torch, "set_num_threads", make)


def _thread_variables(count: int | None, facts: Facts) -> Mapping[str, str]:
    threads = facts.cores if count is None else count
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


GC_FREEZE = Intervention(
    name="gc-freeze",
    title="no garbage collection of what was made before the loop",
    family="gc",
    signs=(GARBAGE_COLLECTION,),
    by_mean=True,
    framework="any",
    answers=("host_bound",),
    may_change="Cycles that were made before the loop are never freed.",
    code="gc.collect()\ngc.freeze()  # after the warm-up, before the loop goes on",
    apply=_freeze,
)
GC_OFF = Intervention(
    name="gc-off",
    title="garbage collection between steps only",
    family="gc",
    signs=(GARBAGE_COLLECTION,),
    by_mean=True,
    framework="any",
    answers=("host_bound",),
    may_change=f"Cycles are freed each {COLLECT_EVERY} steps: more memory in between.",
    code=f"gc.disable()  # before the loop\nif step % {COLLECT_EVERY} == 0:\n    gc.collect()",
    apply=_off,
)
THREADS_ALL = Intervention(
    name="threads-all",
    title="a thread for each processor",
    family="threads",
    framework="torch",
    answers=("host_bound",),
    may_change="Sums are divided among threads in another way.",
    code="torch.set_num_threads(len(os.sched_getaffinity(0)))",
    environment=partial(_thread_variables, None),
    apply=partial(_threads, None),
)
THREADS_ONE = Intervention(
    name="threads-one",
    title="one thread",
    family="threads",
    framework="torch",
    answers=("host_bound",),
    may_change="Sums are not divided among threads.",
    code="torch.set_num_threads(1)",
    environment=partial(_thread_variables, 1),
    apply=partial(_threads, 1),
)
