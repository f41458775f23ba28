"""Report."""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.model.errors import DataError, UsageError
from perfscope.model.files import is_stream, resolve_links

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis


# The reports, a written list: format -> module. One format a file.
#
# A report's module has ``SUFFIXES`` (of files that want it) and ``render(analysis) -> str``.


REPORTS: dict[str, str] = {
    "github": "perfscope.dashboards.report.github",
    "html": "perfscope.dashboards.report.html_report",
    "json": "perfscope.dashboards.report.json_report",
    "llm": "perfscope.dashboards.report.llm",
    "markdown": "perfscope.dashboards.report.markdown",
    "text": "perfscope.dashboards.report.text",
}


def render(analysis: Analysis, form: str, **options: Any) -> str:
    """The analysis in a format of ``REPORTS``; ``options`` are those of its module."""
    if form not in REPORTS:
        raise UsageError(f"{form}: no such report format; there are {', '.join(REPORTS)}")
    text: str = importlib.import_module(REPORTS[form]).render(analysis, **options)
    return text


def format_of(file_name: str) -> str | None:
    """The format that a file's suffix asks for, or ``None``."""
    for form, home in REPORTS.items():
        if file_name.lower().endswith(tuple(importlib.import_module(home).SUFFIXES)):
            return form
    return None


def write(path: str | Path, text: str) -> None:
    """Write a report: whole or not at all, so that a reader never sees half of one; to a device or a pipe as it is.

    ``DataError`` if the folder is missing, not writable or full.
    """
    target = resolve_links(Path(path))
    scratch = None
    try:
        if is_stream(Path(path)):
            Path(path).write_bytes(text.encode("utf-8", "replace"))
            return
        handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}.", suffix=".part")
        with os.fdopen(handle, "wb") as stream:
            stream.write(text.encode("utf-8", "replace"))
        Path(scratch).chmod(0o666 & ~_umask())
        Path(scratch).replace(target)
        scratch = None
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from error
    finally:
        if scratch is not None:
            Path(scratch).unlink(missing_ok=True)


def _umask() -> int:
    """The process's mask: ``mkstemp`` makes files for the owner alone, a report is made to be passed on."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
