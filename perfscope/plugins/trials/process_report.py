"""The report of a process in `perfscope try`: effects of the interventions in it, and values it computed.

It is written inside the program's process, which may have no msgspec.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from perfscope.model.errors import DataError
from perfscope.model.files import json_bytes

REPORT_FILE = "trial-{pid}.json"
"""In the directory of a launch, one for each process."""
REPORT_FILES = "trial-*.json"
MOST_REPORT_BYTES = 64 << 20

ValueKind = Literal["output", "loss", "gradients", "parameters"]
KINDS: tuple[ValueKind, ...] = ("output", "loss", "gradients", "parameters")
"""In the order in which a step computes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedValue:
    """A tensor that the program computed, or all gradients together: its norm, and some of its elements."""

    kind: ValueKind
    name: str
    """Name of the module or function, with the number of the output if it has several."""
    step: int
    """The how manieth call, backward pass or optimizer step it is from, from 0."""
    dtype: str
    """dtype without the framework's name: ``float32``. The least precise of several tensors."""
    size: int
    """Elements."""
    nonfinite: int
    """Elements that are infinite or NaN; they count as 0 below."""
    norm: float
    """Square root of the sum of squares, in float64."""
    sample: tuple[float, ...]
    """Elements at equal distances; of several tensors the norm of each."""
    parts: tuple[str, ...] = ()
    """Name of each of several tensors; empty for an unknown name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """When a launch ends before its program does."""

    steps: int = 0
    """Number of steps; 0: when the steps have taken as long as the start of the program."""
    began_unix_s: float = 0.0
    """When the launch began; for ``steps=0``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTrial:
    """Effects of the interventions in one process, and the values that it recorded."""

    rank: int = 0
    applied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Intervention -> its changes."""
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Intervention -> why it changed nothing somewhere."""
    values: tuple[RecordedValue, ...] = ()
    layers: tuple[RecordedValue, ...] = ()
    """Outputs of the modules inside of the models in their first call, in the order in which they were computed."""
    unrecorded: tuple[str, ...] = ()
    """Results that could not be recorded, and why."""
    peak_rss_bytes: int | None = None
    """Most physical memory that the process used."""
    ended_after: int | None = None
    """Steps after which the program was ended (`Ending`); ``None`` if it ended by itself."""
    gc_ns_per_step: int | None = None
    """Time of Python's garbage collector per step, if values were recorded and steps were seen."""


def read_reports(run: Path) -> tuple[ProcessTrial, ...]:
    """Reports of the processes of the launch in ``run``, by rank. ``DataError`` if a file is invalid."""
    import msgspec

    reports = []
    for file in sorted(run.glob(REPORT_FILES)):
        if file.stat().st_size > MOST_REPORT_BYTES:
            raise DataError(f"{file}: larger than {MOST_REPORT_BYTES >> 20} MiB")
        try:
            reports.append(msgspec.json.decode(file.read_bytes(), type=ProcessTrial))
        except (OSError, msgspec.MsgspecError) as error:
            raise DataError(f"{file}: no report of a process ({error})") from error
    return tuple(sorted(reports, key=lambda report: report.rank))


def dump(report: ProcessTrial) -> bytes:
    """A report as JSON."""
    return json_bytes(dataclasses.asdict(report))
