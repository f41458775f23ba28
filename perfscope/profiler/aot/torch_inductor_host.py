"""Has inductor take tensors of the CPU for those of the device, where no device is pretended."""

from __future__ import annotations

from typing import Any

import torch

from perfscope.profiler.aot.torch_cuda_answers import on_host
from perfscope.profiler.aot.torch_fake import to_host


def host_as_device(properties: object) -> None:
    """For good, in this process: Triton, the device's rules, and its number of cores (of ``properties``)."""
    import torch._inductor.config as config
    from torch._dynamo.device_interface import CpuInterface
    from torch._inductor import scheduler

    config.cpu_backend = "triton"
    CpuInterface.get_device_properties = staticmethod(lambda *_: properties)
    CpuInterface.Worker.get_device_properties = staticmethod(lambda *_: properties)
    # Every tensor stands for one of the device: merge loops and mix orders of reductions as there. With that, a
    # scalar of the CPU is no scalar of the host.
    scheduler.BaseSchedulerNode.is_gpu = lambda node: True
    scheduler.Scheduler.update_zero_dim_cpu_tensor = lambda _: None
    scheduler._is_gpu_triton_backend = lambda *_: True


def graph_to_host(module: Any) -> None:
    """A graph that makes tensors on ``cuda`` makes them on the CPU."""
    if not isinstance(module, torch.fx.GraphModule):
        return
    for node in module.graph.nodes:
        node.args = tuple(map(on_host, to_host(node.args)))
        node.kwargs = {name: on_host(one) for name, one in to_host(node.kwargs).items()}
    module.recompile()


def is_on_device(module: Any) -> bool:
    """Whether a traced graph has a tensor of a device."""
    values = [node.meta.get("val") for node in module.graph.nodes]
    every = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
    return any(isinstance(one, torch.Tensor) and one.device.type == "cuda" for one in every)
