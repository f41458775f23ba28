"""The other ranks of a pipeline: a child for each, which plans the same program while the first rank's child does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from perfscope.plugins.ahead import request as requests
from perfscope.plugins.ahead.request import Request

RANK_BYTES = 1 << 30
"""Memory of this machine that the plan of a rank may need: torch and its compiler take about 0.7 GiB."""

Run = Callable[[Path, Path, Callable[[dict[str, Any]], None], Callable[[int], "str | None"]], str | None]
"""Run a child: the file of its request, its scratch folder, what hears its events, and what may end it. Returns why it
has no result."""


class StageChildren:
    """Children for the ranks other than the first; the first child names them in an event."""

    def __init__(self, request: Request, scratch: Path, run: Run) -> None:
        self._request, self._scratch, self._run = request, scratch, run
        self._threads: list[threading.Thread] = []
        self._over = threading.Event()
        self.events: list[dict[str, Any]] = []
        """Events of all of them."""
        self.failed: str | None = None

    def start(self, ranks: Sequence[int]) -> None:
        """Start a child for each rank of the pipeline that has none yet."""
        others = [rank for rank in ranks if rank != self._request.rank]
        if self._threads or not others:
            return
        share = self._request.limits.memory_bytes // len(ranks)
        if share < RANK_BYTES:
            self.failed = (
                f"the pipeline has {len(ranks)} ranks, each planned in a process of about 1 GiB at the same time, and "
                f"{self._request.limits.memory_bytes / (1 << 30):.1f} GiB are allowed (--host-memory)"
            )
            return
        for rank in others:
            thread = threading.Thread(target=self._plan, args=(rank, share), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _plan(self, rank: int, share: int) -> None:
        own = self._scratch / f"rank-{rank}"
        own.mkdir()
        request = replace(self._request, rank=rank, limits=replace(self._request.limits, memory_bytes=share))
        file = own / "request.json"
        file.write_bytes(requests.dump(request))
        why = self._run(file, own, self.events.append, lambda _: "another rank failed" if self._over.is_set() else None)
        if why is not None and self.failed is None and not self._over.is_set():
            self.failed = f"rank {rank} of the pipeline: {why}"

    def watch(self, taken: int) -> str | None:
        """End the first child if another one failed: it would wait for its shapes."""
        return self.failed

    def finish(self, *, failed: bool) -> None:
        """Wait for all of them; end them if the first one failed."""
        if failed or self.failed is not None:
            self._over.set()
        for thread in self._threads:
            thread.join()
