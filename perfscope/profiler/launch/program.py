"""Starts the user's program as plain Python would, with the bootstrap on its path, and waits for it.

The program gets our stdin, stdout and stderr. Every signal reaches it exactly once: a signal from the
terminal reaches the whole foreground group, the program included, so it is not passed on; a signal that was
sent only to us is. Outside a terminal the program gets a separate process group, so that a signal to our
group reaches only us, and is passed on once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from msgspec import Struct

from perfscope.model.capture import VARIABLE, Message
from perfscope.model.errors import NotStartedError
from perfscope.profiler import bootstrap

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
SI_KERNEL = 0x80
"""``siginfo.si_code`` of a signal that the kernel sent, as it does for Ctrl-C at a terminal."""
PR_SET_PDEATHSIG = 1
INTERRUPTED_BY = signal.SIGINT
GRACE_S = 30.0
"""Seconds from SIGTERM to SIGKILL for a program whose time is over, as Kubernetes gives by default."""


class Target(Struct, frozen=True, kw_only=True):
    """What to start: ``script.py ARGS``, ``-m module ARGS``, or a command of any kind."""

    arguments: tuple[str, ...]
    """Script, module or command, and everything after it."""
    module: bool = False
    command: bool = False
    title: str | None = None
    """What to call a run of it, if that is not its first argument."""

    def command_line(self) -> list[str]:
        """The program to start and its arguments; ``NotStartedError`` if it is not there."""
        first = self.arguments[0]
        if self.command:
            path = shutil.which(first)
            if path is None:
                raise NotStartedError(f"{first}: no such command")
            return [path, *self.arguments[1:]]
        if self.module:
            return [sys.executable, "-m", *self.arguments]
        if first != "-" and not Path(first).exists():
            raise NotStartedError(f"{first}: no such file")
        return [sys.executable, *self.arguments]

    def name(self) -> str:
        """What to call a run of it."""
        if self.title is not None:
            return self.title
        first = Path(self.arguments[0]).name
        return first if self.module or self.command else first.removesuffix(".py")


class Ended(Struct, frozen=True, kw_only=True):
    """How the program ended. ``code``: as a shell gives it, 128 plus the signal that killed it."""

    code: int
    signal: int | None
    """The signal that killed it."""
    interrupted: bool
    """Whether SIGINT came while it ran."""
    timed_out: bool = False
    """Whether it ran until the requested time was over. If SIGTERM then ended it, ``code`` is 0."""


def launch(target: Target, message: Message) -> Ended:
    """Start the program, wait for it, and return its end; ``NotStartedError`` if it cannot be started."""
    line = target.command_line()
    own_group = not _in_foreground()
    received = (signal.SIGCHLD, *PASSED_ON, *((signal.SIGTSTP,) if own_group else ()))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, received)
    try:
        child = _start(line, _environment(message), own_group=own_group, mask=before)
        return _wait(child, received, own_group=own_group, seconds=message.options.seconds)
    finally:
        # A signal that arrived while we were ending must not kill us before the run is written down.
        while signal.sigtimedwait(received, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def path_with_package() -> str:
    """``PYTHONPATH`` of a child that imports this package from its present folder, which may be a checkout."""
    ours = str(Path(bootstrap.__file__).resolve().parents[3])
    return os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))


def _environment(message: Message) -> dict[str, str]:
    environment = dict(os.environ)
    here = str(Path(bootstrap.__file__).parent.resolve())
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (here, message.pythonpath)))
    environment[VARIABLE] = message.dump()
    return environment


def end_with_us() -> Callable[[], None]:
    """Code for a child between fork and exec, so that it is killed when we are: no other process would end it."""
    parent = os.getpid()
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        if hasattr(libc, "prctl"):
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)

    return prepare


def _start(
    line: list[str], environment: dict[str, str], *, own_group: bool, mask: set[int | signal.Signals]
) -> subprocess.Popen[bytes]:
    ends_with_us = end_with_us()

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        ends_with_us()

    try:
        return subprocess.Popen(
            line,
            env=environment,
            process_group=0 if own_group else None,
            preexec_fn=prepare,
            close_fds=False,
            restore_signals=True,
        )
    except OSError as error:
        raise NotStartedError(f"{line[0]}: cannot be started: {error.strerror or error}") from error


def _wait(
    child: subprocess.Popen[bytes], received: tuple[signal.Signals, ...], *, own_group: bool, seconds: float | None
) -> Ended:
    interrupts, timed_out = 0, False
    deadline = None if seconds is None else monotonic() + seconds
    while True:
        code = child.poll()
        if code is not None:
            return _ended(code, interrupted=interrupts > 0, timed_out=timed_out)
        info = (
            signal.sigwaitinfo(received)
            if deadline is None
            else signal.sigtimedwait(received, max(0.0, deadline - monotonic()))
        )
        if info is None:  # the time is over
            _send(child, signal.SIGKILL if timed_out else signal.SIGTERM, own_group=own_group and timed_out)
            deadline, timed_out = None if timed_out else monotonic() + GRACE_S, True
            continue
        if info.si_signo == signal.SIGCHLD:
            continue
        if info.si_signo == signal.SIGTSTP:
            _stop_together(child)
            continue
        if info.si_signo == INTERRUPTED_BY:
            interrupts += 1
        with contextlib.suppress(ProcessLookupError):
            if interrupts > 1 and info.si_signo == INTERRUPTED_BY:
                _send(child, signal.SIGKILL, own_group=own_group)  # a second Ctrl-C kills
            elif own_group or info.si_code != SI_KERNEL:
                os.kill(child.pid, info.si_signo)


def _ended(code: int, *, interrupted: bool, timed_out: bool) -> Ended:
    killed = -code if code < 0 else None
    code = 128 - code if code < 0 else code
    if timed_out and code == 128 + signal.SIGTERM:  # also the code of a shell or launcher whose child was ended so
        code, killed = 0, None
    return Ended(code=code, signal=killed, interrupted=interrupted, timed_out=timed_out)


def _send(child: subprocess.Popen[bytes], number: int, *, own_group: bool) -> None:
    if own_group:
        os.killpg(child.pid, number)
    else:
        os.kill(child.pid, number)


def _stop_together(child: subprocess.Popen[bytes]) -> None:
    """Ctrl-Z for a program in a separate process group: stop it, stop ourselves, continue together."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.killpg(child.pid, signal.SIGCONT)


def _in_foreground() -> bool:
    """Whether a terminal sends its Ctrl-C to our process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
