"""What an event on the timeline is, in words and colours: kinds of work look alike on devices and on the host.

The first kinds take most of the time of a device; their colours stay apart for people who see no red, no green or no
blue, on the light ground and on the dark one (the test computes that). Others are quieter. Within a kind an event's
name decides on one of three shades, by a hash of its text: the same in every run.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache


class Category(IntEnum):
    """What an event is: its colour. Numbers are kept beside indexes: new ones are added at the end."""

    MATRIX = 0
    ATTENTION = 1
    ELEMENTWISE = 2
    REDUCTION = 3
    COLLECTIVE = 4
    COPY = 5
    KERNEL = 6
    """Any other kernel."""
    OP = 7
    """Any other op of the host."""
    PYTHON = 8
    ANNOTATION = 9
    LAUNCH = 10
    SYNC = 11
    CALL = 12
    """Any other call of the runtime."""
    INSTRUCTION = 13
    """Any other instruction of a compiled program."""
    OVERHEAD = 14
    STEP = 15
    NORM = 16
    OPTIMIZER = 17
    INPUT = 18
    MODULE = 19


CATEGORY_WORDS = (
    "matrix product", "attention", "elementwise", "reduction", "collective", "copy, layout", "other kernel", "other op",
    "Python", "annotation", "launch", "wait of the host", "other call", "other instruction", "profiler", "step",
    "norm, softmax", "optimizer", "input", "module",
)  # fmt: skip

MAIN = (
    Category.MATRIX, Category.ATTENTION, Category.NORM, Category.ELEMENTWISE, Category.REDUCTION, Category.COLLECTIVE,
    Category.COPY, Category.OPTIMIZER,
)  # fmt: skip
"""Kinds that must be told apart by colour alone."""

COLORS = {
    "light": (
        "#364fbc", "#5e2971", "#0099ff", "#a6ac04", "#c26010", "#812800", "#7f8fa8", "#9aa8b8", "#c9b8a0", "#b4bcc8",
        "#6f9fb5", "#b8324a", "#a3adba", "#8d9dbb", "#d0d4da", "#8899aa", "#298e74", "#eb8eb9", "#d9b310", "#b9c3cf",
    ),
    "dark": (
        "#8098ff", "#9c31f2", "#86e5ff", "#dcea57", "#db7e20", "#a44a20", "#7f90ab", "#75869a", "#8f7f68", "#66707f",
        "#4f88a3", "#e0607a", "#6d7886", "#7488b0", "#454d58", "#5f6d7c", "#398390", "#d9a4a0", "#d9b84a", "#59657a",
    ),
}  # fmt: skip
"""By category, on either ground."""

OF_CLASS = {
    "collective": Category.COLLECTIVE,
    "attention": Category.ATTENTION,
    "convolution": Category.MATRIX,
    "matrix product": Category.MATRIX,
    "normalisation": Category.NORM,
    "softmax": Category.NORM,
    "optimizer": Category.OPTIMIZER,
    "reduction": Category.REDUCTION,
    "elementwise": Category.ELEMENTWISE,
    "fused": Category.ELEMENTWISE,
    "copy": Category.COPY,
}
"""By the class of a kernel's name (`work_class`)."""

_OPS: tuple[tuple[Category, re.Pattern[str]], ...] = (
    (Category.INPUT, re.compile(r"data_?loader|^input$", re.I)),
    (Category.OPTIMIZER, re.compile(r"^optimizer\.|_foreach_|_fused_(adam|sgd|adagrad)|multi_tensor", re.I)),
    (Category.MODULE, re.compile(r"^nn\.module: ", re.I)),
    (
        Category.COLLECTIVE,
        re.compile(r"^(nccl|gloo|c10d|mpi|ucc)\b|all_?(reduce|gather|to_?all)|reduce_?scatter|allgather", re.I),
    ),
    (Category.ATTENTION, re.compile(r"attention|flash|sdpa", re.I)),
    (Category.NORM, re.compile(r"(layer|batch|group|rms|instance|local_response)_?norm|softmax", re.I)),
    (
        Category.MATRIX,
        re.compile(r"(?<![a-z])(sparse_)?(add)?(ba?d?d?)?b?(mm|mv)(?![a-z])|matmul|linear(?!ly)|conv(?!ert)|einsum|gemm"
                   r"|(?<![a-z])dot(?![a-z])|cublas|cudnn_convolution", re.I),
    ),
    (
        Category.COPY,
        re.compile(
            r"copy|(?<![a-z])(to|t|cat|stack|view|clone|contiguous|reshape|transpose|permute|expand|expand_as|slice|"
            r"select|as_strided|unsqueeze|squeeze|flatten|unflatten|split|chunk|narrow|repeat|detach|pin_memory|"
            r"index|index_put_?|gather|scatter|embedding|pad|roll|flip|unbind|bitcast)(?![a-z])",
            re.I,
        ),
    ),
    (
        Category.REDUCTION,
        re.compile(r"(?<![a-z])(sum|mean|prod|var|std|max|min|amax|amin|argmax|argmin|any|all|norm|cumsum|topk|sort|"
                   r"logsumexp)(?![a-z])|reduce|loss|cross_entropy|pool", re.I),
    ),
    (
        Category.ELEMENTWISE,
        re.compile(
            r"(?<![a-z])_?(r?add|i?add|r?sub|mul|div|neg|exp|log|pow|sqrt|rsqrt|sin|cos|abs|sign|where|eq|ne|lt|gt|le|"
            r"ge|clamp|relu|gelu|silu|sigmoid|tanh|erf|addcmul|addcdiv|lerp|dropout|threshold|masked_fill|bernoulli|"
            r"bitwise|logical|maximum|minimum|reciprocal|fill|zero|ones|zeros|multiply|subtract|divide|compare|"
            r"convert|select_and)_?(?![a-z])|dropout|relu|gelu|silu|sigmoid|tanh|fusion",
            re.I,
        ),
    ),
)  # fmt: skip
"""In this order: an optimizer's ``_foreach_add_`` is the optimizer's, softmax's backward no copy."""

_NAMESPACES = re.compile(r"^(autograd::engine::evaluate_function: |aten::|prim::|torch::autograd::|triton::)+")
_BACKWARD = re.compile(r"(_?Backward\d*|_backward)(?=$|\W)")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@lru_cache(maxsize=65536)
def op_category(name: str, other: Category | None = None) -> Category | None:
    """What an op of the host, or an instruction of a compiled program, works at, by its name; else ``other``."""
    plain = _BACKWARD.sub("", _NAMESPACES.sub("", name))
    plain = _HUMP.sub("_", plain).replace("-", "_")
    words = re.sub(r"(?<=[a-zA-Z])\d+\b", "", plain)
    return next((kind for kind, pattern in _OPS if pattern.search(words)), other)
