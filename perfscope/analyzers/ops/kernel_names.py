"""Short names of kernels: what they do, without template arguments and parameters."""

from __future__ import annotations

import re
from functools import lru_cache

_TRITON = re.compile(r"triton_(?P<kind>[a-z]{3})_fused_(?P<ops>\w*?)_?(?P<number>\d*)$")
_TRITON_KINDS = {
    "poi": "pointwise", "red": "reduction", "per": "persistent reduction", "tem": "template", "for": "foreach",
    "spl": "scan", "mix": "mixed",
}  # fmt: skip
_TENSILE = re.compile(r"Cijk_\w+?_(?P<types>[A-Z0-9]+(?:_[A-Z]+)*?)_(?:\w+?_)?(?P<tile>MT\d+x\d+x\d+)")
_NCCL = re.compile(r"nccl(?:Dev)?Kernel_(?P<what>\w+)")
_CUTLASS = re.compile(r"cutlass\w*::Kernel2?<(?P<what>\w+)")
_FUNCTORS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(\w+?)_kernel_cuda\b",
        r"\b(?!gpu_kernel)(\w+?)_kernel_impl\b",
        r"CUDAFunctor(?:OnSelf|OnOther)?_(\w+)",
        r"\b(?!ReduceOp)(\w+?)Ops<",
        r"(\w+?)_functor\b",
        r"(\w+?)Functor\b",
        r"::(\w+?)_kernel\b",
    )
)
_WRAPPERS = frozenset(
    {"gpu", "func", "AUnary", "BUnary", "Unary", "Binary", "elementwise", "index", "vectorized_elementwise"}
)
_ELEMENTWISE = re.compile(r"(elementwise|reduce|index)\w*$")


@lru_cache(maxsize=65536)
def short_kernel_name(name: str) -> str:
    """``void at::native::vectorized_elementwise_kernel<..silu_kernel..>(..)`` -> ``vectorized_elementwise: silu``.

    The name without its return type, template arguments, parameters and anonymous namespaces; what a generic kernel
    of PyTorch, Triton, CUTLASS, Tensile or NCCL computes is read from its arguments. A name of another form comes back
    as it is.
    """
    if found := _TRITON.match(name):
        kind = _TRITON_KINDS.get(found["kind"], found["kind"])
        return f"triton {kind}: {found['ops'].replace('_', ' ').strip() or 'unnamed'}"
    if found := _TENSILE.match(name):
        return f"Tensile gemm {found['types']} {found['tile']}"
    if found := _NCCL.search(name):
        return f"nccl {found['what'].replace('_', ' ')}"
    if found := _CUTLASS.search(name):
        return f"cutlass: {found['what'].removeprefix('cutlass_')}"
    plain = _without_arguments(name.removeprefix("void "))
    base = plain.rpartition("::")[2].replace("_kernel", "")
    if "at::native" in name and _ELEMENTWISE.search(base):
        work = _functor(name)
        return f"{base}: {work}" if work else base
    return plain.replace("at::native::", "") or name


def _functor(name: str) -> str | None:
    arguments = name.partition("<")[2]
    for pattern in _FUNCTORS:
        for found in pattern.finditer(arguments):
            work = found[1].rpartition("::")[2]
            if work and work not in _WRAPPERS:
                return work
    return None


def _without_arguments(name: str) -> str:
    """The qualified name up to its parameters, without template arguments and ``(anonymous namespace)``."""
    text = name.replace("(anonymous namespace)::", "").replace("operator()", "operator")
    kept: list[str] = []
    depth = 0
    for character in text:
        if character == "(" and depth == 0 and kept:
            break
        depth += character in "<("
        if depth == 0:
            kept.append(character)
        depth -= character in ">)" and depth > 0
    return "".join(kept).strip()
