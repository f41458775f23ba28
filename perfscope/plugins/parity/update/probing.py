"""Asks the optimizer of a side for its responses to the probes of `rules`, weight by weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from perfscope.plugins.parity.document import Arrays, Weight
from perfscope.plugins.parity.update.rules import PROBES

NAMED = ("sgd", "adam", "adamw")
"""Optimizers of both frameworks, with the defaults of each; the learning rate is 1e-3 where it has no default."""
RATE = 1e-3


Updates = Callable[[Arrays, Sequence[Arrays]], list[Arrays]]
"""Runs an optimizer from fresh state: the weights at the start, then one step for each of the gradients; returns all
weights after each step."""


def responses(weights: Sequence[Weight], updates: Updates) -> dict[str, dict[str, list[float]]]:
    """Weight -> probe -> value after each step; NaN where the elements of a weight do not stay equal."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, probe in PROBES.items():
        starts = {weight.name: np.full(weight.shape, probe.start) for weight in weights}
        gradients = [{each: np.full(value.shape, size) for each, value in starts.items()} for size in probe.gradients]
        for after in updates(starts, gradients):
            for each, value in after.items():
                if each in starts and value.size:
                    same = bool((value == value.flat[0]).all())
                    one = float(value.flat[0]) if same else math.nan
                    found.setdefault(each, {}).setdefault(name, []).append(one)
    return found
