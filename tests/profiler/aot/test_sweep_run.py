"""The scheduler of a sweep: real worker processes, with work that ends before a compiler is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from perfscope.analyzers.hardware.target_request import target_request
from perfscope.analyzers.hardware.target_text import parse_target
from perfscope.model.documents.compile_request import Limits, Request
from perfscope.profiler.ahead.sweep import pool
from perfscope.profiler.ahead.sweep.pool import run_jobs, tree_bytes
from perfscope.profiler.ahead.sweep.worker import Job, Outcome


def _job(folder: Path, program: str, text: str | None = None) -> Job:
    if text is not None:
        (folder / program).write_text(text)
    request = Request(
        framework="jax", arguments=(str(folder / program),), module=False,
        target=target_request(parse_target("h100"), configured=True),
        limits=Limits(seconds=60, memory_bytes=4 << 30), plugins=(),
    )  # fmt: skip
    return Job(request=request, root=str(folder / "runs"), name="one")


def test_every_job_ends_with_a_reason(tmp_path: Path) -> None:
    ended: dict[int, Outcome] = {}
    jobs = [_job(tmp_path, f"absent{number}.py") for number in range(3)]
    run_jobs(jobs, ended.__setitem__, most_at_once=2)
    assert sorted(ended) == [0, 1, 2]
    for number, outcome in ended.items():
        assert outcome.state == "failed"
        assert f"absent{number}.py" in outcome.reason or "no such" in outcome.reason.lower() or outcome.reason
        assert outcome.seconds is not None
        assert outcome.host_bytes


def test_a_worker_that_dies_is_a_reason(tmp_path: Path, monkeypatch) -> None:
    real = subprocess.Popen

    def killed(line, **more):
        return real([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], **more)

    monkeypatch.setattr(pool.subprocess, "Popen", killed)
    ended: dict[int, Outcome] = {}
    run_jobs([_job(tmp_path, "absent.py")], ended.__setitem__)
    assert ended[0].reason == "the process that compiled it was ended by SIGKILL"


def test_one_that_takes_too_much_alone_has_failed_and_the_rest_goes_on(tmp_path: Path, monkeypatch) -> None:
    real = subprocess.Popen
    greedy = "import time; held = bytearray(300 << 20); time.sleep(60)"

    def started(line, **more):
        number = len(begun)
        begun.append(number)
        return real([sys.executable, "-c", greedy if number == 0 else "pass"], **more)

    begun: list[int] = []
    monkeypatch.setattr(pool.subprocess, "Popen", started)
    ended: dict[int, Outcome] = {}
    jobs = [_job(tmp_path, "absent.py"), _job(tmp_path, "absent.py")]
    run_jobs(jobs, ended.__setitem__, most_at_once=2, memory_bytes=200 << 20)
    assert "it takes more memory of this machine than it may (0.2 GiB" in ended[0].reason
    assert ended[1].reason == "the process that compiled it ended with code 0"


def test_two_that_take_too_much_together_are_done_one_after_the_other(tmp_path: Path, monkeypatch) -> None:
    real_start, real_end = subprocess.Popen, pool._end
    flag = tmp_path / "one was ended"
    work = (
        "import pathlib, time; held = bytearray(150 << 20)\n"
        f"while not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.05)"
    )
    begun: list[int] = []

    def started(line, **more):
        begun.append(1)
        return real_start([sys.executable, "-c", work], **more)

    def end(workers):
        real_end(workers)
        flag.touch()

    monkeypatch.setattr(pool.subprocess, "Popen", started)
    monkeypatch.setattr(pool, "_end", end)
    monkeypatch.setattr(pool, "FIRST_GUESS", 1 << 20)
    ended: dict[int, Outcome] = {}
    jobs = [_job(tmp_path, "a.py"), _job(tmp_path, "b.py")]
    run_jobs(jobs, ended.__setitem__, most_at_once=2, memory_bytes=260 << 20)
    assert sorted(ended) == [0, 1]
    assert len(begun) == 3  # the youngest was ended and begun again
    assert all(outcome.reason == "the process that compiled it ended with code 0" for outcome in ended.values())


def test_what_is_below_a_process_is_counted_with_it() -> None:
    inner = "held = bytearray(100 << 20); print('up', flush=True); input()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        found = tree_bytes([process.pid, os.getpid()])
        process.communicate("\n")
    assert found[process.pid] > 100 << 20
    assert tree_bytes([1 << 30]) == {1 << 30: 0}
