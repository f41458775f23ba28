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
        return _with_dtype(declared_cost(name, *arguments, **named), arguments)
    counter = sys.modules.get("torch.utils.flop_counter")
    formula = None if counter is None else counter.flop_registry.get(getattr(func, "_overloadpacket", func))
    if formula is None or name.startswith("aten::"):
        return None
    try:
        return _with_dtype(as_cost(formula(*arguments, **named, out_val=result)), arguments)
    except Exception as error:  # the formula of a user
        report_failure(name, error)
        return None


def _with_dtype(cost: Cost | None, arguments: Any) -> Cost | None:
    """Return the cost with FLOPs of the first operand's dtype, if none is declared."""
    if cost is None or cost.dtype or not cost.flops:
        return cost
    dtype = next((value.dtype for value in arguments if hasattr(value, "dtype")), "")
    return cost._replace(flops={str(dtype).removeprefix("torch."): cost.total_flops})
