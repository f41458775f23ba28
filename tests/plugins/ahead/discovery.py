"""Runs functions and scripts without data, for tests of `jax_seen`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

import jax

from perfscope.plugins.ahead.jax import discover
from perfscope.plugins.ahead.jax.discover import Discovery, RunLimits


def discover_programs(run: Callable[[], Any], limits: RunLimits | None = None) -> Discovery:
    """The programs that a function compiles, in this process, for its CPU; exceptions reach the test."""
    found = discover.discover_programs(run, jax.devices("cpu")[:1], limits)
    assert found.failure is None, found.failure.text
    return found


def json_of_child(text: str, *, devices: int = 8, path: tuple[str, ...] = (), folder: Path | None = None) -> Any:
    """The JSON that a script prints, in a process with that many CPU devices."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([*path, str(Path(__file__).parents[3])])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(text)],
        env=environment, capture_output=True, text=True, timeout=300, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
