"""A fact over several traces, computed once and kept with the first of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from perfscope.model.trace import Trace

FactT = TypeVar("FactT")


@dataclass(frozen=True, slots=True)
class _Over:
    """``derive`` of all of ``traces`` as a fact of one of them; two are equal if both parts are."""

    derive: Callable[[tuple[Trace, ...]], Any]
    traces: tuple[Trace, ...]

    def __call__(self, _: Trace) -> Any:
        return self.derive(self.traces)


def over(traces: Sequence[Trace], derive: Callable[[tuple[Trace, ...]], FactT]) -> FactT:
    """``derive(traces)``, computed once for these traces in this order. There is at least one trace."""
    held = tuple(traces)
    return cast("FactT", held[0].fact(_Over(derive, held)))
