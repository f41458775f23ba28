"""The subject of an export, and the modules of the formats, those of other plug-ins included.

An export's module has ``SUFFIX`` (of the file it writes by default), ``FOLDER`` (whether it writes a folder of
files), and ``write(subject, target) -> list[str]``: remarks for the user, one sentence each.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.model.errors import UsageError
from perfscope.model.plugins import load, named

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.model.finding import Finding
    from perfscope.model.trace import Trace


class Subject(Struct, frozen=True, kw_only=True):
    """The exported data: the traces of one job, and the findings on them (rule, finding)."""

    traces: tuple[Trace, ...]
    findings: tuple[tuple[str, Finding], ...] = ()


def module_of(form: str) -> ModuleType:
    """Return the module of a format; ``UsageError`` if the format is unknown."""
    formats = named("exports")
    if form not in formats:
        raise UsageError(f"{form}: no such export format; there are {', '.join(sorted(formats))}")
    module: ModuleType = load(formats[form])
    return module


def export(subject: Subject, form: str, target: str | Path) -> list[str]:
    """Write ``subject`` in a format, in full or not at all; return remarks for the user.

    ``DataError``: the format can hold nothing of it, or ``target`` cannot be written.
    """
    remarks: list[str] = module_of(form).write(subject, Path(target))
    return remarks
