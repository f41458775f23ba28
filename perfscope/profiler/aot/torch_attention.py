"""Which path ``scaled_dot_product_attention`` takes on the target, asked of the target and not of this machine.

Torch chooses in C++ on the device, and a torch without CUDA would choose for a CPU. The rule here follows what torch
documents of its fused kernels for CUDA (flash, memory-efficient, cuDNN); over CPU tensors a fused path is planned as
torch's one fused kernel for the CPU, which reads and writes the same: queries, keys, values, output and the logarithms
of the sums. Over tensors that claim to be on the device it is that device's: flash, or memory-efficient where flash
takes neither the type nor a mask.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

WIDEST_HEAD = 256
"""Features of a head that the flash kernels take."""
FUSED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""float32 is taken by the memory-efficient kernel."""


class AttentionRule:
    """Counts the calls that take each path; ``math``: written out, because no fused kernel takes them."""

    def __init__(self, *, pretended: bool = False) -> None:
        """``pretended``: tensors claim to be on the device."""
        self._pretended = pretended
        self.paths: Counter[str] = Counter()
        self._library: Any = None
        self._math: Any = None

    def install(self) -> None:
        """Register the rule for the tensors that stand for those of the device, over torch's own choice."""
        self._library = torch.library.Library("aten", "IMPL")
        for key in ("CUDA", "AutogradCUDA") if self._pretended else ("CPU", "AutogradCPU"):
            self._library.impl("scaled_dot_product_attention", self._attend, key, allow_override=True)

    def _attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        why = refused(query, key, value)
        if why is not None:
            self.paths[why] += 1
            return torch.ops.aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
            )[0]
        self.paths["fused"] += 1
        if enable_gqa and key.shape[-3] != query.shape[-3]:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, float("-inf"))
        if self._pretended:
            return _on_device(query, key, value, attn_mask, dropout_p, is_causal, scale)
        # Dropout is drawn inside the fused kernels of the device: no traffic of its own.
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
        )[0]


def _on_device(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: float | None) -> Any:
    """One of the fused kernels of CUDA: those that flash does not take go to the memory-efficient one."""
    if mask is None and query.dtype is not torch.float32 and torch.backends.cuda.flash_sdp_enabled():
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout, is_causal=causal, scale=scale
        )[0]
    needed = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
    if mask is not None:
        mask = mask.expand(*query.shape[:-1], key.shape[-2])
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, needed, dropout, is_causal=causal, scale=scale
    )[0]


def refused(query: Any, key: Any, value: Any) -> str | None:
    """Why no fused kernel of the target takes the call, or ``None``."""
    backends = torch.backends.cuda
    if not (backends.flash_sdp_enabled() or backends.mem_efficient_sdp_enabled() or backends.cudnn_sdp_enabled()):
        return "the program allows the math path only (sdpa_kernel)"
    if query.dtype not in FUSED_DTYPES:
        return f"{str(query.dtype).removeprefix('torch.')} has no fused kernel"
    if query.dim() != 4:
        return f"{query.dim()} dimensions; the fused kernels take 4"
    if query.shape[-1] > WIDEST_HEAD:
        return f"{int(query.shape[-1])} features a head; the flash kernels take {WIDEST_HEAD}"
    if query.shape[-1] != value.shape[-1]:
        return "queries and values differ in their features"
    return None
