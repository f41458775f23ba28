"""Arithmetic of every opcode that is not a library call and does not run other computations as a program."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from perfscope.analyzers.hlo.cost.fusion import arrays_of
from perfscope.analyzers.hlo.cost.products import (
    convolution_flops,
    convolution_work,
    dims_of,
    dot_flops,
    dot_work,
    ragged_dot_work,
    valid_positions,
    wider,
    window_dims,
)
from perfscope.analyzers.hlo.cost.types import NO_PRODUCTS, Product, Work, product_work
from perfscope.analyzers.hlo.module import Instruction, Shape
from perfscope.analyzers.hlo.views import MOVES_NOTHING
from perfscope.model.kernel_cost import STATED

ARITHMETIC = frozenset(
    {
        "abs", "add", "and", "ceil", "clamp", "compare", "convert", "count-leading-zeros", "divide", "floor", "imag",
        "is-finite", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "real", "reduce-precision",
        "remainder", "round-nearest-afz", "round-nearest-even", "select", "shift-left", "shift-right-arithmetic",
        "shift-right-logical", "sign", "stochastic-convert", "subtract", "xor", "complex",
    }
)  # fmt: skip
"""Opcodes with one operation per element of the result."""

TRANSCENDENTAL = frozenset(
    {
        "acos", "acosh", "asin", "asinh", "atan2", "atanh", "cbrt", "cosine", "cosh", "erf", "exponential",
        "exponential-minus-one", "log", "log-plus-one", "logistic", "power", "rsqrt", "sine", "sinh", "sqrt", "tan",
        "tanh",
    }
)  # fmt: skip
"""Opcodes with one transcendental per element of the result."""

NO_ARITHMETIC = MOVES_NOTHING | {
    "bitcast-convert", "broadcast", "concatenate", "copy", "copy-done", "copy-start", "dynamic-reshape",
    "dynamic-slice", "dynamic-update-slice", "gather", "infeed", "iota", "outfeed", "pad", "reshape", "reverse",
    "slice", "transpose", "recv", "recv-done", "send", "send-done", "collective-permute", "all-gather", "all-to-all",
    "ragged-all-to-all", "collective-broadcast",
}  # fmt: skip
"""Opcodes that name, place or move values."""

Applied = Callable[[int], "Work | None"]
"""Returns the work of running the instruction's n-th called computation once."""

_NONE = Work()

Formula = Callable[[Instruction, Sequence[Shape], Applied], "Work | None"]

NO_WORK = frozenset(
    {
        "AllocateBuffer", "AssumeGatherIndicesInBound", "AsyncCollectiveDone", "AsyncCollectiveStart", "ConcatBitcast",
        "LayoutConstraint", "SPMDFullToShardShape", "SPMDShardToFullShape", "Sharding", "annotate_device_placement",
    }
)  # fmt: skip
"""Compiler marks and views: they neither compute nor move anything."""

MOVES = frozenset({"MoveToDevice", "MoveToHost"})
"""Copies between host and device."""

BACKWARD_PRODUCTS = 5
"""Matrix products in the backward pass of fused attention: scores again, and the gradients of the scores' weights, of
values, queries and keys. Forward has two.
"""


def op_work(instruction: Instruction, operands: Sequence[Shape], applied: Applied) -> Work | None:
    """Return the arithmetic of an instruction with operands of these shapes; ``None`` without a formula."""
    opcode = instruction.opcode
    if opcode in NO_ARITHMETIC:
        return _NONE
    if opcode in ARITHMETIC:
        return Work(flops=instruction.shape.elements)
    if opcode in TRANSCENDENTAL:
        return Work(transcendentals=instruction.shape.elements)
    formula = FORMULAS.get(opcode)
    return None if formula is None else formula(instruction, operands, applied)


def _reduce(instruction: Instruction, operands: Sequence[Shape], applied: Applied) -> Work | None:
    """Return input elements minus result elements, times the operator."""
    work = applied(0)
    if work is None or len(operands) < 2:
        return None
    inputs, result = operands[0], _first(instruction.shape)
    return work.times(max(0, inputs.elements - result.elements))


def _reduce_window(instruction: Instruction, operands: Sequence[Shape], applied: Applied) -> Work | None:
    """Return window positions on the input minus one per output, times the operator (a naive cumsum is O(n^2))."""
    work, window = applied(0), window_dims(instruction.attributes.get("window", ""))
    result = _first(instruction.shape)
    if work is None or window is None or not operands or len(window) != len(result.dims):
        return None
    if len(operands[0].dims) != len(window):
        return None
    positions = 1
    for dim, inputs, outputs in zip(window, operands[0].dims, result.dims, strict=True):
        match = valid_positions(dim, inputs, outputs)
        if match is None:
            return None
        positions *= match
    return work.times(max(0, positions - result.elements))


def _select_and_scatter(instruction: Instruction, operands: Sequence[Shape], applied: Applied) -> Work | None:
    """Return one comparison for each further element of every window, and one update per window."""
    compare, update = applied(0), applied(1)
    window = window_dims(instruction.attributes.get("window", ""))
    if compare is None or update is None or window is None or len(operands) < 2:
        return None
    sources = operands[1].elements
    inside = math.prod(dim.size for dim in window)
    compares, updates = compare.times(sources * max(0, inside - 1)), update.times(sources)
    return Work(
        flops=compares.flops + updates.flops, transcendentals=compares.transcendentals + updates.transcendentals
    )


def _scatter(instruction: Instruction, operands: Sequence[Shape], applied: Applied) -> Work | None:
    """Return one operator per element of the updates."""
    work = applied(0)
    sets = len(operands) // 2  # n operands, the indices, n updates
    if work is None or len(operands) < 3:
        return None
    return work.times(operands[sets + 1].elements)


def _map(instruction: Instruction, operands: Sequence[Shape], applied: Applied) -> Work | None:
    work = applied(0)
    return None if work is None else work.times(instruction.shape.elements)


def _sort(instruction: Instruction, operands: Sequence[Shape], applied: Applied) -> Work | None:
    """Return ``rows * n * ceil(log2 n)`` comparisons along the sorted dimension, the maximum of a merge sort."""
    work = applied(0)
    axes = dims_of(instruction.attributes.get("dimensions", ""))
    if work is None or not operands or len(axes) != 1 or axes[0] >= len(operands[0].dims):
        return None
    length = operands[0].dims[axes[0]]
    return work.times(operands[0].elements * max(0, (length - 1).bit_length()))


def _top_k(instruction: Instruction, operands: Sequence[Shape], applied: Applied) -> Work | None:
    """Return one comparison per element, a lower bound."""
    return Work(flops=operands[0].elements, exact=False) if operands else None


def _fft(instruction: Instruction, operands: Sequence[Shape], applied: Applied) -> Work | None:
    """Return ``5 N log2 N`` for complex data, ``2.5 N log2 N`` for real input or output, as FFTW's benchmarks do."""
    lengths = dims_of(instruction.attributes.get("fft_length", ""))
    kind = instruction.attributes.get("fft_type", "")
    if not operands or not lengths or 0 in lengths or kind not in ("FFT", "IFFT", "RFFT", "IRFFT"):
        return None
    points = math.prod(lengths)
    # the real side of a real transform has one element per point; its complex side about half as many
    side = instruction.shape if kind == "IRFFT" else operands[0]
    transforms = side.elements // points
    return Work(flops=round((5.0 if kind in ("FFT", "IFFT") else 2.5) * points * math.log2(points)) * transforms)


def _triangular_solve(instruction: Instruction, operands: Sequence[Shape], applied: Applied) -> Work | None:
    """Return ``n`` per element of the right-hand sides, n the order of the matrix (LAPACK's ``trsm``: n^2 m)."""
    if len(operands) < 2 or not operands[0].dims:
        return None
    return Work(flops=operands[0].dims[-1] * operands[1].elements)


def _cholesky(instruction: Instruction, operands: Sequence[Shape], applied: Applied) -> Work | None:
    """Return ``n^3 / 3`` per matrix (LAPACK's ``potrf``, leading term)."""
    if not operands or not operands[0].dims:
        return None
    return Work(flops=operands[0].elements * operands[0].dims[-1] // 3)


def _all_reduce(instruction: Instruction, operands: Sequence[Shape], applied: Applied) -> Work | None:
    """Return one operator per result element: the work of one device of a ring, to within ``1/n``."""
    work = applied(0)
    return None if work is None else work.times(instruction.shape.elements)


def _first(shape: Shape) -> Shape:
    return shape.parts[0] if shape.parts else shape


FORMULAS: Mapping[str, Formula] = {
    "all-reduce": _all_reduce,
    "cholesky": _cholesky,
    "convolution": lambda instruction, operands, _: convolution_work(instruction, operands),
    "dot": lambda instruction, operands, _: dot_work(instruction, operands),
    "fft": _fft,
    "map": _map,
    "ragged-dot": lambda instruction, operands, _: ragged_dot_work(instruction, operands),
    "reduce": _reduce,
    "reduce-scatter": _all_reduce,
    "reduce-window": _reduce_window,
    "scaled-dot": lambda instruction, operands, _: dot_work(instruction, operands),
    "scatter": _scatter,
    "select-and-scatter": _select_and_scatter,
    "sort": _sort,
    "topk": _top_k,
    "triangular-solve": _triangular_solve,
}
"""Opcodes with more than one operation per element. Opcodes that are in none of the four tables have unknown work
(``batch-norm-*``, ``rng*`` and future opcodes).
"""


# Arithmetic of the library calls that are known. A custom call that is in no table here is unknown.


def custom_call_work(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """Return the arithmetic of a custom call from its target, configuration and shapes; ``None`` if unknown."""
    target = instruction.custom_call_target or ""
    if target in NO_WORK or target in MOVES:
        return Work()
    formula = next((formula for pattern, formula in _TABLE if pattern.fullmatch(target)), None)
    if formula is not None:
        return formula(instruction, operands)
    stated = _stated(instruction)
    if "flops" not in stated:
        return None
    flops, dtype = stated["flops"], _kernel_dtype(instruction, operands)
    products = {Product(dtype): flops} if flops and dtype else NO_PRODUCTS
    return Work(flops=flops, transcendentals=stated.get("transcendentals", 0), products=products)


def result_of(instruction: Instruction) -> Shape:
    """Return the first array that a call yields; libraries append scratch memory and flags."""
    shape = instruction.shape
    while shape.parts:
        shape = shape.parts[0]
    return shape


def without_scratch(instruction: Instruction) -> Shape:
    """Return the shape of a library call's results without its scratch memory, the last part."""
    shape, target = instruction.shape, instruction.custom_call_target or ""
    last = shape.parts[-1] if shape.parts else shape
    if len(shape.parts) > 1 and target.startswith("__cu") and last.dtype in ("s8", "u8") and len(last.dims) == 1:
        return msgspec.structs.replace(shape, parts=shape.parts[:-1])
    return shape


def _gemm(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """Return the work of cuBLAS and cuBLASLt, including FP8.

    Scales, bias and activation of an epilogue are not counted.
    """
    config = instruction.backend_config.get("gemm_backend_config", instruction.backend_config)
    numbers = _mapping(config, "dot_dimension_numbers")
    if len(operands) < 2 or not numbers:
        return None
    contracting = _ints(numbers, "lhs_contracting_dimensions")
    dtype = wider(operands[0], operands[1])
    flops = None if contracting is None else dot_flops(result_of(instruction), operands[0], contracting, dtype)
    return None if flops is None else product_work(flops, dtype, _precision(config))


def _convolution(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """Return the work of cuDNN. Labels and window are those of the forward convolution in all three directions."""
    if len(operands) < 2:
        return None
    first, second, result = operands[0], operands[1], result_of(instruction)
    target = instruction.custom_call_target or ""
    roles = (first, second, result)  # input, kernel, output
    if target == "__cudnn$convBackwardInput":
        roles = (result, second, first)
    elif target == "__cudnn$convBackwardFilter":
        roles = (first, result, second)
    flops = convolution_flops(instruction, *roles)
    return None if flops is None else product_work(flops, wider(first, second))


def _attention(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """Return the work of cuDNN's fused attention: two products forward, five backward, ``2 * scores * head size`` each.

    Scores masked by causality or a sliding window are excluded if there are as many queries as keys; masks whose values
    are known only at run time (padding) count in full.
    """
    config = _mapping(instruction.backend_config, "cudnn_fmha_backend_config")
    scores = _ints(_mapping(config, "intermediate_tensor_shape"), "dimensions")
    contracting = _ints(_mapping(config, "bmm1_dot_dimension_numbers"), "lhs_contracting_dimensions")
    if scores is None or len(scores) != 4 or len(operands) < 3:
        return None
    query = operands[0]
    backward = "Backward" in (instruction.custom_call_target or "")
    if contracting is None or len(contracting) != 1 or contracting[0] >= len(query.dims):
        # backward is configured by the products of the gradients; the head size is the last dimension of the queries
        contracting = (len(query.dims) - 1,)
    batch, heads, queries, keys = scores
    pairs = queries * keys
    if "CAUSAL" in str(config.get("mask_type", "")) and queries == keys:
        # query i attends to i keys and itself, at most to the window's
        window = min(_number(config.get("sliding_window_length")) or keys, keys)
        pairs = window * (window + 1) // 2 + (queries - window) * window
    each = 2 * batch * heads * pairs * query.dims[contracting[0]]
    return product_work(each * (BACKWARD_PRODUCTS if backward else 2), query.dtype)


def _top_k_cost_custom_calls(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """Return one comparison per element, a lower bound."""
    return Work(flops=operands[0].elements, exact=False) if operands else None


def _stated(instruction: Instruction) -> Mapping[str, int]:
    """Return the fields of the author's ``pl.CostEstimate`` of a Pallas kernel; empty without one.

    The TPU compiler has it in its configuration, programs for GPUs in the attributes that captures write.
    """
    estimate = _mapping(_mapping(instruction.backend_config, "custom_call_config"), "cost_estimate")
    attributes = dict(_ATTRIBUTE.findall(instruction.attributes.get("frontend_attributes", "")))
    numbers = {name: _number(estimate.get(name, attributes.get(key))) for name, key in STATED.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def is_stated(instruction: Instruction) -> bool:
    """Whether the author of a kernel states its cost: FLOPs as one number, without sizes of matrices."""
    return "flops" in _stated(instruction)


def _kernel_dtype(instruction: Instruction, operands: Sequence[Shape]) -> str:
    """Return the dtype of a kernel's largest array that matrix units take, ``""`` without one.

    An estimate does not tell products from other arithmetic; the dtype's peak of products gives the shortest time.
    """
    arrays = [array for shape in (*operands, instruction.shape) for array in arrays_of(shape)]
    known = [array for array in arrays if _MATRIX_DTYPE.fullmatch(array.dtype)]
    return max(known, key=lambda array: array.elements).dtype if known else ""


def stated_traffic(instruction: Instruction, result_bytes: int) -> tuple[int, int] | None:
    """Return bytes read and written by a kernel whose author states them; ``None`` otherwise.

    An estimate is one number: the result is written once, and the rest is read.
    """
    moved = _stated(instruction).get("bytes_accessed")
    return None if moved is None else (max(0, moved - result_bytes), min(moved, result_bytes))


_MATRIX_DTYPE = re.compile(r"f64|f32|f16|bf16|f8\w+|s8|u8")
_ATTRIBUTE = re.compile(r'(perfscope_\w+)="(\d+)"')

_TABLE: tuple[tuple[re.Pattern[str], Callable[[Instruction, Sequence[Shape]], Work | None]], ...] = (
    (re.compile(r"__cublas\$(gemm|lt\$matmul(\$f8)?)"), _gemm),
    (
        re.compile(r"__cudnn\$conv(Forward|BackwardInput|BackwardFilter|BiasActivationForward)"),
        _convolution,
    ),
    (re.compile(r"__cudnn\$fmha\w*"), _attention),
    (re.compile(r"(__gpu\$)?TopK"), _top_k_cost_custom_calls),
)


def _precision(config: Mapping[str, Any]) -> str:
    precision = _mapping(config, "precision_config")
    algorithm = str(precision.get("algorithm", "ALG_UNSET")).lower()
    if algorithm != "alg_unset":
        return algorithm.removeprefix("alg_")
    requested = precision.get("operand_precision", ())
    words = [str(word).lower() for word in requested] if isinstance(requested, list) else []
    order = ("default", "high", "highest")
    return max((word for word in words if word in order), key=order.index, default="default")


def _mapping(config: object, key: str) -> Mapping[str, Any]:
    result = config.get(key) if isinstance(config, Mapping) else None
    return result if isinstance(result, Mapping) else {}


def _ints(config: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
    """Return a list of sizes (JSON of protos writes 64-bit numbers as strings).

    ``None`` if it is not a list of sizes.
    """
    result = config.get(key)
    if not isinstance(result, list):
        return None
    numbers = [_number(item) for item in result]
    return None if None in numbers else tuple(number for number in numbers if number is not None)


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
