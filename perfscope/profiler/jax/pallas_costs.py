"""Costs of Pallas kernels, written into the programs that contain them.

jax gives the author's ``pl.CostEstimate`` to the TPU compiler, and drops it when it lowers a kernel for a GPU. Here it
becomes attributes of the custom call, which XLA keeps and does not read; so does what `perfscope.kernel_cost` declares
for a kernel without an estimate. The names of the attributes are in `model/kernel_cost.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
from dataclasses import dataclass
from typing import Any

from perfscope.model.kernel_cost import STATED, declared_cost
from perfscope.profiler.patching import Undo, wrap

_LOWERINGS = (
    ("jax._src.pallas.triton.pallas_call_registration", "pallas_call_lowering"),
    ("jax._src.pallas.mosaic_gpu.pallas_call_registration", "pallas_call_lowering"),
    ("jax._src.pallas.mosaic.pallas_call_registration", "pallas_call_tpu_lowering_rule"),
)
_CORE, _RULE = "jax._src.pallas.core", "get_lowering_rule"
"""Returns the lowering that is registered for a kind of compiler parameters, which comes first."""
_ATTRIBUTES = "mhlo.frontend_attributes"


@dataclass(frozen=True)
class Operand:
    """An array that a kernel takes, with the attributes that formulas of costs use."""

    shape: tuple[int, ...]
    dtype: Any

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.numel() * int(self.dtype.itemsize)


def state_costs() -> Undo | None:
    """Write the costs of kernels that are lowered from now on, except interpreted ones.

    ``None`` while Pallas is not imported.
    """
    if "jax._src.pallas.pallas_call" not in sys.modules:
        return None
    undos = []
    for module, lowering in _LOWERINGS:
        with contextlib.suppress(ImportError, KeyError):  # not in this jax: its kernels have no cost
            undos.append(wrap(importlib.import_module(module), lowering, _stating))
    with contextlib.suppress(KeyError):
        undos.append(wrap(sys.modules[_CORE], _RULE, _with_stating_rules))

    def undo() -> None:
        while undos:
            undos.pop()()

    return undo


def _with_stating_rules(original: Any) -> Any:
    def rule_of(parameters: Any, platform: str, *more: Any) -> Any:
        rule = original(parameters, platform, *more)
        return None if rule is None else _stating(rule)

    return rule_of


def _stating(original: Any) -> Any:
    def lower(context: Any, *nodes: Any, **parameters: Any) -> Any:
        results = original(context, *nodes, **parameters)
        # a program compiles without its cost, too
        with contextlib.suppress(ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError):
            numbers = _numbers(context, parameters)
            if numbers:
                _write(results[0].owner, numbers)
        return results

    return lower


def _numbers(context: Any, parameters: Any) -> dict[str, int]:
    """The cost of a kernel by the name of its attribute: the author's estimate, else the declared cost."""
    estimate = parameters["cost_estimate"]
    if estimate is not None:
        return {key: int(getattr(estimate, name)) for name, key in STATED.items()}
    operands = [Operand(tuple(aval.shape), aval.dtype) for aval in context.avals_in]
    cost = declared_cost(parameters["jaxpr"].debug_info.func_name, *operands)
    if cost is None:
        return {}
    moved = {} if cost.bytes is None else {STATED["bytes_accessed"]: int(cost.bytes)}
    return {STATED["flops"]: int(cost.total_flops), **moved}


def _write(operation: Any, numbers: dict[str, int]) -> None:
    from jax.interpreters import mlir

    attributes = {key: mlir.ir.StringAttr.get(str(number)) for key, number in numbers.items()}
    if _ATTRIBUTES in operation.attributes:
        attributes |= {held.name: held.attr for held in operation.attributes[_ATTRIBUTES]}
    operation.attributes[_ATTRIBUTES] = mlir.ir.DictAttr.get(attributes)
