"""Which data loaders the program iterates over, with their batch sizes and numbers of workers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from perfscope.model.documents.stacks import SampledLoader
from perfscope.profiler.patching import Undo, wrap

MOST_LOADERS = 100


class LoaderLog:
    """Notes each kind of ``DataLoader`` when an iteration begins; nothing is kept of the loader itself."""

    def __init__(self) -> None:
        """Nothing is watched yet."""
        self._counts: dict[SampledLoader, int] = {}
        self._undo: Undo = lambda: None

    def watch(self) -> None:
        """Wrap ``DataLoader.__iter__``; torch is imported."""
        data: Any = sys.modules.get("torch.utils.data")
        if data is not None:
            self._undo = wrap(data.DataLoader, "__iter__", self._noting)

    def stop(self) -> None:
        """Leave torch as it was."""
        self._undo()

    def noted(self) -> tuple[SampledLoader, ...]:
        """The loaders, each kind once."""
        return tuple(self._counts)

    def _noting(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def iterate(loader: Any) -> Any:
            batch = getattr(loader, "batch_size", None)
            noted = SampledLoader(
                dataset=type(getattr(loader, "dataset", None)).__qualname__,
                batch_size=batch if isinstance(batch, int) else None,
                workers=int(getattr(loader, "num_workers", 0)),
            )
            if noted in self._counts or len(self._counts) < MOST_LOADERS:
                self._counts[noted] = self._counts.get(noted, 0) + 1
            return original(loader)

        return iterate
