"""Storage identities that stay unique for a whole capture, without keeping any memory alive.

An address is reused as soon as a storage dies, so ids by address would join unrelated tensors. We hold
a C++ weak reference (``StorageWeakRef``): it frees the data with the last tensor, yet the small
``StorageImpl`` record, and with it the address we key on, stays ours until the capture is dropped.
"""

from __future__ import annotations

from typing import Any
from weakref import ReferenceType, ref

from torch.multiprocessing.reductions import StorageWeakRef


class StorageIds:
    """Hands out 0, 1, 2 ... one id per storage ever seen; knows which of them are still alive."""

    def __init__(self) -> None:
        self._by_address: dict[int, int] = {}
        self._storages: dict[int, StorageWeakRef] = {}
        self._by_object: dict[int, tuple[ReferenceType[Any], int]] = {}
        self._count = 0

    def of(self, tensor: Any) -> int:
        """Id of the tensor's storage; a tensor without one (sparse, opaque) is its own storage."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse and opaque layouts have none, by design
            return self._of_object(tensor)
        known = self._by_address.get(storage._cdata)
        if known is not None:
            return known
        held = StorageWeakRef(storage)
        self._by_address[storage._cdata] = identity = self._next()
        self._storages[identity] = held
        return identity

    def find(self, tensor: Any) -> int | None:
        """Id of the tensor's storage if the capture has seen it, else None."""
        try:
            return self._by_address.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            entry = self._by_object.get(id(tensor))
            return entry[1] if entry is not None and entry[0]() is tensor else None

    def alive(self) -> list[int]:
        """Ids of the storages that some tensor of the program still holds, ascending."""
        storages = [identity for identity, held in self._storages.items() if not held.expired()]
        objects = [identity for held, identity in self._by_object.values() if held() is not None]
        return sorted(storages + objects)

    def _of_object(self, tensor: Any) -> int:
        entry = self._by_object.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            return entry[1]
        identity = self._next()
        self._by_object[id(tensor)] = (ref(tensor), identity)
        return identity

    def _next(self) -> int:
        self._count += 1
        return self._count - 1
