"""A fault at each write of the store: nothing earlier is lost, and the next command works."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.__main__ import run
from tests.faults.test_faults import injected
from tests.kept_runs import put_run


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ENOSPC", "EACCES", "KILL"])
def test_a_fault_at_each_write(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERFSCOPE_STORE", str(tmp_path / "store.sqlite"))
    for number in range(2):
        put_run(tmp_path, number).rename(tmp_path / f"run-{number}")
    assert run(["baseline", "set", "first", "run-0"]) == 0
    assert injected("store", kind, tmp_path, module="tests.plugins.history.faults") >= 5
