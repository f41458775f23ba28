"""Recorded runs, shared by all tests of a session and all of its processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compare.planted import JAX, recorded

Recorded = Callable[[str], Path]


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Recorded:
    """The run of a program of ``planted`` by its name; recorded when it is first asked for."""
    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "planted"
    root.mkdir(exist_ok=True)

    def run(name: str) -> Path:
        pytest.importorskip("jax" if name in JAX else "torch")
        return recorded(root, name)

    return run
