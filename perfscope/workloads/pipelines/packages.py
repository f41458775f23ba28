"""Packages that only these programs need."""

from __future__ import annotations

import importlib
from typing import Any


def needed(name: str) -> Any:
    """Import a package. Without it the program ends with one line about the extra that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        extra = {"torch": "tensorboard"}.get(package, "workloads")
        raise SystemExit(
            f"this workload needs the package that `import {name}` loads: pip install 'perfscope[{extra}]'"
        ) from error
