"""Costs that authors declare for their own kernels: Triton, CUDA custom ops, Pallas. No framework needed.

    @perfscope.kernel_cost("my_lib::scaled_add")
    def _(x, y, scale):
        return perfscope.Cost(flops=2 * x.numel(), bytes=3 * x.nbytes)

The formula is called with the arguments of a call: tensors of PyTorch, fake tensors of `perfscope compile`, or the
shapes that a profiler recorded. They have ``shape``, ``dtype``, ``numel()`` and ``nbytes``.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from perfscope.model import plugins
from perfscope.model.errors import UsageError, log_failure

_log = logging.getLogger(__name__)

TRITON = "triton."
"""Namespace of rows of an op graph that are launches of Triton kernels outside of any op."""


class Cost(NamedTuple):
    """Work of one call."""

    flops: int | Mapping[str, int] = 0
    """FLOPs; or FLOPs by dtype (``{"bfloat16": 2 * m * n * k}``); the peak of the dtype with the most FLOPs is used."""
    bytes: int | None = None
    """Bytes through device memory. None: every tensor argument and, where known, every result once."""

    @property
    def total_flops(self) -> int:
        """FLOPs of all dtypes."""
        return sum(self.flops.values()) if isinstance(self.flops, Mapping) else self.flops

    @property
    def dtype(self) -> str:
        """The dtype with the most FLOPs; ``""``: that of the first operand."""
        return max(self.flops, key=self.flops.__getitem__, default="") if isinstance(self.flops, Mapping) else ""


STATED = {
    "flops": "perfscope_flops",
    "transcendentals": "perfscope_transcendentals",
    "bytes_accessed": "perfscope_bytes",
}
"""Field of ``pl.CostEstimate`` -> attribute of a custom call in HLO that holds it as a decimal number."""

Formula = Callable[..., Cost | int]

_FORMULAS: dict[str, Formula] = {}
_FAILED: set[str] = set()


def kernel_cost(*kernels: Any) -> Callable[[Formula], Formula]:
    """Register the decorated formula as the cost of one call of each of ``kernels``.

    ``kernels``: ops (``torch.ops.my_lib.op``, a ``torch.library.custom_op``, or ``"my_lib::op"``), functions of kernels
    (``triton.jit``, Pallas), or names of kernels as in a recording. The formula returns a `Cost`, or FLOPs as a number;
    it has the parameters of the op or kernel. ``UsageError`` for an object without a name.
    """
    names = [kernel_name(kernel) for kernel in kernels]

    def register(formula: Formula) -> Formula:
        _FORMULAS.update(dict.fromkeys(names, formula))
        return formula

    return register


def kernel_name(kernel: Any) -> str:
    """Return the name of an op (``my_lib::op``), or of a kernel's function."""
    if isinstance(kernel, str):
        return kernel
    schema = getattr(kernel, "_schema", None)
    for holder, attribute in ((schema, "name"), (kernel, "_qualified_op_name"), (kernel, "_qualname")):
        if isinstance(name := getattr(holder, attribute, None), str):
            return name
    while (inner := getattr(kernel, "fn", None) or getattr(kernel, "func", None)) is not None:
        kernel = inner  # triton.jit and triton.autotune have the function as `fn`, functools.partial as `func`
    name = getattr(kernel, "__name__", None)
    if not isinstance(name, str):
        raise UsageError(f"kernel_cost: {kernel!r:.100} has no name; pass the op, the kernel's function, or its name")
    return name


def declared_cost(name: str, *arguments: Any, **named: Any) -> Cost | None:
    """Return the declared cost of a call of an op or kernel; ``None`` without a formula, or if the formula fails."""
    _load_plugins()
    formula = _FORMULAS.get(name)
    if formula is None:
        return None
    try:
        return as_cost(formula(*arguments, **named))
    except Exception as error:  # the formula of a user: neither the program nor the analysis may end because of it
        report_failure(name, error)
        return None


def declared_kernel(name: str) -> Cost | None:
    """Return the declared cost of each launch of a kernel of a recording; ``None`` if it depends on arguments."""
    _load_plugins()
    formula = _FORMULAS.get(name)
    try:
        if formula is not None:
            inspect.signature(formula).bind()
    except (TypeError, ValueError):  # it has parameters, or no signature
        return None
    return None if formula is None else declared_cost(name)


def is_declared(name: str) -> bool:
    """Whether a formula is registered under this name."""
    _load_plugins()
    return name in _FORMULAS


def as_cost(value: Any) -> Cost:
    """Return the result of a formula as a `Cost` of whole numbers: a number means FLOPs.

    ``TypeError`` for anything else, ``ValueError`` or ``OverflowError`` for numbers that are not finite.
    """
    if isinstance(value, Cost):
        flops, moved = value
        whole = {key: int(part) for key, part in flops.items()} if isinstance(flops, Mapping) else int(flops)
        return Cost(whole, None if moved is None else int(moved))
    if isinstance(value, (int, float)):
        return Cost(flops=int(value))
    raise TypeError(f"the formula returned {type(value).__name__}, not perfscope.Cost or a number of FLOPs")


@functools.cache
def _load_plugins() -> None:
    for plugin in plugins.plugins():
        if plugin.costs:
            try:
                plugins.load(plugin.costs)
            except Exception as error:  # another author's broken module must not end the program that is recorded
                log_failure(_log, f"the costs of plug-in {plugin.name} cannot be loaded", error)


def report_failure(name: str, error: Exception) -> None:
    """Log that a formula failed, once per op or kernel."""
    if name not in _FAILED:
        _FAILED.add(name)
        log_failure(_log, f"the declared cost of {name} cannot be computed", error)
