"""What ``DistributedDataParallel`` asks of its reducer, over tensors without data: buckets, their sums, their waits.

Torch's own reducer is C++ and needs memory behind its tensors. What is documented of it is followed here: one
bucket for all in the first backward, then buckets in the order in which gradients were ready (1 MiB the first,
``bucket_cap_mb`` the others, one dtype each), summed up as soon as all of theirs are there and those before them were,
waited for at the end of the backward, and copied back unless gradients are views of buckets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as distributed

from perfscope._cut.torch_fake_hooks import HookedBucket, answer_of
from perfscope.model.documents.torch_plan import Bucket

Tell = Callable[[str], None]


class Exchanges(Protocol):
    """Who counts the collectives."""

    def asked(self) -> int:
        """So many were asked for in this step so far."""

    def waited(self, number: int) -> None:
        """The step waits for one from now on."""

    def given(self, work: Any) -> list[Any]:
        """The tensors that a collective in work was given, while they are alive."""


class PlannedReducer:
    """What a ``DistributedDataParallel`` asks of its reducer."""

    def __init__(
        self,
        module: Any,
        parameters: Sequence[Any],
        told: Callable[[tuple[Bucket, ...]], None],
        problem: Tell,
        held: Callable[[Any], None],
        exchanges: Exchanges,
        *,
        static_graph: bool,
    ) -> None:
        self._held, self._exchanges = held, exchanges
        self._hook: Callable[[Any], Any] | None = None
        self._hook_name = ""
        self._static = static_graph
        self._module, self._parameters, self._told, self._problem = module, list(parameters), told, problem
        self._rebuilt = False
        self._may_rebuild = static_graph or not module.find_unused_parameters
        self._order: list[int] = []
        self._expecting = self._ending = False
        limits, _ = module._bucket_config.compute_bucket_size_limits(
            static_graph=static_graph, find_unused_parameters=module.find_unused_parameters
        )
        self._fill(reversed(self._assigned(limits, range(len(self._parameters)))))
        for place, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(
                torch.compiler.disable(lambda one, place=place: self._ready(place, one))
            )

    @property
    def group(self) -> Any:
        """The processes that take part."""
        return self._module.process_group

    def hooked(self, hook: Callable[[Any], Any], name: str) -> None:
        """A communication hook, which is called over each bucket in place of the sum."""
        self._hook, self._hook_name = hook, name

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def prepare_for_forward(self) -> None:
        """A forward begins."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def prepare_for_backward(self, _: Any) -> None:
        """Gradients of the next backward are summed up."""
        self._expecting, self._ending, self._next = True, False, 0
        self._pending = [len(bucket.members) for bucket in self._buckets]
        self._order = [] if not self._rebuilt else self._order

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _rebuild_buckets(self) -> bool:
        """Torch's forward asks for it; here it is done when the first backward ends, so that every step is alike."""
        return False

    def _rebuild(self) -> None:
        """After the first backward: buckets in the order of the gradients."""
        if self._rebuilt or not self._may_rebuild:
            return
        if self._static:  # what got no gradient comes last
            self._order += [place for place in range(len(self._parameters)) if place not in set(self._order)]
        if len(self._order) != len(self._parameters):
            return
        self._rebuilt = True
        config = self._module._bucket_config
        limits = (
            list(config.per_bucket_bytes_caps)
            if config.has_custom_per_bucket_caps
            else [config.first_bucket_bytes_cap, config.bucket_bytes_cap]
        )
        answered = any(bucket.sent[2] is not bucket.flat for bucket in self._buckets)
        self._fill(self._assigned(limits, self._order))
        for bucket in self._buckets if answered else ():  # as if a step had been
            bucket.answered(None, range(0), torch.empty_like(bucket.flat))

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
                if self._hook is None:
                    view.div_(self.group.size())
            else:
                if self._hook is None:
                    torch.mul(parameter.grad, 1.0 / self.group.size(), out=view)
                else:
                    view.copy_(parameter.grad)  # a hook divides
                if self._module.gradient_as_bucket_view:
                    parameter.grad = view
            self._pending[number] -= 1
            self._send()

    def _send(self) -> None:
        while self._next < len(self._buckets) and self._pending[self._next] <= 0:
            bucket, before = self._buckets[self._next], self._exchanges.asked()
            if self._hook is None:
                work = distributed.all_reduce(bucket.flat, group=self.group, async_op=True)
                bucket.sent = (work, range(0), bucket.flat)
            else:
                answer = self._called(self._hook, bucket)
                bucket.sent = (None, range(before, self._exchanges.asked()), answer)
            self._next += 1

    def _called(self, hook: Callable[[Any], Any], bucket: _Buffer) -> Any:
        """What a hook makes of a bucket."""
        seen = HookedBucket(
            self._next, bucket.flat, [self._parameters[place] for place in bucket.members],
            last=self._next == len(self._buckets) - 1,
        )  # fmt: skip
        answer = answer_of(hook(seen))
        if isinstance(answer, torch.Tensor) and answer.numel() == bucket.flat.numel():
            return answer
        self._problem(f"communication hook {self._hook_name}: its answer is no tensor of the bucket's size")
        return bucket.flat

    def _finish(self) -> None:
        """The backward is over."""
        self._expecting = False
        with torch.no_grad():
            self._pending = [0] * len(self._buckets)  # what got no gradient is sent as zeros
            self._send()
            used = None
            if self._module.find_unused_parameters and not self._module.static_graph:
                marks = torch.zeros(len(self._parameters), dtype=torch.int32, device=self._buckets[0].flat.device)
                used = distributed.all_reduce(marks, group=self.group, async_op=True)
            for bucket in self._buckets:
                work, asked, _ = bucket.sent
                if work is not None:
                    work.wait()
                for number in asked:
                    self._exchanges.waited(number)
                bucket.answered(*bucket.sent)
                self._copy_back(bucket)
            if used is not None:
                used.wait()
            self._rebuild()

    def _copy_back(self, bucket: _Buffer) -> None:
        for place, view in zip(bucket.members, bucket.views_out, strict=True):
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
        self._shapes = [tuple(one.shape) for one in parameters]
        self.views = self.parts_of(self.flat)
        self.views_out = self.views
        """What is copied back, which a hook may have made. Torch keeps it, and ``sent``, until the next is there."""
        self.sent: tuple[Any, range, Any] = (None, range(0), self.flat)
        """Work, numbers of what a hook asked for, what comes of it."""
        self.bytes = int(self.flat.numel() * self.flat.element_size())

    def answered(self, work: Any, asked: range, answer: Any) -> None:
        """What is to be copied back is there."""
        self.sent = (work, asked, answer)
        self.views_out = self.views if answer is self.flat else self.parts_of(answer)

    def parts_of(self, flat: Any) -> list[Any]:
        """The gradients in a tensor of the bucket's size."""
        parts = flat.view(-1).split([math.prod(shape) for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]
