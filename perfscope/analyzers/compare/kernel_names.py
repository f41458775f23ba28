"""Names of device work without what changes from build to build, and the class of work they stand for.

A kernel keeps its job and changes its name: inductor numbers its kernels, Triton and XLA add counters, libraries pick
another tile, template arguments move. Each level gives up one of these.
"""

from __future__ import annotations

import re
from functools import lru_cache

_HASH = re.compile(r"(?<![0-9a-zA-Z])(?:(?=[0-9a-f]*\d)[0-9a-f]{8,}|(?=[a-z2-7]*\d)[a-z2-7]{40,})(?![0-9a-zA-Z])")
"""Hexadecimal, or the base 32 of inductor's cache, with at least one digit: a content hash. Words have no digit."""
_COUNTER = re.compile(r"(?:[._]\d+|\.clone|\.remat\d*)+$")
"""``triton_poi_fused_add_7``, ``loop_fusion.3``, ``dot.4.remat2``."""
_TILE = re.compile(r"\d+x\d+(?:x\d+)*|(?:MT|MI|WG|SK|LBSPP[A-Z]|stages?|warps?|nt|align|splitK)_?\d+", re.IGNORECASE)

_CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("collective", re.compile(r"nccl|rccl|oneShot|twoShot|allreduce|all-?reduce|all-?gather|reduce-?scatter", re.I)),
    ("attention", re.compile(r"flash|fmha|attention|sdpa|attn_fwd|attn_bwd|mha_", re.I)),
    ("convolution", re.compile(r"conv|dgrad|wgrad|fprop|winograd|miopenSp3|im2col", re.I)),
    ("matrix product", re.compile(r"gemm|gemv|^Cijk_|cutlass|xmma|nvjet|matmul|wgmma|^dot|addmm|splitKreduce", re.I)),
    ("embedding", re.compile(r"embedding|index_select|indexSelect|gather|scatter|index_", re.I)),
    ("normalisation", re.compile(r"norm|bn_fw|bn_bw|welford", re.I)),
    ("softmax", re.compile(r"softmax", re.I)),
    ("optimizer", re.compile(r"multi_tensor|adam|sgd|lamb|optimizer", re.I)),
    ("sort or scan", re.compile(r"sort|scan|radix|topk|cumsum", re.I)),
    ("fused", re.compile(r"fused|fusion|triton_", re.I)),
    ("reduction", re.compile(r"reduc|sum_|argmax", re.I)),
    ("copy", re.compile(r"copy|memcpy|memset|fill|transpose|CatArray", re.I)),
    ("elementwise", re.compile(r"elementwise|vectorized|pointwise|unrolled|add|mul|relu|gelu|silu|tanh|exp", re.I)),
)
"""In this order: ``fused_softmax_reduce`` is named by what it is for, not by how it runs."""

OTHER = "other"


@lru_cache(maxsize=65536)
def without_numbers(name: str) -> str:
    """A kernel's name without template arguments, hashes and counters: ``triton_poi_fused_add_relu``."""
    return without_counters(_without_arguments(name))


@lru_cache(maxsize=65536)
def without_counters(name: str) -> str:
    """A name without hashes and without the counter at its end; arguments are kept."""
    plain = _HASH.sub("#", name).strip()
    return _COUNTER.sub("", plain) or plain


@lru_cache(maxsize=65536)
def without_tiles(name: str) -> str:
    """As ``without_numbers``, also without tile sizes and stages that a library or an autotuner chooses."""
    return _TILE.sub("#", without_numbers(name))


@lru_cache(maxsize=65536)
def work_class(name: str) -> str:
    """What kind of work a kernel's name stands for: ``matrix product``, ``attention`` ...; ``other`` if none."""
    plain = _without_arguments(name)
    for kind, pattern in _CLASSES:
        if pattern.search(plain):
            return kind
    return next((kind for kind, pattern in _CLASSES if pattern.search(name)), OTHER)


def _without_arguments(name: str) -> str:
    """Without what stands in angle brackets and in the parentheses of a signature, and without ``void``."""
    kept: list[str] = []
    depth = 0
    for char in name.removeprefix("void "):
        if char in "<(" and kept:
            depth += 1
        elif char in ">)" and depth:
            depth -= 1
        elif not depth:
            kept.append(char)
    return "".join(kept) or name
