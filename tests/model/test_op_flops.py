"""The FLOPs of ops."""

from __future__ import annotations

from perfscope.model.op_flops import CONVOLUTIONS, FORMULAS, PRODUCTS


def test_every_product_has_a_formula() -> None:
    missing = {name for name in PRODUCTS | CONVOLUTIONS if f"aten.{name}" not in FORMULAS}
    assert missing == {"einsum"}  # the dispatcher divides it into others
