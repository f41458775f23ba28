"""Google TPUs, by device of a program: a chip from v4 to v6e (its cores work as one), half a chip of TPU7x."""

from __future__ import annotations

from perfscope.analyzers.hardware.device import GIGA, Device, peaks


def _device(
    name: str, match: str, flops: dict[str, int], *, gigabytes_per_second: int, ici_gigabytes_per_second: int
) -> Device:
    return Device(
        name=name,
        vendor="Google",
        match=match,
        peak_flops=flops,
        memory_bandwidth=gigabytes_per_second * GIGA,
        source=f"Google Cloud documentation, {name}, key specifications",
        link="ICI",
        link_bandwidth=ici_gigabytes_per_second * GIGA,
    )


GOOGLE: tuple[Device, ...] = (
    _device("TPU7x (one of two)", r"\bTPU ?v?7x\b", peaks(bfloat16=1153.5, fp8=2307),
            gigabytes_per_second=3690, ici_gigabytes_per_second=300),
    _device("TPU v6e", r"\bTPU v6( lite|e)\b", peaks(bfloat16=918, fp8=918, int8=1836),
            gigabytes_per_second=1638, ici_gigabytes_per_second=400),
    _device("TPU v5p", r"\bTPU v5(p\b|$)", peaks(bfloat16=459, fp8=459),
            gigabytes_per_second=2765, ici_gigabytes_per_second=600),
    _device("TPU v5e", r"\bTPU v5( lite|e)\b", peaks(bfloat16=197, int8=393),
            gigabytes_per_second=819, ici_gigabytes_per_second=200),
    _device("TPU v4", r"\bTPU v4$", peaks(bfloat16=275, int8=275),
            gigabytes_per_second=1200, ici_gigabytes_per_second=300),
)  # fmt: skip
"""All looked up (TPU7x's page has those of v5p and v6e beside it), but for int8 of v6e, v5e and v4. Links: half of the
bidirectional bandwidth a chip; v4's are in its paper (Jouppi et al., ISCA 2023: six of 50 GB/s each way). A chip of
TPU7x (2,307 TFLOP/s of bfloat16, 7,380 GB/s, 1,200 GB/s of ICI both ways) is two devices of half of that each. Editions
differ on v5e's memory (819 GB/s, 800 GiB/s). JAX reports v5e as ``TPU v5 lite``, v6e as ``TPU v6 lite``, v5p as
``TPU v5`` and 7x as ``TPU7x``. There is no float16 unit."""
