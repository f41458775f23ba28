"""The platform a module was compiled for, from marks that only one backend writes."""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.analyzers.hlo.module import Computation, Instruction, Platform

_GPU_CONFIG = frozenset(
    {
        "operation_queue_id", "wait_on_operation_queues", "force_earliest_schedule", "gemm_backend_config",
        "fusion_backend_config", "collective_backend_config", "cudnn_conv_backend_config", "cudnn_fmha_backend_config",
        "bitcast_backend_config", "dynamic_slice_fusion_config",
    }
)  # fmt: skip
_CPU_CONFIG = frozenset({"outer_dimension_partitions", "fusion_config", "onednn_matmul_config", "onednn_conv_config"})
_TPU_CONFIG = frozenset({"flag_configs", "scoped_memory_configs", "used_scoped_memory_configs", "window_config"})
"""Fields in the ``backend_config`` messages of each backend."""

_GPU_NOTE = "fingerprint_before_lhs"
"""Frontend attribute that the GPU compiler's scheduler leaves on a module."""

_GPU_TARGETS = ("__cublas", "__cudnn", "__triton", "__gpu$", "cusolver", "cu_", "hipblas")
_CPU_TARGETS = ("__onednn", "__xla_cpu", "TopK", "lapack_")
_TPU_TARGETS = ("AssumeGatherIndicesInBound", "ConcatBitcast", "AsyncCollectiveStart", "AllocateBuffer")


def platform_of(
    computations: Iterable[Computation], *, tiled: bool, scheduled: bool, notes: Iterable[str] = ()
) -> Platform | None:
    """Return the platform; ``None`` without a mark, or if the module is not compiled yet.

    ``tiled``: whether some layout has tiles, which only TPU programs have. Custom calls indicate nothing before the
    program is ``scheduled``, because the user may have named them. ``notes``: names of the module's frontend
    attributes.
    """
    if tiled:
        return "tpu"
    if _GPU_NOTE in notes:
        return "gpu"
    for computation in computations:
        for instruction in computation.instructions:
            literal = _mark(instruction, scheduled)
            if literal is not None:
                return literal
    return None


def _mark(instruction: Instruction, scheduled: bool) -> Platform | None:
    if instruction.scheduling_name:  # a pass of the GPU compiler records the name before scheduling
        return "gpu"
    config = instruction.backend_config.keys()
    if config:
        if config & _GPU_CONFIG:
            return "gpu"
        if config & _CPU_CONFIG:
            return "cpu"
        if config & _TPU_CONFIG:
            return "tpu"
    target = instruction.custom_call_target
    if target is not None and scheduled:
        if target.startswith(_GPU_TARGETS):
            return "gpu"
        if target.startswith(_CPU_TARGETS):
            return "cpu"
        if target.startswith(_TPU_TARGETS):
            return "tpu"
    return None
