"""Device memory profiles around the traced steps of a JAX program, and what they show of a leak."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.facts.jax_growth import jax_growth
from perfscope.analyzers.readers.load import load_one
from perfscope.analyzers.readers.run import memory as _jax_moments
from perfscope.profiler.jax import memory as jax_memory
from perfscope.profiler.jax.memory import MemoryLog
from tests.profiler.jax_programs import LOOP, run_folder
from tests.profiler.programs import captured, only, passes, write

pytest.importorskip("jax")
pytestmark = pytest.mark.jax

LEAK = LOOP + "kept = []\nwork(9, after=lambda turn, loss: kept.append(jnp.full((1000,), turn)))\n"


def test_what_every_step_keeps_is_told_by_its_line(tmp_path: Path) -> None:
    done = captured(write(tmp_path, LEAK), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    memory = passes(only(tmp_path))["memory"]
    assert (memory.state, memory.reason, memory.artifact) == ("recorded", None, "rank00000/memory")
    trace = load_one(run_folder(tmp_path))
    trace.check()
    assert "memory_state" in trace.recorded
    growth = trace.fact(jax_growth)
    assert growth is not None
    assert growth.steps == len(trace.rows["steps"]) > 1
    first = growth.stacks[0]
    assert (first.grown, first.grown_bytes) == (growth.steps, 4000 * growth.steps)
    assert first.place is not None
    assert first.place.file.endswith("train.py")
    source = (tmp_path / "train.py").read_text().splitlines()
    assert "kept.append" in source[(first.place.line or 0) - 1]
    assert growth.grown_bytes == sum(one.grown_bytes for one in growth.stacks)


def test_a_loop_that_keeps_nothing_does_not_grow(tmp_path: Path) -> None:
    done = captured(write(tmp_path, LOOP + "work(9)\n"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    growth = load_one(run_folder(tmp_path)).fact(jax_growth)
    assert growth is not None
    assert growth.bytes_before > 0
    assert growth.grown_bytes <= 0


def test_light_capture_takes_none(tmp_path: Path) -> None:
    done = captured("--level", "light", write(tmp_path, LOOP + "work(9)\n"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "memory" not in passes(only(tmp_path))
    assert load_one(run_folder(tmp_path)).fact(jax_growth) is None


def test_a_damaged_profile_costs_only_itself(tmp_path: Path) -> None:
    done = captured(write(tmp_path, LEAK), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    profile = run_folder(tmp_path) / "rank00000" / "memory" / "after.prof"
    profile.write_bytes(profile.read_bytes()[:50])
    trace = load_one(run_folder(tmp_path))
    assert len(trace.rows["steps"]) > 1
    assert trace.fact(jax_growth) is None
    assert any("device memory profile is damaged" in note for note in trace.source.notes)


def test_a_profile_that_cannot_be_taken_is_said_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> bytes:
        raise RuntimeError("UNIMPLEMENTED: heap profile")

    monkeypatch.setattr("perfscope.profiler.jax.compat.memory_profile", refuse)
    log = MemoryLog()
    log.take()
    log.take()
    capture = log.save(tmp_path, tmp_path)
    assert (capture.state, capture.artifact) == ("missing", None)
    assert "UNIMPLEMENTED: heap profile" in (capture.reason or "")


def test_the_reader_knows_the_files_by_the_same_names() -> None:
    assert (_jax_moments.MOMENTS, _jax_moments.SUFFIX) == (jax_memory.MOMENTS, jax_memory.SUFFIX)


def test_one_moment_is_kept_where_the_second_never_came(tmp_path: Path) -> None:
    log = MemoryLog()
    assert log.save(tmp_path, tmp_path).reason == "no step was traced"
    log.take()
    capture = log.save(tmp_path, tmp_path)
    assert capture.state == "recorded"
    assert "had not ended" in (capture.reason or "")
    assert [file.name for file in (tmp_path / "memory").iterdir()] == ["before.prof"]
    log.take()
    log.take()
    assert log.save(tmp_path, tmp_path).reason is None
    assert sorted(file.name for file in (tmp_path / "memory").iterdir()) == ["after.prof", "before.prof"]
