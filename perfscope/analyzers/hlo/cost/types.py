"""Cost of a piece of an HLO program: arithmetic, memory traffic, bytes sent to other devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from perfscope.analyzers.hlo.scope import scope_of

NO_PRODUCTS: Mapping[Product, int] = {}

Phase = Literal["forward", "backward", "recompute", "unnamed"]


class Product(Struct, frozen=True, order=True):
    """Kind of a matrix product or convolution, which determines the peak that it can reach."""

    dtype: str
    """Element type of the operands in HLO's notation (the wider type of the two)."""
    precision: str = "default"
    """``default``, ``high`` or ``highest`` as in the program, or an algorithm (``dot_bf16_bf16_f32_x3``)."""


class Work(Struct, frozen=True, kw_only=True):
    """Arithmetic of one run. Uncountable arithmetic is ``None`` instead of a ``Work``."""

    flops: int = 0
    """FLOPs without transcendentals: one per element that an arithmetic op yields, of any type, as XLA counts; two per
    multiply-add.
    """
    transcendentals: int = 0
    """Results of ``exponential``, ``tanh``, ``rsqrt`` and similar."""
    products: Mapping[Product, int] = field(default_factory=lambda: NO_PRODUCTS)
    """Part of ``flops`` in matrix products and convolutions, by kind."""
    exact: bool = True
    """False if the numbers are lower bounds."""

    def times(self, count: int) -> Work:
        """The work of ``count`` repetitions."""
        return Work(
            flops=self.flops * count,
            transcendentals=self.transcendentals * count,
            products={kind: flops * count for kind, flops in self.products.items()} if self.products else NO_PRODUCTS,
            exact=self.exact,
        )


def product_work(flops: int, dtype: str, precision: str = "default") -> Work:
    """The work of one matrix product or convolution of ``flops``."""
    return Work(flops=flops, products={Product(dtype, precision): flops})


class Traffic(Struct, frozen=True, kw_only=True):
    """Bytes moved by one run."""

    read: int = 0
    """From device memory (HBM)."""
    written: int = 0
    """To device memory."""
    wire: int = 0
    """Sent to other devices by each participating device."""
    host: int = 0
    """Read from or written to the host's memory."""


NOTHING = Traffic()


class Cost(Struct, frozen=True, kw_only=True):
    """Work and traffic, with the amount of uncountable work."""

    flops: int = 0
    transcendentals: int = 0
    products: Mapping[Product, int] = field(default_factory=lambda: NO_PRODUCTS)
    bytes_read: int = 0
    bytes_written: int = 0
    wire_bytes: int = 0
    host_bytes: int = 0
    unknown: int = 0
    """Number of executed instructions with unknown arithmetic (0 in ``flops``)."""
    exact: bool = True
    """False if the numbers are lower bounds, because some work or a trip count is unknown."""

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    def __add__(self, other: Cost) -> Cost:
        products = self.products
        if other.products:
            merged = dict(products)
            for kind, flops in other.products.items():
                merged[kind] = merged.get(kind, 0) + flops
            products = merged
        return Cost(
            flops=self.flops + other.flops,
            transcendentals=self.transcendentals + other.transcendentals,
            products=products,
            bytes_read=self.bytes_read + other.bytes_read,
            bytes_written=self.bytes_written + other.bytes_written,
            wire_bytes=self.wire_bytes + other.wire_bytes,
            host_bytes=self.host_bytes + other.host_bytes,
            unknown=self.unknown + other.unknown,
            exact=self.exact and other.exact,
        )

    def times(self, count: int, *, exact: bool = True) -> Cost:
        """Return the cost of ``count`` repetitions; ``exact=False`` if the count is a lower bound."""
        return Cost(
            flops=self.flops * count,
            transcendentals=self.transcendentals * count,
            products={kind: flops * count for kind, flops in self.products.items()} if self.products else NO_PRODUCTS,
            bytes_read=self.bytes_read * count,
            bytes_written=self.bytes_written * count,
            wire_bytes=self.wire_bytes * count,
            host_bytes=self.host_bytes * count,
            unknown=self.unknown * count,
            exact=self.exact and exact,
        )


def cost_of(work: Work | None, traffic: Traffic) -> Cost:
    """Return one instruction's cost from its parts."""
    known = work if work is not None else Work(exact=False)
    return Cost(
        flops=known.flops,
        transcendentals=known.transcendentals,
        products=known.products,
        bytes_read=traffic.read,
        bytes_written=traffic.written,
        wire_bytes=traffic.wire,
        host_bytes=traffic.host,
        unknown=work is None,
        exact=known.exact,
    )


# Phase of a training step, by the path that JAX gives an op.


def phase_of(op_name: str) -> Phase:
    """Return the phase of an op by its path; ops added by XLA have none.

    Everything outside the backward pass, including the optimizer, counts as forward. Ops that XLA itself recomputes
    keep the phase of their original.
    """
    return scope_of(op_name).phase if op_name else "unnamed"
