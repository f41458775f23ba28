"""Kind of work of an op, by its name alone: for counts and colours if its arguments were not recorded."""

from __future__ import annotations

import re
from functools import lru_cache

from perfscope.analyzers.time import compiles

_CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("input", re.compile(r"data_?loader|^input$", re.I)),
    ("optimizer", re.compile(r"^optimizer\.|_foreach_|_fused_(adam|sgd|adagrad)|multi_tensor", re.I)),
    ("module", re.compile(r"^nn\.module: ", re.I)),
    (
        "collective",
        re.compile(r"^(nccl|gloo|c10d|mpi|ucc)\b|all_?(reduce|gather|to_?all)|reduce_?scatter|allgather", re.I),
    ),
    ("attention", re.compile(r"attention|flash|sdpa", re.I)),
    ("softmax", re.compile(r"softmax", re.I)),
    ("normalisation", re.compile(r"(layer|batch|group|rms|instance|local_response)_?norm", re.I)),
    ("convolution", re.compile(r"conv(?!ert)", re.I)),
    (
        "matrix product",
        re.compile(r"(?<![a-z])(sparse_)?(add)?(ba?d?d?)?b?(mm|mv)(?![a-z])|matmul|linear(?!ly)|einsum|gemm"
                   r"|(?<![a-z])dot(?![a-z])|cublas", re.I),
    ),
    (
        "indexing",
        re.compile(r"(?<![a-z])(index|index_put_?|gather|scatter|embedding)(?![a-z])", re.I),
    ),
    (
        "copy",
        re.compile(
            r"copy|(?<![a-z])(to|t|cat|stack|view|clone|contiguous|reshape|transpose|permute|expand|expand_as|slice|"
            r"select|as_strided|unsqueeze|squeeze|flatten|unflatten|split|chunk|narrow|repeat|detach|pin_memory|"
            r"pad|roll|flip|unbind|bitcast)(?![a-z])",
            re.I,
        ),
    ),
    (
        "reduction",
        re.compile(r"(?<![a-z])(sum|mean|prod|var|std|max|min|amax|amin|argmax|argmin|any|all|norm|cumsum|topk|sort|"
                   r"logsumexp)(?![a-z])|reduce|loss|cross_entropy|pool", re.I),
    ),
    (
        "elementwise",
        re.compile(
            r"(?<![a-z])_?(r?add|i?add|r?sub|mul|div|neg|exp|log|pow|sqrt|rsqrt|sin|cos|abs|sign|where|eq|ne|lt|gt|le|"
            r"ge|clamp|relu|gelu|silu|sigmoid|tanh|erf|addcmul|addcdiv|lerp|dropout|threshold|masked_fill|bernoulli|"
            r"bitwise|logical|maximum|minimum|reciprocal|fill|zero|ones|zeros|multiply|subtract|divide|compare|"
            r"convert|select_and)_?(?![a-z])|dropout|relu|gelu|silu|sigmoid|tanh|fusion",
            re.I,
        ),
    ),
    ("mixture of experts", re.compile(r"(?<![a-z])moe(?![a-z])|expert", re.I)),
)  # fmt: skip
"""In this order: an optimizer's ``_foreach_add_`` belongs to the optimizer, and softmax's backward is not a copy."""

_NAMESPACES = re.compile(r"^(autograd::engine::evaluate_function: |aten::|prim::|torch::autograd::|triton::)+")
_BACKWARD = re.compile(r"(_?Backward\d*|_backward)(?=$|\W)")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@lru_cache(maxsize=65536)
def op_class(name: str) -> str | None:
    """Return the class of a host op or of an instruction of a compiled program; ``None`` if the name does not match."""
    if compiles(name):
        return "compilation"
    plain = _BACKWARD.sub("", _NAMESPACES.sub("", name))
    plain = _HUMP.sub("_", plain).replace("-", "_")
    words = re.sub(r"(?<=[a-zA-Z])\d+\b", "", plain)
    return next((kind for kind, pattern in _CLASSES if pattern.search(words)), None)
