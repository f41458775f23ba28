"""``perfscope attach``: stacks of real processes by each way, recordings of their next steps, one-line errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.model.errors import DataError
from perfscope.plugins.attach import stacks as reading
from perfscope.plugins.attach.report import report_of
from perfscope.plugins.attach.stacks import ThreadStack, remote_script, thread_stacks
from perfscope.plugins.attach.target import Target, find
from tests.session.programs import environment, plain, start, write

LOOP = """
import os, sys, time
import torch
from torch import nn
import perfscope
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def pause():
    time.sleep(0.03)
open("pid", "w").write(str(os.getpid()))
while not os.path.exists("stop"):
    model(torch.randn(8, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    pause()
    perfscope.step()
print("done")
"""
WAITS = "import time\nopen('ready', 'w').close()\ntime.sleep(600)\n"
MINUTE_S = 60


def await_file(path: Path) -> str:
    until = time.monotonic() + 2 * MINUTE_S
    while time.monotonic() < until:
        if path.exists() and (text := path.read_text()):
            return text
        time.sleep(0.05)
    pytest.fail(f"{path.name} was not written")


def ended(folder: Path, program: subprocess.Popen[str]) -> str:
    (folder / "stop").touch()
    output, _ = program.communicate(timeout=2 * MINUTE_S)
    return output


def test_a_program_under_run_shows_its_stacks_and_records_more_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, LOOP)
    program = start("--ledger", "--no-report", "-q", "train.py", cwd=tmp_path)
    try:
        pid = int(await_file(tmp_path / "pid"))
        monkeypatch.setattr(shutil, "which", lambda *_, **__: None)  # as where py-spy is not installed
        target = find(pid)
        until = time.monotonic() + MINUTE_S
        while target.run is None and time.monotonic() < until:  # known once it has steps
            time.sleep(0.1)
            target = find(pid)
        found, way = thread_stacks(target)
        assert way == "its ledger"
        names = {stack.name for stack in found}
        assert "MainThread" in names
        main = next(stack for stack in found if stack.name == "MainThread")
        assert "train.py" in {file for file, _, _ in main.frames}
        assert "its ledger" in " ".join(report_of(target, found, way, verbose=False).facts)
        recorded = plain("-m", "perfscope", "attach", str(pid), "--record", "2", cwd=tmp_path)
        assert recorded.returncode == 0, recorded.stderr
        assert "2 steps are recorded" in recorded.stdout
    finally:
        output = ended(tmp_path, program)
    assert output == "done\n"


@pytest.mark.slow
def test_a_program_with_steps_records_some_on_request_and_goes_on(tmp_path: Path) -> None:
    write(tmp_path, LOOP)
    program = subprocess.Popen(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        pid = await_file(tmp_path / "pid")
        for steps in (2, 3):
            recorded = plain("-m", "perfscope", "attach", pid, "--record", str(steps), cwd=tmp_path)
            assert recorded.returncode == 0, recorded.stderr
            run = Path(recorded.stdout.partition(":")[0])
            process = json.loads((run / "rank00000" / "process.json").read_text())
            (timing,) = [capture for capture in process["captures"] if capture["pass"] == "timing"]
            assert timing["steps"][1] - timing["steps"][0] == steps
    finally:
        output = ended(tmp_path, program)
    assert output == "done\n"


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A Python process that sleeps."""
    folder = tmp_path_factory.mktemp("waiting")
    process = subprocess.Popen([sys.executable, "-c", WAITS], cwd=folder)
    until = time.monotonic() + MINUTE_S
    while not (folder / "ready").exists() and time.monotonic() < until:
        time.sleep(0.02)
    yield process.pid
    process.kill()
    process.wait()


def fake_spy(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


SPY_ANSWER = [
    {
        "thread_id": 1,
        "thread_name": "MainThread",
        "active": False,
        "owns_gil": False,
        "frames": [
            {"name": "wait", "filename": "/lib/python3.11/threading.py", "line": 327},
            {"name": "<module>", "filename": "/home/me/train.py", "line": 3},
        ],
    }
]


def test_the_answer_of_py_spy_is_shown(waiting: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fields are those of version 0.4."""
    (tmp_path / "answer.json").write_text(json.dumps(SPY_ANSWER))
    fake_spy(tmp_path, monkeypatch, f"cat {tmp_path}/answer.json")
    target = find(waiting)
    (stack,), way = thread_stacks(target)
    assert way == "py-spy"
    assert stack.frames[0] == ("/lib/python3.11/threading.py", 327, "wait")
    assert "MainThread waits in wait at" in report_of(target, [stack], way, verbose=False).headline


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1", "ptrace"),
        (
            "printf 'Error: Failed to find python version\nStack backtrace:\n 11: main\n' >&2; exit 1",
            "py-spy: Failed to find python version",
        ),
        ("echo 'not json'", "unknown output"),
        ("echo '[{}]'", "unknown output"),
    ],
)
def test_a_refusal_of_py_spy_is_one_line(
    waiting: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, error: str
) -> None:
    fake_spy(tmp_path, monkeypatch, body)
    with pytest.raises(DataError, match=error) as raised:
        thread_stacks(find(waiting))
    assert "\n" not in str(raised.value)


def test_without_a_way_the_package_to_install_is_named(waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.delattr(sys, "remote_exec", raising=False)
    with pytest.raises(DataError, match=f"^{waiting}: its stacks need py-spy: pip install py-spy$"):
        thread_stacks(find(waiting))


def test_the_script_for_remote_exec_writes_the_stacks_of_all_threads(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    code = f"exec(open({str(tmp_path / 'script.py')!r}).read(), {{}})"
    (tmp_path / "script.py").write_text(remote_script(answer))
    program = f"import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n{code}\n"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    threads = dict(json.loads(answer.read_text()))
    assert len(threads) == 2
    assert threads["MainThread"][-1][2] == "<module>"


def test_processes_that_cannot_be_attached_to(waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="no process has this number"):
        find(2**22 + 1)
    with pytest.raises(DataError, match="perfscope itself"):
        find(os.getpid())
    shell = subprocess.Popen(["sleep", "60"])
    try:
        until = time.monotonic() + MINUTE_S
        while b"sleep" not in Path(f"/proc/{shell.pid}/cmdline").read_bytes() and time.monotonic() < until:
            time.sleep(0.01)  # it has not begun to be another program
        with pytest.raises(DataError, match="sleep is not a Python program"):
            find(shell.pid)
    finally:
        shell.kill()
        shell.wait()

    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    with pytest.raises(DataError, match="another user"):
        find(waiting)


def test_a_process_that_does_not_answer_a_request(
    waiting: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perfscope.profiler.session import annotate, requested

    monkeypatch.setattr(annotate, "request_path", lambda pid: str(tmp_path / "mine" / f"attach-{pid}"))
    assert requested.request(waiting, 3, 0.3) is None
    assert list((tmp_path / "mine").iterdir()) == []


def test_terminals_get_no_control_characters_of_a_process() -> None:
    stack = reading._stack("a\x1b[31m", "", [["x\x1b.py", 1, "f"]])
    target = Target(pid=1, command="", executable="", run=None)
    report = report_of(target, [ThreadStack(name=stack.name, state="", frames=stack.frames)], "py-spy", verbose=True)
    assert "\x1b" not in str(report)
