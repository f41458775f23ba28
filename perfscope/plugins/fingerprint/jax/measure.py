"""Hash and sketch of an array inside of a compiled program, in 32 bits, because jax has no others by default."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from perfscope.plugins.fingerprint.document import BUCKETS
from perfscope.profiler.jax.jaxpr_walk import is_float

WIDTH = 4 + 2 + BUCKETS
"""Numbers of 32 bits of a value: its hash and that of its first row, two each, then the sketch in float32."""


def is_key(value: Any) -> bool:
    """Whether an array holds keys of random generators."""
    return bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def measure(value: Any) -> Any:
    """``WIDTH`` numbers of an array, as unsigned integers."""
    if is_key(value):
        value = jax.random.key_data(value)
    value = jnp.asarray(value)
    if not value.size:
        return jnp.zeros(WIDTH, jnp.uint32)
    whole = _hash(_words(value))
    row = _hash(_words(value[0])) if value.ndim and value.shape[0] > 1 else whole
    sketch = jnp.zeros(2 + BUCKETS, jnp.float32)
    if is_float(value):
        sketch = _sketch(value.reshape(-1).astype(jnp.float32))
    return jnp.concatenate([*whole, *row, jax.lax.bitcast_convert_type(sketch, jnp.uint32)])


def row_of(numbers: np.ndarray, *, floating: bool) -> tuple[str, str, list[float] | None]:
    """Hash, hash of the first row, and sketch, from the numbers of a value."""
    parts = [f"{int(numbers[index]):08x}{int(numbers[index + 1]):08x}" for index in (0, 2)]
    sketch = numbers[4:].astype(np.uint32).view(np.float32)
    return parts[0], parts[1], [float(part) for part in sketch] if floating and np.isfinite(sketch).all() else None


def _words(value: Any) -> Any:
    """The bits as unsigned integers of 32 bits, one or two per element."""
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        value = jnp.stack([value.real, value.imag], -1)
    size = value.dtype.itemsize
    if value.dtype == jnp.bool_ or jnp.dtype(value.dtype).name in ("int4", "uint4", "int2", "uint2"):
        return value.astype(jnp.uint32).reshape(-1)
    if size >= 4:
        return jax.lax.bitcast_convert_type(value, jnp.uint32).reshape(-1)
    narrow = jnp.uint16 if size == 2 else jnp.uint8
    return jax.lax.bitcast_convert_type(value, narrow).astype(jnp.uint32).reshape(-1)


def _hash(words: Any) -> tuple[Any, Any]:
    """Two sums modulo 2^32 of mixed products with odd numbers of the places: a changed word changes both."""
    place = jnp.arange(words.size, dtype=jnp.uint32)
    folded = words ^ (words >> 16)
    sums = []
    for salt, shift in ((0, 15), (0x9E3779B9, 13)):
        product = folded * (_mixed(place ^ jnp.uint32(salt)) | jnp.uint32(1))
        sums.append((product ^ (product >> shift)).sum(dtype=jnp.uint32).reshape(1))
    return sums[0], sums[1]


def _sketch(flat: Any) -> Any:
    """[sum, largest magnitude, sums of elements with random signs by their place modulo 8]."""
    bits = (_mixed(jnp.arange(flat.size, dtype=jnp.uint32)) >> 16) & 1
    signed = flat * (1.0 - 2.0 * bits.astype(jnp.float32))
    buckets = jnp.pad(signed, (0, -flat.size % BUCKETS)).reshape(-1, BUCKETS).sum(0)
    return jnp.concatenate([flat.sum().reshape(1), jnp.abs(flat).max().reshape(1), buckets])


def _mixed(number: Any) -> Any:
    """32 bits that look random (the finalizer of MurmurHash3, A. Appleby)."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        number = (number ^ (number >> shift)) * jnp.uint32(factor)
    return number ^ (number >> 16)
