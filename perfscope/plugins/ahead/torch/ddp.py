"""DistributedDataParallel over tensors without data: a model of its buckets replaces its reducer.

Torch's reducer is C++ and needs memory in its tensors. The model gets the buckets from torch, which assigns them by the
sizes of the parameters, and records an all-reduce per bucket after the gradient of the parameter that was registered
first, because gradients are expected in reverse order of registration; no op is dispatched for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as distributed

from perfscope.model.documents.torch_plan import Bucket, CollectiveKind
from perfscope.plugins.ahead.torch import compat
from perfscope.plugins.ahead.torch.collectives import CollectiveRecorder

SPARSE = (
    "sparse gradients are not covered by a plan of DistributedDataParallel: NCCL sums up dense tensors only "
    "(sparse=False, or leave such tables out by _ddp_params_and_buffers_to_ignore)"
)
MIXED = (
    "DistributedDataParallel(mixed_precision=...) is not covered by a plan: its reducer holds copies of all parameters "
    "that the plan does not model (autocast is covered)"
)
HOOKS = (
    "communication hooks of DistributedDataParallel are not covered: gradients are modelled as all-reduced whole, in "
    "their own dtype"
)
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""Torch's own caps if the program sets none."""


def install_ddp_model(
    buckets: Callable[[tuple[Bucket, ...]], None],
    *,
    problem: Callable[[str], None],
    held: Callable[[Any], None],
    recorder: CollectiveRecorder,
) -> None:
    """Change ``DistributedDataParallel`` in this process.

    ``buckets(all)``: called with the buckets of a module; ``held(tensor)``: called with the memory of a bucket;
    ``problem(text)``: called with a sentence on what the plan does not cover.
    """
    kind: Any = torch.nn.parallel.DistributedDataParallel
    signature = inspect.signature(kind.__init__)

    def begin(self: Any, *arguments: Any, **named: Any) -> None:
        given = signature.bind(self, *arguments, **named)
        given.apply_defaults()
        options = given.arguments
        if options.get("mixed_precision") is not None:
            raise RuntimeError(MIXED)
        super(kind, self).__init__()
        self.module = options["module"]
        self.device_ids = self.output_device = None  # here, tensors of the device are CPU tensors
        mesh = options.get("device_mesh")
        self.process_group = options["process_group"] if mesh is None else mesh.get_group(mesh_dim=0)
        self.process_group = self.process_group or distributed.group.WORLD
        self.gradient_as_bucket_view = options["gradient_as_bucket_view"]
        self.find_unused_parameters, self.static_graph = options["find_unused_parameters"], options["static_graph"]
        self.broadcast_buffers = options["broadcast_buffers"] is not False
        self.parameters_to_ignore = set(getattr(self.module, "_ddp_params_and_buffers_to_ignore", ()))
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        cap = options["bucket_cap_mb"]
        self.bucket_bytes_cap = BUCKET_BYTES if cap is None else int(cap * (1 << 20))
        first_cap = FIRST_BUCKET_BYTES if cap is None else self.bucket_bytes_cap
        if any(getattr(part, "sparse", False) for part in self.module.modules()):
            raise RuntimeError(SPARSE)
        self.reducer = self.logger = BucketModel(self, first_cap, held, recorder)
        buckets(self.reducer.buckets)

    def forward(self: Any, *arguments: Any, **named: Any) -> Any:
        syncs = torch.is_grad_enabled() and self.require_backward_grad_sync
        if self.broadcast_buffers and self.require_forward_param_sync:
            self.reducer.broadcast(
                buffer for name, buffer in self.module.named_buffers() if name not in self.parameters_to_ignore
            )
        with compat.active_ddp(self):
            output = self.module(*arguments, **named)
        self.require_forward_param_sync = syncs
        if syncs:
            self.reducer.prepare_for_backward()
        return output

    kind.__init__ = begin
    kind.forward = torch.compiler.disable(forward, recursive=False)
    kind.register_comm_hook = lambda *_: problem(HOOKS)
    compat.compile_outside_modes(kind)


class BucketModel:
    """Replaces ``DistributedDataParallel.reducer``."""

    def __init__(self, module: Any, first_cap: int, held: Callable[[Any], None], recorder: CollectiveRecorder) -> None:
        self._module, self._recorder = module, recorder
        self._parameters = [
            parameter
            for name, parameter in module.module.named_parameters()
            if parameter.requires_grad and name not in module.parameters_to_ignore
        ]
        assigned = compat.buckets_in_reverse(self._parameters, first_cap, module.bucket_bytes_cap)
        members = [[self._parameters[index] for index in bucket] for bucket in assigned]
        self.buckets = tuple(Bucket(bytes=sum(map(_bytes, bucket)), parameters=len(bucket)) for bucket in members)
        self._dtypes = [_dtype(bucket[0]) for bucket in members]
        self._completed_by = {bucket[-1]: number for number, bucket in enumerate(assigned)}
        self._expecting = self._ending = False
        self._unsent: list[int] = []
        self._sent: list[int] = []
        # With gradient_as_bucket_view the gradients are in the memory of the buckets.
        self._memory = [
            torch.empty(sum(part.numel() for part in bucket), dtype=bucket[0].dtype, device=bucket[0].device)
            for bucket in ([] if module.gradient_as_bucket_view else members)
        ]
        for tensor in self._memory:
            held(tensor)
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(
                torch.compiler.disable(lambda _, index=index: self._ready(index))
            )

    def prepare_for_backward(self, *_: Any) -> None:
        """Expect gradients; not called under ``no_sync``."""
        self._expecting, self._ending = True, False
        self._unsent = list(range(len(self.buckets)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None

    def broadcast(self, tensors: Iterable[Any]) -> None:
        """Record that tensors are sent from the first process, those of one dtype together."""
        sizes: dict[str, int] = {}
        for tensor in tensors:
            sizes[_dtype(tensor)] = sizes.get(_dtype(tensor), 0) + _bytes(tensor)
        for dtype, size in sizes.items():
            number = self._record("broadcast", size, dtype, "c10d.broadcast_")
            if number is not None:
                self._recorder.waited(number)

    def _ready(self, index: int) -> None:
        if not (self._expecting and self._module.require_backward_grad_sync):
            return
        if not self._ending:
            self._ending = True
            compat.at_end_of_backward(self._finish)
        number = self._completed_by.get(index)
        if number is not None and number in self._unsent:
            self._unsent.remove(number)
            self._reduce(self.buckets[number].bytes, self._dtypes[number])

    def _reduce(self, size: int, dtype: str) -> None:
        number = self._record("all-reduce", size, dtype, "c10d.allreduce_")
        if number is not None:
            self._sent.append(number)

    def _record(self, kind: CollectiveKind, size: int, dtype: str, op: str) -> int | None:
        ranks = tuple(distributed.get_process_group_ranks(self._module.process_group))
        return self._recorder.record(op, "DistributedDataParallel", kind, size, dtype, ranks)

    def _finish(self) -> None:
        """End of the backward pass: reduce the remaining buckets and wait for all."""
        self._expecting = False
        for number in self._unsent:
            self._reduce(self.buckets[number].bytes, self._dtypes[number])
        if self._module.find_unused_parameters and not self._module.static_graph:
            self._reduce(4 * len(self._parameters), "int32")  # whether all parameters were used
        for number in self._sent:
            self._recorder.waited(number)
        self._sent.clear()


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
