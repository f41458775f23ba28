"""Reports of an analysis or a comparison, one module per format."""

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


# Report formats: name -> module. One module per format.
#
# A report's module has ``render(analysis) -> str``.


REPORTS: dict[str, str] = {
    "github": "perfscope.dashboards.report.github",
    "html": "perfscope.dashboards.report.html_report",
    "json": "perfscope.dashboards.report.json_report",
    "llm": "perfscope.dashboards.report.llm",
    "markdown": "perfscope.dashboards.report.markdown",
    "sarif": "perfscope.dashboards.report.sarif",
    "text": "perfscope.dashboards.report.text",
}
SUFFIXES = {
    ".htm": "html",
    ".html": "html",
    ".json": "json",
    ".markdown": "markdown",
    ".md": "markdown",
    ".sarif": "sarif",
    ".txt": "text",
}
"""File suffix -> the format that it selects. Here and not in the modules, so that a suffix imports no report."""


def render(analysis: Analysis, form: str, **options: Any) -> str:
    """Render the analysis in a format of ``REPORTS``; ``options`` are passed to that format's ``render``."""
    if form not in REPORTS:
        raise UsageError(f"{form}: no such report format; there are {', '.join(REPORTS)}")
    text: str = importlib.import_module(REPORTS[form]).render(analysis, **options)
    return text


def format_of(file_name: str) -> str | None:
    """Return the format that a file's suffix selects, or ``None``."""
    return next((form for suffix, form in SUFFIXES.items() if file_name.lower().endswith(suffix)), None)


def write(path: str | Path, text: str) -> None:
    """Write a report in full or not at all, so that no reader sees half a file; write straight to a device or pipe.

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
    """Return the process's umask: ``mkstemp`` makes files private, but a report is meant to be shared."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
