"""A function that is differentiated, by way of its jaxpr: traced, changed, and run in place of what was called.

A function may differentiate another one within it, and so may a derivative rule of the program's own. Where a call
comes from is known from the Python frames around it; they are in the tracebacks of the equations as well.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Protocol

from perfscope.profiler.ahead.jax import compat as compat
from perfscope.profiler.ahead.jax.lines import user_line


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """What is around a function that is differentiated."""

    tracer: CodeType
    """Of the frame that its own operations come from, and those of nothing that is differentiated further in."""
    in_rule: bool
    """It is in a derivative rule (``custom_vjp``, ``custom_jvp``)."""

    def derives(self, eqn: Any) -> bool:
        """Whether an equation is the derivative of something that was looked at on its own, a call further in."""
        traceback = eqn.source_info.traceback
        if traceback is None or "jvp(" not in str(eqn.source_info.name_stack):
            return False
        return any(_traces(code) and code is not self.tracer for code in traceback.raw_frames()[0])


class Rewriter(Protocol):
    """Who changes jaxprs and keeps count."""

    differentiated: int
    unseen: list[str]

    def rewritten(self, jaxpr: Any, around: CallContext) -> Any:
        """A function's jaxpr as it shall be."""


def through_jaxpr(fun: Callable[..., Any], book: Rewriter) -> Callable[..., Any]:
    """The function by way of its jaxpr, as ``book`` makes it. What reads values is run as it is, and reported."""
    import jax

    reads_values = (
        jax.errors.ConcretizationTypeError,
        jax.errors.NonConcreteBooleanIndexError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    )

    @functools.wraps(fun)
    def run(*arguments: Any) -> Any:
        book.differentiated += 1
        others: list[Any] = []

        def perfscope_traced(*inner: Any) -> list[Any]:
            leaves, tree = jax.tree.flatten(fun(*inner))
            tracers = [isinstance(leaf, jax.core.Tracer) for leaf in leaves]
            others[:] = [tree, [None if one else leaf for leaf, one in zip(leaves, tracers, strict=True)], tracers]
            return [leaf for leaf, one in zip(leaves, tracers, strict=True) if one]

        # a code object of its own for each: the frames are all that tells them apart
        perfscope_traced.__code__ = perfscope_traced.__code__.replace()
        try:
            closed = compat.traced_for_linearize(perfscope_traced, fun, arguments)
        except reads_values as error:
            line = user_line()
            where = "" if line is None else f" at {line}"
            book.unseen.append(f"what is differentiated{where} reads values ({type(error).__name__})")
            return fun(*arguments)
        changed = book.rewritten(closed.jaxpr, CallContext(tracer=perfscope_traced.__code__, in_rule=_in_rule()))
        found = iter(perfscope_run(changed, closed.consts, compat.flat_arguments(arguments).vals))
        tree, leaves, tracers = others
        return tree.unflatten([next(found) if one else leaf for leaf, one in zip(leaves, tracers, strict=True)])

    return run


def perfscope_run(jaxpr: Any, consts: Sequence[Any], values: Sequence[Any]) -> Sequence[Any]:
    """The results of a jaxpr; what is differentiated within it is a derivative rule's."""
    return compat.evaluated(jaxpr, consts, values)


def _in_rule() -> bool:
    """Whether what `staged` gave is called by a derivative rule: by the frames around it."""
    frame: FrameType | None = sys._getframe(2)
    traced = False
    while frame is not None:
        code = frame.f_code
        if compat.is_derivative_rule(code) or (code is perfscope_run.__code__ and not traced):
            return True
        traced = traced or _traces(code)
        frame = frame.f_back
    return False


def _traces(code: CodeType) -> bool:
    return code.co_name == "perfscope_traced" and code.co_filename == __file__
