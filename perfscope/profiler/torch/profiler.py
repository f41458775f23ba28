"""Captures steps with torch.profiler (Kineto) and keeps the Chrome trace as the tool wrote it.

Left out is the name of the host; added are the lines of Python calls, which torch records and does not export.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import json
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from perfscope.profiler.session.annotate import STEP_RANGE, under_nsys
from perfscope.profiler.session.passes import Pass
from perfscope.profiler.torch import compat
from perfscope.profiler.torch.call_lines import call_lines

METADATA_KEY = "perfscope"
"""Top-level key of the trace: pass, complete steps, and the number of a step that was cut off."""

CALLS_KEY = "perfscopeCalls"
"""Top-level key of the trace: what ``call_lines`` returns."""

KINETO_QUIET = "99"
"""A level above every message: libkineto otherwise writes its own marks to the program's stderr."""
C10_ERROR = 2
"""c10's log level that keeps errors and drops warnings."""
OTHER_THREAD = b"External init callback must run in same thread"
"""libkineto writes it to the standard error, whatever its log level, where it first starts outside the main thread."""
COMPRESSION = 1
"""gzip level: 4 times smaller in a fifth of the time of the default 9, which the program would wait for."""
HEADER_BYTES = 16 << 20
"""Bytes that Kineto writes before the events: mostly the process groups, 8 bytes for each rank of each."""
_HOST_NAME = re.compile(rb'"host_name"\s*:\s*"(?:[^"\\]|\\.)*"')

_primed = False


def available() -> str | None:
    """Why torch.profiler cannot capture in this process, or ``None`` if it can."""
    try:
        from torch.autograd import kineto_available
    except ImportError:
        return "PyTorch is not installed"
    if not kineto_available():
        return "this PyTorch was built without Kineto"
    if under_nsys():
        return "Nsight Systems profiles this process, and only one tool at a time can use CUPTI"
    if not _on_main_thread():
        try:
            compat.profiler_config(device_syncs=False, all_threads=True)
        except TypeError:
            return "steps run on another thread than the main one, and this torch cannot profile all threads"
    return None


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class TorchProfilerCapture:
    """One window over whole steps. Every method is called at step boundaries on the thread of the loop."""

    def __init__(self, settings: Pass) -> None:
        """Hold what to record; nothing starts yet."""
        self._settings = settings
        self._profiler: Any = None
        self._range: Any = None
        self._restore_log: Callable[[], None] | None = None
        self.remark: str | None = None
        """Part that could not be recorded though the rest was."""

    def start(self, step: int) -> None:
        """Begin to record. The first profiler of a process is slow to start, so an empty one goes before it."""
        global _primed
        with _quiet_kineto(), _same_environment():
            if not _primed:
                first = self._make(stacks=False)
                with contextlib.nullcontext() if _on_main_thread() else _without_lines(OTHER_THREAD):
                    first.start()
                    first.stop()
                _primed = True
                os.register_at_fork(after_in_child=_end_without_destructors)
            self.remark = _why_no_stacks() if self._settings.stacks else None
            stacks = self._settings.stacks and self.remark is None
            self._profiler = self._make(stacks=stacks)
            if self._settings.memory:
                self._restore_log = _quieten_c10()
            self._profiler.start()

    def begin_step(self, number: int) -> None:
        """Open the range that a reader takes for step ``number``."""
        from torch.autograd.profiler import record_function

        self._range = record_function(f"{STEP_RANGE}{number}")
        self._range.__enter__()

    def end_step(self) -> None:
        """Close it."""
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None

    def stop(self, complete: tuple[int, int] | None, cut_off: int | None) -> None:
        """End it. ``complete``: the steps (half open) that ran completely in it; ``cut_off``: an incomplete step."""
        metadata = {"pass": self._settings.name, "steps": complete, "cut_off": cut_off}
        try:
            self._profiler.add_metadata_json(METADATA_KEY, json.dumps(metadata))
        finally:
            self._stop()

    def _stop(self) -> None:
        """Whatever happened before: a profiler that is left on kills the program at its end."""
        try:
            with _quiet_kineto():
                self._profiler.stop()
        finally:
            self._range = None
            if self._restore_log is not None:
                self._restore_log()
                self._restore_log = None

    def save(self, path: Path) -> None:
        """Write the trace, compressed, to ``path``. It appears there whole or not at all."""
        raw = path.with_name(f".{path.name}.json")
        packed = path.with_name(f".{path.name}.part")
        try:
            # torch writes its file name argument into the file; a relative one reveals nothing of the machine.
            with _same_environment():
                self._profiler.export_chrome_trace(os.path.relpath(raw))
            calls = call_lines(self._profiler) if self._settings.stacks else None
            with raw.open("rb") as source, gzip.open(packed, "wb", compresslevel=COMPRESSION) as target:
                target.write(_with_calls(_without_host(source.read(HEADER_BYTES)), calls))
                shutil.copyfileobj(source, target, 1 << 20)
            packed.replace(path)
        finally:
            raw.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)
            self._profiler = None

    def abandon_in_fork(self) -> None:
        """In a child forked while this records: make its ops free again; the recording is the parent's."""
        compat.stop_recording_functions()
        sys.setprofile(None)

    def _make(self, *, stacks: bool) -> Any:
        from torch.profiler import ProfilerActivity, profile, supported_activities

        wanted = (ProfilerActivity.CPU, ProfilerActivity.CUDA, ProfilerActivity.XPU, ProfilerActivity.MTIA)
        supported = supported_activities()
        return profile(
            activities=[activity for activity in wanted if activity in supported],
            record_shapes=self._settings.shapes,
            profile_memory=self._settings.memory,
            with_stack=stacks,  # which names the modules too; with_modules is for TorchScript
            experimental_config=compat.profiler_config(
                device_syncs=self._settings.device_syncs, all_threads=not _on_main_thread()
            ),
        )


def _end_without_destructors() -> None:
    """In a fork: have its ordinary end, which runs what Python registered, skip the destructors of C++ libraries.

    That of libkineto joins a thread that the fork does not have, and so a fork that ends by ``sys.exit`` never would.
    Handlers run in reverse: the streams of C are written out first, then the process ends with its own exit status.
    """
    try:
        c = ctypes.CDLL(None)
        c.on_exit(c._exit, None)
        c.__cxa_atexit(c.fflush, None, None)
    except (AttributeError, OSError):  # another C library than GNU's
        return


def _why_no_stacks() -> str | None:
    if sys.getprofile() is not None:
        return "no Python stacks: the program has its own profile function (sys.setprofile)"
    try:
        "".join((*sys.path, *sys.argv[:1], str(Path.cwd()))).encode()
    except UnicodeEncodeError:
        return "no Python stacks: torch ends a program whose files have names that are not UTF-8"
    return None


def _without_host(head: bytes) -> bytes:
    """The beginning of a trace without the machine's name, which Kineto writes before the events."""
    header, events, rest = head.partition(b'"traceEvents"')
    return _HOST_NAME.sub(b'"host_name": ""', header) + events + rest


def _with_calls(head: bytes, calls: dict[str, Any] | None) -> bytes:
    """The beginning of a trace with ``CALLS_KEY`` before its events."""
    header, events, rest = head.partition(b'"traceEvents"')
    if not events or calls is None:
        return head
    return header + f'"{CALLS_KEY}": {json.dumps(calls)},\n  '.encode() + events + rest


@contextlib.contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Silence libkineto, which reads its log level at its first use; the variable is restored right after."""
    name = "KINETO_LOG_LEVEL"
    if name in os.environ:  # the user wants to hear it
        yield
        return
    os.environ[name] = KINETO_QUIET
    try:
        yield
    finally:
        os.environ.pop(name, None)


@contextlib.contextmanager
def _same_environment() -> Iterator[None]:
    """Remove the folder of inductor's cache where it is new: torch 2.13 imports inductor, which sets it."""
    known = "TORCHINDUCTOR_CACHE_DIR" in os.environ
    try:
        yield
    finally:
        if not known:
            os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)


@contextlib.contextmanager
def _without_lines(unwanted: bytes) -> Iterator[None]:
    """Hold back output to the standard error; write it afterwards, without the lines with ``unwanted``."""
    try:
        kept = os.dup(2)
    except OSError:  # the program has no standard error
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            held.seek(0)
            for line in held.read().splitlines(keepends=True):
                if unwanted not in line:
                    os.write(2, line)


def _quieten_c10() -> Callable[[], None] | None:
    """Silence c10's warnings while memory is recorded, and return the undo.

    The CPU allocator warns of every thousandth block that was allocated before the recording, on the
    program's stderr; nothing else turns that off. If the flag cannot be found it stays on.
    """
    import torch

    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        flag = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None
    before = flag.value
    flag.value = max(before, C10_ERROR)

    def restore() -> None:
        flag.value = before

    return restore
