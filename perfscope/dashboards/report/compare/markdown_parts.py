"""What the parts of a comparison's comment share: marks, what is folded, how many rows there is room for."""

from __future__ import annotations

NAME_LIMIT = 90
"""Characters of a name: in a comment a mangled one is there to be recognised, not to be copied."""
MOST_NOTES = 20

MARKS = {
    "regression": "\N{LARGE RED CIRCLE}",
    "improvement": "\N{LARGE GREEN CIRCLE}",
    "no change": "\N{MEDIUM WHITE CIRCLE}",
    "inconclusive": "\N{LARGE YELLOW CIRCLE}",
    "differs": "\N{LARGE BLUE CIRCLE}",
}
NO_MARK = "\N{WHITE SMALL SQUARE}"


def few(most: int, shrink: int) -> int:
    """Rows there is room for: at least one."""
    return max(1, most // shrink)


def folded(title: str, body: str) -> str:
    """``title`` is HTML, no Markdown is read in it."""
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"
