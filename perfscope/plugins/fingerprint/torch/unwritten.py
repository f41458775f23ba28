"""Memory that was allocated and not written: its content is chance, and no difference between two runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch

from perfscope.profiler.torch.op_graph.storages import storage_of

EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"})
"""Ops that allocate and write nothing."""
PARTIAL = frozenset(
    ["index_copy_", "index_fill_", "index_put_", "_index_put_impl_", "masked_fill_", "masked_scatter_", "scatter_"]
)
"""Ops that write some elements of their first argument."""
LEFT_OPEN = {
    "_batch_norm_with_update": (3,),
    "_cudnn_rnn": (3,),
    "_efficient_attention_forward": (2, 3),
    "_flash_attention_forward": (2, 3, 4),
    "_scaled_dot_product_cudnn_attention": (6, 7, 8),
    "_scaled_dot_product_efficient_attention": (2, 3),
    "_scaled_dot_product_flash_attention": (6, 7, 8),
    "cudnn_batch_norm": (3,),
    "mkldnn_rnn_layer": (3,),
}
"""Op -> positions of results that it leaves unwritten in some cases: workspaces, and the state of dropout."""


class _Watch(ref[Any]):
    """A weak reference to the Python object of a storage, which lives as long as the storage."""

    __slots__ = ("address", "number")

    address: int
    number: int


class Storages:
    """A number for each storage that is alive; no number is given twice."""

    def __init__(self) -> None:
        self._by_address: dict[int, Any] = {}
        self._next = 0
        self.on_death: Callable[[int], None] = lambda number: None

    def of(self, tensor: torch.Tensor) -> int:
        """Number of the tensor's storage."""
        storage = storage_of(tensor)
        thing = tensor if storage is None else storage
        known: Any = self._by_address.get(id(thing))
        if known is not None and known() is thing:
            return int(known.number)
        watch: Any = _Watch(thing, self._died)  # typed so because the check takes a call of a reference for None
        watch.address, watch.number = id(thing), self._next
        self._next += 1
        self._by_address[watch.address] = watch
        return int(watch.number)

    def _died(self, watch: Any) -> None:
        address, number = watch.address, watch.number
        if self._by_address.get(address) is watch:
            del self._by_address[address]
        self.on_death(number)


class Unwritten:
    """Which elements of allocated storages were written, until all were. Storages by their numbers."""

    def __init__(self, storages: Storages) -> None:
        storages.on_death = self.freed
        self._masks: dict[int, torch.Tensor | None] = {}
        """One flag per element; ``None``: nothing was written."""
        self._item: dict[int, int] = {}
        """Bytes per element of these flags."""

    def allocated(self, storage: int, tensor: torch.Tensor) -> None:
        """The storage of the tensor was made by an op that does not write it."""
        if tensor.layout is torch.strided:
            self._masks[storage] = None
            self._item[storage] = tensor.element_size()

    def freed(self, storage: int) -> None:
        """Forget a storage."""
        self._masks.pop(storage, None)
        self._item.pop(storage, None)

    def knows(self, storage: int) -> bool:
        """Whether a part of the storage may be unwritten."""
        return storage in self._masks

    def written(self, storage: int, tensor: torch.Tensor) -> None:
        """An op wrote all elements of the tensor."""
        if storage not in self._masks:
            return
        if tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes() and not _overlaps(tensor):
            self.freed(storage)
            return
        flags = self._flags(storage, tensor)
        if flags is None:
            self.freed(storage)  # written in another dtype: taken as whole
            return
        flags.fill_(True)
        mask = self._masks[storage]
        if mask is not None and bool(mask.all()):
            self.freed(storage)

    def partly_written(self, storage: int, func: Any, args: Any, kwargs: Any) -> None:
        """An op wrote some elements of its first argument: the same op sets their flags."""
        target = args[0]
        flags = self._flags(storage, target) if storage in self._masks else None
        if flags is None:
            return

        def as_flag(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.dtype == target.dtype:
                return torch.ones_like(value, dtype=torch.bool)
            return True if isinstance(value, float | int) and not isinstance(value, bool) else value

        head = 2 if func.overloadpacket.__name__ in ("scatter_", "index_copy_", "index_fill_") else 1
        func(flags, *args[1:head], *map(as_flag, args[head:]), **{key: as_flag(kwargs[key]) for key in kwargs})

    def mask(self, storage: int, tensor: torch.Tensor) -> torch.Tensor | None:
        """Flags of the tensor's elements that were written; ``None`` if none was."""
        return self._flags(storage, tensor) if self._masks.get(storage) is not None else None

    def _flags(self, storage: int, tensor: torch.Tensor) -> torch.Tensor | None:
        """The flags of a tensor, in its shape; ``None`` if its elements have another size than the storage's."""
        size = self._item[storage]
        if tensor.element_size() != size or tensor.layout is not torch.strided:
            return None
        mask = self._masks[storage]
        count = tensor.untyped_storage().nbytes() // size
        if mask is None or mask.numel() < count:
            grown = torch.zeros(count, dtype=torch.bool, device=tensor.device)
            if mask is not None:
                grown[: mask.numel()] = mask
            mask = self._masks[storage] = grown
        return mask.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _overlaps(tensor: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
