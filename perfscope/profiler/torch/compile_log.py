"""Captures torch.compile: its structured trace, refusals of inductor to fuse, and the steps in which it compiled.

Begins with the first compilation of the process; a program that compiles nothing gets no file, at the cost of an
unused handler in a logger.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import time_ns
from typing import Any, BinaryIO

from perfscope.model.capture import CaptureOptions, Level
from perfscope.model.documents.run import (
    COMPILE_STEPS_FILE,
    COMPILE_STEPS_SCHEMA,
    FUSION_FILE,
    FUSION_SCHEMA,
    Capture,
)
from perfscope.model.files import json_bytes, write_atomically
from perfscope.profiler.session.steps import Source
from perfscope.profiler.source_files import SourceFiles
from perfscope.profiler.torch import compat

# Refusals of inductor's scheduler to fuse, and their reasons, graph by graph.
#
# The scheduler logs pairs of nodes, again in each round, also pairs that a later round fuses in another way. The final
# state counts: a refusal is kept if its two nodes ended in different kernels, once per pair of kernels and
# reason. The file grows with each graph and is complete except for the last line after a crash.


MOST_PAIRS = 20_000
"""Different refusals that are held of one graph; the scheduler itself looks at no more than some 64 neighbours of
a buffer, so only graphs of thousands of nodes come here."""
MOST_KEPT = 1_000
"""Refusals that are written per graph, those with the most shared bytes first."""
MOST_BYTES = 32 << 20
"""Largest file: some 60,000 refusals."""
MOST_NODES = 64
"""Names of nodes that are written of one kernel."""
MOST_REASON = 500
"""Characters of a reason: some print whole index expressions."""


@dataclass(slots=True)
class Refusal:
    """A reason that was given for a pair of scheduler nodes."""

    first: Any
    second: Any
    reason: str
    arguments: tuple[Any, ...]
    times: int = 1


class FusionLog:
    """Listens to the scheduler. ``place``: the folder of the file, which exists by then."""

    def __init__(self) -> None:
        """Nothing is hooked yet."""
        self._held: dict[tuple[str, str, str], Refusal] = {}
        self._overflow = 0
        self._undo: compat.Undo | None = None
        self._bytes = 0
        self.place: Path | None = None
        self.graphs = 0
        """Graphs that were scheduled while this listened."""
        self.left_out = 0
        """Refusals that there was no room for."""
        self.problem: str | None = None
        """Why nothing is written, or nothing more."""

    def start(self) -> None:
        """Inductor is imported: listen to it."""
        try:
            self._undo = compat.hook_scheduler(self._refused, self._decided)
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        """Leave inductor as it was."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def _refused(self, first: Any, second: Any, reason: str, arguments: tuple[Any, ...]) -> None:
        try:
            key = (first.get_name(), second.get_name(), reason)
            refusals = self._held.get(key)
            if refusals is not None:
                refusals.times += 1
            elif len(self._held) < MOST_PAIRS:
                self._held[key] = Refusal(first, second, reason, arguments)
            else:
                self._overflow += 1
        except Exception as error:  # the program compiles: an error of perfscope must not stop it
            self.problem = f"{type(error).__name__}: {error}"

    def _decided(self, scheduler: Any) -> None:
        refusals, self._held = self._held, {}
        overflow, self._overflow = self._overflow, 0
        try:
            self.graphs += 1
            if self.place is not None and self.problem is None:
                self._write(scheduler, list(refusals.values()), overflow)
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"

    def _write(self, scheduler: Any, refusals: list[Refusal], left_out: int) -> None:
        assert self.place is not None
        path = self.place / FUSION_FILE
        where = {"compile_id": compat.compile_id(), "direction": compat.direction()}
        records, fused_after_all = kernels_apart(scheduler, refusals)
        records.sort(key=lambda record: -(record["shared_bytes"] or record["common_read_bytes"] or 0))
        left_out += len(records[MOST_KEPT:])
        lines = []
        for record in records[:MOST_KEPT]:
            line = json.dumps({"kind": "refusal", **where, **record}) + "\n"
            if self._bytes + len(line) > MOST_BYTES:
                left_out += 1
                continue
            self._bytes += len(line)
            lines.append(line)
        self.left_out += left_out
        graph = {
            "kind": "graph",
            **where,
            "time_ns": time_ns(),
            "nodes": sum(len(kernel.get_nodes()) for kernel in scheduler.nodes),
            "kernels": len(scheduler.nodes),
            "refusals": len(lines),
            "fused_after_all": fused_after_all,
            "left_out": left_out,
        }
        head = "" if path.exists() else json.dumps({"schema": FUSION_SCHEMA, "torch": compat.torch_version()}) + "\n"
        with path.open("a") as stream:
            stream.write("".join((head, json.dumps(graph) + "\n", *lines)))


def kernels_apart(scheduler: Any, refusals: Iterable[Refusal]) -> tuple[list[dict[str, Any]], int]:
    """The refusals by the kernels their nodes ended in, and how many are of nodes that ended in one."""
    kernel_of = {node.get_name(): kernel for kernel in scheduler.nodes for node in kernel.get_nodes()}
    pairs: dict[tuple[str, str, str], dict[str, Any]] = {}
    fused_after_all = 0
    for refusal in refusals:
        first = _final_kernel(refusal.first, kernel_of)
        second = _final_kernel(refusal.second, kernel_of)
        if first is second:
            fused_after_all += 1
            continue
        key = (first.get_name(), second.get_name(), refusal.reason)
        if key in pairs:
            pairs[key]["times"] += refusal.times
            continue
        pairs[key] = {
            "first": key[0],
            "second": key[1],
            "reason": _reason_text(refusal),
            "times": refusal.times,
            "first_nodes": _nodes(first),
            "second_nodes": _nodes(second),
            "shared_bytes": _bytes(first, second, writes=True),
            "common_read_bytes": _bytes(first, second, writes=False),
        }
    return list(pairs.values()), fused_after_all


def _final_kernel(node: Any, kernel_of: dict[str, Any]) -> Any:
    """The one kernel that contains all parts of a node; the node itself if there are several."""
    kernels = {id(kernel): kernel for part in node.get_nodes() if (kernel := kernel_of.get(part.get_name()))}
    return next(iter(kernels.values())) if len(kernels) == 1 else node


def _reason_text(refusal: Refusal) -> str:
    try:
        text = refusal.reason % refusal.arguments
    except (TypeError, ValueError):  # the words alone, where torch's own would not print
        text = refusal.reason
    return " ".join(text.split())[:MOST_REASON]


def _nodes(kernel: Any) -> list[str]:
    """Names of the nodes of the graph that a kernel computes."""
    names = {
        str(origin.name)
        for part in kernel.get_nodes()
        for origin in getattr(getattr(part, "node", None), "origins", None) or ()
    }
    return sorted(names)[:MOST_NODES]


def _bytes(first: Any, second: Any, *, writes: bool) -> int | None:
    """Bytes that the first writes and the second reads, or that both read; ``None`` if torch cannot determine them.

    A buffer counts once, with the most that is read of it by one access.
    """
    try:
        if writes:
            shared = {str(name) for name in first.get_buffer_names()}
        else:
            shared = {str(dep.name) for dep in first.read_writes.reads if _is_data(dep)}
        read: dict[str, int] = {}
        for dep in second.read_writes.reads:
            if dep.name in shared and _is_data(dep):
                read[dep.name] = max(read.get(dep.name, 0), int(dep.numbytes_hint()))
        return sum(read.values())
    except Exception:  # sizes that depend on data have no hint, and torch raises errors of many kinds
        return None


def _is_data(dep: Any) -> bool:
    """Whether a dependency moves data; a ``WeakDep`` only keeps an order."""
    return type(dep).__name__ != "WeakDep"


# Keeps torch's structured trace: the same lines that ``TORCH_TRACE=DIR`` writes, in a file of the run.
#
# The file is made by the first record of a compilation, so that a program which compiles nothing has none.
# Each record is on disk before the program goes on: a crash leaves complete records except for the last line.


TRACE_FILE = "torch_trace.log"
PACKED_TRACE_FILE = f"{TRACE_FILE}.gz"
TRACE_COMPRESSION = 1
"""gzip level: text shrinks to a sixth, at 100 MB per second; the program's end waits for it."""
MAX_TRACE_BYTES = 256 << 20
"""A compiled block of a transformer writes 1 MB; a thousand graphs of that size fill it."""
MAX_PENDING = 200
"""Records kept from before the first compilation; there are a handful."""
TRACE_MARKS = ("frame_id", "compiled_autograd_id", "dynamo_start")
"""Keys of records that belong to a compilation."""


class TraceFile(logging.Handler):
    """A handler of torch's trace logger. ``place()``: the folder for the file, asked for once, when it is due."""

    def __init__(
        self,
        formatter: logging.Formatter,
        place: Callable[[], Path],
        *,
        seen: Callable[[dict[str, Any]], None],
        announce: Callable[[], None],
    ) -> None:
        """``seen(facts)``: called for each record from the first compilation on; ``announce()``: a file is there."""
        super().__init__()
        self.setFormatter(formatter)
        self._place = place
        self._seen = seen
        self._announce = announce
        self._stream: BinaryIO | None = None
        self._pending: list[str] = []
        self._bytes = 0
        self.opened = False
        """Whether a compilation was seen."""
        self.dropped = 0
        """Records that there was no room for."""
        self.problem: str | None = None
        """Why nothing more is written."""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; it never raises, as the program compiles."""
        if not any(mark in record.metadata for mark in TRACE_MARKS):  # type: ignore[attr-defined]
            self._keep(record)
            return
        # From here on compiled code may log as it runs, and dynamo would compile a method of this class with it.
        self.emit = compat.uncompiled(self._keep)  # type: ignore[method-assign]
        self._keep(record)

    def close(self) -> None:
        """Let go of the file."""
        self.acquire()
        try:
            stream, self._stream = self._stream, None
            if stream is not None:
                stream.close()
        finally:
            self.release()
        super().close()

    def _keep(self, record: logging.LogRecord) -> None:
        if self.problem is not None:
            return
        try:
            facts: dict[str, Any] = record.metadata  # type: ignore[attr-defined]
            if self.opened or any(mark in facts for mark in TRACE_MARKS):
                self._seen(facts)
                self._write(self.format(record))
            elif len(self._pending) < MAX_PENDING:
                self._pending.append(self.format(record))
            else:
                self.dropped += 1
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"

    def _write(self, line: str) -> None:
        if not self.opened:
            self.opened = True
            folder = self._place()
            folder.mkdir(exist_ok=True)
            # Unbuffered: the records before a kill are on disk.
            self._stream = (folder / TRACE_FILE).open("wb", buffering=0)
            pending, self._pending = self._pending, []
            for earlier in (*pending, self._version_line()):
                self._write(earlier)
            self._announce()
        if self._stream is None:
            return
        content = line.encode(errors="backslashreplace") + b"\n"
        if self._bytes + len(content) > MAX_TRACE_BYTES:
            self.dropped += 1
            return
        self._bytes += len(content)
        self._stream.write(content)

    def _version_line(self) -> str:
        """The record that torch's own handler begins a file with."""
        payload = json.dumps({"pytorch_version": compat.torch_version()})
        record = logging.LogRecord(compat.TRACE_LOGGER, logging.DEBUG, __file__, 0, "", (), None)
        record.pathname = TRACE_FILE  # not a path of the program
        record.metadata = {
            "artifact": {"name": "torch_version", "encoding": "json"},
            "has_payload": hashlib.md5(payload.encode(), usedforsecurity=False).hexdigest(),
        }
        record.payload = payload
        return self.format(record)


def pack_trace(folder: Path) -> str:
    """Compress the file in ``folder``; return the name of the resulting file."""
    draft = folder / f".{PACKED_TRACE_FILE}.part"
    try:
        with (
            (folder / TRACE_FILE).open("rb") as source,
            gzip.open(draft, "wb", compresslevel=TRACE_COMPRESSION) as target,
        ):
            shutil.copyfileobj(source, target, 1 << 20)
        draft.replace(folder / PACKED_TRACE_FILE)
        (folder / TRACE_FILE).unlink()
    except OSError:  # a full disk: the uncompressed file stays
        draft.unlink(missing_ok=True)
        return TRACE_FILE
    return PACKED_TRACE_FILE


# Settings of inductor that make its work readable: which nodes a kernel computes, and its name in a CPU trace.
#
# Both change no number, and both are part of the keys of inductor's caches: a program that was compiled without them
# is compiled once more with them, and found again by the next run under capture.


WANTED_SETTINGS: dict[str, Any] = {"provenance": 1, "cpp_kernel_names": True}
"""Setting -> value during the capture."""


class InductorSettings:
    """Settings of inductor, changed after its import, and restored. The user's settings, by variable or code, stay."""

    def __init__(self, level: Level) -> None:
        """``light`` changes nothing, so that the program's caches stay valid."""
        self._wanted = {} if level == "light" else WANTED_SETTINGS
        self._put: dict[str, Any] = {}
        self._left: list[str] = []

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the settings that are ours now."""
        return tuple(self._put)

    @property
    def absent(self) -> tuple[str, ...]:
        """Names of the settings that this torch does not have."""
        return tuple(self._left)

    def put(self) -> None:
        """Inductor is imported and compiles in a moment."""
        for name, value in self._wanted.items():
            group_name, setting, variable = compat.SETTINGS[name]
            group = compat.inductor_group(group_name)
            if not hasattr(group, setting):
                self._left.append(name)
                continue
            before = getattr(group, setting)
            if variable not in os.environ and not before:
                setattr(group, setting, value)
                self._put[name] = before

    def take_back(self) -> None:
        """Restore inductor's settings, except for values that other code has changed since."""
        for name, before in self._put.items():
            group_name, setting, _ = compat.SETTINGS[name]
            group = compat.inductor_group(group_name)
            if getattr(group, setting, None) == WANTED_SETTINGS[name]:
                setattr(group, setting, before)


PASS = "compile"  # noqa: S105 (the name of a pass)
TOOL = "torch_compile"
FOLDER = "compile"
MOST_SPANS = 10_000
"""Steps that compiled something; a program that compiles in each of so many steps is known by then."""
MOST_MARKS = 64
"""Step boundaries whose time by the clock of the log is kept; those of the profiled steps are a handful."""


def available() -> str | None:
    """Reason why the compiler's log is not available, or ``None`` if it is."""
    return None if "torch" in sys.modules else "PyTorch is not imported"


class TorchCompileCapture:
    """Listens from ``start()`` to ``stop()``, on all threads.

    ``place()``: the directory of this process, asked for with the first compilation; ``announce()``: called when a
    file is there. ``counts()``: complete steps by source; which source is right is known later.
    """

    def __init__(
        self,
        options: CaptureOptions,
        *,
        place: Callable[[], Path],
        announce: Callable[[], None],
        counts: Callable[[], Mapping[Source, int]],
    ) -> None:
        """Nothing is hooked yet."""
        self._directory = place
        self._announce = announce
        self._counts = counts
        self._whole = options.whole
        self._settings = InductorSettings(options.level)
        self._fusion = FusionLog()
        self._trace: TraceFile | None = None
        self._reason: str | None = None
        self._undo: compat.Undo | None = None
        self._ready = False
        self._lock = threading.Lock()
        self._spans: list[tuple[dict[Source, int], list[int]]] = []
        self._marks: list[tuple[int, int]] = []
        self._written: tuple[int | None, ...] = ()
        self._packed = False
        self._folders = SourceFiles(Path.cwd(), ()).spelled_out()["folders"]
        self.compilations = 0
        """Frames that dynamo began to compile, each time again."""

    def start(self) -> None:
        """torch is imported: wait for the first compilation. Inductor's own helper processes are left alone."""
        if compat.in_compile_worker():
            return
        try:
            formatter = compat.trace_formatter()
        except Exception as error:
            self._reason = f"this torch's structured trace is not known here ({type(error).__name__}: {error})"
            return
        self._trace = TraceFile(formatter, self._place, seen=self._seen, announce=self._announce)
        self._undo = compat.add_trace_handler(self._trace)

    @property
    def looks(self) -> bool:
        """Whether every compilation of the program is seen."""
        return self._trace is not None

    def stop(self) -> None:
        """Leave torch as it was."""
        if self._undo is not None:
            self._undo()
            self._undo = None
        self._fusion.stop()
        self._settings.take_back()
        if self._trace is not None:
            self._trace.close()

    def abandon_in_fork(self) -> None:
        """In a forked child: the files are the parent's."""
        self.stop()

    def step_begins(self, number: int) -> None:
        """A profiled step is about to begin: its range in the trace starts a moment after this time."""
        if len(self._marks) < MOST_MARKS:
            self._marks.append((number, time_ns()))

    def save(self, directory: Path, run: Path, source: Source | None, *, last: bool = False) -> list[Capture]:
        """Write new records, and return their captures. ``source``: the source of the program's steps."""
        trace = self._trace
        if trace is None or not trace.opened:
            if self._reason is not None and compat.has_compiled():
                return [Capture(pass_name=PASS, tool=TOOL, state="missing", reason=self._reason)]
            return []
        folder = directory / FOLDER
        if not (self._packed or (folder / TRACE_FILE).exists()):
            return [Capture(pass_name=PASS, tool=TOOL, state="missing", reason=trace.problem or "no file was made")]
        self._save_steps(folder / COMPILE_STEPS_FILE, source)
        if last and not self._packed:
            self.stop()
            self._packed = pack_trace(folder) == PACKED_TRACE_FILE
        name = PACKED_TRACE_FILE if self._packed else TRACE_FILE
        return [
            Capture(
                pass_name=PASS,
                tool=TOOL,
                state="recorded",
                reason=self._remark(trace),
                artifact=(folder / name).relative_to(run).as_posix(),
            )
        ]

    def _step(self, counts: Mapping[Source, int], source: Source | None) -> int | None:
        """The step that ran, or was about to: so many were complete."""
        if self._whole:
            return 0
        return None if source is None else counts.get(source, 0)

    def _remark(self, trace: TraceFile) -> str | None:
        reasons = []
        if trace.problem is not None:
            reasons.append(f"the log ends early: {trace.problem}")
        if trace.dropped:
            reasons.append(f"{trace.dropped} records beyond {MAX_TRACE_BYTES >> 20} MiB were dropped")
        if self._fusion.problem is not None:
            reasons.append(f"fusion decisions: {self._fusion.problem}")
        if self._settings.absent:
            reasons.append(f"this torch's inductor has no setting for {', '.join(self._settings.absent)}")
        return "; ".join(reasons) or None

    def _place(self) -> Path:
        folder = self._directory() / FOLDER
        folder.mkdir(exist_ok=True)
        self._fusion.place = folder
        return folder

    def moved(self, directory: Path) -> None:
        """The process got another directory, and its files went there."""
        if self._fusion.place is not None:
            self._fusion.place = directory / FOLDER

    def _seen(self, facts: Mapping[str, Any]) -> None:
        """A record of a compilation comes, on any thread."""
        if not self._ready and compat.inductor_loaded():
            self._ready = True
            self._settings.put()
            self._fusion.start()
        self.compilations += "dynamo_start" in facts
        now = time_ns()
        counts = dict(self._counts())
        with self._lock:
            if self._spans and (self._spans[-1][0] == counts or len(self._spans) == MOST_SPANS):
                span = self._spans[-1][1]
                span[1] = now
                span[2] += 1
            else:
                self._spans.append((counts, [now, now, 1]))

    def _save_steps(self, path: Path, source: Source | None) -> None:
        with self._lock:
            spans = [(self._step(counts, source), *span) for counts, span in self._spans]
        state = (len(spans), spans[-1][3] if spans else 0, len(self._marks), source)
        if state == self._written:
            return
        self._written = state
        keys = ("step", "start_ns", "end_ns", "records")
        document: dict[str, Any] = {
            "schema": COMPILE_STEPS_SCHEMA,
            "settings": list(self._settings.changed),
            "folders": self._folders,
            "scheduled_graphs": self._fusion.graphs,
            "fusion_problem": self._fusion.problem,
            "fusion_left_out": self._fusion.left_out,
            "spans": [dict(zip(keys, span, strict=True)) for span in spans],
            "marks": [{"step": number, "time_ns": time} for number, time in self._marks],
        }
        write_atomically(path, json_bytes(document), durable=False)
