"""Tables of blocks as rows of texts, as every renderer shows them."""

from __future__ import annotations

from perfscope.dashboards.report.blocks import Section, Table
from perfscope.dashboards.report.renderers.values import shown


def rows(table: Table) -> list[dict[str, str]]:
    """A dict for each row: title of the column -> cell."""
    return [
        {head.title: shown(value, head) for head, value in zip(table.heads, row, strict=True)} for row in table.rows
    ]


def listed(section: Section, start: str) -> list[str]:
    """Sentences of a section that begin so."""
    return [text for text in section.texts() if text.startswith(start)]
