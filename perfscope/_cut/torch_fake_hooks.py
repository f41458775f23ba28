"""Communication hooks of DistributedDataParallel: the program's own code over a bucket without data.

A hook is given a bucket and answers with a future of what its gradients become. Both are plain Python here, for torch's
own are C++ that its reducer makes. What a hook exchanges and makes is seen as ops of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Done:
    """A future that is there: what is asked of it is done at once, as the host does where NCCL's are."""

    def __init__(self, value: Any = None) -> None:
        self._value = value

    def value(self) -> Any:
        """As of ``torch.futures.Future``."""
        return self._value

    wait = value

    def done(self) -> bool:
        """As of ``torch.futures.Future``."""
        return True

    def then(self, call: Callable[[Any], Any]) -> Done:
        """As of ``torch.futures.Future``; what raises, raises here."""
        return Done(call(self))

    def add_done_callback(self, call: Callable[[Any], Any]) -> None:
        """As of ``torch.futures.Future``."""
        call(self)

    def set_result(self, value: Any) -> None:
        """As of ``torch.futures.Future``."""
        self._value = value


class HookedBucket:
    """What a hook sees of a bucket, with the names of ``torch.distributed.GradBucket``."""

    def __init__(self, index: int, flat: Any, parameters: Sequence[Any], *, last: bool) -> None:
        self._index, self._flat, self._parameters, self._last = index, flat, list(parameters), last

    def index(self) -> int:
        """Its place among the buckets."""
        return self._index

    def buffer(self) -> Any:
        """All its gradients, one behind the other."""
        return self._flat

    def set_buffer(self, tensor: Any) -> None:
        """Another tensor in place of that."""
        self._flat = tensor

    def parameters(self) -> list[Any]:
        """Whose gradients it has."""
        return list(self._parameters)

    def gradients(self) -> list[Any]:
        """The gradients, as parts of the buffer."""
        parts = self._flat.split([one.numel() for one in self._parameters])
        return [part.view(one.shape) for part, one in zip(parts, self._parameters, strict=True)]

    def is_last(self) -> bool:
        """Whether no bucket comes after it."""
        return self._last


def all_reduced(group: Any, bucket: Any, *, dtype: Any = None) -> Done:
    """What torch's built-in hooks do: the mean over the processes, sent as ``dtype`` where one is given."""
    import torch.distributed as distributed

    flat = bucket.buffer()
    sent = flat if dtype is None else flat.to(dtype)
    sent.div_(group.size())
    distributed.all_reduce(sent, group=group, async_op=True)
    return Done(flat if sent is flat else flat.copy_(sent))


def answer_of(future: Any) -> Any:
    """What a hook's future holds: one tensor."""
    value = future.value() if isinstance(future, Done) else future.wait()
    return value[0] if isinstance(value, (list, tuple)) else value
