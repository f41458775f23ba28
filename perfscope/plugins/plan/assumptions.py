"""Unknowns of the model of time, as named assumptions with two ends; scenarios are combinations of these ends.

All candidates are priced under the same scenarios, so that an assumption that moves two of them alike does not blur
which one is faster.
"""

from __future__ import annotations

from itertools import product
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Name = Literal[
    "products", "attention", "kernels", "link", "network", "weights hidden", "tensor hidden", "tokens hidden",
    "sends hidden",
]  # fmt: skip

Times = NDArray[np.float64]
"""ns in each scenario."""


class Unknown(Struct, frozen=True, kw_only=True):
    """One assumption: at 0 the step is fastest, at 1 slowest."""

    name: Name
    text: str
    source: str
    measurement: str
    """Measurement that decides it, minutes on two nodes."""
    best: float = 0.0
    worst: float = 1.0
    """Shares of communication that other work hides, at both ends; for the others the position between their ends."""


_SHARES = "an assumption without a measurement; a recording of the same devices narrows it (--calibrate)"
_KERNELS = "measured kernels of public recordings where there are any, else peaks and usual shares: compile-model.md"
_LINKS = "docs/compile-model.md, collectives"

UNKNOWNS: tuple[Unknown, ...] = (
    Unknown(name="products", text="matrix products, from fast to slow kernels of their size", source=_KERNELS,
            measurement="the products of one layer at the sizes of a device"),
    Unknown(name="attention", text="attention, from a kernel that skips masked scores to one that does not",
            source=_KERNELS, measurement="the attention of one layer, forward and backward"),
    Unknown(name="kernels", text="norms, activations, loss and optimizer, from fused kernels to separate ones",
            source=_KERNELS, measurement="one layer without its products"),
    Unknown(name="link", text="the links inside a node, from their data sheet to the usual share", source=_LINKS,
            measurement="an all-gather and a reduce-scatter inside a node"),
    Unknown(name="network", text="the network between nodes, from its data sheet to the usual share", source=_LINKS,
            measurement="an all-gather and a reduce-scatter between two nodes"),
    Unknown(name="weights hidden", text="exchanges of weights and gradients that other layers hide: all to half",
            source=_SHARES, measurement="a few steps of two layers with fsdp over two nodes", best=1.0, worst=0.5),
    Unknown(name="tensor hidden", text="exchanges inside a layer that its own products hide: most to none",
            source=_SHARES, measurement="a few steps of two layers with tensor parallelism", best=0.7, worst=0.0),
    Unknown(name="tokens hidden", text="exchanges of keys, values and routed tokens that are hidden: most to none",
            source=_SHARES, measurement="a few steps of two layers with that axis", best=0.7, worst=0.0),
    Unknown(name="sends hidden", text="sends between the stages of a pipeline that are hidden: all to none",
            source=_SHARES, measurement="a few steps of a pipeline over two nodes", best=1.0, worst=0.0),
)  # fmt: skip

INDEX: dict[str, int] = {unknown.name: number for number, unknown in enumerate(UNKNOWNS)}

MIDDLE = 0
"""Row of the scenario in which every assumption lies in the middle."""


class Scenarios(Struct, frozen=True, kw_only=True):
    """Combinations of the ends, one in a row; the first row is the middle of all."""

    rows: NDArray[np.float64]
    unknowns: tuple[Unknown, ...] = UNKNOWNS

    def at(self, name: str) -> Times:
        """Position of one assumption, 0 to 1, in each scenario."""
        return self.rows[:, INDEX[name]]

    def hidden(self, name: str) -> Times:
        """Share of the communication that is hidden, in each scenario."""
        unknown = self.unknowns[INDEX[name]]
        return unknown.best + (unknown.worst - unknown.best) * self.at(name)

    @property
    def fixed(self) -> tuple[str, ...]:
        """Assumptions whose two ends are equal, because a recording decided them."""
        return tuple(
            unknown.name
            for number, unknown in enumerate(self.unknowns)
            if len(self.rows) > 1 and np.ptp(self.rows[:, number]) == 0
        )


def scenarios(narrowed: dict[str, tuple[float, float]] | None = None) -> Scenarios:
    """The middle and all combinations of ends. ``narrowed``: assumption -> its ends, 0 to 1, from a recording.

    Between two combinations the time of a candidate changes evenly in each assumption, except where communication
    begins to be hidden whole; so an order that holds at all combinations and in the middle may still change between
    them, in such a corner.
    """
    ends = [(narrowed or {}).get(unknown.name, (0.0, 1.0)) for unknown in UNKNOWNS]
    middle = [(low + high) / 2 for low, high in ends]
    corners = product(*(dict.fromkeys(pair) for pair in ends))
    return Scenarios(rows=np.array([middle, *corners], dtype=np.float64))


def moved(base: Scenarios, name: str) -> Scenarios:
    """Three scenarios: one assumption at its fast end, in the middle and at its slow end, all others in the middle."""
    column = base.rows[:, INDEX[name]]
    rows = np.repeat(base.rows[MIDDLE][None, :], 3, axis=0)
    rows[:, INDEX[name]] = column.min(), base.rows[MIDDLE, INDEX[name]], column.max()
    return Scenarios(rows=rows)
