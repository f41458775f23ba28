"""Costs that authors of Pallas kernels state (``pl.CostEstimate``), written into programs for GPUs.

jax gives the estimate to the TPU compiler, and drops it when it lowers a kernel to Triton or Mosaic GPU. Here it
becomes attributes of the custom call, which XLA keeps and does not read; the names are in `model/stated_cost.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any

from perfscope.model.stated_cost import STATED
from perfscope.profiler.patching import Undo, wrap

_BACKENDS = ("jax._src.pallas.triton", "jax._src.pallas.mosaic_gpu")
_REGISTRATION, _LOWERING = "pallas_call_registration", "pallas_call_lowering"
_CORE, _RULE = "jax._src.pallas.core", "get_lowering_rule"
"""Returns the lowering that is registered for a kind of compiler parameters, which comes first."""
_ATTRIBUTES = "mhlo.frontend_attributes"


def state_costs() -> Undo | None:
    """Write the estimates of kernels that are lowered for a GPU from now on.

    ``None`` while Pallas is not imported.
    """
    if "jax._src.pallas.pallas_call" not in sys.modules:
        return None
    undos = []
    for backend in _BACKENDS:
        with contextlib.suppress(ImportError, AttributeError):  # not in this jax: its kernels state no cost
            module = importlib.import_module(f"{backend}.{_REGISTRATION}")
            undos.append(wrap(module, _LOWERING, _stating))
    with contextlib.suppress(KeyError):
        undos.append(wrap(sys.modules[_CORE], _RULE, _with_stating_rules))

    def undo() -> None:
        while undos:
            undos.pop()()

    return undo


def _with_stating_rules(original: Any) -> Any:
    def rule_of(parameters: Any, platform: str, *more: Any) -> Any:
        rule = original(parameters, platform, *more)
        return rule if rule is None or platform != "gpu" else _stating(rule)

    return rule_of


def _stating(original: Any) -> Any:
    def lower(context: Any, *nodes: Any, cost_estimate: Any = None, **parameters: Any) -> Any:
        results = original(context, *nodes, cost_estimate=cost_estimate, **parameters)
        if cost_estimate is not None:
            # the estimate is a remark: a program compiles without it
            with contextlib.suppress(AttributeError, IndexError, TypeError, ValueError):
                _write(results[0].owner, cost_estimate)
        return results

    return lower


def _write(operation: Any, estimate: Any) -> None:
    from jax.interpreters import mlir

    text = mlir.ir.StringAttr.get
    attributes = {key: text(str(int(getattr(estimate, name)))) for name, key in STATED.items()}
    if _ATTRIBUTES in operation.attributes:
        attributes |= {held.name: held.attr for held in operation.attributes[_ATTRIBUTES]}
    operation.attributes[_ATTRIBUTES] = mlir.ir.DictAttr.get(attributes)
