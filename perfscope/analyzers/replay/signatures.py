"""Ops that can be replayed, with their parameters.

A signature is the positional parameters, then ``;`` and those given by name: ``T`` a tensor, ``L`` a list of tensors,
``O`` a tensor or nothing, ``B`` a tensor or a number, ``I`` indices below the size of an argument (``I0``: first
dimension of argument 0, ``I0.1``: its second, ``I0@1``: the dimension that argument 1 says, ``I=2``: the value of
argument 2), ``?`` a value that must have been recorded, ``=...`` a value with what is taken where it was not, ``@2``
the shape of argument 2.
"""

from __future__ import annotations

_UNARY = "relu silu sigmoid tanh exp log sqrt rsqrt neg abs cos sin reciprocal clone contiguous zero_ relu_"
_BINARY = "mul div pow maximum minimum eq ne lt gt mul_ div_"
_SUMS = "add sub add_ sub_"

SIGNATURES: dict[str, str] = {
    "mm": "T T",
    "bmm": "T T",
    "matmul": "T T",
    "linear": "T T O",
    "addmm": "T T T ; beta=1 alpha=1",
    "baddbmm": "T T T ; beta=1 alpha=1",
    "convolution": "T T O ? ? ? ? ? ?",
    "conv2d": "T T O ? ? ? ?",
    "convolution_backward": "T T T ? ? ? ? ? ? ? ?",
    "scaled_dot_product_attention": "T T T O =0.0 =False ; scale=None",
    "_softmax": "T =-1 =False",
    "_log_softmax": "T =-1 =False",
    "layer_norm": "T @2 O O =1e-05 =True",
    "native_layer_norm": "T @2 O O =1e-05",
    "batch_norm": "T O O O O =True =0.1 =1e-05 =True",
    "native_batch_norm": "T O O O O =True =0.1 =1e-05",
    "embedding": "T I0 =-1 =False =False",
    "embedding_dense_backward": "T I=2 ? =-1 =False",
    "index_select": "T ? I0@1",
    "nll_loss_forward": "T I0.1 O =1 =-100",
    "cat": "L =0",
    "stack": "L =0",
    "sum": "T =[-1] =False",
    "mean": "T =[-1] =False",
    "amax": "T =[-1] =False",
    "gelu": "T",
    "gelu_backward": "T T",
    "silu_backward": "T T",
    "threshold_backward": "T T =0",
    "copy_": "T T =False",
    "fill_": "T =0",
    "native_dropout": "T =0.1 =True",
    **dict.fromkeys(_UNARY.split(), "T"),
    **dict.fromkeys(_BINARY.split(), "T B"),
    **dict.fromkeys(_SUMS.split(), "T B ; alpha=1"),
}
"""By name without ``aten::``."""

SHORT_FORMS: dict[tuple[str, int], str] = {("sum", 2): "T", ("mean", 2): "T"}
"""By name and number of recorded inputs: overloads with other parameters (here without dimensions)."""

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")

DTYPES: frozenset[str] = frozenset(
    {
        "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8",
        "uint8", "bool",
    }
)  # fmt: skip
"""Names of torch's dtypes that a script may hold."""
