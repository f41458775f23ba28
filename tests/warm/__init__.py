"""Start Python programs as forks of an interpreter that has imported torch or jax: `run` and `Popen` of `subprocess`.

A test program that imports torch spends most of its time on that import. Each process of pytest has at most one server
per framework, started with its first program. Programs that need another start (options of Python, variables that are
read at the import, a function before the start, a system without ``pidfd_open``) are started by `subprocess` as usual.

Not for tests of the start itself: import hooks, interpreters, what a fresh process holds.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pickle
import re
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perfscope.profiler.ab import launch
from tests.warm.server import Program, can_run, fixed

_SERVER = Path(__file__).with_name("server.py")
_START = "import sys; exec(compile(open(sys.argv.pop(1)).read(), '<warm>', 'exec'))"
_IMPORT = re.compile(r"^\s*(?:import|from) (torch|jax)\b", re.MULTILINE)
POSSIBLE = hasattr(os, "pidfd_open") and hasattr(os, "setsid")


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen` that forks a warm interpreter where it can."""

    _answers: int | None = None

    @property
    def is_fork(self) -> bool:
        """Whether it was forked from a warm interpreter."""
        return self._answers is not None

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
        (_, passed, folder, env, _, _, shell, *pipes, _, gid, groups, uid, umask, new_session, group) = rest
        server = None
        plain = not shell and preexec_fn is None and not passed and all(each is None for each in (gid, groups, uid))
        words = [os.fsdecode(word) for word in args] if not isinstance(args, str | bytes) else []
        place = os.fsdecode(folder or os.getcwd())
        environment = {os.fsencode(name): os.fsencode(value) for name, value in (env or os.environ).items()}
        if POSSIBLE and plain and executable is None and words[:1] == [sys.executable] and can_run(words[1:], place):
            framework = _framework(words[1:], place)
            server = None if framework is None else _server(framework)
        if server is None or fixed(environment) != server.fixed:
            super()._execute_child(args, executable, preexec_fn, *rest)
            return
        streams = [end if end != -1 else number for number, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        program = Program(
            tuple(words[1:]), place, environment, umask, bool(new_session), -1 if group is None else group
        )
        self._answers, theirs = os.pipe()
        try:
            socket.send_fds(server.link, [pickle.dumps(tuple(program))], [*streams, theirs])
        finally:
            os.close(theirs)
        self._child_created = True
        self.pid = self._answer()
        self._close_pipe_fds(*pipes)

    def _answer(self) -> int:
        assert self._answers is not None
        answer = os.read(self._answers, 4)
        if len(answer) != 4:
            raise ChildProcessError("the warm interpreter has ended")
        return int(struct.unpack("i", answer)[0])

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._answers is None:
            return super()._try_wait(wait_flags)
        if not select.select([self._answers], [], [], 0 if wait_flags & os.WNOHANG else None)[0]:
            return 0, 0
        status = self._answer()
        os.close(self._answers)
        return self.pid, status

    def _internal_poll(self, *arguments: Any, **named: Any) -> int | None:
        if self._answers is None:
            return super()._internal_poll(*arguments, **named)
        if self.returncode is None:
            number, status = self._try_wait(os.WNOHANG)
            if number:
                self._handle_exitstatus(status)
        return self.returncode


def run(
    command: Sequence[str | Path],
    *,
    input: str | bytes | None = None,  # noqa: A002 (as there)
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` with `Popen`."""
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(input, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def use_for_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have launches of A/B comparisons and trials fork; their programs outlive a killed test then."""
    monkeypatch.setattr(subprocess, "Popen", Popen)
    monkeypatch.setattr(launch, "end_with_us", lambda: None)


class _Server:
    """A warm interpreter of this process, and the variables that its children cannot change."""

    def __init__(self, framework: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "PYTHONPATH" and not name.startswith("PERFSCOPE_")
        }
        environment["OMP_NUM_THREADS"] = "1"
        environment["PYTHONPATH"] = ""
        self.link, self.fixed = ours, fixed({os.fsencode(k): os.fsencode(v) for k, v in environment.items()})
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(_SERVER), framework, str(theirs.fileno())],
                env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                cwd=_SERVER.parents[2],
            )  # fmt: skip
        atexit.register(self._close)

    def _close(self) -> None:
        self.link.close()
        self._process.wait()


@cache
def _server(framework: str) -> _Server | None:
    return _Server(framework)


def _framework(words: Sequence[str], folder: str) -> str | None:
    """The framework that a program imports first, by its text; ``None`` where it is not seen to import one."""
    for index, word in enumerate(words):
        found = _IMPORT.search(_text_of(words, index, folder))
        if found:
            return found[1]
        if word == "-m" and words[index + 1 : index + 2] == ["torch.distributed.run"]:
            return "torch"
    return None


def _text_of(words: Sequence[str], index: int, folder: str) -> str:
    word = words[index]
    before = words[index - 1] if index else ""
    if before == "-c":
        return word
    path = Path(folder, word)
    if before == "-m":
        if word == "perfscope" or not word.startswith(("perfscope.", "tests.")):
            return ""
        spec = importlib.util.find_spec(word)
        path = Path(spec.origin) if spec is not None and spec.origin else path
    return path.read_text(errors="replace") if path.suffix == ".py" and path.is_file() else ""
