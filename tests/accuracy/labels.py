"""The labels in the sources: a defect's line ends in ``# defect: RULE[, RULE][: what it costs]``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from perfscope.analyzers.registry import rule_ids
from tests.conftest import REPOSITORY

WORKLOADS = REPOSITORY / "perfscope" / "workloads"
LABEL = re.compile(r"# defect: (?P<rules>\w+(?:, \w+)*)(?::|$)")
NO_RULE = "none"
"""Label of a defect that no rule finds in a single program: two programs are compared."""

SHARED = ("host_defects.py", "pipelines/media.py", "vision/pictures.py")
"""Files that programs of both frameworks import."""


@cache
def labelled_lines() -> dict[tuple[str, int], tuple[str, frozenset[str]]]:
    """(file below the workloads, line) -> the line, and the rules in its label. ``ValueError``: an unknown rule."""
    lines = {}
    for path in sorted(WORKLOADS.rglob("*.py")):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if "# defect:" not in text:
                continue
            label = LABEL.search(text)
            rules = frozenset(label["rules"].split(", ")) if label else frozenset()
            if not rules or not rules <= {*rule_ids(), NO_RULE}:
                raise ValueError(f"{path}:{number}: a label names rules: {text.strip()}")
            lines[path.relative_to(WORKLOADS).as_posix(), number] = text, rules
    return lines


def lines_of(rule: str, text: str, module: str | None = None) -> frozenset[tuple[str, int]]:
    """(file, line) of the labels of a rule that hold ``text``; ``module``: only those of its framework."""
    of_jax = None if module is None else module.startswith("perfscope.workloads.jax.")
    return frozenset(
        place
        for place, (line, rules) in labelled_lines().items()
        if rule in rules
        and text in line
        and (of_jax is None or place[0].startswith("jax/") is of_jax or place[0] in SHARED)
    )


def place_of(file: str | None, line: int | None) -> tuple[str, int] | None:
    """A finding's place as (file below the workloads, line); ``None`` outside of them."""
    if file is None or line is None:
        return None
    _, found, below = Path(file).as_posix().rpartition("workloads/")
    return (below, line) if found else None
