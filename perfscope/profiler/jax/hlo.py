"""Compiled programs: a snapshot of all that are alive, with buffer assignment and heap trace, and those freed before.

A profiler session that records no events still holds an HloProto of every executable that is alive, run or
not. It takes milliseconds and needs no flag. Programs that are freed before that are caught as they are
compiled where jax offers it (0.10.2 and later); they come scheduled, without buffer assignment.
"""

from __future__ import annotations

import re
from pathlib import Path

from perfscope.model.documents.run import Capture
from perfscope.model.documents.run_folders import write_atomically
from perfscope.profiler.jax import compat, wire
from perfscope.profiler.jax.compat import Undo
from perfscope.profiler.jax.wire import Module

FOLDER = "hlo"
SUFFIX = ".hlo.pb"
MOST_KEPT = 64 << 20
"""Bytes of programs kept as they are compiled; a large training program has 10 MB of them."""
MOST_WRITTEN = 512 << 20
"""Bytes written: beyond, the largest are left out and said."""
MOST_NAME = 120
"""Characters of a file name that come from a program's name."""

PASS = "hlo"  # noqa: S105 (the name of a pass)

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def available() -> str | None:
    """Why no snapshot can be taken, or ``None`` if it can."""
    if not compat.installed():
        return "jax is not installed"
    return None if compat.has_session() else "this jax has no ProfilerSession that we know"


def snapshot() -> list[Module]:
    """The programs that are alive. ``RuntimeError`` while another profiler records, or if this jax cannot."""
    session = compat.session(host_tracer_level=0)
    if session is None:
        raise RuntimeError(available())
    return wire.modules(session.stop())


class ProgramLog:
    """Programs as they are compiled, from ``start()`` to ``stop()``, and the snapshot, in one folder."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[str, int], bytes] = {}
        self._held = 0
        self._dropped = 0
        self._left_out: set[str] = set()
        self._seen_alive: set[tuple[str, int]] = set()
        self._undo: Undo | None = None

    def start(self) -> None:
        """Begin to see compilations, where this jax tells of them."""
        self._undo = compat.on_compiled_module(self._keep)

    def stop(self) -> None:
        """See no more."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def save(self, directory: Path, run: Path) -> Capture:
        """Write a snapshot, and beside it what was compiled and is not alive any more.

        What an earlier call wrote stays and counts: when a program ends, its functions are often freed already.
        """
        path = directory / FOLDER
        alive = {(one.name, number): one.proto for number, one in enumerate(snapshot())}
        self._seen_alive |= {wire.name_and_id(wire.module_of(proto)) for proto in alive.values()}
        files = {_file_name(name): proto for (name, _), proto in alive.items()}
        for (name, number), module in list(self._compiled.items()):
            # A program may be compiled under one number and live under another; the name is enough to know it.
            if (name, number) not in self._seen_alive:
                files.setdefault(_file_name(f"{name}({number}).compiled"), wire.as_proto(module))
        self._left_out |= _write(path, files)
        remarks = []
        if self._left_out:
            remarks.append(
                f"{len(self._left_out)} programs are left out: together they are above {MOST_WRITTEN >> 20} MiB"
            )
        if self._dropped:
            remarks.append(f"{self._dropped} programs compiled after the first {MOST_KEPT >> 20} MiB were not kept")
        has_files = any(path.glob(f"*{SUFFIX}"))
        return Capture(
            pass_name=PASS,
            tool="jax_hlo",
            state="recorded" if has_files else "missing",
            reason="; ".join(remarks) or (None if has_files else "no compiled program was alive"),
            artifact=path.relative_to(run).as_posix() if has_files else None,
        )

    def _keep(self, module: bytes) -> None:
        """Called by XLA's compiler, on any thread: it must not raise."""
        try:
            if self._held + len(module) > MOST_KEPT:
                self._dropped += 1
                return
            self._compiled[wire.name_and_id(module)] = module
            self._held += len(module)
        except Exception:
            self._dropped += 1


def _file_name(name: str) -> str:
    return _UNSAFE.sub("_", name.replace("(", ".").replace(")", ""))[:MOST_NAME].strip(".") + SUFFIX


def _write(path: Path, files: dict[str, bytes]) -> set[str]:
    """Add what is not there yet, the smallest first; names of those left out. A program never changes."""
    path.mkdir(exist_ok=True)
    there = {file.name: file.stat().st_size for file in path.glob(f"*{SUFFIX}")}
    written = sum(there.values())
    left_out = set()
    for name, proto in sorted(files.items(), key=lambda one: len(one[1])):
        if name in there:
            continue
        if written + len(proto) > MOST_WRITTEN:
            left_out.add(name)
            continue
        write_atomically(path / name, proto, durable=False)
        written += len(proto)
    return left_out
