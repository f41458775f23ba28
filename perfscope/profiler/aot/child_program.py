"""Runs the user's program in this process as plain python would: its arguments, its path, its ``__main__``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from perfscope.profiler.aot.request import Request


def run_program(request: Request) -> None:
    """Run it to its end. Its exceptions are its own; leaving with code 0 is its end."""
    sys.argv = [*request.arguments]
    try:
        if request.module:
            _first_on_path(str(Path.cwd()))
            runpy.run_module(request.arguments[0], run_name="__main__", alter_sys=True)
        else:
            script = Path(request.arguments[0])
            _first_on_path(str(script.resolve().parent))
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as left:
        if left.code not in (None, 0):
            raise


def _first_on_path(folder: str) -> None:
    if not sys.flags.safe_path and sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
