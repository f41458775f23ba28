"""The fixtures ``perfscope_run`` and ``perfscope_pairs``. Importing it loads pytest alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from perfscope.plugins.pytest_fixtures.profiled import Pairs, Profiled


@pytest.fixture
def perfscope_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Profiled]:
    """Profile a script, or a function in this process: ``perfscope_run("train.py", "--steps", "20")``.

    The result has the findings and numbers of the recording, and assertions on them.
    """
    from perfscope.plugins.pytest_fixtures.profiled import profile_function, profile_script

    def run(program: str | Path | Callable[..., Any], *arguments: Any, level: str = "default") -> Profiled:
        folder = tmp_path_factory.mktemp("perfscope-runs")
        if callable(program):
            return profile_function(program, arguments, folder, level)
        return profile_script([str(program), *map(str, arguments)], folder, level)

    return run


@pytest.fixture
def perfscope_pairs() -> Callable[..., Pairs]:
    """Time two functions in turns, in random order: ``perfscope_pairs(old_step, new_step).assert_not_slower(0.05)``."""
    from perfscope.plugins.pytest_fixtures.profiled import time_pairs

    return time_pairs
