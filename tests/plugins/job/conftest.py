"""Jobs that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.job.written import killed_and_resumed


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A run with two ranks, one of which was killed and resumed."""
    return killed_and_resumed(tmp_path / "run")
