"""The sections of a rule's page, which is the docstring of its module."""

from __future__ import annotations

import inspect
import re

HEADING = re.compile(r"([A-Z][A-Za-z ]{2,40}):(?:\s+(.*))?$")
"""A section of a page: ``Why it costs:`` at the margin, its text after it or below."""


def sections_of(doc: str) -> dict[str, str]:
    """The text of each section of a page, at the margin; the text before the first heading is in ``""``."""
    sections: dict[str, list[str]] = {}
    title = ""
    for line in doc.splitlines():
        heading = HEADING.match(line)
        if heading is None:
            sections.setdefault(title, []).append(line)
        else:
            title = heading.group(1)
            sections[title] = [heading.group(2) or ""]
    return {title: inspect.cleandoc("\n".join(lines)) for title, lines in sections.items()}
