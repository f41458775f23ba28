"""``perfscope doctor --self-test``: green on what was launched, red for each of six planted faults."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec.structs
import pytest
from click.testing import CliRunner

from perfscope.analyzers import self_test
from perfscope.analyzers.self_test import Captured
from perfscope.commands import doctor as command
from perfscope.commands.doctor import doctor
from perfscope.model.environment import Check
from perfscope.profiler import doctor as examining
from tests.gpu.rehearsal import as_on_a_gpu

Event = dict[str, Any]
KINDS = ("capture", "clocks", "memory", "syncs", "copies", "rules")


def _pair(framework: str, folder: Path) -> tuple[Captured, Captured]:
    taken = [examining.capture_known(framework, folder, twin=twin, seconds=120) for twin in (False, True)]
    planted, twin = (one if isinstance(one, Check) else Captured(run=one[0], truth=one[1]) for one in taken)
    assert isinstance(planted, Captured), planted
    assert isinstance(twin, Captured), twin
    return planted, twin


@pytest.fixture(scope="module")
def torch_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Captured, Captured]:
    pytest.importorskip("torch")
    return _pair("torch", tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="module")
def jax_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Captured, Captured]:
    pytest.importorskip("jax")
    return _pair("jax", tmp_path_factory.mktemp("jax"))


def _copy(captured: Captured, folder: Path) -> Captured:
    run = folder / captured.run.name
    shutil.copytree(captured.run, run)
    return msgspec.structs.replace(captured, run=run)


def _alter(captured: Captured, file: str, change: Callable[[Any], None]) -> None:
    path = captured.run / "rank00000" / file
    document = json.loads(gzip.decompress(path.read_bytes()))
    change(document)
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


def _status(checks: list[Check], framework: str) -> dict[str, str]:
    return {check.name.removeprefix(f"{framework} "): check.status for check in checks}


def _drop(name: str) -> Callable[[Any], None]:
    def change(trace: Any) -> None:
        events: list[Event] = trace["traceEvents"]
        events.remove(next(event for event in events if event.get("name") == name))

    return change


def _late(trace: Any) -> None:
    for event in trace["traceEvents"]:
        event["ts"] = event.get("ts", 0) + 5000.0


def _kept(trace: Any) -> None:
    """The first block of a step is never freed."""
    events: list[Event] = trace["traceEvents"]
    blocks = [e for e in events if e["name"] == "[memory]" and e["args"]["Bytes"] == -(4 << 20)]
    events.remove(blocks[0])


def _smaller(trace: Any) -> None:
    copy = next(event for event in trace["traceEvents"] if event.get("name") == "aten::copy_")
    copy["args"]["Input Dims"][0] = [1000]


def _other_line(graph: Any) -> None:
    graph["ops"]["line"] = [line + 1 for line in graph["ops"]["line"]]


FAULTS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "capture": ("timing.pt.trace.json.gz", _drop("aten::mm")),
    "clocks": ("timing.pt.trace.json.gz", _late),
    "memory": ("detail.pt.trace.json.gz", _kept),
    "syncs": ("timing.pt.trace.json.gz", _drop("aten::_local_scalar_dense")),
    "copies": ("detail.pt.trace.json.gz", _smaller),
    "rules": ("structure.opgraph.json.gz", _other_line),
}


@pytest.mark.slow
@pytest.mark.torch
def test_torch_shows_exactly_what_was_launched(torch_pair: tuple[Captured, Captured]) -> None:
    assert _status(self_test.judge(*torch_pair), "torch") == dict.fromkeys(KINDS, "ok")


@pytest.mark.slow
@pytest.mark.jax
def test_jax_shows_exactly_what_was_launched(jax_pair: tuple[Captured, Captured]) -> None:
    assert _status(self_test.judge(*jax_pair), "jax") == dict.fromkeys(KINDS, "ok")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("kind", FAULTS)
def test_a_planted_fault_is_red_and_nothing_else_is(
    torch_pair: tuple[Captured, Captured], kind: str, tmp_path: Path
) -> None:
    planted, twin = torch_pair
    altered = _copy(planted, tmp_path)
    _alter(altered, *FAULTS[kind])
    assert _status(self_test.judge(altered, twin), "torch") == dict.fromkeys(KINDS, "ok") | {kind: "problem"}


@pytest.mark.slow
@pytest.mark.jax
def test_a_read_that_jax_capture_lost_is_red(jax_pair: tuple[Captured, Captured], tmp_path: Path) -> None:
    planted, twin = jax_pair
    altered = _copy(planted, tmp_path)
    path = altered.run / "rank00000" / "syncs.jsonl"
    head, *reads = map(json.loads, path.read_text().splitlines())
    reads.remove(next(read for read in reads if read.get("step") == 3))
    head["records"] -= 1
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, *reads)))
    wrong = {kind for kind, status in _status(self_test.judge(altered, twin), "jax").items() if status == "problem"}
    assert wrong == {"syncs", "copies"}


@pytest.mark.slow
@pytest.mark.torch
def test_a_capture_of_a_gpu_is_judged_by_its_kernels_copies_and_waits(
    torch_pair: tuple[Captured, Captured], tmp_path: Path
) -> None:
    planted, twin = (_copy(one, tmp_path / str(at)) for at, one in enumerate(torch_pair))
    for captured in (planted, twin):
        captured.truth["device"] = "cuda"
        change = partial(as_on_a_gpu, copy_bytes=captured.truth["copy_bytes"], pinned=captured.truth["twin"])
        for file in ("timing.pt.trace.json.gz", "detail.pt.trace.json.gz"):
            _alter(captured, file, change)
    statuses = _status(self_test.judge(planted, twin), "torch")
    assert statuses == dict.fromkeys(KINDS, "ok")
    _alter(planted, "timing.pt.trace.json.gz", _drop("cudaStreamSynchronize"))
    _alter(planted, "timing.pt.trace.json.gz", _drop("Memcpy HtoD (Pageable -> Device)"))
    wrong = {kind for kind, status in _status(self_test.judge(planted, twin), "torch").items() if status == "problem"}
    assert wrong >= {"syncs", "copies"}


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("problem", 1)])
def test_the_exit_code_and_the_red_line(status: Any, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Check(name="torch syncs", status=status, text="reads on the host: 8 where 9 is right")]
    monkeypatch.setattr(command, "run_self_test", lambda: checks)
    done = CliRunner().invoke(doctor, ["--self-test"], color=True, standalone_mode=False)
    assert done.return_value == code
    assert ("\x1b[31m" in done.output) is (status == "problem")
    done = CliRunner().invoke(doctor, ["--self-test", "--json"], standalone_mode=False)
    assert done.return_value == code
    assert [check["status"] for check in json.loads(done.output)["self_test"]] == [status]


def test_a_capture_that_fails_is_red(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(examining.PROGRAMS, "torch", "perfscope.workloads.no_such_program")
    taken = examining.capture_known("torch", tmp_path, twin=False, seconds=60)
    assert isinstance(taken, Check)
    assert taken.status == "problem"


def test_without_a_framework_nothing_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "find_spec", lambda name: None)
    assert [check.status for check in command.run_self_test()] == ["absent", "absent", "problem"]
