"""Ops and layers of a model's forward, as the recording of a side of `perfscope parity` has them."""

from __future__ import annotations

from perfscope.model.documents.bounded_json import Count, Number, Texts, Value


class Layer(Value, frozen=True, kw_only=True):
    """A point of the forward whose value was kept: the output of a module, or of an op that uses a weight."""

    name: str
    op: str
    line: str = ""
    """``model.py:38``, of the user's code."""
    weights: Texts = ()
    """Weights that it uses itself; ``NAME[i]`` of weights that are stacked by layer."""
    follows: Count | None = None
    """The layer whose result this layer takes: a product before its bias."""
    dtype: str = ""
    roundings: Count = 0
    """Ops on floating point from the inputs up to here, each of which rounds its result."""
    terms: Count = 0
    """Sum of the reduction lengths of these ops."""


class Op(Value, frozen=True, kw_only=True):
    """An op of the forward, with numbers about its result that no change of layout changes."""

    name: str
    line: str = ""
    layers: Count = 0
    """Layers that were complete before it."""
    size: Count
    norm: Number | None
    total: Number | None
    absolute: Number | None
    """Sum of the absolute values. ``None``: not finite."""
