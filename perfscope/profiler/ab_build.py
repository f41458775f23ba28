"""``--build``: a command of the user's, run once in each worktree before anything is launched there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from perfscope.profiler.ab_launch import Place, python_path, run_and_wait, tail
from perfscope.profiler.ab_pairs import Arm
from perfscope.profiler.errors import DataError

SHELL = "/bin/sh"


def build(
    command: str, places: Mapping[Arm, Place], *, logs: Path, checkout: Path, tell: Callable[[str], None]
) -> None:
    """Run ``command`` in a shell in the folder of each arm, as it would be typed in the checkout.

    Its output is kept in ``logs``. ``DataError`` if it fails: an arm that is half built must not be measured.
    """
    for arm, place in places.items():
        tell(f"building {arm}")
        log = logs / f"build-{arm}.log"
        code = run_and_wait([SHELL, "-c", command], place, {"PYTHONPATH": python_path(place, checkout)}, log, None)
        if code:
            raise DataError(f"{log}: --build failed in {arm} with exit code {code}: {tail(log)}")
