"""Kernels that communicate, by their names in public libraries.

Template arguments are not part of the name, because they may contain any text.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_OPERATIONS = (
    (re.compile(r"all_?reduce", re.I), "all_reduce"),
    (re.compile(r"all_?gather", re.I), "all_gather"),
    (re.compile(r"reduce_?scatter", re.I), "reduce_scatter"),
    (re.compile(r"all_?to_?all", re.I), "all_to_all"),
    (re.compile(r"broadcast", re.I), "broadcast"),
    (re.compile(r"send_?recv", re.I), "send_recv"),
    (re.compile(r"barrier", re.I), "barrier"),
    (re.compile(r"reduce", re.I), "reduce"),
)


class Library(NamedTuple):
    """Names of one library's kernels."""

    name: str
    kernels: str
    """Regular expression, searched anywhere in a name."""
    operation: str | None
    """Operation of all these kernels; ``None`` if the name has it."""
    source: str
    """Repository with the kernels."""


LIBRARIES = (
    Library("NCCL", r"nccl", None, "NVIDIA/nccl"),
    Library("RCCL", r"rccl", None, "ROCm/rccl"),
    Library("MSCCL++", r"mscclpp|msccl", None, "microsoft/mscclpp"),
    Library("NVSHMEM", r"nvshmem", None, "NVIDIA/nvshmem"),
    Library("rocSHMEM", r"rocshmem", None, "ROCm/rocSHMEM"),
    Library("oneCCL", r"oneccl|\bccl::", None, "uxlfoundation/oneCCL"),
    Library("HCCL", r"\bhcom_|hccl", None, "Ascend/pytorch: spans hcom_allReduce_"),
    Library("DeepEP", r"\bdeep_?ep::(?!layout::)|\bdpsk::ep::(?!cuda::get_dispatch_layout)|\bhybrid_ep::", "all_to_all",
            "deepseek-ai/DeepEP; dpsk::ep in deepseek-ai/profile-data"),
    Library("mori", r"\bmori::|\bEp(?:Dispatch|Combine)\w*Kernel", "all_to_all", "ROCm/mori"),
    Library("pplx-kernels", r"\bpplx::|\ba2a_(?:dispatch|combine)_(?:send|recv)", "all_to_all",
            "perplexityai/pplx-kernels, perplexityai/pplx-garden"),
    Library("TensorRT-LLM all-to-all", r"\bmoeA2A(?!Sanitize)|\bmoe_?all_?to_?all", "all_to_all",
            "NVIDIA/TensorRT-LLM moeAlltoAllKernels.cu"),
    Library("TransformerEngine userbuffers", r"\bkuserbuffers_alltoall", "all_to_all",
            "NVIDIA/TransformerEngine userbuffers.cu"),
    Library("TransformerEngine userbuffers", r"\bkuserbuffers_\w*(?:push|pull)", "send_recv", "as above"),
    Library("TransformerEngine userbuffers", r"\buserbuffers_\w*_rs(?:_|\b)", "reduce_scatter", "as above"),
    Library("TransformerEngine userbuffers", r"\buserbuffers_\w*_ag(?:_|\b)", "all_gather", "as above"),
    Library("TransformerEngine userbuffers", r"\bk?userbuffers_", "all_reduce", "as above"),
    Library("vLLM, SGLang, AITER", r"cross_device_reduce", "all_reduce",
            "vllm-project/vllm, sgl-project/sglang, ROCm/aiter"),
    Library("QuickReduce", r"\bquickreduce::", "all_reduce", "vllm-project/vllm, ROCm/aiter quick_all_reduce.cuh"),
    Library("PyTorch symmetric memory", r"multimem_|symm(?:etric)?_mem(?:ory)?::", None,
            "pytorch/pytorch"),
    # TensorRT-LLM (oneShotAllReduceKernel), FlashInfer (allreduce_fusion_kernel_oneshot_lamport), PyTorch
    # (one_shot_all_reduce_kernel) and others have the operation in the name.
    Library("by operation", r"all_?reduce|all_?gather|reduce_?scatter(?!_grad)|all_?to_?all", None,
            "NVIDIA/TensorRT-LLM, flashinfer-ai/flashinfer, pytorch/pytorch"),
)  # fmt: skip
"""Libraries in order; the first match has the operation."""

_ANY = re.compile("|".join(f"(?:{library.kernels})" for library in LIBRARIES), re.IGNORECASE)
_NAMED_BY_LIBRARY = tuple(
    (re.compile(library.kernels, re.IGNORECASE), library.operation)
    for library in LIBRARIES
    if library.operation is not None
)


@lru_cache(maxsize=65536)
def is_communication(kernel: str) -> bool:
    """Return whether a kernel's name is that of a collective or a point-to-point transfer."""
    return _ANY.search(kernel.split("<", 1)[0]) is not None


def collective_name(kernel: str) -> str:
    """Return the operation of a communication kernel from its name; ``unknown`` if the name lacks it (RCCL)."""
    own = kernel.split("<", 1)[0]
    for pattern, operation in _NAMED_BY_LIBRARY:
        if operation is not None and pattern.search(own):
            return operation
    for pattern, operation in _OPERATIONS:
        if pattern.search(kernel):
            return operation
    return "unknown"
