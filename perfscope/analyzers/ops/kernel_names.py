"""Short names of kernels: their purpose, without template arguments and parameters."""

from __future__ import annotations

import re
import zlib
from functools import lru_cache

LONGEST = 60
"""Maximum number of characters of a short name. Longer ones end with four digits that distinguish them."""

_TRITON = re.compile(r"triton_(?P<kind>[a-z]{3})_fused_(?P<ops>\w*?)_?(?<!\d)(?P<number>\d*+)$")
_TRITON_KINDS = {
    "poi": "pointwise", "red": "reduction", "per": "persistent reduction", "tem": "template", "for": "foreach",
    "spl": "scan", "mix": "mixed",
}  # fmt: skip
_TENSILE = re.compile(
    r"Cijk_A(?P<a>lik|ilk)_B(?P<b>ljk|jlk)_(?P<types>[A-Z0-9]+(?:_[A-Z]+)*?)_(?:\w+?_)?(?P<tile>MT\d+x\d+x\d+)"
)
_TRANSPOSED = {"lik": "T", "ilk": "N", "ljk": "N", "jlk": "T"}
_NCCL = re.compile(r"nccl(?:Dev)?Kernel_(?P<what>\w+)")
_CUTLASS = re.compile(r"cutlass\w*::Kernel2?<(?P<what>\w+)")
_FUNCTORS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\b(\w+?)_kernel_cuda\b",
        r"\b(?!gpu_kernel)(\w+?)_kernel_impl\b",
        r"CUDAFunctor(?:OnSelf|OnOther)?_(\w+)",
        r"\b(?!ReduceOp)(\w+?)Ops<",
        r"operator(?:\(\))?<at::native::(\w+)>",
        r"\b(\w+?)_functor\b",
        r"\b(\w+?)Functor\b",
        r"::(\w+?)_kernel\b",
    )
)
_WRAPPERS = frozenset(
    {"gpu", "func", "AUnary", "BUnary", "Unary", "Binary", "elementwise", "index", "vectorized_elementwise"}
)
_ELEMENTWISE = re.compile(r"(elementwise|reduce|index)\w*$")
_MULTI_TENSOR = re.compile(r"\bmulti_tensor_apply_kernel<.*?\b(?P<functor>(?!\w+Metadata)\w+?)(?:Functor)?<")
_STD = re.compile(r"\bstd::(\w+)<")
_LAMBDA = re.compile(
    r"\b(?P<function>\w++)\((?:[^()]++|\([^()]*+\))*+\)(?: const)?"
    r"::[\[{]lambda\([^()]*\)(?: \(instance |#)(?P<number>\d+)"
)
_RETURNED = re.compile(r"^(?:typename )?std::enable_if<.*>::type (?=[\w:]+[<(])")
_NOISE = re.compile(
    r"_(?:stage\d+|warpsize[\dx]+|warpgroupsize[\dx]+|tensor[\dx]+|g\d|execute_\w+|kernel)(?=_|$)|(?<=_)tilesize|"
    r"^split_embedding_|(?<=backward_)codegen_"
)
"""The least informative parts of long names of cuBLAS, cuDNN and FBGEMM."""
_LENGTH = re.compile(r"\d{1,6}")
_MANGLED = re.compile(r"_ZN[KVr]*(?=\d)")
_GENERIC = frozenset({"Kernel", "Kernel2", "kentry", "device_kernel"})
"""Kernels of CUTLASS and Composable Kernel that run their first template argument."""


@lru_cache(maxsize=65536)
def short_kernel_name(name: str) -> str:
    """Return ``vectorized_elementwise: silu`` for ``void at::native::vectorized_elementwise_kernel<..silu_..>(..)``.

    The name is without its return type, template arguments, parameters and anonymous namespaces, at most ``LONGEST``
    characters; the operation of a generic kernel of PyTorch, Triton, CUTLASS, Tensile or NCCL comes from its arguments.
    A name of another form is returned unchanged.
    """
    short = _short(name)
    if len(short) <= LONGEST:
        return short
    return f"{_NOISE.sub('', short)[: LONGEST - 5]}~{zlib.crc32(short.encode()) & 0xFFFF:04x}"


def _short(name: str) -> str:
    if found := _TRITON.match(name):
        kind = _TRITON_KINDS.get(found["kind"], found["kind"])
        return f"triton {kind}: {found['ops'].replace('_', ' ').strip() or 'unnamed'}"
    if found := _TENSILE.match(name):
        order = _TRANSPOSED[found["a"]] + _TRANSPOSED[found["b"]]
        return f"Tensile gemm {order} {found['types']} {found['tile']}"
    if found := _NCCL.search(name):
        return f"nccl {found['what'].replace('_', ' ')}"
    if found := _CUTLASS.search(name):
        return f"cutlass: {found['what'].removeprefix('cutlass_')}"
    if _MANGLED.match(name):
        return _of_mangled(name)
    return _of_templates(name)


def _of_templates(name: str) -> str:
    plain = _without_arguments(_RETURNED.sub("", name.removeprefix("void ")))
    base = plain.rpartition("::")[2].replace("_kernel", "")
    if "at::native" in name and _ELEMENTWISE.search(base):
        base = base.removeprefix("_").replace("scatter_gather_elementwise", "scatter_gather")
        work = _functor(name) or _in_lambda(name)
        return f"{base}: {work}" if work else base
    if found := _MULTI_TENSOR.search(name):
        applied = _STD.search(name)
        return f"multi_tensor_apply: {found['functor']}{f' {applied[1]}' if applied else ''}"
    if found := _LAMBDA.search(name.partition("<")[2]):
        return f"{base}: {found['function']} {found['number']}"
    return plain.replace("at::native::", "") or name


def _of_mangled(name: str) -> str:
    """Return ``ck::kernel_gemm`` for ``_ZN2ck16tensor_operation6device11kernel_gemmI..``."""
    parts, position = _identifiers(name, _MANGLED.match(name).end())  # type: ignore[union-attr]
    if not parts:
        return name
    short = parts[-1] if len(parts) == 1 else f"{parts[0]}::{parts[-1]}"
    inner = re.search(r"N\w*?_?(?=\d)", name[position:]) if parts[-1] in _GENERIC else None
    if inner is None:
        return short
    arguments, _ = _identifiers(name, position + inner.end())
    return f"{parts[0]}: {arguments[-1]}" if arguments else short


def _identifiers(name: str, position: int) -> tuple[list[str], int]:
    """Return length-prefixed identifiers of a mangled name from a position on, and the position after them."""
    parts: list[str] = []
    while found := _LENGTH.match(name, position):
        end = found.end() + int(found[0])
        if int(found[0]) > len(name):
            break
        if not name.startswith("_GLOBAL__N_", found.end()):
            parts.append(name[found.end() : end])
        position = end
    return parts, position


def _functor(name: str) -> str | None:
    arguments = name.partition("<")[2]
    for pattern in _FUNCTORS:
        for found in pattern.finditer(arguments):
            work = found[1].rpartition("::")[2]
            if work and work not in _WRAPPERS:
                return work
    return None


def _in_lambda(name: str) -> str | None:
    """Return the function that contains an elementwise lambda: ``clamp_scalar`` for ``launch_clamp_scalar``."""
    found = _LAMBDA.search(name.partition("<")[2])
    return None if found is None else re.sub(r"^launch_|CUDAKernelImpl$|_cuda_out$|_gpu$", "", found["function"])


def _without_arguments(name: str) -> str:
    """Return the qualified name up to its parameters, without template arguments and ``(anonymous namespace)``."""
    text = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "").replace("operator()", "operator")
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
