"""DistributedDataParallel over tensors without data: what of it is changed for its hooks and its reducer to be ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as distributed
from torch.utils._python_dispatch import _disable_current_modes

from perfscope._cut.torch_fake_hooks import Done, all_reduced
from perfscope._cut.torch_fake_reducer import Exchanges, PlannedReducer, Tell
from perfscope.model.documents.torch_plan import Bucket

SPARSE = (
    "sparse gradients are not covered by a plan of DistributedDataParallel: NCCL sums up dense tensors only "
    "(sparse=False, or leave such tables out by _ddp_params_and_buffers_to_ignore)"
)
MIXED = (
    "DistributedDataParallel(mixed_precision=...) is not covered by a plan: its reducer holds copies of all parameters "
    "that no rule tells of (autocast is covered)"
)
FOR_CUDA = ("bf16_compress_hook", "bf16_compress_wrapper_hook")
"""Hooks that torch refuses to a build without CUDA."""


def install_ddp_model(
    buckets: Callable[[tuple[Bucket, ...]], None],
    *,
    problem: Tell,
    note: Tell,
    held: Callable[[Any], None],
    exchanges: Exchanges,
) -> None:
    """Change ``DistributedDataParallel`` in this process.

    ``buckets(all)``: what it sums up together, when it is known; ``held(tensor)``: memory of a bucket;
    ``problem(text)``, ``note(text)``: what is not planned, and what was assumed.
    """
    from torch._C._distributed_c10d import FakeWork
    from torch.nn.parallel import distributed as module

    kind: Any = module.DistributedDataParallel
    begin, check = kind.__init__, kind._check_comm_hook

    def alone(self: Any, given: Any, *arguments: Any, **named: Any) -> None:
        # Tensors of the device are tensors of the CPU here, of which there is one.
        arguments = tuple(None if place < 2 else one for place, one in enumerate(arguments))
        named = {name: None if name in ("device_ids", "output_device") else one for name, one in named.items()}
        if named.get("mixed_precision") is not None:
            raise RuntimeError(MIXED)
        begin(self, given, *arguments, **named)

    def helper(self: Any, parameters: Any, sparse: Any, names: Any, static_graph: bool) -> None:
        if any(sparse):
            raise RuntimeError(SPARSE)
        self.reducer = PlannedReducer(self, parameters, buckets, problem, held, exchanges, static_graph=static_graph)
        self.logger = _NullLogger()
        self._passing_sync_batchnorm_handle(self.module)

    def hook(reducer: Any, state: Any, called: Any) -> None:
        begins = getattr(state, "start_powerSGD_iter", None)
        if isinstance(begins, int) and getattr(state, "iter", begins) < begins - 1:
            state.iter = begins - 1  # one step with the sums, for buckets are other ones in the first
            note(f"PowerSGD is planned as it is from its step {begins:,} on; the {begins:,} before it send whole sums")
        reducer.hooked(lambda bucket: called(state, bucket), getattr(called, "__name__", "of the program"))

    def builtin(reducer: Any, called: Any) -> None:
        dtype = torch.float16 if "FP16" in str(called) else None
        reducer.hooked(lambda bucket: all_reduced(reducer.group, bucket, dtype=dtype), str(called))

    def checked(self: Any, called: Any) -> None:
        if getattr(called, "__name__", "") not in FOR_CUDA:
            check(self, called)

    kind.__init__ = alone
    kind._ddp_init_helper = helper
    kind._set_ddp_runtime_logging_sample_rate = lambda *_: None
    module._verify_param_shape_across_processes = lambda *_, **__: None
    module._sync_module_states = lambda *_, **__: None  # before the first step, once
    both: Any = distributed
    both._broadcast_coalesced = torch.compiler.disable(_broadcast_coalesced)
    both._register_comm_hook = hook
    both._register_builtin_comm_hook = builtin
    kind._check_comm_hook = checked
    _compile_outside_modes(kind)
    works: tuple[Any, ...] = (FakeWork, distributed.Work)
    for work in works:
        work.get_future = lambda one: Done(exchanges.given(one))


def _compile_outside_modes(kind: Any) -> None:
    """Let Dynamo compile in ``forward`` of DDP as it does elsewhere: it sets modes aside there, and forgets to here.

    A view as an input (``tokens[:, :-1]``) would be made anew by the mode of the plan in the place of Dynamo's own.
    """
    from torch._dynamo.convert_frame import CatchErrorsWrapper

    wrapper: Any = CatchErrorsWrapper
    compiles = wrapper.__call__

    def without(self: Any, *arguments: Any, **named: Any) -> Any:
        with _disable_current_modes() if kind._get_active_ddp_module() else nullcontext():
            return compiles(self, *arguments, **named)

    wrapper.__call__ = without


class _NullLogger:
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
