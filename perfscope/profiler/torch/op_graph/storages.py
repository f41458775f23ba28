"""Identities of storages, unique for a whole capture, which keep no memory alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from torch import UntypedStorage

# An address is reused as soon as a storage dies, so ids by address would join unrelated tensors. Torch
# keeps one Python object per storage for as long as the storage lives, whoever holds it; a weak reference
# to that object reports the moment it dies, before its address can come back.
#
# (A C++ ``StorageWeakRef`` would do as well, but it pins the storage's small header, and on the CPU the
# headers then split the freed blocks between them: a step's allocations were seen to pile up to 1 GB.)
#
# The same reference dates the death: it comes while the storage is freed, between two ops.


class _Watch(ref[Any]):
    """A weak reference that records the id of its storage."""

    __slots__ = ("address", "identity")

    address: int
    identity: int


class StorageIds:
    """Assigns 0, 1, 2 ..., one id per storage ever seen; records which of them are alive, and when others died.

    ``now()``: the index of the op that comes next.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._by_address: dict[int, _Watch] = {}
        self.bytes: list[int] = []
        """Size of each storage, the largest seen: a resized storage (FSDP frees its gathered weights so) grows."""
        self.born: list[int | None] = []
        """Index of the op that made each storage; ``None``: it existed before, or no op was seen to make it."""
        self.died: list[int | None] = []
        """Index of the op before which each storage was freed; ``None``: it is alive."""

    def of(self, tensor: Any, *, made: bool = False) -> int:
        """Id of the tensor's storage; a tensor without one (sparse, opaque) is its own storage.

        ``made``: the op of now made it, if it was not known before.
        """
        thing = _storage_or_itself(tensor)
        known = self._known(thing)
        if known is not None:
            self.bytes[known] = max(self.bytes[known], _storage_bytes(thing))
            return known
        watch = _Watch(thing, self._forget)
        watch.address, watch.identity = id(thing), len(self.bytes)
        self._by_address[watch.address] = watch
        self.bytes.append(_storage_bytes(thing))
        self.born.append(self._now() if made else None)
        self.died.append(None)
        return watch.identity

    def find(self, tensor: Any) -> int | None:
        """Id of the tensor's storage if the capture has seen it, else None."""
        return self._known(_storage_or_itself(tensor))

    def alive(self) -> list[int]:
        """Ids of the storages that some tensor of the program still holds, ascending."""
        return sorted(watch.identity for watch in list(self._by_address.values()) if watch() is not None)

    def _known(self, thing: Any) -> int | None:
        watch = self._by_address.get(id(thing))
        return watch.identity if watch is not None and watch() is thing else None

    def _forget(self, watch: Any) -> None:
        address: int = watch.address
        self.died[watch.identity] = self._now()
        if self._by_address.get(address) is watch:
            del self._by_address[address]


def _storage_or_itself(tensor: Any) -> Any:
    storage = storage_of(tensor)
    return tensor if storage is None else storage


def _storage_bytes(thing: Any) -> int:
    """Bytes of a storage; 0 for a wrapper, whose parts, if any, are storages that are seen separately."""
    return int(thing.nbytes()) if isinstance(thing, UntypedStorage) else 0


def storage_of(tensor: Any) -> Any:
    """The storage of a tensor; ``None`` for sparse and opaque layouts, which have none."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
