"""FLOPs and bytes of one eager op of PyTorch, from the shapes, dtypes and strides that the profiler recorded.

FLOPs are those of matrix products, convolutions and attention (formulas: ``model/op_flops.py``); other work is limited
by memory and counts none. Bytes are the minimum that an op moves: every operand once and every result once; a dimension
with stride 0 (``expand``) counts once. Caching between kernels is unknown and not subtracted.

Results are not recorded; they follow from the operands: for elementwise ops by broadcasting and type promotion, for
products, convolutions and attention from the shapes, for norms and softmax the size of the input. A reduction counts
only its input. Ops whose work depends on values of tensors (``index``, ``nonzero``, attention of packed sequences) have
no cost. Kernels of inductor count the elements that their loops touch. Signatures are those of torch 2.1 to 2.13
(``native_functions.yaml``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from msgspec.structs import replace

from perfscope.analyzers.devices import Sizes, product_sizes
from perfscope.analyzers.ops.kernels import ITEM_SIZES, Operand, Shape, broadcast, promoted
from perfscope.analyzers.ops.op_call import Argument, CostKind, OpCall, OpCost, parse_call
from perfscope.model.kernel_cost import declared_cost, is_declared
from perfscope.model.op_flops import attention_flops, flops_of, product_flops

Formula = Callable[[OpCall], OpCost | None]


MOST_AMOUNT = 1 << 100
"""Maximum FLOPs or bytes of one call."""

_SCALAR_TYPES = {5: "float16", 6: "float32", 15: "bfloat16"}
"""Numbers in ``c10::ScalarType``."""

_BACKWARD = "grad_output input weight bias_sizes stride padding dilation transposed output_padding groups output_mask"

_COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "isnan"])

_UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan tanh sigmoid neg abs reciprocal relu silu erf "
    "floor ceil round sign bitwise_not logical_not isnan"
)

_BINARY = "add sub mul div maximum minimum remainder floor_divide atan2 eq ne lt le gt ge"

_OPERANDS = {**dict.fromkeys(_UNARY.split(), 1), **dict.fromkeys(_BINARY.split(), 2)}

_WRITE_ONLY = frozenset({"fill", "zero", "uniform", "normal", "random", "bernoulli", "exponential"})

_POOL = "self kernel_size stride padding dilation ceil_mode"

_INDUCTOR = re.compile(r"triton_(?:poi|red|per)_")

_MIOPEN = "input weight bias padding stride dilation groups"

_DEPTHWISE = "input weight kernel_size bias stride padding dilation"

_FULL = "input weight bias stride padding dilation transposed output_padding groups"

_SDPA = "query key value dropout_p is_causal"

_BIASED = "query key value attn_bias compute_log_sumexp dropout_p is_causal"

_EFFICIENT = "query key value attn_bias cum_seq_q cum_seq_k max_q max_k dropout_p custom_mask_type"

_EFFICIENT_BACKWARD = (
    "grad query key value bias out cum_seq_q cum_seq_k max_q max_k logsumexp dropout_p seed offset custom_mask_type"
)

_FLASH = "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal"

_FLASH_BACKWARD = "grad query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal"

_CUDNN_BACKWARD = (
    "grad query key value out logsumexp seed offset attn_bias cum_seq_q cum_seq_k max_q max_k dropout_p is_causal"
)

_SDPA_BACKWARD = "grad query key value attn_bias out logsumexp seed offset dropout_p mask is_causal"

_PACKAGE = "query key value dropout_p softmax_scale is_causal"

_PACKAGE_BACKWARD = "grad query key value out softmax_lse dq dk dv dropout_p softmax_scale is_causal"


def op_cost(
    name: str,
    shapes: str,
    dtypes: str,
    strides: str = "",
    values: str = "",
    *,
    list_dtype: str = "",
    elementwise: bool = False,
) -> OpCost | None:
    """Return the cost of a call, as its author declared it or by a formula; ``None`` if unknown.

    ``shapes``, ``dtypes``, ``strides``, ``values``: JSON text as recorded. ``list_dtype``: of tensors in lists.
    ``elementwise``: all its kernels are elementwise, so that it needs no formula.
    """
    if is_declared(name):
        return _declared(name, shapes, dtypes, strides, values, list_dtype)
    return _known_cost(name, shapes, dtypes, strides, values, list_dtype=list_dtype, elementwise=elementwise)


def _declared(name: str, shapes: str, dtypes: str, strides: str, values: str, list_dtype: str) -> OpCost | None:
    try:
        call = parse_call(name, shapes, dtypes, strides, values, list_dtype)
        cost = declared_cost(name, *call.arguments)
        if cost is None:
            return None
        moved = sum(tensor.bytes for tensor in call.tensors) if cost.bytes is None else cost.bytes
        kind: CostKind = "product" if cost.total_flops else "memory"
        return _possible(OpCost(kind=kind, flops=cost.total_flops, bytes=moved, dtype=cost.dtype), call)
    except (ValueError, TypeError, KeyError):
        return None


@lru_cache(maxsize=65536)
def _known_cost(
    name: str,
    shapes: str,
    dtypes: str,
    strides: str = "",
    values: str = "",
    *,
    list_dtype: str = "",
    elementwise: bool = False,
) -> OpCost | None:
    """`op_cost` by a formula; ``None`` without one, or if its inputs were not recorded."""
    try:
        call = parse_call(name, shapes, dtypes, strides, values, list_dtype)
        formula = _inductor_kernel if _INDUCTOR.match(name) else _FORMULAS.get(call.name)
        if formula is not None:
            return _possible(formula(call), call)
        if elementwise and name.startswith("aten::") and call.tensors:
            return _possible(OpCost(kind="memory", bytes=_elementwise_bytes(call)), call)
    except (ValueError, TypeError, IndexError, KeyError, AttributeError):
        return None  # a different signature than the known one
    return None


def _possible(cost: OpCost | None, call: OpCall) -> OpCost | None:
    """Return the cost with its dtype; ``None`` for unrealistic sizes."""
    if cost is None or max(cost.flops, cost.bytes) > MOST_AMOUNT:
        return None
    return cost if cost.dtype or not call.tensors else replace(cost, dtype=call.tensors[0].dtype)


# Products, convolutions and attention.


def _result_bytes(shape: Shape, dtype: str) -> int:
    return math.prod(shape) * ITEM_SIZES[dtype]


def _flops(call: OpCall, packet: str, names: str, outputs: tuple[Operand, ...] = ()) -> int:
    arguments = call.named(names)
    flops = flops_of(f"aten.{packet}.default", arguments.get, outputs)
    if flops is None:
        raise KeyError(packet)
    return flops


def _product(names: str, left: int, right: int) -> Formula:
    """Return the formula of a product of two operands at these positions, with rows of one and columns of the other.

    Arguments after the signature's names (``out=``) are the result itself.
    """

    def cost(call: OpCall) -> OpCost:
        first, second = call.tensor(left), call.tensor(right)
        arguments = call.named(names)
        added = call.arguments[0] if left else None  # the addend of the product
        unread = isinstance(added, Operand) and arguments.get("beta") == 0
        read = sum(value.bytes for value in arguments.values() if isinstance(value, Operand))
        read -= added.bytes if isinstance(added, Operand) and unread else 0
        columns = second.shape[-1:] if len(second.shape) > 1 else ()
        result = _result_bytes((*first.shape[:-1], *columns), _result_dtype(call, names, first.dtype))
        return OpCost(
            kind="product",
            flops=_flops(call, call.name, names),
            bytes=read + result,
            dtype=first.dtype,
            sizes=product_sizes(first.shape, second.shape),
        )

    return cost


def _result_dtype(call: OpCall, names: str, operand: str) -> str:
    scalar_type = call.named(names).get("out_dtype")
    if isinstance(scalar_type, int) and scalar_type in _SCALAR_TYPES:
        return _SCALAR_TYPES[scalar_type]
    if operand in ("int8", "uint8"):
        return "int32"
    return "bfloat16" if ITEM_SIZES[operand] == 1 else operand


def _scaled_mm_out(call: OpCall) -> OpCost:
    """Return the cost of ``_C::cutlass_scaled_mm(out, a, b, ...)`` of vLLM."""
    out, left = call.tensor(0), call.tensor(1)
    flops = product_flops(out.shape[0] * out.shape[1], left.shape[-1])
    sizes = Sizes(batch=1, rows=out.shape[0], columns=out.shape[1], inner=left.shape[-1])
    return OpCost(kind="product", flops=flops, bytes=sum(t.bytes for t in call.tensors), dtype=left.dtype, sizes=sizes)


def _convolution(names: str, *, transposed: bool = False) -> Formula:
    def cost(call: OpCall) -> OpCost | None:
        arguments = call.named(names)
        arguments.setdefault("transposed", transposed)
        source, weight = arguments["input"], arguments["weight"]
        if not isinstance(source, Operand) or not isinstance(weight, Operand):
            return None
        shape = _convolved(source.shape, weight.shape, arguments)
        out = Operand(shape=shape, dtype=source.dtype)
        flops = flops_of("aten.convolution.default", arguments.get, (out,))
        moved = sum(tensor.bytes for tensor in call.tensors) + out.bytes
        windows = source.shape if arguments["transposed"] else out.shape
        return OpCost(
            kind="convolution",
            flops=flops or 0,
            bytes=moved,
            dtype=source.dtype,
            sizes=_windows(windows, weight.shape),
        )

    return cost


def _windows(positions: Shape, weight: Shape) -> Sizes:
    """Return a convolution as a product: positions of all samples, by filters, over the elements of a filter."""
    return Sizes(batch=1, rows=positions[0] * math.prod(positions[2:]), columns=weight[0], inner=math.prod(weight[1:]))


def _convolved(source: Shape, weight: Shape, arguments: Mapping[str, Argument]) -> Shape:
    """Return the shape of the result. ``TypeError`` if stride or padding were not recorded."""
    axes = len(source) - 2
    stride, padding = (_per_axis(arguments[name], axes) for name in ("stride", "padding"))
    dilation = _per_axis(arguments.get("dilation", 1), axes)
    if not arguments["transposed"]:
        sizes = [
            (source[2 + i] + 2 * padding[i] - dilation[i] * (weight[2 + i] - 1) - 1) // stride[i] + 1
            for i in range(axes)
        ]
        return (source[0], weight[0], *sizes)
    added, groups = _per_axis(arguments.get("output_padding", 0), axes), arguments.get("groups", 1)
    if not isinstance(groups, int):
        raise TypeError("groups were not recorded")
    sizes = [
        (source[2 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (weight[2 + i] - 1) + added[i] + 1
        for i in range(axes)
    ]
    return (source[0], weight[1] * groups, *sizes)


def _per_axis(value: Argument, axes: int) -> list[int]:
    if isinstance(value, int):
        return [value] * axes
    if not isinstance(value, list):
        raise TypeError("not recorded")
    return value * axes if len(value) == 1 else value


def _convolution_backward(call: OpCall) -> OpCost:
    grad, source, weight = (call.tensor(index) for index in range(3))
    mask = call.named(_BACKWARD)["output_mask"]
    if not isinstance(mask, list):
        raise TypeError("output_mask was not recorded")
    made = sum(tensor.bytes for tensor, wanted in zip((source, weight), mask, strict=False) if wanted)
    transposed = call.named(_BACKWARD)["transposed"]
    return OpCost(
        kind="convolution",
        flops=_flops(call, "convolution_backward", _BACKWARD),
        bytes=grad.bytes + source.bytes + weight.bytes + made,
        dtype=source.dtype,
        sizes=_windows(source.shape if transposed else grad.shape, weight.shape),
    )


def _attention(
    names: str, *, causal: str = "is_causal", heads: int = 1, lower_right: bool = False, backward: bool = False
) -> Formula:
    """Return the formula of attention. ``heads``: axis of the heads, 1 in (B, H, L, E) and 2 in (B, L, H, E).

    ``causal``: name of the argument for causal masks.
    """

    def cost(call: OpCall) -> OpCost | None:
        arguments = call.named(names)
        parts = [arguments[name] for name in ("query", "key", "value")]
        flag = arguments[causal]
        packed = any(_is_list_of_lengths(arguments.get(name)) for name in ("cum_seq_q", "cum_seq_k"))
        tensors = [part for part in parts if isinstance(part, Operand) and len(part.shape) == 4]
        if packed or len(tensors) != 3 or not isinstance(flag, int):
            return None
        ordered = [t.shape if heads == 1 else (t.shape[0], t.shape[2], t.shape[1], t.shape[3]) for t in tensors]
        flops = attention_flops(
            *ordered, causal=bool(flag), backward=backward, lower_right=lower_right or (flag is not True and flag == 2)
        )
        query, value = tensors[0], tensors[2]
        made = sum(t.bytes for t in tensors) if backward else query.bytes // query.shape[3] * value.shape[3]
        moved = sum(t.bytes for t in call.tensors) + made
        batch, heads_of, rows, inner = ordered[0]
        sizes = Sizes(batch=batch * heads_of, rows=rows, columns=ordered[1][2], inner=inner)
        return OpCost(kind="attention", flops=flops, bytes=moved, dtype=query.dtype, sizes=sizes)

    return cost


def _is_list_of_lengths(argument: Argument) -> bool:
    """Whether the argument is a list of lengths; an absent tensor is recorded as None or as an empty one."""
    return isinstance(argument, Operand) and math.prod(argument.shape) > 1


# Work limited by memory.


def _moves(*, tensors: int | None = None, results: int = 0, copies: int = 0) -> Formula:
    """Return the formula: read the first ``tensors`` (None: all), write ``results`` of its size, ``copies`` of all."""

    def cost(call: OpCall) -> OpCost | None:
        read = call.tensors[:tensors]
        if not read:
            return None
        return OpCost(kind="memory", bytes=(1 + copies) * sum(t.bytes for t in read) + results * _dense(read[0]))

    return cost


def _causal_softmax(call: OpCall) -> OpCost | None:
    """Return the cost of reading the lower triangle of the scores and writing all of them, with zeros above.

    NVIDIA apex, csrc/megatron/scaled_upper_triang_masked_softmax.h: a row loads as many elements as its number.
    """
    if not call.tensors or not call.tensors[0].shape:
        return None
    scores = call.tensors[0]
    length = scores.shape[-1]
    return OpCost(kind="memory", bytes=scores.bytes * (length + 1) // (2 * max(length, 1)) + _dense(scores))


def _dense(tensor: Operand) -> int:
    return _result_bytes(tensor.shape, tensor.dtype)


def _elementwise_bytes(call: OpCall) -> int:
    tensors = call.tensors
    if call.in_place:
        made = tensors[0].bytes
        read = () if call.name in _WRITE_ONLY else tensors[1:] if call.name == "copy" else tensors
        return made + sum(tensor.bytes for tensor in read)
    if len(tensors) > _OPERANDS.get(call.name, len(tensors)):  # out=: the result is the last one
        return sum(tensor.bytes for tensor in tensors)
    return sum(tensor.bytes for tensor in (*tensors, elementwise_result(call.name, tensors)))


def elementwise_result(name: str, tensors: Sequence[Operand]) -> Operand:
    """Return the result of an elementwise op on its tensors, at least one: by broadcasting and type promotion."""
    kept = tensors[1:] if name == "where" and len(tensors) > 1 else tensors
    dtype = "bool" if name in _COMPARISONS else promoted(kept)
    return Operand(shape=broadcast(tuple(tensor.shape for tensor in tensors)), dtype=dtype)


def _elementwise(call: OpCall) -> OpCost | None:
    return OpCost(kind="memory", bytes=_elementwise_bytes(call)) if call.tensors else None


def _dropout(call: OpCall) -> OpCost:
    source = call.tensor(0)
    return OpCost(kind="memory", bytes=source.bytes + _dense(source) + math.prod(source.shape))


def _softmax(call: OpCall) -> OpCost:
    source = call.tensor(0)
    widened = len(call.arguments) > 2 and call.arguments[2] is True
    return OpCost(
        kind="memory", bytes=source.bytes + _result_bytes(source.shape, "float32" if widened else source.dtype)
    )


def _rows(call: OpCall) -> OpCost:
    """Return the cost of ``index_select(self, dim, index)``, ``embedding(weight, index)``: chosen rows in and out."""
    table, index = call.tensor(0), call.tensors[1]
    axis = call.arguments[1] if isinstance(call.arguments[1], int) else 0
    row = table.bytes // max(1, table.shape[axis])
    return OpCost(kind="memory", bytes=index.bytes + 2 * math.prod(index.shape) * row)


def _embedding_backward(call: OpCall) -> OpCost:
    grad, index, rows = call.tensor(0), call.tensor(1), call.arguments[2]
    if not isinstance(rows, int):
        raise TypeError("the number of rows was not recorded")
    return OpCost(kind="memory", bytes=grad.bytes + index.bytes + _result_bytes((rows, grad.shape[-1]), grad.dtype))


def _resized(call: OpCall) -> OpCost:
    """Return the cost of ``upsample_nearest2d(self, output_size, ...)``: an image read, one of another size written."""
    source, size = call.tensor(0), call.arguments[1]
    if not isinstance(size, list):
        raise TypeError("the size was not recorded")
    made = _result_bytes((*source.shape[: -len(size)], *size), source.dtype)
    return OpCost(kind="memory", bytes=source.bytes + made)


def _pooled(call: OpCall) -> OpCost:
    """Return the cost of ``max_pool2d_with_indices``: the image read, the maxima and their positions written."""
    source, arguments = call.tensor(0), call.named(_POOL)
    window = arguments["kernel_size"]
    if arguments["ceil_mode"] is not False or not isinstance(window, list) or len(source.shape) != 4:
        raise TypeError("the window was not recorded")
    arguments |= {"stride": arguments["stride"] or window, "transposed": False}
    made = _convolved(source.shape, (source.shape[1], 1, *_per_axis(window, 2)), arguments)
    return OpCost(kind="memory", bytes=source.bytes + _result_bytes(made, source.dtype) + _result_bytes(made, "int64"))


def _rotary(call: OpCall) -> OpCost:
    """Return the cost of ``rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)``, in place.

    Each head rotates as many elements as a row of the cache has.
    """
    positions, cache, head = call.tensor(0), call.tensor(4), call.arguments[3]
    if not isinstance(head, int):
        raise TypeError("the size of a head was not recorded")
    turned = [argument for argument in call.arguments[1:3] if isinstance(argument, Operand)]
    moved = 2 * sum(tensor.bytes for tensor in turned) * cache.shape[1] // head
    rows = math.prod(positions.shape) * cache.shape[1] * ITEM_SIZES[cache.dtype]
    return OpCost(kind="memory", bytes=positions.bytes + moved + rows, dtype=turned[0].dtype)


def _gather(call: OpCall) -> OpCost:
    source, index = call.tensor(0), call.tensors[1]
    return OpCost(kind="memory", bytes=index.bytes + 2 * math.prod(index.shape) * ITEM_SIZES[source.dtype])


def _lists(call: OpCall) -> OpCost | None:
    """Return the cost of ``_foreach_`` ops: read all lists, write the first or one like it."""
    lists = [argument for argument in call.arguments if isinstance(argument, tuple)]
    if not lists:
        return None
    written = sum(tensor.bytes for tensor in lists[0])
    plain = call.name.removeprefix("_foreach_")
    read = lists[1:] if plain == "copy" else [] if plain == "zero" else lists
    made = 0 if plain == "norm" else written
    return OpCost(kind="memory", bytes=made + sum(tensor.bytes for tensors in read for tensor in tensors))


def _fused_optimizer(written: tuple[int, ...]) -> Formula:
    """Return the formula for lists of parameters, gradients and state; ``written``: positions that are also written."""

    def cost(call: OpCall) -> OpCost | None:
        sizes = [sum(t.bytes for t in item) if isinstance(item, tuple) else 0 for item in call.arguments]
        moved = sum(sizes) + sum(sizes[index] for index in written if index < len(sizes))
        return OpCost(kind="memory", bytes=moved) if moved else None

    return cost


def _inductor_kernel(call: OpCall) -> OpCost | None:
    """Return the cost of a fused kernel of inductor: its tensors, followed by the extents of its loops.

    It touches at most as many elements of a tensor as its loops have; a tensor that it reads and writes counts once.
    """
    extents = [value for value in call.arguments if isinstance(value, int) and not isinstance(value, bool)]
    if not extents or not call.tensors:
        return None
    elements = math.prod(extents)
    moved = sum(min(math.prod(tensor.shape), elements) * ITEM_SIZES[tensor.dtype] for tensor in call.tensors)
    return OpCost(kind="memory", bytes=moved)


_TABLE: tuple[tuple[Formula, str, str], ...] = (
    (_product("self mat2", 0, 1), "", "mm _int_mm bmm"),
    (_product("self mat1 mat2 beta alpha", 1, 2), "", "addmm _addmm_activation"),
    (_product("self batch1 batch2 beta alpha", 1, 2), "", "baddbmm"),
    (_product("self vec", 0, 1), "", "mv"),
    (_product("self mat vec beta alpha", 1, 2), "", "addmv"),
    (_product("self tensor", 0, 1), "", "dot vdot"),
    (_product("self mat2 scale_a scale_b bias scale_result out_dtype", 0, 1), "", "_scaled_mm"),
    (_product("self mat2 offs bias out_dtype", 0, 1), "", "_grouped_mm"),
    (_product("self mat2 scale_a scale_b offs bias scale_result out_dtype", 0, 1), "", "_scaled_grouped_mm"),
    (_scaled_mm_out, "_C::", "cutlass_scaled_mm"),
    (_convolution(_FULL), "", "convolution _convolution"),
    (_convolution("input weight padding stride dilation groups"), "", "cudnn_convolution"),
    (
        _convolution("input weight padding output_padding stride dilation groups", transposed=True),
        "",
        "cudnn_convolution_transpose",
    ),
    (_convolution("input weight bias stride padding dilation groups"), "", "cudnn_convolution_relu"),
    (_convolution(_MIOPEN), "", "miopen_convolution miopen_depthwise_convolution mkldnn_convolution"),
    (_convolution(_DEPTHWISE), "", "_slow_conv2d_forward _conv_depthwise2d conv_depthwise3d"),
    (_convolution_backward, "", "convolution_backward"),
    (_attention(_SDPA), "_scaled_dot_product_", "flash_attention flash_attention_for_cpu"),
    (_attention(_BIASED), "_scaled_dot_product_", "efficient_attention cudnn_attention"),
    (_attention(_FLASH, heads=2), "", "_flash_attention_forward"),
    (_attention(_EFFICIENT, heads=2, causal="custom_mask_type"), "", "_efficient_attention_forward"),
    (_attention(_PACKAGE, heads=2, lower_right=True), "", "flash_attn::_flash_attn_forward FlashAttnFunc"),
    (_attention(_FLASH_BACKWARD, backward=True), "_scaled_dot_product_", "flash_attention_backward"),
    (
        _attention("grad query key value out logsumexp dropout_p is_causal", backward=True),
        "_scaled_dot_product_",
        "flash_attention_for_cpu_backward",
    ),
    (_attention(_SDPA_BACKWARD, backward=True), "_scaled_dot_product_", "efficient_attention_backward"),
    (_attention(_CUDNN_BACKWARD, backward=True), "_scaled_dot_product_", "cudnn_attention_backward"),
    (_attention(_FLASH_BACKWARD, heads=2, backward=True), "", "_flash_attention_backward"),
    (
        _attention(_EFFICIENT_BACKWARD, heads=2, causal="custom_mask_type", backward=True),
        "",
        "_efficient_attention_backward",
    ),
    (_attention(_PACKAGE_BACKWARD, heads=2, lower_right=True, backward=True), "flash_attn::", "_flash_attn_backward"),
    (_elementwise, "", f"copy fill zero {_UNARY} {_BINARY}"),
    (_elementwise, "", "lerp addcmul addcdiv where masked_fill clamp threshold gelu softplus pow"),
    (_dropout, "", "native_dropout"),
    (_softmax, "", "_softmax _log_softmax"),
    (_rows, "", "index_select embedding"),
    (_embedding_backward, "", "embedding_dense_backward"),
    (_gather, "", "gather"),
    (_moves(copies=1), "", "cat stack"),
    (
        _moves(tensors=2, copies=1),
        "",
        "_C::fused_add_rms_norm sgl_kernel::fused_add_rmsnorm _C_cache_ops::reshape_and_cache_flash "
        "sglang::store_cache",
    ),
    (_fused_optimizer((0, 2, 3, 4)), "", "_fused_adam _fused_adamw"),
    (_fused_optimizer((0, 2)), "", "_fused_sgd _fused_adagrad"),
    (
        _moves(results=1),
        "",
        "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit _batch_norm_with_update "
        "cudnn_batch_norm miopen_batch_norm native_layer_norm_backward native_group_norm_backward "
        "native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward batch_norm_backward "
        "_fused_rms_norm _fused_rms_norm_backward _softmax_backward_data _log_softmax_backward_data cumsum "
        "native_dropout_backward tril triu flip roll",
    ),
    (
        _moves(tensors=1, results=1),
        "",
        "FusedLayerNormAffineFunction ScaledMaskedSoftmax ScaledSoftmax "
        "aiter::_groupnorm_run fbgemm::permute_pooled_embs_auto_grad",
    ),
    (_moves(results=1), "aiter::", "rms_norm"),
    (_causal_softmax, "", "ScaledUpperTriangMaskedSoftmax"),
    (_resized, "", "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d"),
    (
        _moves(),
        "_C::",
        "rms_norm silu_and_mul gelu_and_mul static_scaled_fp8_quant dynamic_scaled_fp8_quant "
        "dynamic_per_token_scaled_fp8_quant",
    ),
    (_moves(), "aiter::", "rmsnorm add_rmsnorm rmsnorm_quant silu_and_mul gelu_and_mul gelu_tanh_and_mul"),
    (_moves(), "sgl_kernel::", "rmsnorm silu_and_mul gelu_and_mul gelu_tanh_and_mul"),
    (_rotary, "", "_C::rotary_embedding sgl_kernel::rotary_embedding"),
    (_pooled, "", "max_pool2d_with_indices"),
    (_moves(), "", "max_pool2d_with_indices_backward"),  # the second tensor is as large as the written one
    (
        _moves(tensors=1),
        "",
        "sum mean max min amax amin argmax argmin any all norm linalg_vector_norm std var var_mean std_mean prod "
        "logsumexp nansum count_nonzero",
    ),
    (
        _lists,
        "_foreach_",
        "add sub mul div addcmul addcdiv lerp sqrt rsqrt pow neg abs exp log maximum minimum reciprocal sign clamp_min "
        "clamp_max norm copy zero",
    ),
)
"""Formula, prefix of the op names, and the rest of each name."""

_FORMULAS = {prefix + name: formula for formula, prefix, names in _TABLE for name in names.split()}
"""By name. Elementwise ops need none: their kernels identify them."""
