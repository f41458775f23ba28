"""Buckets of DistributedDataParallel, modelled from the sizes of the parameters. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Sequence


def assign_buckets(parameters: Sequence[tuple[int, str]], first_cap: int, cap: int) -> list[list[int]]:
    """Indices of the parameters in each bucket, in the order in which the buckets are expected to be sent.

    ``parameters``: (bytes, dtype) in the order of registration. Gradients are expected in the reverse order. A bucket
    holds one dtype and is closed by the parameter that brings it to its cap: ``first_cap`` for the first bucket of a
    dtype, ``cap`` for all later ones. Buckets that stay below their cap come last.
    """
    closed: list[list[int]] = []
    open_buckets: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    caps: dict[str, int] = {}
    for index in reversed(range(len(parameters))):
        size, dtype = parameters[index]
        open_buckets.setdefault(dtype, []).append(index)
        sizes[dtype] = sizes.get(dtype, 0) + size
        if sizes[dtype] >= caps.setdefault(dtype, first_cap):
            closed.append(open_buckets.pop(dtype))
            sizes[dtype], caps[dtype] = 0, cap
    return closed + list(open_buckets.values())


class BucketCountdown:
    """Which buckets are complete as gradients become ready; a bucket waits for the buckets before it."""

    def __init__(self, buckets: Sequence[Sequence[int]]) -> None:
        self._buckets = [frozenset(bucket) for bucket in buckets]
        self._bucket_of = {index: number for number, bucket in enumerate(buckets) for index in bucket}
        self.reset()

    def reset(self) -> None:
        """Start a backward pass: no gradient is ready."""
        self._missing = [set(bucket) for bucket in self._buckets]
        self._next = 0

    def ready(self, index: int) -> list[int]:
        """The buckets that can be sent now that the gradient of this parameter is ready."""
        self._missing[self._bucket_of[index]].discard(index)
        first = self._next
        while self._next < len(self._missing) and not self._missing[self._next]:
            self._next += 1
        return list(range(first, self._next))

    def rest(self) -> list[int]:
        """The buckets that were not sent by the end of the backward pass."""
        first, self._next = self._next, len(self._buckets)
        return list(range(first, self._next))
