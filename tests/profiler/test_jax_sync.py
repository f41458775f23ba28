"""Host syncs seen by the interceptor: values and errors stay, nothing is counted twice, jax is restored."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfscope.profiler.jax import host_syncs
from perfscope.profiler.jax.host_syncs import METHODS, SyncLog
from perfscope.profiler.jax.record_log import CallSites

pytestmark = pytest.mark.jax


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncLog]:
    import jax

    assert jax.devices()
    held = SyncLog(CallSites(Path(__file__).parent), lambda: 7)
    held.start()
    yield held
    held.stop()


def records(log: SyncLog, folder: Path) -> list[dict[str, Any]]:
    (folder / "rank00000").mkdir(exist_ok=True)
    capture = log.save(folder / "rank00000", folder)
    assert capture.artifact == "rank00000/syncs.jsonl"
    return [json.loads(line) for line in (folder / capture.artifact).read_text().splitlines()[1:]]


def test_each_way_to_read_a_value_is_one_record_and_gives_what_it_gave(log: SyncLog, tmp_path: Path) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    x, n, v = jnp.float32(2.5), jnp.int32(3), jnp.arange(3)
    assert (float(x), int(n), bool(n), complex(x)) == (2.5, 3, True, 2.5 + 0j)
    assert [0, 1, 2, 4][n] == 4
    assert (x.item(), v.tolist(), str(n), f"{x:.1f}") == (2.5, [0, 1, 2], "3", "2.5")
    assert repr(n) == "Array(3, dtype=int32)"
    assert [int(one) for one in np.asarray(jax.device_get(v))] == [0, 1, 2]
    jax.block_until_ready({"a": x, "b": [v]})
    x.block_until_ready()
    found = records(log, tmp_path)
    assert [one["call"] for one in found] == [
        "float", "int", "bool", "complex", "index", "item", "tolist", "str", "format", "repr",
        "device_get", "block_until_ready", "block_until_ready",
    ]  # fmt: skip
    assert {one["file"] for one in found} == {"test_jax_sync.py"}
    assert {one["step"] for one in found} == {7}
    assert all(one["ready"] and one["duration_ns"] >= 0 for one in found)
    assert found[-2]["bytes"] == 4 + 12


def test_an_array_that_is_not_there_yet_is_a_stall(
    log: SyncLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax.numpy as jnp

    monkeypatch.setattr(host_syncs, "_ready", lambda value: False)
    float(jnp.float32(1))
    (found,) = records(log, tmp_path)
    assert found["ready"] is False


def test_an_error_of_the_program_stays_its_own(log: SyncLog, tmp_path: Path) -> None:
    import jax.numpy as jnp

    with pytest.raises(TypeError):
        float(jnp.ones(3))
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        gone.block_until_ready()
    found = records(log, tmp_path)
    assert [one.get("ready") for one in found] == [True, None], "of a deleted array nobody can say"
    assert float(jnp.float32(1)) == 1.0, "and the guard against reads in reads is open again"
    assert len(records(log, tmp_path)) == 3


def test_an_error_of_our_own_is_counted_and_not_raised(
    log: SyncLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax.numpy as jnp

    def fail(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(CallSites, "here", fail)
    assert float(jnp.float32(2)) == 2.0
    log.save(_folder(tmp_path), tmp_path)
    assert json.loads((tmp_path / "rank00000" / "syncs.jsonl").read_text())["dropped"] == 1


def _folder(path: Path) -> Path:
    (path / "rank00000").mkdir()
    return path / "rank00000"


def test_tracing_reads_nothing_and_another_thread_is_told_apart(log: SyncLog, tmp_path: Path) -> None:
    import jax
    import jax.numpy as jnp

    jax.jit(lambda x: x * 2)(jnp.ones(3))
    assert records(log, tmp_path) == []
    thread = threading.Thread(target=lambda: float(jnp.float32(1)))
    thread.start()
    thread.join()
    (found,) = records(log, tmp_path)
    assert found["main_thread"] is False


def test_paused_means_ours(log: SyncLog, tmp_path: Path) -> None:
    import jax.numpy as jnp

    with log.paused():
        jnp.ones(3).block_until_ready()
    assert records(log, tmp_path) == []


def test_when_it_is_full_the_wrappers_go(log: SyncLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import jax.numpy as jnp

    monkeypatch.setattr(log._lines, "_most", 2)
    for _ in range(4):
        float(jnp.float32(1))
    assert not log.on
    assert len(records(log, tmp_path)) == 2


def test_jax_is_as_it_was_afterwards() -> None:
    import jax
    from jax._src.array import ArrayImpl

    def state() -> list[Any]:
        return [*(ArrayImpl.__dict__.get(name) for name in METHODS), jax.block_until_ready, jax.device_get]

    before = state()
    log = SyncLog(CallSites(Path.cwd()), lambda: None)
    log.start()
    during = state()
    assert sum(now is not then for now, then in zip(during, before, strict=True)) == len(METHODS) + 2
    log.stop()
    assert all(now is then for now, then in zip(state(), before, strict=True))
