"""Compiled programs: a snapshot of all that are alive, with buffer assignment and heap trace, and those freed before.

A profiler session that records no events still holds an HloProto of every executable that is alive, run or
not. It takes milliseconds and needs no flag. Programs that are freed before that are caught as they are
compiled where jax offers it (0.10.2 and later); they come scheduled, without buffer assignment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from perfscope.model import wire
from perfscope.model.documents.run import Capture
from perfscope.model.files import write_atomically
from perfscope.profiler.jax import compat
from perfscope.profiler.jax.compat import Undo

# The little of protobuf that a capture needs: compiled programs out of a trace.
#
# Capture runs in the user's process, which may lack a protobuf package; readers have the whole schema.
# Field numbers: xplane.proto and hlo.proto of XLA.


# XSpace, XPlane, map entries, XEventMetadata, XStat
_HOSTNAMES = 4
_PLANES, _PLANE_NAME, _PLANE_EVENTS, _PLANE_STATS = 1, 2, 4, 5
_VALUE = 2
_METADATA_ID, _METADATA_NAME, _METADATA_STATS = 1, 2, 5
_STAT_METADATA, _STAT_BYTES = 1, 6
# HloProto, HloModuleProto, HloComputationProto, HloInstructionProto
_HLO_MODULE = 1
_MODULE_NAME, _MODULE_ID = 1, 5

METADATA_PLANE = b"/host:metadata"
HLO_STAT = b"Hlo Proto"


class Module(NamedTuple):
    """A compiled program found in a trace: its name there (``jit_step(52)``) and its serialized HloProto."""

    name: str
    proto: bytes


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a message, in order; ``ValueError`` if it is cut off or malformed."""
    for number, kind, _, start, end in wire.fields(message, 0, len(message)):
        yield number, wire.varint(message, start, end)[0] if kind == wire.VARINT else message[start:end]


def without_hosts(space: bytes) -> bytes:
    """A serialized XSpace without the names of the machines it was recorded on; ``ValueError`` if it is malformed."""
    kept = []
    for field in wire.fields(space, 0, len(space)):
        if field.kind != wire.BYTES:
            raise wire.WireError(f"wire type {field.kind}, where an XSpace has messages and texts only,", field.begin)
        if field.number != _HOSTNAMES:
            kept.append(memoryview(space)[field.begin : field.end])
    return b"".join(kept)


def modules(space: bytes) -> list[Module]:
    """The compiled programs in a serialized XSpace; ``ValueError`` if it is malformed."""
    protos = []
    for number, plane in fields(space):
        if number == _PLANES and isinstance(plane, bytes) and _name(plane, _PLANE_NAME) == METADATA_PLANE:
            protos += _of_plane(plane)
    return protos


def name_and_id(module: bytes) -> tuple[str, int]:
    """Name and unique number of a serialized HloModuleProto."""
    name, number = "", 0
    for field, value in fields(module):
        if field == _MODULE_NAME and isinstance(value, bytes):
            name = value.decode(errors="replace")
        elif field == _MODULE_ID and isinstance(value, int):
            number = value
    return name, number


def module_of(proto: bytes) -> bytes:
    """The HloModuleProto in an HloProto, serialized; empty without one."""
    return next((value for number, value in fields(proto) if number == _HLO_MODULE and isinstance(value, bytes)), b"")


def as_proto(module: bytes) -> bytes:
    """An HloProto, serialized, that holds the serialized HloModuleProto and nothing else."""
    return bytes([_HLO_MODULE << 3 | wire.BYTES]) + wire.write_varint(len(module)) + module


def _name(message: bytes, number: int) -> bytes:
    return next((value for field, value in fields(message) if field == number and isinstance(value, bytes)), b"")


def _of_plane(plane: bytes) -> list[Module]:
    hlo_stat = 0
    metadata = []
    for number, entry in fields(plane):
        if number not in (_PLANE_EVENTS, _PLANE_STATS) or not isinstance(entry, bytes):
            continue
        value = _name(entry, _VALUE)
        if number == _PLANE_EVENTS:
            metadata.append(value)
        elif _name(value, _METADATA_NAME) == HLO_STAT:
            hlo_stat = next(
                (identity for field, identity in fields(value) if field == _METADATA_ID and isinstance(identity, int)),
                0,
            )
    modules = []
    for value in metadata:
        for field, stat in fields(value):
            if field != _METADATA_STATS or not isinstance(stat, bytes):
                continue
            values = dict(fields(stat))
            proto = values.get(_STAT_BYTES)
            if values.get(_STAT_METADATA) == hlo_stat and isinstance(proto, bytes):
                modules.append(Module(_name(value, _METADATA_NAME).decode(errors="replace"), proto))
    return modules


FOLDER = "hlo"
SUFFIX = ".hlo.pb"
MOST_KEPT = 64 << 20
"""Bytes of programs kept as they are compiled; a large training program has 10 MB of them."""
MOST_WRITTEN = 512 << 20
"""Bytes written: beyond it the largest programs are left out and reported."""
MOST_NAME = 120
"""Characters of a file name that come from a program's name."""

PASS = "hlo"  # noqa: S105 (the name of a pass)

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def available() -> str | None:
    """Why no snapshot can be taken, or ``None`` if it can."""
    if not compat.installed():
        return "jax is not installed"
    return None if compat.has_session() else compat.NO_SESSION


def snapshot() -> list[Module]:
    """The programs that are alive. ``RuntimeError`` while another profiler records, or if this jax cannot."""
    session = compat.session(host_tracer_level=0)
    if session is None:
        raise RuntimeError(available())
    return modules(compat.stop(session))


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
        """Begin to see compilations, if this jax reports them."""
        self._undo = compat.on_compiled_module(self._keep)

    def stop(self) -> None:
        """See no more."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def save(self, directory: Path, run: Path) -> Capture:
        """Write a snapshot, and next to it the compiled programs that are not alive any more.

        Files of an earlier call stay and count: when a program ends, its functions are often freed already.
        """
        path = directory / FOLDER
        alive = {(module.name, number): module.proto for number, module in enumerate(snapshot())}
        self._seen_alive |= {name_and_id(module_of(proto)) for proto in alive.values()}
        files = {_file_name(name): proto for (name, _), proto in alive.items()}
        for (name, number), module in list(self._compiled.items()):
            # A program may be compiled under one number and live under another; the name is enough to know it.
            if (name, number) not in self._seen_alive:
                files.setdefault(_file_name(f"{name}({number}).compiled"), as_proto(module))
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
            self._compiled[name_and_id(module)] = module
            self._held += len(module)
        except Exception:
            self._dropped += 1


def _file_name(name: str) -> str:
    return _UNSAFE.sub("_", name.replace("(", ".").replace(")", ""))[:MOST_NAME].strip(".") + SUFFIX


def _write(path: Path, files: dict[str, bytes]) -> set[str]:
    """Add new files, the smallest first; return the names of omitted ones. A program never changes."""
    path.mkdir(exist_ok=True)
    there = {file.name: file.stat().st_size for file in path.glob(f"*{SUFFIX}")}
    written = sum(there.values())
    left_out = set()
    for name, proto in sorted(files.items(), key=lambda file: len(file[1])):
        if name in there:
            continue
        if written + len(proto) > MOST_WRITTEN:
            left_out.add(name)
            continue
        write_atomically(path / name, proto, durable=False)
        written += len(proto)
    return left_out
