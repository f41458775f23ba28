"""Names of collectives: one spelling an operation, algorithm and protocol from a kernel's name, bytes of a message.

Message sizes and bus factors are those of nccl-tests (``doc/PERFORMANCE.md``): all-gather counts the bytes of a rank
afterwards, reduce-scatter and all-to-all the bytes it has before.
"""

from __future__ import annotations

import re
from functools import lru_cache

POINT_TO_POINT = frozenset({"send", "recv"})
"""Operations between two ranks of a group; they give no information on the order of the other ranks."""

_OPERATIONS = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("sendrecv", "send_recv"),
    ("send", "send"),
    ("recv", "recv"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
)
"""Part of a name without underscores -> operation; the first that fits. Sources write ``_allgather_base`` and more."""

_KERNEL = re.compile(r"(NVLS_?TREE|NVLS|COLLNET_?DIRECT|COLLNET_?CHAIN|RING|TREE|PAT)_(LL128|LL|SIMPLE)")
_SIZES = {
    "double": 8, "long": 8, "longint": 8, "int64": 8, "uint64": 8, "float64": 8, "complexfloat": 8,
    "float": 4, "int": 4, "int32": 4, "uint32": 4, "float32": 4,
    "half": 2, "bfloat16": 2, "float16": 2, "short": 2, "shortint": 2,
    "byte": 1, "char": 1, "bool": 1, "signedchar": 1, "unsignedchar": 1, "uint8": 1, "int8": 1,
}  # fmt: skip


@lru_cache(maxsize=4096)
def operation_of(name: str) -> str:
    """``_allgather_base`` -> ``all_gather``; a name without a known operation stays as it is."""
    plain = name.lower().replace("_", "").replace("-", "")
    for part, operation in _OPERATIONS:
        if part in plain:
            return operation
    return name


@lru_cache(maxsize=4096)
def algorithm_of(kernel: str) -> tuple[str | None, str | None]:
    """(algorithm, protocol) from the names of NCCL's kernels: ``('RING', 'LL')``; None if missing."""
    match = _KERNEL.search(kernel)
    return (None, None) if match is None else (match[1], match[2])


@lru_cache(maxsize=256)
def element_size(dtype: str | None) -> int | None:
    """Bytes of an element of that type in any spelling of torch (``c10::Half``, ``BFloat16``); None if unknown."""
    if not dtype:
        return None
    plain = dtype.lower().removeprefix("c10::").replace(" ", "").replace("_t", "")
    return 1 if plain.startswith("float8") else _SIZES.get(plain)


def message_elements(operation: str, elements_in: int | None, elements_out: int | None, size: int | None) -> int | None:
    """Elements that nccl-tests counts as the message of one rank in a group of ``size``; None if not recorded."""
    if operation == "all_gather":
        if elements_out is not None:
            return elements_out
        return None if elements_in is None or size is None else elements_in * size
    return elements_in


def bus_factor(operation: str, size: int) -> float | None:
    """Bus bandwidth over algorithm bandwidth in a group of ``size``; None for operations outside of nccl-tests."""
    if size < 2:
        return None
    if operation == "all_reduce":
        return 2 * (size - 1) / size
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return (size - 1) / size
    return 1.0 if operation in ("broadcast", "reduce", "send_recv", "send", "recv") else None


def bus_bytes(operation: str, message: int, ranks: int, algorithm: str | None) -> float | None:
    """Bytes that a rank sends over the links of its node for a message; ``None`` for operations outside of nccl-tests.

    NVLS reduces in the switch: (1 + 1/n) of the message at most.
    """
    factor = bus_factor(operation, ranks)
    if factor is None:
        return None
    if (algorithm or "").startswith("NVLS"):
        factor = min(factor, 1 + 1 / ranks)
    return message * factor
