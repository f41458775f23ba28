"""The sections of a rule's page, which is the docstring of its module."""

from __future__ import annotations

import inspect
import re
import textwrap

HEADING = re.compile(r"([A-Z][A-Za-z ]{2,40}):(?:\s+(.*))?$")
"""A section of a page: ``Why it costs:`` at the margin, its text after it or below."""

_EXAMPLE = re.compile(r"Before::\n\n(.*?)\n\nAfter::\n\n(.*)", re.DOTALL)


def sections_of(doc: str) -> dict[str, str]:
    """The text of each section of a page, at the margin; the text before the first heading is in ``""``."""
    sections: dict[str, list[str]] = {}
    title = ""
    for number, line in enumerate(doc.splitlines()):
        heading = HEADING.match(line)
        if heading is None or not number:  # the first line is the summary, whatever it looks like
            sections.setdefault(title, []).append(line)
        else:
            title = heading.group(1)
            sections[title] = [heading.group(2) or ""]
    return {title: inspect.cleandoc("\n".join(lines)) for title, lines in sections.items()}


def example_of(doc: str) -> tuple[str, str]:
    """Return the code of the section *Example* before and after the fix; ``('', '')`` without that section."""
    match = _EXAMPLE.fullmatch(sections_of(inspect.cleandoc(doc)).get("Example", ""))
    return ("", "") if match is None else (textwrap.dedent(match[1]).strip("\n"), textwrap.dedent(match[2]).strip("\n"))
