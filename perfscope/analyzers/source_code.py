"""Source code at the places of findings: the excerpt for reports, and comments that silence a finding.

A line is shown if its file is readable here and was last changed before the recording, so that it is the line that ran.
``# perfscope: ignore[host_sync] printed on purpose`` at the end of a finding's line silences that rule there; several
rules are separated by commas. A path in the configuration silences all findings in its files. A silenced finding stays
in its outcome, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.fix_lines import fix_line
from perfscope.model.documents.run import RUN_FILE
from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.finding import Excerpt, Finding, Outcome, Where

COMMENT = re.compile(r"#\s*perfscope:\s*ignore\[([A-Za-z0-9_\-,\s]+)\](.*)")

NO_REASON = "no reason given"

MOST_FILE_BYTES = 4 << 20
"""Maximum size of a source file; larger files are generated."""


AROUND = 2
"""Number of lines before and after the finding's line."""


def with_code(
    outcomes: Sequence[Outcome], sources: Sequence[str] = (), ignore: Sequence[str] = ()
) -> tuple[Outcome, ...]:
    """Return the outcomes with an excerpt, the line of the fix, and the reason for silencing at each finding.

    ``sources``: paths of the recordings; a relative path of a finding is searched in the working directory and next to
    the folder of runs that contains a recording. ``ignore``: patterns such as ``third_party/*``.
    """
    code = _Code(sources)
    return tuple(
        replace(
            outcome,
            findings=tuple(
                replace(
                    finding,
                    silenced=_reason(outcome.rule, finding, code, ignore),
                    excerpt=code.excerpt(finding.where),
                    fix_line=fix_line(outcome.rule, finding, code.recorded_text),
                )
                for finding in outcome.findings
            ),
        )
        for outcome in outcomes
    )


def excerpts(places: Iterable[str], sources: Sequence[str]) -> dict[str, Excerpt]:
    """Return the code at places such as ``train.py:88``, if it can be shown (see `_Code.excerpt`)."""
    code = _Code(sources)
    result = {}
    for place in places:
        file, _, line = place.rpartition(":")
        if file and line.isdecimal() and (found := code.excerpt(Where(file=file, line=int(line)))) is not None:
            result[place] = found
    return result


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
    """Whether the path or a trailing part of it matches; a pattern of a folder matches all files in it."""
    parts = PurePath(file).parts
    ends = ["/".join(parts[index:]) for index in range(len(parts))]
    wanted = pattern.rstrip("/")
    return any(fnmatchcase(end, wanted) or fnmatchcase(end, f"{wanted}/*") for end in ends)


class _Code:
    """Lines of the Python files that findings name; each file is read once."""

    def __init__(self, sources: Sequence[str]) -> None:
        parents = Path(sources[0]).absolute().parents if sources else ()
        self._folders = [Path(), *(parent.parent for parent in parents if parent.name == RUNS_FOLDER)]
        self._recorded_s = min(map(_changed_s, sources), default=0.0)
        self._files: dict[str, _File | None] = {}
        self._scripts = [folder for source in sources if (folder := _script_folder(Path(source))) is not None]

    def line(self, file: str, line: int) -> str:
        """Return a line, numbered from 1; ``""`` if the file or line does not exist."""
        known = self._file(file)
        return known.lines[line - 1] if known is not None and 0 < line <= len(known.lines) else ""

    def excerpt(self, where: Where) -> Excerpt | None:
        """Return the line and its neighbours; ``None`` if the file is unreadable or newer than the recording.

        Also ``None`` for a file outside these folders, because an untrusted recording can name any path and reports are
        shared.
        """
        if where.file is None or where.line is None:
            return None
        known = self._file(where.file)
        if (
            known is None
            or not known.in_project
            or known.changed_s > self._recorded_s
            or not 0 < where.line <= len(known.lines)
        ):
            return None
        first = max(1, where.line - AROUND)
        return Excerpt(path=known.path, first=first, lines=known.lines[first - 1 : where.line + AROUND])

    def recorded_text(self, file: str) -> str:
        """Return the text of a file that was last changed before the recording; ``''`` if it is unreadable."""
        candidates = (_read(folder, file) for folder in self._scripts if file.endswith(".py"))
        known = self._file(file) or next(filter(None, candidates), None)
        return "" if known is None or known.changed_s > self._recorded_s else "\n".join(known.lines)

    def _file(self, file: str) -> _File | None:
        if not file.endswith(".py"):
            return None
        if file not in self._files:
            self._files[file] = next(filter(None, (_read(folder, file) for folder in self._folders)), None)
        return self._files[file]


class _File(Struct, frozen=True):
    path: str
    in_project: bool
    changed_s: float
    lines: tuple[str, ...]


def _script_folder(run: Path) -> Path | None:
    """Return the folder of the program of a run; ``None`` if ``run`` is not a run or the folder is unknown."""
    try:
        script = json.loads((run / RUN_FILE).read_text(encoding="utf-8"))["script"]
        return Path(run.absolute().parent.parent, script).parent
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read(folder: Path, name: str) -> _File | None:
    file = folder / name
    try:
        if not file.is_file() or file.stat().st_size > MOST_FILE_BYTES:
            return None
        lines = tuple(file.read_text(encoding="utf-8", errors="replace").splitlines())
        in_project = file.resolve().is_relative_to(folder.resolve())
        return _File(str(file.absolute()), in_project, file.stat().st_mtime, lines)
    except (OSError, RuntimeError, ValueError):
        return None


def _changed_s(path: str) -> float:
    """Return the time at which a recording was written; for a folder, that of the newest file directly in it.

    0 if unknown.
    """
    try:
        place = Path(path)
        return max(
            (item.stat().st_mtime for item in (place, *(place.iterdir() if place.is_dir() else ()))), default=0.0
        )
    except (OSError, ValueError):
        return 0.0
