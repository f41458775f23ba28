"""Why inductor's scheduler did not fuse two neighbours, in plain words.

Reasons of torch 2.13 (``torch/_inductor/scheduler.py`` and ``codegen/simd.py``, where ``WhyNoFuse`` is called).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionReason:
    """What a reason means. ``fix``: what makes them fuse, an imperative sentence."""

    meaning: str
    fix: str | None = None


NOTHING_LOST = re.compile(
    r"intermediate nodes"  # a kernel in between needs the value as well; what keeps that one apart is said of it
    r"|\bextern\b|epilogue|\btemplate\b|prologue"  # library calls and matrix product templates
    r"|\bnop\b|must go before"
    r"|foreach"  # one launch for many tensors already
    r"|register spilling|grouped node"  # inductor measured it, or was told so
)
"""Reasons that are right, or no border between two kernels that could be one."""

_SIZES = (
    "Bring both over the same elements: a reduction fuses with what goes over its own input or its own output, not "
    "with a third size."
)
_ORDER = (
    "Let both go over memory in one order: reduce over the last dimension, and transpose or call .contiguous() before "
    "the first of them, not between."
)

_REASONS: tuple[tuple[re.Pattern[str], FusionReason], ...] = (
    (
        re.compile(r"no shared data"),
        FusionReason(
            meaning="they touch the same values in another order: one of them transposes, or reduces over another axis",
            fix=_ORDER,
        ),
    ),
    (
        re.compile(r"memory deps did not match"),
        FusionReason(
            meaning="the second reads the values at other places than the first writes them (shifted, strided, "
            "transposed)",
            fix=_ORDER,
        ),
    ),
    (
        re.compile(r"numel/rnumel mismatch|numel incompatibility|numel/rnumel incompatibility"),
        FusionReason(meaning="they go over different numbers of elements", fix=_SIZES),
    ),
    (
        re.compile(r"tiling|loop order"),
        FusionReason(meaning="their loops are tiled differently, for strides that do not agree", fix=_ORDER),
    ),
    (
        re.compile(r"different buf layouts"),
        FusionReason(meaning="their results are laid out differently in memory", fix=_ORDER),
    ),
    (
        re.compile(r"device mismatch"),
        FusionReason(
            meaning="they run on different devices",
            fix="Make both tensors on the same device: torch.arange(..., device=x.device), torch.zeros and their like.",
        ),
    ),
    (
        re.compile(r"[Ss]plit scan"),
        FusionReason(
            meaning="a scan (cumsum, cumprod) over a long dimension runs in parts, which cannot hold a reduction",
            fix="Reduce after the scan from its last element, or in a function of its own.",
        ),
    ),
    (
        re.compile(r"explicit(ly)? disabled"),
        FusionReason(meaning="fusion was turned off for this value", fix="See torch._inductor.config for what did it."),
    ),
)


def fusion_reason(reason: str) -> FusionReason:
    """What ``reason`` means; one that is not known stands for itself."""
    found = next((known for pattern, known in _REASONS if pattern.search(reason)), None)
    return found or FusionReason(meaning=f'inductor says "{reason}"')
