"""The pieces of time in which a finding costs most: where to look for it on a timeline."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from perfscope.model.finding import MOST_SPANS, Span


def worst_spans(starts: npt.ArrayLike, ends: npt.ArrayLike, costs: npt.ArrayLike) -> tuple[Span, ...]:
    """Of arrays of one length (ns, ns on the trace's clock; a cost each) the costliest pieces that cost anything."""
    held = np.asarray(costs)
    order = np.argsort(-held, kind="stable")[:MOST_SPANS]
    begins, stops = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    return tuple(Span(start_ns=int(begins[at]), end_ns=int(stops[at])) for at in order.tolist() if held[at] > 0)


def spans_of_ranks(pieces: Iterable[tuple[int | None, int, int]]) -> tuple[Span, ...]:
    """The first of (rank, start, end), each on the clock of its rank's trace; the costliest come first."""
    found = [Span(start_ns=start, end_ns=end, rank=rank) for rank, start, end in pieces]
    return tuple(found[:MOST_SPANS])
