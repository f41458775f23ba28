"""What several verbs ask of their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perfscope.analyzers.hardware import Device


def device_named(name: str) -> Device:
    """The device a person named; one line with close names where there is none of that name."""
    from perfscope.analyzers.hardware import DEVICES, close_names, named_device

    found = named_device(name)
    if found is None:
        close = close_names(name)
        known = f"close: {', '.join(close)}" if close else f"known: {', '.join(one.name for one in DEVICES)}"
        raise UsageError(f"--device {name}: not in the hardware tables; {known}")
    return found


def spare(inputs: Iterable[str], outputs: Iterable[str]) -> None:
    """Refuse to write a report over a trace that it is about."""
    known = {Path(file).resolve() for file in inputs}
    for output in outputs:
        if Path(output).resolve() in known:
            raise UsageError(f"{output}: is the trace itself; what is written needs another file")
