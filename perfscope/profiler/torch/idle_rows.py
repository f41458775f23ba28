"""Rows of a batch without work in calls that write one token per row, by the ids that the model is called with.

A row whose text has ended stays in the batch until the longest text has ended: its ids are one value from then on, the
padding. Counts are kept, and no value. Ids on a device are held and read once, at the end of the program.
"""

from __future__ import annotations

from typing import Any

import torch

from perfscope.profiler.torch.op_graph.storages import storage_of

MOST_BYTES = 64 << 20
"""Memory that the ids may keep alive: those of a call may be a part of a tensor with the whole text."""

END = 1
"""Ids of a run that may be the end of the text: many tokenizers pad with the id of the end."""


class IdleRows:
    """The ids of calls, in order."""

    def __init__(self) -> None:
        self._calls: list[Any] = []
        self._storages: set[int] = set()
        """Addresses of the storages that are kept alive."""
        self._bytes = 0
        self._padding: int | None = None

    def note(self, ids: Any, model: Any = None) -> None:
        """Take the ids of one call, ``None`` if it has none: rows x 1 are looked at, others count as unknown."""
        if self._padding is None:
            self._padding = padding_of(model)
        plain = type(ids) is torch.Tensor and ids.dim() == 2 and ids.shape[1] == 1 and ids.shape[0] > 1
        if not plain or ids.device.type == "meta":
            self._calls.append(None)
            return
        # On the CPU a copy: the program may write the next ids into the same tensor.
        held = ids.detach().clone() if ids.device.type == "cpu" else ids.detach()
        storage = storage_of(held)
        if storage is not None and storage.data_ptr() not in self._storages:
            self._storages.add(storage.data_ptr())
            self._bytes += storage.nbytes()
        self._calls.append(held if storage is not None and self._bytes <= MOST_BYTES else None)

    def clear(self) -> None:
        """Forget all calls."""
        self._calls.clear()
        self._storages.clear()
        self._bytes = 0

    def counts(self) -> tuple[int | None, ...]:
        """Rows without work of each call; ``None`` for calls whose rows are unknown. Waits for the device."""
        result: list[int | None] = [None] * len(self._calls)
        by_rows: dict[int, list[int]] = {}
        for index, ids in enumerate(self._calls):
            if ids is not None:
                by_rows.setdefault(int(ids.shape[0]), []).append(index)
        for indices in by_rows.values():
            held = [self._calls[index] for index in indices]
            if len({ids.data_ptr() for ids in held}) < len(held):
                continue  # one buffer for several calls: it has the ids of the last
            for index, count in zip(indices, idle_of(torch.cat(held, 1).T.cpu(), self._padding), strict=True):
                result[index] = count
        return tuple(result)


def padding_of(model: Any) -> int | None:
    """The id that a model declares for padding, as those of transformers do; else that for the end of a text."""
    for name in ("pad_token_id", "eos_token_id"):
        value = getattr(getattr(model, "config", None), name, None)
        if isinstance(value, int) and value >= 0:
            return value
    return None


def idle_of(ids: Any, declared: int | None = None) -> list[int]:
    """Rows without work of each call, by ids of calls x rows on the CPU.

    Without a declared padding it is the value that most often follows itself in a row. Ids in runs of it must be more
    than those alone: a value that texts have, too, may follow itself anywhere.
    """
    follows = torch.zeros(ids.shape, dtype=torch.bool)
    follows[END:] = ids[END:] == ids[:-END]
    if not bool(follows.any()):
        return [0] * len(ids)
    filled = ids == (ids[follows].mode().values if declared is None else declared)
    idle = follows & filled
    counts: list[int] = idle.sum(1).tolist()
    return counts if 2 * int(idle.sum()) > int(filled.sum()) else [0] * len(ids)
