"""Load of links during communication."""

from __future__ import annotations

from perfscope.analyzers.ranks.links import LinkUse, link_use
from perfscope.model.results import Column, ResultTable

RESULT: ResultTable[LinkUse] = ResultTable(
    name="links",
    doc="Load of each link with counters, during communication.",
    columns=(
        Column("link", str, "text", "the link", "key"),
        Column("samples", int, "count", "samples of its counters during communication"),
        Column("mean", float, "quantity", "mean load by time", title="mean while communicating"),
        Column("most", float, "quantity", "largest load"),
        Column("unit", str, "text", "unit of the load"),
    ),
    rows=link_use,
)
