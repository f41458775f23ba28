"""States of random generators of the host."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from typing import Any


def host_generators() -> Iterator[tuple[str, int]]:
    """(Name, hash of its state) of Python's generator, and of NumPy's global one if NumPy is imported."""
    yield "python", _hash(repr(random.getstate()).encode())
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, *rest = numpy.random.get_state()
        yield "numpy", _hash(repr((name, position, rest)).encode() + keys.tobytes())


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
