"""Which of several processes of a run records steps."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.profiler.session import children


def test_a_child_that_finds_a_better_source_of_steps_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook calls its model in one cell and trains it in a later one."""
    monkeypatch.delenv("RANK", raising=False)
    child: Any = SimpleNamespace(child=True)
    assert children.claim_steps(tmp_path, child)
    assert children.claim_steps(tmp_path, child)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert not children.claim_steps(tmp_path, child)
