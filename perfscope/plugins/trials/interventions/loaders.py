"""PyTorch's DataLoader: workers, prefetched batches, pinned memory, persistent workers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from perfscope.plugins.trials.interventions.base import Application, Intervention, available_cores, needs_cuda
from perfscope.profiler.patching import wrap

MOST_WORKERS = 8
LEAST_WORKERS = 2
"""Fewest workers, even on one processor: waiting for a disk needs no processor."""
PREFETCHED = 4
"""Batches per worker; torch's default is 2."""

Options = Callable[[Mapping[str, Any], Application], Mapping[str, Any]]
"""From the program's options to the options to change; unchanged ones are reported to the application."""


def _loaders(options: Options, application: Application) -> None:
    from torch.utils.data import DataLoader

    def make(original: Any) -> Any:
        signature = inspect.signature(original)

        def __init__(loader: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
            try:
                bound = signature.bind(loader, *arguments, **named)
            except TypeError:  # the program's own error, in its own words
                original(loader, *arguments, **named)
                return
            others = options(bound.arguments, application)
            bound.arguments.update(others)
            original(*bound.args, **bound.kwargs)
            if others:
                shown = ", ".join(f"{name}={value}" for name, value in others.items())
                application.changed(f"DataLoader({shown})")

        return __init__

    wrap(DataLoader, "__init__", make)


def workers() -> int:
    """Number of workers that is tried."""
    return max(LEAST_WORKERS, min(MOST_WORKERS, available_cores()))


def _workers(given: Mapping[str, Any], application: Application) -> Mapping[str, Any]:
    from torch.utils.data import IterableDataset

    if isinstance(given.get("dataset"), IterableDataset):
        application.left("the dataset is an IterableDataset: each worker would read all of it")
        return {}
    count = workers()
    if (given.get("num_workers") or 0) >= count:
        application.left(f"it has {given['num_workers']} workers")
        return {}
    return {"num_workers": count, "persistent_workers": True}


def _with_workers(others: Mapping[str, Any]) -> Options:
    def options(given: Mapping[str, Any], application: Application) -> Mapping[str, Any]:
        if not given.get("num_workers"):
            application.left("it has no workers")
            return {}
        if all((given.get(name) or 0) >= value for name, value in others.items()):
            application.left("it has that already")
            return {}
        return others

    return options


def _pinned(given: Mapping[str, Any], application: Application) -> Mapping[str, Any]:
    if given.get("pin_memory"):
        application.left("it pins memory already")
        return {}
    return {"pin_memory": True}


def _loader(options: Options) -> Callable[[Application], None]:
    return lambda application: _loaders(options, application)


WORKERS = Intervention(
    name="loader-workers",
    title="workers of the DataLoader",
    family="loader workers",
    by_mean=True,
    framework="torch",
    answers=("input_stall",),
    may_change="Random numbers that the dataset draws come from the workers' generators; the order of samples stays.",
    code="loader = DataLoader(dataset, batch_size, num_workers=4, persistent_workers=True)",
    apply=_loader(_workers),
)
PREFETCH = Intervention(
    name="prefetch",
    title="more batches in advance",
    family="loader prefetch",
    by_mean=True,
    framework="torch",
    answers=("input_stall",),
    may_change="Nothing; more batches lie in memory.",
    code=f"loader = DataLoader(dataset, batch_size, num_workers=n, prefetch_factor={PREFETCHED})",
    apply=_loader(_with_workers({"prefetch_factor": PREFETCHED})),
)
PERSISTENT = Intervention(
    name="persistent-workers",
    title="workers that stay between epochs",
    family="loader persistence",
    by_mean=True,
    framework="torch",
    answers=("input_stall",),
    may_change="State that a worker keeps in its dataset lives over epochs.",
    code="loader = DataLoader(dataset, batch_size, num_workers=n, persistent_workers=True)",
    apply=_loader(_with_workers({"persistent_workers": True})),
)
PIN_MEMORY = Intervention(
    name="pin-memory",
    title="batches in pinned memory",
    family="pin memory",
    framework="torch",
    answers=("pageable_copy", "exposed_copy"),
    may_change="Nothing; batches lie in memory that cannot be paged out.",
    code="loader = DataLoader(dataset, batch_size, pin_memory=True)\nbatch = batch.to(device, non_blocking=True)",
    applies=needs_cuda,
    apply=_loader(_pinned),
)
