"""Arithmetic of the library calls that are known. A custom call that is in no table here is unknown."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfscope.analyzers.hlo.cost_products import convolution_flops, dot_flops, wider
from perfscope.analyzers.hlo.cost_types import Work, product_work
from perfscope.analyzers.hlo.module import Instruction, Shape

NO_WORK = frozenset(
    {
        "AllocateBuffer", "AssumeGatherIndicesInBound", "AsyncCollectiveDone", "AsyncCollectiveStart", "ConcatBitcast",
        "LayoutConstraint", "SPMDFullToShardShape", "SPMDShardToFullShape", "Sharding", "annotate_device_placement",
    }
)  # fmt: skip
"""Marks for the compiler and views: they neither compute nor move anything."""

MOVES = frozenset({"MoveToDevice", "MoveToHost"})
"""Copies between host and device."""

BACKWARD_PRODUCTS = 5
"""Products in the backward pass of fused attention: scores again, and the gradients of scores' weights, of values,
queries and keys. Forward has two."""


def custom_call_work(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """Arithmetic of a custom call, from its target, configuration and shapes; ``None`` if that does not tell."""
    target = instruction.custom_call_target or ""
    if target in NO_WORK or target in MOVES:
        return Work()
    formula = next((formula for pattern, formula in _TABLE if pattern.fullmatch(target)), None)
    return None if formula is None else formula(instruction, operands)


def result_of(instruction: Instruction) -> Shape:
    """The first array a call yields: libraries append scratch memory and flags to it."""
    shape = instruction.shape
    while shape.parts:
        shape = shape.parts[0]
    return shape


def without_scratch(instruction: Instruction) -> Shape:
    """The shape of a library call's results without the bytes it asks for as scratch memory, its last part."""
    shape, target = instruction.shape, instruction.custom_call_target or ""
    last = shape.parts[-1] if shape.parts else shape
    if len(shape.parts) > 1 and target.startswith("__cu") and last.dtype in ("s8", "u8") and len(last.dims) == 1:
        return dataclasses.replace(shape, parts=shape.parts[:-1])
    return shape


def _gemm(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """cuBLAS and cuBLASLt, FP8 included; scales, bias and activation of an epilogue are not counted."""
    config = instruction.backend_config.get("gemm_backend_config", instruction.backend_config)
    numbers = _mapping(config, "dot_dimension_numbers")
    if len(operands) < 2 or not numbers:
        return None
    contracting = _ints(numbers, "lhs_contracting_dimensions")
    dtype = wider(operands[0], operands[1])
    flops = None if contracting is None else dot_flops(result_of(instruction), operands[0], contracting, dtype)
    return None if flops is None else product_work(flops, dtype, _precision(config))


def _convolution(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """cuDNN. The labels and the window are those of the forward convolution in all three directions."""
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
    """cuDNN's fused attention: two products forward, five backward, each ``2 * scores * head size``.

    Scores masked by causality or a sliding window are not counted where queries and keys are as many; masks whose
    values only the run knows (padding) count in full.
    """
    config = _mapping(instruction.backend_config, "cudnn_fmha_backend_config")
    scores = _ints(_mapping(config, "intermediate_tensor_shape"), "dimensions")
    contracting = _ints(_mapping(config, "bmm1_dot_dimension_numbers"), "lhs_contracting_dimensions")
    if scores is None or len(scores) != 4 or len(operands) < 3:
        return None
    query = operands[0]
    backward = "Backward" in (instruction.custom_call_target or "")
    if contracting is None or len(contracting) != 1 or contracting[0] >= len(query.dims):
        # backward is configured by the products of the gradients; the head size is queries' last dimension
        contracting = (len(query.dims) - 1,)
    batch, heads, queries, keys = scores
    pairs = queries * keys
    if "CAUSAL" in str(config.get("mask_type", "")) and queries == keys:
        # query i sees i keys and itself, of them at most the window's
        window = min(_number(config.get("sliding_window_length")) or keys, keys)
        pairs = window * (window + 1) // 2 + (queries - window) * window
    each = 2 * batch * heads * pairs * query.dims[contracting[0]]
    return product_work(each * (BACKWARD_PRODUCTS if backward else 2), query.dtype)


def _top_k(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """One comparison an element at the very least: a lower bound."""
    return Work(flops=operands[0].elements, exact=False) if operands else None


def _stated(instruction: Instruction, operands: Sequence[Shape]) -> Work | None:
    """A Pallas kernel for TPU: the author's own ``pl.CostEstimate``, where there is one."""
    estimate = _mapping(_mapping(instruction.backend_config, "custom_call_config"), "cost_estimate")
    flops, transcendentals = _number(estimate.get("flops")), _number(estimate.get("transcendentals"))
    if flops is None:
        return None
    return Work(flops=flops, transcendentals=transcendentals or 0)


_TABLE: tuple[tuple[re.Pattern[str], Callable[[Instruction, Sequence[Shape]], Work | None]], ...] = (
    (re.compile(r"__cublas\$(gemm|lt\$matmul(\$f8)?)"), _gemm),
    (
        re.compile(r"__cudnn\$conv(Forward|BackwardInput|BackwardFilter|BiasActivationForward)"),
        _convolution,
    ),
    (re.compile(r"__cudnn\$fmha\w*"), _attention),
    (re.compile(r"(__gpu\$)?TopK"), _top_k),
    (re.compile(r"tpu_custom_call"), _stated),
)


def _precision(config: Mapping[str, Any]) -> str:
    precision = _mapping(config, "precision_config")
    algorithm = str(precision.get("algorithm", "ALG_UNSET")).lower()
    if algorithm != "alg_unset":
        return algorithm.removeprefix("alg_")
    asked = precision.get("operand_precision", ())
    words = [str(word).lower() for word in asked] if isinstance(asked, list) else []
    order = ("default", "high", "highest")
    return max((word for word in words if word in order), key=order.index, default="default")


def _mapping(config: object, key: str) -> Mapping[str, Any]:
    found = config.get(key) if isinstance(config, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _ints(config: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
    """A list of sizes (JSON of protos writes 64-bit numbers as strings); ``None`` if it is none."""
    found = config.get(key)
    if not isinstance(found, list):
        return None
    numbers = [_number(item) for item in found]
    return None if None in numbers else tuple(number for number in numbers if number is not None)


def _number(value: object) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
