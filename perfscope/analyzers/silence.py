"""Findings that a user silences: by a comment in the code, or by the path of the file.

``# perfscope: ignore[host_sync] the loss is printed on purpose`` at the end of the line that a finding names silences
that rule there; several rules are separated by commas. A silenced finding stays in its outcome, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.finding import Finding, Outcome

COMMENT = re.compile(r"#\s*perfscope:\s*ignore\[([A-Za-z0-9_\-,\s]+)\](.*)")

NO_REASON = "no reason given"

MOST_FILE_BYTES = 4 << 20
"""Of a source file: what is larger was written by a program."""


def silenced(
    outcomes: Sequence[Outcome], sources: Sequence[str] = (), ignore: Sequence[str] = ()
) -> tuple[Outcome, ...]:
    """The outcomes with the reason at each finding that a comment or a pattern of ``ignore`` silences.

    ``sources``: paths of the recordings; a relative path of a finding is looked up in the working directory and
    beside the folder of runs that a recording lies in. ``ignore``: patterns as ``third_party/*``.
    """
    code = _Code(sources)
    return tuple(
        replace(
            outcome,
            findings=tuple(
                replace(finding, silenced=_reason(outcome.rule, finding, code, ignore)) for finding in outcome.findings
            ),
        )
        for outcome in outcomes
    )


def _reason(rule: str, finding: Finding, code: _Code, ignore: Sequence[str]) -> str | None:
    file, line = finding.where.file, finding.where.line
    if file is None:
        return None
    pattern = next((pattern for pattern in ignore if _matches(file, pattern)), None)
    if pattern is not None:
        return f"path matches {pattern} in the configuration"
    comment = None if line is None else COMMENT.search(code.line(file, line))
    if comment is None:
        return None
    rules = {name.strip().replace("-", "_") for name in comment.group(1).split(",")}
    return (comment.group(2).strip(" \t:-") or NO_REASON) if rule in rules else None


def _matches(file: str, pattern: str) -> bool:
    """Whether the path, or its end from any folder on, matches; a pattern of a folder matches all in it."""
    parts = PurePath(file).parts
    ends = ["/".join(parts[index:]) for index in range(len(parts))]
    wanted = pattern.rstrip("/")
    return any(fnmatchcase(end, wanted) or fnmatchcase(end, f"{wanted}/*") for end in ends)


class _Code:
    """Lines of the Python files that findings name; each file is read once."""

    def __init__(self, sources: Sequence[str]) -> None:
        parents = Path(sources[0]).absolute().parents if sources else ()
        self._folders = [Path(), *(parent.parent for parent in parents if parent.name == RUNS_FOLDER)]
        self._files: dict[str, tuple[str, ...]] = {}

    def line(self, file: str, line: int) -> str:
        """A line, numbered from 1; ``""`` where there is no such file or line."""
        if not file.endswith(".py"):
            return ""
        if file not in self._files:
            self._files[file] = next(filter(None, (_lines(folder / file) for folder in self._folders)), ())
        lines = self._files[file]
        return lines[line - 1] if 0 < line <= len(lines) else ""


def _lines(file: Path) -> tuple[str, ...]:
    try:
        if not file.is_file() or file.stat().st_size > MOST_FILE_BYTES:
            return ()
        return tuple(file.read_text(encoding="utf-8", errors="replace").splitlines())
    except (OSError, ValueError):
        return ()
