"""The exports, a written list: format -> module. One format a file.

An export's module has ``SUFFIX`` (of the file it writes by default), ``FOLDER`` (it writes a folder of
files), and ``write(subject, target) -> list[str]``: remarks for the user, one sentence each.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.model.errors import UsageError

if TYPE_CHECKING:
    from types import ModuleType

    from perfscope.model.finding import Finding
    from perfscope.model.trace import Trace

EXPORTS: dict[str, str] = {
    "chakra": "perfscope.dashboards.export.chakra",
    "chrome": "perfscope.dashboards.export.chrome",
    "parquet": "perfscope.dashboards.export.parquet",
    "perfetto": "perfscope.dashboards.export.perfetto",
    "speedscope": "perfscope.dashboards.export.speedscope",
    "tensorboard": "perfscope.dashboards.export.tensorboard",
}


class Subject(Struct, frozen=True, kw_only=True):
    """What is exported: the traces of one job, and what the rules found in them (rule, finding)."""

    traces: tuple[Trace, ...]
    findings: tuple[tuple[str, Finding], ...] = ()


def module_of(form: str) -> ModuleType:
    """The module of a format; ``UsageError`` if there is none of that name."""
    if form not in EXPORTS:
        raise UsageError(f"{form}: no such export format; there are {', '.join(EXPORTS)}")
    return importlib.import_module(EXPORTS[form])


def export(subject: Subject, form: str, target: str | Path) -> list[str]:
    """Write ``subject`` in a format of ``EXPORTS``, whole or not at all; remarks for the user.

    ``DataError``: there is nothing that the format can hold, or ``target`` cannot be written.
    """
    remarks: list[str] = module_of(form).write(subject, Path(target))
    return remarks
