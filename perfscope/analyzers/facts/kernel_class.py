"""What a matrix kernel's name says of the precision it multiplies in.

cuBLAS, cuDNN and CUTLASS name the operand type or the tensor-core instruction: ``sgemm`` and ``simt``
are float32 on the ordinary cores, ``s1688`` without a 16-bit type is TF32, ``s16816`` and ``s884`` are
16-bit. Tensile (ROCm) names the types behind the index order: ``Cijk_Ailk_Bljk_SB_`` is float32.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

Precision = Literal["float32", "tf32", "bfloat16", "float16", "fp8", "float64"]

_MATRIX = re.compile(r"gemm|^Cijk_|scudnn|xmma|implicit_convolve", re.IGNORECASE)
_NO_PRODUCT = re.compile(r"gemv|splitkreduce|reduce_kernel|[cz]gemm|gemmSN|embedding", re.IGNORECASE)
"""Vectors (bound by memory at any precision), the sums after a split product, complex numbers."""

_TENSILE = re.compile(r"^Cijk_\w+?_\w+?_(?P<types>F8\w*?|B8\w*?|[A-Z]+(?:_[A-Z]+)*?)_(?:Bias|HA|MT|GB|UserArgs|AS)")
_TENSILE_TYPES: dict[str, Precision] = {"S": "float32", "D": "float64", "H": "float16", "B": "bfloat16"}

_BY_NAME: tuple[tuple[re.Pattern[str], Precision], ...] = (
    (re.compile(r"e4m3|e5m2|fp8|_f8|qmma", re.IGNORECASE), "fp8"),
    (re.compile(r"bf16|bfloat16", re.IGNORECASE), "bfloat16"),
    (re.compile(r"fp16|(?<![a-z])f16|half|hgemm|_h\d+gemm|s884|s16816", re.IGNORECASE), "float16"),
    (re.compile(r"tf32|xf32|s1688", re.IGNORECASE), "tf32"),
    (re.compile(r"dgemm|f64f64|d884|\bdouble\b", re.IGNORECASE), "float64"),
    (re.compile(r"sgemm|scudnn|f32f32_f32f32", re.IGNORECASE), "float32"),
)
"""In this order: ``bf16bf16_bf16f32_f32`` holds f32, ``fp16_s1688gemm`` is not TF32."""


@lru_cache(maxsize=65536)
def matmul_precision(kernel: str) -> Precision | None:
    """Precision of the operands of a matrix product or convolution; None if the name does not tell."""
    if not _MATRIX.search(kernel) or _NO_PRODUCT.search(kernel):
        return None
    if kernel.startswith("Cijk_"):
        return _tensile(kernel)
    return next((precision for pattern, precision in _BY_NAME if pattern.search(kernel)), None)


def _tensile(kernel: str) -> Precision | None:
    if re.search(r"xf32|F32X", kernel, re.IGNORECASE):
        return "tf32"
    found = _TENSILE.match(kernel)
    if found is None:
        return None
    types = found["types"]
    return "fp8" if types.startswith(("F8", "B8")) else _TENSILE_TYPES.get(types[0])
