"""Compiles or plans a program into a run folder: starts the children, and writes the manifest from their reports."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from perfscope.model.documents import compile_manifest, run_folders
from perfscope.model.documents.compile_manifest import (
    Checkpointed,
    Compiled,
    CompiledLine,
    CompiledProgram,
    NotCompiled,
)
from perfscope.model.environment import git_facts
from perfscope.model.errors import DATA_UNREADABLE, NotStartedError, PerfscopeError
from perfscope.model.files import write_atomically
from perfscope.model.untrusted_text import scrub_command
from perfscope.plugins.ahead import request as requests
from perfscope.plugins.ahead.common.build_key import sources_digest
from perfscope.plugins.ahead.common.stages import Run, StageChildren
from perfscope.plugins.ahead.request import Request

# Starts the child, reads its events, and ends it if it exceeds its time or memory.


CHILD = Path(__file__).with_name("child.py")
"""Run as a file and never imported: this process does not need its imports."""
POLL_INTERVAL_S = 0.25
"""Seconds between two checks of the child's memory."""
MAX_EVENT_BYTES = 64 << 20
"""Most bytes of lines from the child, in case a program writes into our pipe."""
MAX_OUTPUT_BYTES = 64 << 20
"""Bytes that the program may print before the file is restarted: only the end is used."""
TAIL_BYTES = 16_384
MEMORY_SHARE = 0.75
"""Share of the available memory that a child may take by default."""
MIN_MEMORY = 1 << 30
Watch = Callable[[int], "str | None"]
"""Called several times a second with the bytes used by a child and its children; returns a reason to end it, or None.
"""

MAX_CRASHES = 3
"""Most programs that may crash the compiler before the rest is skipped: each costs another run of the program."""

MAX_OUTPUT_LINES = 12
"""Most lines kept of the last output of a child that died."""


class ChildExit(Struct, frozen=True, kw_only=True):
    """The end of a child."""

    code: int
    """Exit code of the process; negative: the signal that killed it."""
    stopped: str | None
    """Why we ended it: time or memory."""
    tail: tuple[str, ...]
    """The last lines printed by the child, its program or XLA."""


def default_memory_limit() -> int:
    """Bytes that a child may use: three quarters of this machine's available memory."""
    try:
        with Path("/proc/meminfo").open() as lines:
            free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        free = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return max(round(free * MEMORY_SHARE), MIN_MEMORY)


def run_child(
    request: Path,
    scratch: Path,
    hear: Callable[[dict[str, Any]], None],
    *,
    until: float,
    memory_bytes: int,
    watch: Watch | None = None,
) -> ChildExit:
    """Run a child with the request in that file; ``hear`` gets its events. ``until``: on the monotonic clock.

    ``watch`` may end it. The child has no stdin; its output goes to a file in ``scratch``. It and all its children end
    with this process. ``NotStartedError`` if it cannot be started.
    """
    reading, writing = os.pipe()
    printed = scratch / "printed.txt"
    try:
        with printed.open("ab") as stream:
            process = subprocess.Popen(
                [sys.executable, str(CHILD), str(request), str(writing)],
                stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, pass_fds=(writing,), start_new_session=True,
                env=_environment(scratch),
            )  # fmt: skip
    except OSError as error:
        os.close(reading)
        raise NotStartedError(f"{sys.executable}: cannot be started: {error.strerror or error}") from error
    finally:
        os.close(writing)
    try:
        stopped = _read_events(process, reading, printed, hear, until=until, memory_bytes=memory_bytes, watch=watch)
        if stopped is None:
            process.wait()
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return ChildExit(code=process.returncode, stopped=stopped, tail=_output_tail(printed))


def _environment(scratch: Path) -> dict[str, str]:
    environment = dict(os.environ)
    environment["JAX_PLATFORMS"] = "cpu"
    environment.setdefault("OMP_NUM_THREADS", "1")  # nothing large is computed, and variants of a sweep share the cores
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    environment.setdefault("TPU_SKIP_MDS_QUERY", "1")
    environment["TPU_LOG_DIR"] = str(scratch)
    return environment


def _read_events(
    process: subprocess.Popen[bytes], reading: int, printed: Path, hear: Callable[[dict[str, Any]], None], *,
    until: float, memory_bytes: int, watch: Watch | None,
) -> str | None:  # fmt: skip
    """Handle events until the child ends; return why we ended it, if we did."""
    rest, heard, limit_s = b"", 0, max(until - time.monotonic(), 0.0)
    while True:
        ready, _, _ = select.select([reading], [], [], POLL_INTERVAL_S)
        if ready:
            piece = os.read(reading, 65_536)
            if not piece:
                return None
            heard += len(piece)
            if heard > MAX_EVENT_BYTES:
                return "it writes more events than a compilation can have"
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError):
                    message = json.loads(line)
                    if isinstance(message, dict) and "event" in message:
                        hear(message)
        elif process.poll() is not None:
            return None  # a process it started still holds the pipe
        if time.monotonic() > until:
            return f"out of time: {limit_s:.0f} s are over (--limit)"
        taken = _group_memory(process.pid)
        reason = None if watch is None else watch(taken)
        if reason is not None:
            return reason
        if taken > memory_bytes:
            return f"out of memory: more than {memory_bytes / (1 << 30):.1f} GiB are taken (--host-memory)"
        if printed.stat().st_size > MAX_OUTPUT_BYTES:
            os.truncate(printed, 0)


def _group_memory(group: int) -> int:
    """Resident bytes of all processes of a group; 0 if the system does not report them."""
    total, page = 0, os.sysconf("SC_PAGE_SIZE")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_bytes().rpartition(b")")[2].split()
            if int(fields[2]) == group:
                total += int(fields[21]) * page
        except (OSError, IndexError, ValueError):
            continue
    return total


def _output_tail(printed: Path) -> tuple[str, ...]:
    with printed.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(stream.tell() - TAIL_BYTES, 0))
        text = stream.read().decode("utf-8", "replace")
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())


Progress = Callable[[str], None]


class NothingCompiledError(PerfscopeError):
    """No program was compiled or planned. ``lines``: the last lines printed by the program or the compiler."""

    exit_code = DATA_UNREADABLE

    def __init__(self, line: str, lines: tuple[str, ...], folder: Path) -> None:
        super().__init__(line)
        self.lines, self.folder = lines, folder


class _EventLog(Struct, kw_only=True):
    """The events reported by the children."""

    progress: Progress
    versions: dict[str, str] = field(default_factory=dict)
    seen: list[dict[str, Any]] = field(default_factory=list)
    compiled: dict[int, CompiledProgram] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    unwanted: set[int] = field(default_factory=set)
    planned: list[CompiledProgram] = field(default_factory=list)
    left: list[NotCompiled] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checkpoint: Checkpointed | None = None
    stopped: str | None = None
    failure: dict[str, Any] | None = None
    failed: str | None = None
    failed_lines: tuple[str, ...] = ()
    at: int | None = None
    """Number of the program being compiled."""
    done: bool = False

    def hear(self, message: dict[str, Any]) -> None:
        """Handle one event from the child process."""
        event, number = message["event"], message.get("number")
        if event == "loaded":
            self.versions |= message.get("versions", {})
            self.note(message.get("notes", ()))
            self.progress("running the program")
        elif event == "checkpoint":
            self.checkpoint = msgspec.convert(message["checkpoint"], Checkpointed)
            self.note(message.get("notes", ()))
        elif event == "seen":
            self.seen = list(message.get("programs", ()))
            self.stopped, self.failure = message.get("stopped"), message.get("failure")
            self.note(message.get("notes", ()))
        elif event == "compiling" and isinstance(number, int):
            self.at = number
            self.progress(f"compiling {message.get('name', '')} ({number + 1} of {len(self.seen)})")
        elif event == "compiled" and isinstance(number, int):
            self.at = None
            line = msgspec.convert(self._seen(number).get("place"), CompiledLine | None)
            self.note(message.get("notes", ()))
            what = {name: value for name, value in message.items() if name not in ("event", "number", "notes")}
            calls = self._seen(number).get("calls", 1)
            self.compiled[number] = msgspec.convert({**what, "place": line, "calls": calls}, CompiledProgram)
        elif event == "refused" and isinstance(number, int):
            self.at = None
            self.refused[number] = str(message.get("reason"))
        elif event == "unwanted" and isinstance(number, int):
            self.unwanted.add(number)
        elif event == "planned":
            self.planned.append(msgspec.convert(message["program"], CompiledProgram))
        elif event == "not_planned":
            self.left.append(msgspec.convert(message["what"], NotCompiled))
        elif event == "stopped":
            self.stopped = str(message.get("reason"))
        elif event == "failure":
            self.failure = message.get("failure")
        elif event == "note":
            self.note([message.get("text", "")])
        elif event == "progress":
            self.progress(str(message.get("text", "")))
        elif event == "failed":
            self.failed, self.failed_lines = str(message.get("reason")), tuple(message.get("lines", ()))
        elif event == "done":
            self.done = True

    def note(self, notes: Any) -> None:
        """Keep notes, each once."""
        self.notes += [str(note) for note in notes if note and note not in self.notes]

    def crashed(self, ended: ChildExit) -> bool:
        """Record that the child died; return whether it was while compiling one of several programs."""
        what = f"ended by {signal.Signals(-ended.code).name}" if ended.code < 0 else f"ended with code {ended.code}"
        last_message = _fatal_line(ended.tail)
        reason = f"the compiler {what}{f': {last_message}' if last_message else ''}"
        if self.at is None:
            self.failed = f"its run ended early: the process {what}{f': {last_message}' if last_message else ''}"
            self.failed_lines = ended.tail[-MAX_OUTPUT_LINES:]
            return False
        self.refused[self.at] = reason
        self.at = None
        return True

    def programs(self) -> tuple[CompiledProgram, ...]:
        """Compiled programs, in the order they were seen."""
        return (*(self.compiled[number] for number in sorted(self.compiled)), *self.planned)

    def not_compiled(self, why_rest: str | None) -> tuple[NotCompiled, ...]:
        """Programs that were not compiled, with the reason; ``why_rest``: reason for those that were never begun."""
        missing = []
        for number, program in enumerate(self.seen):
            reason = self.refused.get(number)
            if reason is None and number not in self.compiled and number not in self.unwanted:
                reason = why_rest
            if reason is not None:
                line = msgspec.convert(program.get("place"), CompiledLine | None)
                missing.append(NotCompiled(name=str(program.get("name")), place=line, reason=reason))
        return (*missing, *self.left)

    def _seen(self, number: int) -> dict[str, Any]:
        return self.seen[number] if number < len(self.seen) else {}


def compile_program(
    request: Request,
    *,
    root: Path | None = None,
    name: str | None = None,
    command: tuple[str, ...] | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Path:
    """Compile or plan a request; return the run folder below ``root``, with its ``compile.json``.

    May be called from several threads or processes at once. ``command``: for the manifest. ``watch`` may end it.
    ``NothingCompiledError`` if no program was produced (the folder exists and holds the reason); ``NotStartedError`` if
    the program does not exist. Programs compiled before time or memory ran out are kept.
    """
    began = time.monotonic()
    program = Path(request.arguments[0]).name if request.arguments else "program"
    label = name or (program if request.module else program.removesuffix(".py"))
    directory = run_folders.create(Path(run_folders.RUNS_FOLDER) if root is None else root, label)
    request = msgspec.structs.replace(request, folder=str(directory.resolve()))
    log = _EventLog(progress=progress or (lambda _: None))
    words = command or (("-m", *request.arguments) if request.module else request.arguments)
    first = Compiled(
        framework=request.framework,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        name=label,
        command=scrub_command(_relative_paths(words)),
        target=request.target.machine,
        git=git_facts(),
        sources=None if request.exported is not None else sources_digest(request.arguments, module=request.module),
        functions=request.functions,
        until_exit=request.until_exit,
    )
    _write(directory, first)
    stopped: str | None = "interrupted"
    try:
        stopped = _run_children(request, directory, log, until=began + request.limits.seconds, watch=watch)
    finally:
        manifest = msgspec.structs.replace(
            first,
            versions=log.versions,
            programs=log.programs(),
            not_compiled=log.not_compiled(stopped or log.failed),
            notes=tuple(_notes(log, stopped)),
            checkpoint=log.checkpoint,
            stopped=log.stopped,
            complete=stopped is None and log.failed is None and log.failure is None,
            seconds=round(time.monotonic() - began, 3),
        )
        _write(directory, manifest)
    if not manifest.programs:
        raise _nothing_compiled_error(log, manifest, stopped, directory)
    return directory


def _run_children(
    request: Request, directory: Path, log: _EventLog, *, until: float, watch: Watch | None
) -> str | None:
    """Run children until one finishes; return why we stopped it, if we did."""
    with tempfile.TemporaryDirectory(prefix="perfscope-compile-") as folder:
        scratch = Path(folder)
        exchange = scratch / "exchange"
        exchange.mkdir()
        request = msgspec.structs.replace(request, exchange=str(exchange))
        children = StageChildren(request, scratch, _stage_runner(until))
        watches = (children.watch, *(() if watch is None else (watch,)))
        for _ in range(MAX_CRASHES + 1):
            skipped = (*log.compiled, *log.refused, *log.unwanted)
            request_file = scratch / "request.json"
            request_file.write_bytes(requests.dump(msgspec.structs.replace(request, skipped=tuple(sorted(skipped)))))

            def hear(message: dict[str, Any]) -> None:
                log.hear(message)
                if message["event"] == "pipeline":
                    children.start(message["ranks"])
                if message["event"] in ("compiled", "planned"):
                    _update_manifest(directory, log)

            ended = run_child(
                request_file, scratch, hear, until=until, memory_bytes=request.limits.memory_bytes,
                watch=lambda taken: next((why for one in watches if (why := one(taken)) is not None), None),
            )  # fmt: skip
            children.finish(failed=ended.stopped is not None or log.failed is not None or log.failure is not None)
            for message in children.events:
                if message["event"] in ("planned", "note", "not_planned", "failure"):
                    log.hear(message)
            if children.failed is not None:
                log.failed = children.failed
                return children.failed
            if ended.stopped is not None:
                if log.at is not None:
                    log.refused[log.at] = ended.stopped
                return ended.stopped
            if log.done or log.failed is not None or not log.crashed(ended):
                return None
        return f"{MAX_CRASHES + 1} programs took the compiler down; the rest is left alone"


def _stage_runner(until: float) -> Run:
    """Run the child of a further rank until that time."""

    def run(file: Path, scratch: Path, hear: Callable[[dict[str, Any]], None], watch: Watch) -> str | None:
        log = _EventLog(progress=lambda _: None)

        def heard(message: dict[str, Any]) -> None:
            log.hear(message)
            hear(message)

        limit = requests.load(file).limits.memory_bytes
        ended = run_child(file, scratch, heard, until=until, memory_bytes=limit, watch=watch)
        if ended.stopped is None and not log.done and log.failed is None:
            log.crashed(ended)
        failure = None if log.failure is None else str(log.failure.get("text"))
        return ended.stopped or log.failed or failure

    return run


def _update_manifest(directory: Path, log: _EventLog) -> None:
    """Write the manifest as far as known, so that a run killed from outside can be opened."""
    with contextlib.suppress(PerfscopeError):
        manifest = compile_manifest.load(directory)
        _write(directory, msgspec.structs.replace(manifest, programs=log.programs(), versions=log.versions))


def _write(directory: Path, manifest: Compiled) -> None:
    write_atomically(directory / compile_manifest.FILE, compile_manifest.dump(manifest), durable=False)


def _notes(log: _EventLog, stopped: str | None) -> list[str]:
    notes = list(log.notes)
    if log.failure is not None:
        notes.append(f"the program failed after what is compiled here was seen: {log.failure.get('text')}")
    if stopped is not None:
        notes.append(f"not complete: {stopped}")
    if log.failed is not None:
        notes.append(f"not complete: {log.failed}")
    return notes


def _nothing_compiled_error(
    log: _EventLog, manifest: Compiled, stopped: str | None, directory: Path
) -> NothingCompiledError:
    first = manifest.command[1] if manifest.command[:1] == ("-m",) else manifest.command[0]
    lines: tuple[str, ...] = ()
    if stopped is not None:
        why = stopped
    elif log.failed is not None:
        why, lines = log.failed, log.failed_lines
    elif log.failure is not None:
        text = str(log.failure.get("text"))
        of_file = first.lower().endswith((".onnx", ".pt2")) and text.startswith("SystemExit: ")
        before = "the program failed before it called a compiled function: "
        why = text.removeprefix("SystemExit: ") if of_file else before + text
        lines = tuple(log.failure.get("lines", ()))
    elif manifest.not_compiled:
        not_compiled = manifest.not_compiled[0]
        why = f"{not_compiled.name} was not compiled: {not_compiled.reason}"
    elif log.unwanted:
        names = ", ".join(dict.fromkeys(str(program.get("name")) for program in log.seen))
        why = f"the requested functions were not called; the program calls {names}"
    else:
        why = f"there is nothing to compile: {log.stopped or 'it called nothing that is compiled'}"
    return NothingCompiledError(f"{first}: {why}", lines, directory)


def _fatal_line(tail: tuple[str, ...]) -> str:
    """The line in which XLA or libtpu reports a fatal error, else the last line."""
    fatal = [line for line in tail if (line.startswith("F") and "]" in line) or "Check failed" in line]
    line = (fatal or list(tail) or [""])[-1]
    return line.partition("] ")[2][:300] or line[:300]


def _relative_paths(words: tuple[str, ...]) -> tuple[str, ...]:
    """Paths of the command relative to its working directory, or without the folders above them."""
    here = Path.cwd()

    def shorter(word: str) -> str:
        path = Path(word)
        if not path.is_absolute():
            return word
        return str(path.relative_to(here)) if path.is_relative_to(here) else path.name

    return tuple(shorter(word) for word in words)
