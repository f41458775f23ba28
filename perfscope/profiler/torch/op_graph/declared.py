"""Costs of ops that their authors declared: to perfscope (`model/kernel_cost.py`), or to torch's own FLOP counter."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from perfscope.model.kernel_cost import (
    TRITON,
    Cost,
    as_cost,
    declared_cost,
    declared_kernel,
    is_declared,
    kernel_name,
    report_failure,
)
from perfscope.profiler.patching import Undo, undo_all, wrap

_BENCH = "_bench"
"""Method of triton's ``Autotuner`` (3.0 to 3.8) that times one configuration by launching it."""


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


class Launches:
    """Launches of Triton kernels: a row each, or a part of the cost of the op that launches them.

    ``record(name, tensors, cost)`` adds a row. Launches by which triton's autotuner chooses a configuration
    are not recorded, because they are not the work of a step.
    """

    def __init__(self, record: Callable[[str, list[Any], Cost | None], None]) -> None:
        self._record = record
        self._inside: dict[int, list[Cost | None]] = {}
        self._tuning = threading.local()

    def watch(self) -> Undo:
        """Watch the kernels of triton, if the program has imported it."""
        found = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", "InterpretedFunction"))
        classes = [getattr(sys.modules.get(module), name, None) for module, name in found]
        undos = [wrap(kind, "run", self._watched) for kind in classes if "run" in vars(kind or object)]
        tuner = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
        undos += [wrap(kind, _BENCH, self._tunes) for kind in (tuner,) if _BENCH in vars(kind or object)]
        return undo_all(undos)

    @contextmanager
    def of_op(self) -> Iterator[list[Cost | None]]:
        """Collect the costs of the kernels that an op of this thread launches."""
        thread = threading.get_ident()
        before, costs = self._inside.get(thread), list[Cost | None]()
        self._inside[thread] = costs
        try:
            yield costs
        finally:
            if before is None:
                del self._inside[thread]
            else:
                self._inside[thread] = before

    def _tunes(self, bench: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._tuning.on = True
            try:
                return bench(*arguments, **named)
            finally:
                self._tuning.on = False

        return call

    def _watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def call(kernel: Any, *arguments: Any, **named: Any) -> Any:
            compiled = run(kernel, *arguments, **named)
            if not named.get("warmup") and not getattr(self._tuning, "on", False):
                cost = launch_cost(kernel, compiled, arguments, named)
                inside = self._inside.get(threading.get_ident())
                if inside is not None:
                    inside.append(cost)
                else:
                    tensors = [value for value in (*arguments, *named.values()) if hasattr(value, "untyped_storage")]
                    self._record(TRITON + kernel_name(kernel), tensors, cost)
            return compiled

        return call


def launch_cost(kernel: Any, compiled: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Cost | None:
    """Return the declared cost of a launch: by `kernel_cost`, or by ``triton.jit(launch_metadata=...)``."""
    name = kernel_name(kernel)
    own = {key: value for key, value in named.items() if key not in ("grid", "warmup")}
    if is_declared(name):
        return declared_kernel(name) or _with_dtype(declared_cost(name, *arguments, **own), arguments)
    metadata = getattr(kernel, "launch_metadata", None)
    if not callable(metadata):
        return None
    try:
        bound = {**dict(zip(kernel.arg_names, arguments, strict=False)), **own}
        grid = named["grid"]
        stated = metadata(grid(bound) if callable(grid) else grid, getattr(compiled, "metadata", None), bound)
        flops = {dtype: stated[key] for key, dtype in _FLOPS.items() if stated.get(key)}
        return _with_dtype(as_cost(Cost(flops or stated.get("flops", 0), stated.get("bytes"))), arguments)
    except Exception as error:  # a function of the user
        report_failure(name, error)
        return None


_FLOPS = {"flops8": "float8_e4m3fn", "flops16": "bfloat16", "flops32": "float32", "flops64": "float64"}
"""FLOPs by width, as Triton's profiler reads them from the metadata of a launch."""


def sum_of(costs: list[Cost | None]) -> Cost | None:
    """Return the sum of the costs of an op's kernels; ``None`` without kernels, or if one has no cost or no bytes."""
    known = [cost for cost in costs if cost is not None and cost.bytes is not None]
    if not known or len(known) < len(costs):
        return None
    dtype = max(known, key=lambda cost: cost.total_flops).dtype
    flops = sum(cost.total_flops for cost in known)
    return Cost({dtype: flops} if dtype else flops, sum(cost.bytes or 0 for cost in known))
