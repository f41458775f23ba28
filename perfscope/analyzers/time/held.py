"""Variables of the program whose values grew over the run, as a run of ours looked at them."""

from __future__ import annotations

from typing import Literal, cast

import numpy as np
from msgspec import Struct

from perfscope.model.finding import Where
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, Trace

HeldKind = Literal["graph", "array", "container"]


class GrownName(Struct, frozen=True, kw_only=True):
    """A variable, and what was measured of it at each look."""

    name: str
    kind: HeldKind
    """A tensor whose autograd graph grows; a tensor or array; a list, dict or another container."""
    file: str
    line: int | None
    function: str
    steps: tuple[int, ...]
    sizes: tuple[int, ...]
    """Nodes of the graph, bytes of the array, or elements of the container."""
    bytes: tuple[int, ...]
    """Bytes of the tensors and arrays in it; what a graph keeps is not in them."""
    graphs: bool
    """What it holds last has an autograd graph."""

    @property
    def keeps_graphs(self) -> bool:
        """Whether the graph of each step is kept: by the tensor itself, or by those in the container."""
        return self.kind == "graph" or self.graphs

    @property
    def bytes_per_step(self) -> float:
        """By how many bytes it grew in a step, as a mean from the first look to the last."""
        return (self.bytes[-1] - self.bytes[0]) / max(1, self.steps[-1] - self.steps[0])

    @property
    def size_per_step(self) -> float:
        """By how much ``sizes`` grew in a step, as a mean from the first look to the last."""
        return (self.sizes[-1] - self.sizes[0]) / max(1, self.steps[-1] - self.steps[0])

    def where(self) -> Where:
        """The line that makes it grow."""
        return Where(file=self.file, line=self.line)


def grown_names(trace: Trace) -> tuple[GrownName, ...]:
    """The variables that grew, those that keep autograd graphs first, then those with most bytes."""
    rows = trace.rows["held_names"]
    if not len(rows):
        return ()
    key = np.column_stack([rows[name] for name in ("name", "kind", "file", "line", "function")])
    _, group = np.unique(key, axis=0, return_inverse=True)
    group = group.ravel()
    found = []
    for number in range(int(group.max()) + 1):
        of_name: Int64 = np.flatnonzero(group == number)
        of_name = of_name[np.argsort(rows["step"][of_name], kind="stable")]
        first = of_name[0]
        line = int(rows["line"][first])
        found.append(
            GrownName(
                name=trace.text(int(rows["name"][first])),
                kind=cast("HeldKind", trace.text(int(rows["kind"][first]))),
                file=trace.text(int(rows["file"][first])),
                line=None if line == MISSING else line,
                function=trace.text(int(rows["function"][first])),
                steps=tuple(rows["step"][of_name].tolist()),
                sizes=tuple(rows["size"][of_name].tolist()),
                bytes=tuple(rows["bytes"][of_name].tolist()),
                graphs=bool(rows["graphs"][of_name[-1]]),
            )
        )
    return tuple(sorted(found, key=lambda item: (item.kind != "graph", -item.bytes_per_step, item.name)))
