"""DistributedDataParallel over tensors without data: a model of its buckets answers in place of its reducer.

Torch's reducer is C++ and needs memory behind its tensors. The model asks torch for the buckets, counts gradients as
they become ready, and records an all-reduce for each complete bucket; no op is dispatched for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as distributed

from perfscope.model.documents.torch_plan import Bucket
from perfscope.profiler.ahead.torch import compat
from perfscope.profiler.ahead.torch.collectives import CollectiveRecorder, Exchange

Tell = Callable[[str], None]

SPARSE = (
    "sparse gradients are not covered by a plan of DistributedDataParallel: NCCL sums up dense tensors only "
    "(sparse=False, or leave such tables out by _ddp_params_and_buffers_to_ignore)"
)
MIXED = (
    "DistributedDataParallel(mixed_precision=...) is not covered by a plan: its reducer holds copies of all parameters "
    "that no rule tells of (autocast is covered)"
)
HOOKS = (
    "communication hooks of DistributedDataParallel are not covered: gradients are modelled as all-reduced whole, in "
    "their own dtype"
)
FOR_CUDA = ("bf16_compress_hook", "bf16_compress_wrapper_hook")
"""Hooks that torch refuses to a build without CUDA."""


def install_ddp_model(
    buckets: Callable[[tuple[Bucket, ...]], None],
    *,
    problem: Tell,
    held: Callable[[Any], None],
    recorder: CollectiveRecorder,
) -> None:
    """Change ``DistributedDataParallel`` in this process.

    ``buckets(all)``: called with the buckets of a module; ``held(tensor)``: called with the memory of a bucket;
    ``problem(text)``: called with what the plan does not cover.
    """
    from torch.nn.parallel import distributed as module

    kind: Any = module.DistributedDataParallel
    begin = kind.__init__

    def alone(self: Any, given: Any, *arguments: Any, **named: Any) -> None:
        # Tensors of the device are tensors of the CPU here, of which there is one.
        arguments = tuple(None if index < 2 else value for index, value in enumerate(arguments))
        named = {name: None if name in ("device_ids", "output_device") else value for name, value in named.items()}
        if named.get("mixed_precision") is not None:
            raise RuntimeError(MIXED)
        begin(self, given, *arguments, **named)

    def helper(self: Any, parameters: Any, sparse: Any, names: Any, static_graph: bool) -> None:
        if any(sparse):
            raise RuntimeError(SPARSE)
        self.reducer = BucketModel(self, parameters, buckets, held, recorder)
        self.logger = _NullLogger()
        self._passing_sync_batchnorm_handle(self.module)

    def hook(*_: Any) -> None:
        problem(HOOKS)

    def broadcast(group: Any, tensors: Sequence[Any], *_: Any) -> None:
        ranks = tuple(distributed.get_process_group_ranks(group))
        for dtype in dict.fromkeys(map(_dtype, tensors)):
            size = sum(_bytes(tensor) for tensor in tensors if _dtype(tensor) == dtype)
            exchange = Exchange(kind="broadcast", bytes=size, dtype=dtype, ranks=ranks, pairs=None)
            number = recorder.record(exchange, "c10d.broadcast_", "DistributedDataParallel")
            if number is not None:
                recorder.waited(number)

    kind.__init__ = alone
    compat.replace_reducer(helper, hook, broadcast, FOR_CUDA)


class BucketModel:
    """Answers as ``DistributedDataParallel.reducer``."""

    def __init__(
        self,
        module: Any,
        parameters: Sequence[Any],
        buckets: Callable[[tuple[Bucket, ...]], None],
        held: Callable[[Any], None],
        recorder: CollectiveRecorder,
    ) -> None:
        self._module, self._parameters, self._recorder = module, list(parameters), recorder
        config = module._bucket_config
        assigned = compat.buckets_in_reverse(self._parameters, config.first_bucket_bytes_cap, config.bucket_bytes_cap)
        self._buckets = tuple(
            Bucket(bytes=sum(_bytes(self._parameters[index]) for index in bucket), parameters=len(bucket))
            for bucket in assigned
        )
        self._dtypes = [_dtype(self._parameters[bucket[0]]) for bucket in assigned]
        self._countdown = BucketCountdown(assigned)
        self._expecting = self._ending = False
        self._sent: list[int] = []
        # With gradient_as_bucket_view the gradients are the memory of the buckets.
        self._memory = [] if module.gradient_as_bucket_view else [self._allocated(bucket) for bucket in assigned]
        for tensor in self._memory:
            held(tensor)
        buckets(self._buckets)
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(
                torch.compiler.disable(lambda _, index=index: self._ready(index))
            )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def prepare_for_forward(self) -> None:
        """No effect."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def prepare_for_backward(self, _: Any) -> None:
        """Expect gradients; DistributedDataParallel does not call it under ``no_sync``."""
        self._expecting, self._ending = True, False
        self._countdown.reset()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _rebuild_buckets(self) -> bool:
        """Buckets stay as they are."""
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def _allocated(self, bucket: Sequence[int]) -> Any:
        first = self._parameters[bucket[0]]
        elements = sum(self._parameters[index].numel() for index in bucket)
        return torch.empty(elements, dtype=first.dtype, device=first.device)

    def _ready(self, index: int) -> None:
        if not (self._expecting and self._module.require_backward_grad_sync):
            return
        if not self._ending:
            self._ending = True
            compat.at_end_of_backward(self._finish)
        self._send(self._countdown.ready(index))

    def _send(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._record(self._buckets[number].bytes, self._dtypes[number])

    def _record(self, size: int, dtype: str) -> None:
        ranks = tuple(distributed.get_process_group_ranks(self._module.process_group))
        exchange = Exchange(kind="all-reduce", bytes=size, dtype=dtype, ranks=ranks, pairs=None)
        number = self._recorder.record(exchange, "c10d.allreduce_", "DistributedDataParallel")
        if number is not None:
            self._sent.append(number)

    def _finish(self) -> None:
        """End of the backward pass: send what is left and wait for all of it."""
        self._expecting = False
        self._send(self._countdown.rest())
        if self._module.find_unused_parameters and not self._module.static_graph:
            self._record(4 * len(self._parameters), "int32")  # which parameters were used
        for number in self._sent:
            self._recorder.waited(number)
        self._sent.clear()


def _bytes(parameter: Any) -> int:
    return int(parameter.numel() * parameter.element_size())


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class _NullLogger:
    """Keeps nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


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
