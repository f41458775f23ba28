"""DistributedDataParallel over tensors without data: its buckets by the documented rule, in place of torch's reducer.

Torch's own reducer is C++ and needs memory behind its tensors. What is documented of it is followed here: one
bucket for all in the first backward, then buckets in the order in which gradients were ready (1 MiB the first,
``bucket_cap_mb`` the others, one dtype each), summed up as soon as all of theirs are there and those before them were,
waited for at the end of the backward, and copied back unless gradients are views of buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as distributed

from perfscope.profiler.aot.torch_processes_file import Bucket

COMPRESSED = {"fp16": torch.float16, "FP16": torch.float16, "bf16": torch.bfloat16}
"""Of torch's own hooks (``fp16_compress_hook``): what gradients are sent as."""

Tell = Callable[[str], None]


def plan_ddp(buckets: Callable[[tuple[Bucket, ...]], None], problem: Tell, held: Callable[[Any], None]) -> None:
    """Change ``DistributedDataParallel`` in this process.

    ``buckets(all)``: what it sums up together, when it is known; ``held(tensor)``: memory of a bucket.
    """
    from torch.nn.parallel import distributed as module

    kind: Any = module.DistributedDataParallel
    begin = kind.__init__

    def alone(self: Any, given: Any, *arguments: Any, **named: Any) -> None:
        # Tensors of the device are tensors of the CPU here, of which there is one.
        arguments = tuple(None if place < 2 else one for place, one in enumerate(arguments))
        named = {name: None if name in ("device_ids", "output_device") else one for name, one in named.items()}
        if named.get("mixed_precision") is not None:
            problem("DistributedDataParallel(mixed_precision=...): planned in the precision of the parameters")
            named["mixed_precision"] = None
        begin(self, given, *arguments, **named)

    def helper(self: Any, parameters: Any, sparse: Any, names: Any, static_graph: bool) -> None:
        if any(sparse):
            problem("sparse gradients of DistributedDataParallel: planned as dense ones")
        self.reducer = PlannedReducer(self, parameters, buckets, problem, held, static_graph=static_graph)
        self.logger = _Logger()
        self._passing_sync_batchnorm_handle(self.module)

    def hook(reducer: Any, state: Any, called: Any) -> None:
        reducer.hooked(getattr(called, "__name__", str(called)))

    kind.__init__ = alone
    kind._ddp_init_helper = helper
    kind._set_ddp_runtime_logging_sample_rate = lambda *_: None
    module._verify_param_shape_across_processes = lambda *_, **__: None
    module._sync_module_states = lambda *_, **__: None  # before the first step, once
    both: Any = distributed
    both._broadcast_coalesced = torch.compiler.disable(_broadcast_coalesced)
    both._register_comm_hook = hook
    both._register_builtin_comm_hook = lambda reducer, called: reducer.hooked(str(called))


class PlannedReducer:
    """What a ``DistributedDataParallel`` asks of its reducer."""

    def __init__(
        self,
        module: Any,
        parameters: Sequence[Any],
        told: Callable[[tuple[Bucket, ...]], None],
        problem: Tell,
        held: Callable[[Any], None],
        *,
        static_graph: bool,
    ) -> None:
        self._held = held
        self._module, self._parameters, self._told, self._problem = module, list(parameters), told, problem
        self._rebuilt = False
        self._may_rebuild = static_graph or not module.find_unused_parameters
        self._order: list[int] = []
        self._sent_as: Any = None
        self._expecting = self._ending = False
        self._works: list[Any] = []
        limits, _ = module._bucket_config.compute_bucket_size_limits(
            static_graph=static_graph, find_unused_parameters=module.find_unused_parameters
        )
        self._fill(reversed(self._assigned(limits, range(len(self._parameters)))))
        for place, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(
                torch.compiler.disable(lambda one, place=place: self._ready(place, one))
            )

    def hooked(self, name: str) -> None:
        """A communication hook by name; those that only compress are followed."""
        self._sent_as = next((dtype for part, dtype in COMPRESSED.items() if part in name), None)
        if self._sent_as is None and "allreduce" not in name.lower():
            self._problem(f"communication hook {name}: planned as the sums that torch makes without it")

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def prepare_for_forward(self) -> None:
        """A forward begins."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def prepare_for_backward(self, _: Any) -> None:
        """Gradients of the next backward are summed up."""
        self._expecting, self._ending, self._next = True, False, 0
        self._works = []
        self._pending = [len(bucket.members) for bucket in self._buckets]
        self._order = [] if not self._rebuilt else self._order

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _rebuild_buckets(self) -> bool:
        """After the first backward: buckets in the order of the gradients."""
        if self._rebuilt or not self._may_rebuild or len(self._order) != len(self._parameters):
            return False
        self._rebuilt = True
        config = self._module._bucket_config
        limits = (
            list(config.per_bucket_bytes_caps)
            if config.has_custom_per_bucket_caps
            else [config.first_bucket_bytes_cap, config.bucket_bytes_cap]
        )
        self._fill(self._assigned(limits, self._order))
        return True

    def _assigned(self, limits: list[int], order: Any) -> list[list[int]]:
        """Indices of parameters by bucket: torch's own rule, over their sizes."""
        order = list(order)
        found, _ = distributed._compute_bucket_assignment_by_size(
            [self._parameters[place] for place in order], limits, [False] * len(order), order
        )
        return [list(bucket) for bucket in found]

    def _fill(self, assigned: Any) -> None:
        self._buckets = [
            _Buffer([self._parameters[place] for place in bucket], bucket, self._held) for bucket in assigned
        ]
        self._home = {
            place: (number, inside)
            for number, bucket in enumerate(self._buckets)
            for inside, place in enumerate(bucket.members)
        }
        self._pending = [len(bucket.members) for bucket in self._buckets]
        self._next = 0
        self._told(tuple(Bucket(bytes=one.bytes, parameters=len(one.members)) for one in self._buckets))

    def _ready(self, place: int, parameter: Any) -> None:
        if not (self._expecting and self._module.require_backward_grad_sync) or parameter.grad is None:
            return
        if not self._ending:
            self._ending = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        if not self._rebuilt:
            self._order.append(place)
        number, inside = self._home[place]
        view = self._buckets[number].views[inside]
        with torch.no_grad():
            if parameter.grad.untyped_storage() is view.untyped_storage():
                view.div_(self._module.process_group.size())
            else:
                torch.mul(parameter.grad, 1.0 / self._module.process_group.size(), out=view)
                if self._module.gradient_as_bucket_view:
                    parameter.grad = view
            self._pending[number] -= 1
            self._send()

    def _send(self) -> None:
        while self._next < len(self._buckets) and self._pending[self._next] <= 0:
            flat = self._buckets[self._next].flat
            sent = flat if self._sent_as is None else flat.to(self._sent_as)
            work = distributed.all_reduce(sent, group=self._module.process_group, async_op=True)
            self._works.append((work, sent, flat))
            self._next += 1

    def _finish(self) -> None:
        """The backward is over."""
        self._expecting = False
        with torch.no_grad():
            self._pending = [0] * len(self._buckets)  # what got no gradient is sent as zeros
            self._send()
            used = None
            if self._module.find_unused_parameters and not self._module.static_graph:
                marks = torch.zeros(len(self._parameters), dtype=torch.int32, device=self._buckets[0].flat.device)
                used = distributed.all_reduce(marks, group=self._module.process_group, async_op=True)
            for number, (work, sent, flat) in enumerate(self._works):
                if work is not None:
                    work.wait()
                if sent is not flat:
                    flat.copy_(sent)
                self._copy_back(self._buckets[number])
            if used is not None:
                used.wait()
        self._works = []

    def _copy_back(self, bucket: _Buffer) -> None:
        for place, view in zip(bucket.members, bucket.views, strict=True):
            grad = self._parameters[place].grad
            if grad is not None and grad.untyped_storage() is not view.untyped_storage():
                grad.copy_(view)

    def __getattr__(self, name: str) -> Any:
        """What else a program asks of a reducer has no answer that would change the plan."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class _Buffer:
    """One bucket's memory."""

    def __init__(self, parameters: Sequence[Any], members: Sequence[int], held: Callable[[Any], None]) -> None:
        self.members = list(members)
        self.flat = torch.empty(
            sum(one.numel() for one in parameters), dtype=parameters[0].dtype, device=parameters[0].device
        )
        held(self.flat)
        parts = self.flat.split([one.numel() for one in parameters])
        self.views = [part.view(one.shape) for part, one in zip(parts, parameters, strict=True)]
        self.bytes = int(self.flat.numel() * self.flat.element_size())


class _Logger:
    """Keeps nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def _broadcast_coalesced(group: Any, tensors: Sequence[Any], size: int, source: int = 0) -> None:
    """Tensors of one dtype laid together, up to ``size`` bytes, and sent as one."""
    found, _ = distributed._compute_bucket_assignment_by_size(list(tensors), [size], [False] * len(tensors))
    with torch.no_grad():
        for bucket in found:
            parts = [tensors[place] for place in bucket]
            flat = torch.cat([one.reshape(-1) for one in parts])
            distributed.broadcast(flat, group=group, group_src=source)
            for one, part in zip(parts, flat.split([one.numel() for one in parts]), strict=True):
                one.copy_(part.view(one.shape))
