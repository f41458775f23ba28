"""Export formats: name -> module. One module per format.

An export's module has ``SUFFIX`` (of the file it writes by default), ``FOLDER`` (whether it writes a folder of
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
    """The exported data: the traces of one job, and the findings on them (rule, finding)."""

    traces: tuple[Trace, ...]
    findings: tuple[tuple[str, Finding], ...] = ()


def module_of(form: str) -> ModuleType:
    """Return the module of a format; ``UsageError`` if the format is unknown."""
    if form not in EXPORTS:
        raise UsageError(f"{form}: no such export format; there are {', '.join(EXPORTS)}")
    return importlib.import_module(EXPORTS[form])


def export(subject: Subject, form: str, target: str | Path) -> list[str]:
    """Write ``subject`` in a format of ``EXPORTS``, in full or not at all; return remarks for the user.

    ``DataError``: the format can hold nothing of it, or ``target`` cannot be written.
    """
    remarks: list[str] = module_of(form).write(subject, Path(target))
    return remarks
