"""Costs of ops that their authors declared: to perfscope (`model/kernel_cost.py`), or to torch's own FLOP counter."""

from __future__ import annotations

import sys
from typing import Any

from perfscope.model.kernel_cost import Cost, as_cost, declared_cost, is_declared, kernel_name, report_failure


def declared_call(func: Any, arguments: Any, named: Any, result: Any) -> Cost | None:
    """Return the declared cost of a call of an op; ``None`` without a formula.

    Formulas of ``torch.utils.flop_counter.register_flop_formula`` return FLOPs only; bytes are those of the operands.
    ATen's own ops have theirs in `model/op_flops.py`.
    """
    name = kernel_name(func)
    if is_declared(name):
        return declared_cost(name, *arguments, **named)
    counter = sys.modules.get("torch.utils.flop_counter")
    formula = None if counter is None else counter.flop_registry.get(getattr(func, "_overloadpacket", func))
    if formula is None or name.startswith("aten::"):
        return None
    try:
        return as_cost(formula(*arguments, **named, out_val=result))
    except Exception as error:  # the formula of a user
        report_failure(name, error)
        return None
