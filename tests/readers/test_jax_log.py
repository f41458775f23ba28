"""The logs of a JAX program: written logs are read, damaged ones give one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.readers.run.logs import read_events, read_file_names, read_syncs
from perfscope.model.errors import DataError
from perfscope.model.jax_log import EVENTS_SCHEMA, SYNCS_SCHEMA, CompileEvent, HostRead
from perfscope.profiler.jax.record_log import RecordLog


def written(path: Path) -> Path:
    lines = RecordLog(EVENTS_SCHEMA, 10)
    lines.add(kind="compile", end_ns=5, duration_ns=3, step=None, function="jit(f)", file="a.py", line=7)
    lines.add(kind="retrace", end_ns=9, reason="different input types", unknown_later=1)
    lines.save(path, jax="0.10.2")
    return path


def test_events_come_back(tmp_path: Path) -> None:
    assert read_events(written(tmp_path / "events.jsonl")) == (
        CompileEvent(kind="compile", end_ns=5, duration_ns=3, function="jit(f)", file="a.py", line=7),
        CompileEvent(kind="retrace", end_ns=9, reason="different input types"),
    )


def test_files_of_the_program_have_the_users_names(tmp_path: Path) -> None:
    lines = RecordLog(EVENTS_SCHEMA, 10)
    lines.save(tmp_path / "events.jsonl", folders=["/", "/u/run/"], cells={"/tmp/ipykernel_7/1.py": "In[3]"})
    names = read_file_names(tmp_path / "events.jsonl")
    paths = ("/u/run/pkg/a.py", "/u/running/a.py", "/tmp/ipykernel_7/1.py", "/lib/x.py", "")
    assert [names.name(path) for path in paths] == ["pkg/a.py", "/u/running/a.py", "In[3]", "/lib/x.py", ""]
    assert read_file_names(written(tmp_path / "old.jsonl")).name("/u/run/a.py") == "/u/run/a.py"


def test_syncs_come_back(tmp_path: Path) -> None:
    lines = RecordLog(SYNCS_SCHEMA, 10)
    lines.add(call="float", begin_ns=1, duration_ns=2, ready=False, traced=True, main_thread=True, disturbed=None)
    lines.save(tmp_path / "syncs.jsonl")
    read = read_syncs(tmp_path / "syncs.jsonl")
    assert read == (HostRead(call="float", begin_ns=1, duration_ns=2, ready=False, traced=True, main_thread=True),)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"{}", b"[]", b"\xff", b'{"schema": "perfscope.jax_syncs/1", "records": 0}', b"[" * 100_000],
)
def test_what_is_no_log_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        read_events(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(min_value=0, max_value=400))
def test_a_log_that_is_cut_off_anywhere_is_refused(tmp_path: Path, cut: int) -> None:
    whole = written(tmp_path / "whole.jsonl").read_bytes()
    path = tmp_path / "events.jsonl"
    path.write_bytes(whole[: cut % (len(whole) - 1)])
    with pytest.raises(DataError):
        read_events(path)


def test_a_record_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    head = {"schema": EVENTS_SCHEMA, "records": 1}
    path.write_text(json.dumps(head) + '\n{"kind": "surprise", "end_ns": 1}\n')
    with pytest.raises(DataError, match="surprise"):
        read_events(path)
