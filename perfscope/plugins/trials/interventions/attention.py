"""Scaled dot product attention of PyTorch by a fused kernel."""

from __future__ import annotations

from perfscope.plugins.trials.interventions.base import Application, Intervention, needs_cuda


def _fused(application: Application) -> None:
    """Forbid the kernel that writes the scores out, so that a fused one runs or the program fails."""
    import torch

    torch.backends.cuda.enable_math_sdp(False)
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_mem_efficient_sdp(True)
    application.changed("scaled_dot_product_attention may not write its scores out")


SDPA_FUSED = Intervention(
    name="sdpa-fused",
    title="fused attention only",
    family="attention",
    framework="torch",
    answers=("unfused_attention",),
    may_change="The softmax is computed in parts, in another order. A mask or a dtype without a fused kernel is an "
    "error.",
    code="with torch.nn.attention.sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):\n"
    "    output = F.scaled_dot_product_attention(query, key, value, is_causal=True)",
    applies=needs_cuda,
    apply=_fused,
)
