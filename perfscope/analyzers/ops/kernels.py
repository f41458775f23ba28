"""Precision of a matrix kernel, from its name.

cuBLAS, cuDNN and CUTLASS name the operand type or the tensor-core instruction: ``sgemm`` and ``simt`` are float32 on
the ordinary cores, ``s1688`` without a 16-bit type is TF32, ``s16816`` and ``s884`` are 16-bit. Tensile (ROCm) names
the types after the index order: ``Cijk_Ailk_Bljk_SB_`` is float32.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from perfscope.model.trace import Trace

Precision = Literal["float32", "tf32", "bfloat16", "float16", "fp8", "float64"]

_MATRIX = re.compile(r"gemm|^Cijk_|scudnn|xmma|implicit_convolve", re.IGNORECASE)
_NO_PRODUCT = re.compile(r"gemv|splitkreduce|reduce_kernel|[cz]gemm|gemmSN|embedding", re.IGNORECASE)
"""Vectors (limited by memory at any precision), the sums after a split product, complex numbers."""

_AFTER_TYPES = ("Bias", "HA", "MT", "GB", "UserArgs", "AS")
"""Prefixes of the part of a Tensile name that follows the types."""
MOST_TYPES = 6
"""Maximum number of parts of a Tensile name up to the end of the types (``B_BS_BH``)."""
_TENSILE_TYPES: dict[str, Precision] = {"S": "float32", "D": "float64", "H": "float16", "B": "bfloat16"}

_BY_NAME: tuple[tuple[re.Pattern[str], Precision], ...] = (
    (re.compile(r"e4m3|e5m2|fp8|_f8|qmma", re.IGNORECASE), "fp8"),
    (re.compile(r"bf16|bfloat16", re.IGNORECASE), "bfloat16"),
    (re.compile(r"fp16|(?<![a-z])f16|half|hgemm|_h\d+gemm|s884|s16816", re.IGNORECASE), "float16"),
    (re.compile(r"tf32|xf32|s1688", re.IGNORECASE), "tf32"),
    (re.compile(r"dgemm|f64f64|d884|\bdouble\b", re.IGNORECASE), "float64"),
    (re.compile(r"sgemm|scudnn|f32f32_f32f32", re.IGNORECASE), "float32"),
)
"""In this order: ``bf16bf16_bf16f32_f32`` contains f32, ``fp16_s1688gemm`` is not TF32."""

_TENSOR_CORES = re.compile(
    r"884|1688|168(?:16|32)|[hiq]mma|w?gmma|xmma|tensorop|nvjet|_MI\d+x\d+|flash_(?:fwd|bwd)|fmha|^bmm_\w+_t\d+x",
    re.IGNORECASE,
)
"""Shapes and names of tensor-core (matrix) instructions, and families of kernels that use them."""

ITEM_SIZES: dict[str, int] = {
    "double": 8, "float64": 8, "long": 8, "long int": 8, "int64": 8, "c10::complex<float>": 8, "complex64": 8,
    "float": 4, "float32": 4, "int": 4, "int32": 4, "uint32": 4,
    "c10::half": 2, "half": 2, "float16": 2, "c10::bfloat16": 2, "bfloat16": 2, "short": 2, "int16": 2,
    "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1, "c10::float8_e8m0fnu": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "bool": 1, "unsigned char": 1, "signed char": 1,
    "char": 1, "uint8": 1, "int8": 1,
}  # fmt: skip
"""Bytes per element, by the lower-case name in Kineto and the op graph."""

_RANKS = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
"""dtypes by promotion: the output has the widest type of the inputs (float16 with bfloat16 gives float32)."""

_CANONICAL = {
    "double": "float64", "float": "float32", "c10::half": "float16", "half": "float16", "c10::bfloat16": "bfloat16",
    "long": "int64", "long int": "int64", "int": "int32", "short": "int16", "unsigned char": "uint8",
    "signed char": "int8", "char": "int8", "c10::float8_e4m3fn": "float8_e4m3fn", "c10::float8_e5m2": "float8_e5m2",
    "c10::float8_e4m3fnuz": "float8_e4m3fnuz", "c10::float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
    "c10::float8_e8m0fnu": "float8_e8m0fnu",
}  # fmt: skip

Shape = tuple[int, ...]


@lru_cache(maxsize=65536)
def matmul_precision(kernel: str) -> Precision | None:
    """Return the operand precision of a matrix product or convolution; None if the name lacks it."""
    if not _MATRIX.search(kernel) or _NO_PRODUCT.search(kernel):
        return None
    if kernel.startswith("Cijk_"):
        return _tensile(kernel)
    return next((precision for pattern, precision in _BY_NAME if pattern.search(kernel)), None)


@lru_cache(maxsize=65536)
def uses_tensor_cores(kernel: str) -> bool | None:
    """Whether a kernel uses tensor (matrix) cores by its name: False for products in plain float32, None if unknown."""
    if matmul_precision(kernel) == "float32" or "simt" in kernel:
        return False
    return True if _TENSOR_CORES.search(kernel) else None


def _tensile(kernel: str) -> Precision | None:
    if re.search(r"xf32|F32X", kernel, re.IGNORECASE):
        return "tf32"
    _, _, _, types, *following = (*kernel.split("_", 4 + MOST_TYPES), "", "", "")
    if not types or not any(part.startswith(_AFTER_TYPES) for part in following):
        return None
    return "fp8" if types.startswith(("F8", "B8")) else _TENSILE_TYPES.get(types[0])


# Input shapes and dtypes of a host op, parsed from the JSON text that the profiler recorded.


class Operand(Struct, frozen=True, kw_only=True):
    """A tensor argument. ``dtype`` is canonical (``float32``, ``bfloat16`` ...); ``''`` if not recorded."""

    shape: Shape
    dtype: str
    strides: Shape | None = None
    """None if not recorded."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def numel(self) -> int:
        """Return the number of elements, as a tensor of PyTorch does: for formulas of `perfscope.kernel_cost`."""
        return self.elements

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, as of a tensor of PyTorch."""
        return self.elements * ITEM_SIZES[self.dtype]

    @property
    def bytes(self) -> int:
        """Bytes of its elements; elements with one address (stride 0) count once.

        ``KeyError`` without a known dtype.
        """
        strides = self.strides or (1,) * len(self.shape)
        distinct = [size for size, stride in zip(self.shape, strides, strict=False) if stride or not size]
        return math.prod(distinct) * ITEM_SIZES[self.dtype]


def input_tensors(trace: Trace, row: int) -> tuple[Operand, ...]:
    """Return the tensor arguments of a row of ``slices``, in order; empty if none was recorded.

    Scalars and absent arguments are omitted; lists of tensors are flattened.
    """
    slices = trace.rows["slices"]
    return parse_inputs(trace.text(int(slices["shapes"][row])), trace.text(int(slices["dtypes"][row])))


@lru_cache(maxsize=65536)
def parse_inputs(shapes: str, dtypes: str) -> tuple[Operand, ...]:
    """Parse ``'[[4,8],[]]'`` with ``'["float","Scalar"]'`` as one tensor. Empty for other text."""
    try:
        dims, kinds = json.loads(shapes or "[]"), json.loads(dtypes or "[]")
    except ValueError:
        return ()
    if not isinstance(dims, list) or not isinstance(kinds, list):
        return ()
    return tuple(spec for dim, kind in zip(dims, kinds, strict=False) for spec in _specs(dim, kind))


def canonical_dtype(name: str) -> str:
    """Return ``bfloat16`` for ``c10::BFloat16``; an unknown name in lower case."""
    plain = name.lower().removeprefix("torch.")
    return _CANONICAL.get(plain, plain)


def broadcast(shapes: tuple[Shape, ...]) -> Shape:
    """Return the shape that all broadcast to; for incompatible shapes, the larger extent."""
    width = max(map(len, shapes), default=0)
    padded = [(1,) * (width - len(shape)) + shape for shape in shapes]
    return tuple(max(extents) if 0 not in extents else 0 for extents in zip(*padded, strict=True))


def promoted(tensors: Sequence[Operand]) -> str:
    """Return the dtype of an elementwise result; 0-dim tensors count only if there are no others.

    ``''`` without tensors.
    """
    sized = [tensor.dtype for tensor in tensors if tensor.shape] or [tensor.dtype for tensor in tensors]
    if {"float16", "bfloat16"} <= set(sized):
        return "float32"
    return max(sized, key=lambda name: _RANKS.index(name) if name in _RANKS else -1, default="")


def _specs(dim: object, kind: object) -> Iterator[Operand]:
    if not isinstance(dim, list):
        return
    if dim and all(isinstance(inner, list) for inner in dim):  # a list of tensors
        for inner in dim:
            yield from _specs(inner, kind)
        return
    name = canonical_dtype(kind) if isinstance(kind, str) else ""
    if name in ITEM_SIZES and all(isinstance(extent, int) for extent in dim):
        yield Operand(shape=tuple(dim), dtype=name)
