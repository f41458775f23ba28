"""Ops whose result the host must wait for, by the arguments of a call and by the code around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from perfscope.profiler.torch.op_graph.frames import called_function, decides_branch, reads_step_counter

if TYPE_CHECKING:
    from perfscope.profiler.torch.op_graph.frames import Site
    from perfscope.profiler.torch.op_graph.recorder import OpFacts

HOST_READS = {
    "aten._local_scalar_dense": "item",
    "aten.item": "item",  # under inference_mode, where composite ops are not taken apart
    "aten.nonzero": "nonzero",
    "aten.masked_select": "masked_select",
    "aten._unique": "unique",
    "aten._unique2": "unique",
    "aten.unique_dim": "unique",
    "aten.unique_consecutive": "unique",
    "aten.unique_dim_consecutive": "unique",
    "aten.equal": "equal",
    "aten.is_nonzero": "bool",
    "aten.bincount": "bincount",
    "aten._linalg_check_errors": "linalg_check_errors",
}
"""Ops whose result's value or size the host needs before it can go on."""
MASK_READS = frozenset(("aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_"))
"""Ops that count the True elements of a boolean index."""
CPU_CHECKS = frozenset(("one_hot",))
"""Functions that read values only to check them, and only on the CPU: ``Onehot.cpp`` leaves it to CUDA's asserts."""


def host_read(facts: OpFacts, argument: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[str | None, str]:
    """(why the host would wait for this call or None, type of the device that holds the value)."""
    device = inputs[0].device.type if inputs else "cpu"
    if facts.host_read is not None:
        return facts.host_read, device
    if facts.packet in MASK_READS:
        value = argument("values")  # a single number is filled in through the mask, whose size nothing reads
        filled = value is not None and value.numel() == 1 and value.device.type == "cpu"
        indices = () if filled else argument("indices") or ()
        masks = [index for index in indices if index is not None and index.dtype in _MASKS]
        return ("boolean index" if masks else None), (masks[0].device.type if masks else device)
    if facts.name == "aten.repeat_interleave.Tensor" and argument("output_size") is None:
        return "repeat_interleave", device
    if facts.packet == "aten._to_copy":
        # A non-blocking copy to the host lands in pinned memory; the wait, if any, is the program's own.
        away = device != "cpu" and outputs[0].device.type == "cpu"
        return ("to_host" if away and not argument("non_blocking") else None), device
    if facts.packet == "aten.copy_" and inputs[0].device.type == "cpu" and len(inputs) > 1:
        source = inputs[1].device.type
        return ("to_host" if source != "cpu" and not argument("non_blocking") else None), source
    return None, device


_MASKS = (torch.bool, torch.uint8)


def reason_at(why: str, where: str, site: Site, frame: Any) -> str | None:
    """The reason to report, or None if the value is on the host on every machine."""
    while frame is not None and frame.f_code.co_filename.replace("\\", "/").endswith(_DISPATCH_WRAPPERS):
        frame = frame.f_back  # torch wraps __torch_dispatch__ so that it is never compiled
    if site.data or reads_step_counter(frame):
        return None
    if site.checks:
        return "check"
    if why != "item" or frame is None:
        return why
    if where == "cpu" and called_function(frame) in CPU_CHECKS:
        return None
    return "bool" if decides_branch(frame) else why


_DISPATCH_WRAPPERS = ("torch/_compile.py", "torch/_dynamo/eval_frame.py", "torch/utils/_python_dispatch.py")
