"""Refusals of inductor's scheduler, kept once each and in bounds; its settings, put and taken back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.analyzers.readers.torch_log.fusion import read_fusion
from perfscope.profiler.torch import compat, compile_log
from perfscope.profiler.torch.compile_log import FusionLog, InductorSettings


class WeakDep:
    """An edge of order only, by inductor's name for it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def numbytes_hint(self) -> int:
        raise AssertionError("moves no data")


class Dep(WeakDep):
    def __init__(self, name: str, size: int) -> None:
        super().__init__(name)
        self._size = size

    def numbytes_hint(self) -> int:
        if self._size < 0:
            raise TypeError("depends on data")
        return self._size


class Node:
    """A scheduler node, or several fused."""

    def __init__(
        self, name: str, *, reads: Iterable[WeakDep] = (), writes: Iterable[str] = (), origins: Iterable[str] = ()
    ) -> None:
        self._name = name
        self._writes = set(writes)
        self.parts = [self]
        self.node = SimpleNamespace(origins=[SimpleNamespace(name=origin) for origin in origins])
        self.read_writes = SimpleNamespace(reads=list(reads))

    def get_name(self) -> str:
        return self._name

    def get_nodes(self) -> list[Node]:
        return self.parts

    def get_buffer_names(self) -> set[str]:
        return self._writes


def fused(*parts: Node) -> Node:
    made = Node("_".join(part.get_name() for part in parts), writes={w for part in parts for w in part._writes})
    made.parts = list(parts)
    made.read_writes.reads = [dep for part in parts for dep in part.read_writes.reads if dep.name not in made._writes]
    return made


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FusionLog:
    monkeypatch.setattr(compat, "torch_version", lambda: "2.x")
    monkeypatch.setattr(compat, "compile_id", lambda: "0/0")
    monkeypatch.setattr(compat, "direction", lambda: "forward")
    made = FusionLog()
    made.place = tmp_path
    return made


def graph(path: Path) -> dict[str, Any]:
    (found,) = (item for item in map(json.loads, path.read_text().splitlines()[1:]) if item["kind"] == "graph")
    return dict(found)


def test_refusals_are_told_of_the_kernels_the_nodes_ended_in(log: FusionLog, tmp_path: Path) -> None:
    a = Node("op0", writes=["buf0"], origins=["exp"])
    b = Node("op1", writes=["buf1"], reads=[Dep("buf0", 64)], origins=["sum_1"])
    c = Node("op2", writes=["buf2"], reads=[Dep("buf0", 64), Dep("buf1", 8), Dep("buf1", 4), WeakDep("buf0")])
    log._refused(a, c, "too %s", ("far",))
    log._refused(b, c, "too %s", ("far",))
    log._refused(a, c, "too %s", ("far",))
    log._refused(a, b, "not yet", ())  # and fused after all
    log._decided(SimpleNamespace(nodes=[fused(a, b), c]))
    (refusal,) = read_fusion(tmp_path / "fusion.jsonl").refusals
    assert (refusal.first, refusal.second, refusal.reason, refusal.times) == ("op0_op1", "op2", "too far", 3)
    assert (refusal.compile_id, refusal.direction) == ("0/0", "forward")
    assert refusal.first_nodes == ("exp", "sum_1")
    assert refusal.shared_bytes == 64 + 8  # a buffer counts once
    assert refusal.common_read_bytes == 0
    said = graph(tmp_path / "fusion.jsonl")
    assert (said["nodes"], said["kernels"], said["refusals"], said["fused_after_all"]) == (3, 2, 1, 1)


def test_common_reads_and_unknown_sizes(log: FusionLog, tmp_path: Path) -> None:
    a = Node("op0", writes=["buf0"], reads=[Dep("arg0", 32)])
    b = Node("op1", writes=["buf1"], reads=[Dep("arg0", 16)])
    c = Node("op2", writes=["buf2"], reads=[Dep("buf1", -1)])
    log._refused(a, b, "apart", ())
    log._refused(b, c, "apart", ())
    log._decided(SimpleNamespace(nodes=[a, b, c]))
    first, second = read_fusion(tmp_path / "fusion.jsonl").refusals
    assert (first.shared_bytes, first.common_read_bytes) == (0, 16)
    assert second.shared_bytes is None


def test_a_graph_is_not_told_of_the_one_before(log: FusionLog, tmp_path: Path) -> None:
    a, b = Node("op0"), Node("op1")
    for reason in ("once", "twice"):
        log._refused(a, b, reason, ())
        log._decided(SimpleNamespace(nodes=[a, b]))
    assert [refusal.reason for refusal in read_fusion(tmp_path / "fusion.jsonl").refusals] == ["once", "twice"]
    assert log.graphs == 2


def test_what_is_beyond_the_limits_is_counted(log: FusionLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_log, "MOST_PAIRS", 5)
    monkeypatch.setattr(compile_log, "MOST_KEPT", 3)
    nodes = [Node(f"op{index}", writes=[f"buf{index}"], reads=[Dep("arg0", index)]) for index in range(8)]
    for node in nodes[1:]:
        log._refused(nodes[0], node, "no", ())
    log._decided(SimpleNamespace(nodes=nodes))
    found = read_fusion(tmp_path / "fusion.jsonl")
    assert [refusal.second for refusal in found.refusals] == ["op5", "op4", "op3"]  # the most bytes first
    assert found.left_out == log.left_out == 2 + 2


def test_an_error_of_ours_never_reaches_the_scheduler(log: FusionLog, tmp_path: Path) -> None:
    log._refused(None, None, "x", ())
    assert log.problem is not None
    assert "AttributeError" in log.problem
    log._decided(None)
    assert not (tmp_path / "fusion.jsonl").exists()


def test_helpers_of_inductor_are_known_by_what_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    assert not compat.in_compile_worker()
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        pytest.skip("torch is not installed")
    file = Path(spec.origin).parent / "_inductor" / "compile_worker" / "__main__.py"
    assert file.is_file()  # what inductor starts
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(file)))  # type: ignore[arg-type]
    assert compat.in_compile_worker()


@pytest.fixture
def inductor(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(
        trace=SimpleNamespace(provenance_tracking_level=0), cpp=SimpleNamespace(enable_kernel_profile=False)
    )
    monkeypatch.setitem(sys.modules, "torch._inductor.config", made)  # type: ignore[arg-type]
    for _, _, variable in compat.SETTINGS.values():
        monkeypatch.delenv(variable, raising=False)
    return made


def test_settings_are_put_and_taken_back(inductor: SimpleNamespace) -> None:
    settings = InductorSettings("default")
    settings.put()
    assert (inductor.trace.provenance_tracking_level, inductor.cpp.enable_kernel_profile) == (1, True)
    assert settings.changed == ("provenance", "cpp_kernel_names")
    settings.take_back()
    assert (inductor.trace.provenance_tracking_level, inductor.cpp.enable_kernel_profile) == (0, False)


def test_settings_of_the_user_stay(inductor: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    inductor.trace.provenance_tracking_level = 2
    monkeypatch.setenv("TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE", "0")
    settings = InductorSettings("default")
    settings.put()
    assert settings.changed == ()
    assert (inductor.trace.provenance_tracking_level, inductor.cpp.enable_kernel_profile) == (2, False)


def test_a_value_that_was_changed_since_is_not_taken_back(inductor: SimpleNamespace) -> None:
    settings = InductorSettings("deep")
    settings.put()
    inductor.trace.provenance_tracking_level = 2
    settings.take_back()
    assert inductor.trace.provenance_tracking_level == 2


def test_light_leaves_the_caches_to_the_program(inductor: SimpleNamespace) -> None:
    settings = InductorSettings("light")
    settings.put()
    assert (inductor.trace.provenance_tracking_level, inductor.cpp.enable_kernel_profile) == (0, False)
    assert settings.changed == ()


def test_an_inductor_without_a_setting_is_said(inductor: SimpleNamespace) -> None:
    del inductor.cpp
    settings = InductorSettings("default")
    settings.put()
    assert (settings.changed, settings.absent) == (("provenance",), ("cpp_kernel_names",))
