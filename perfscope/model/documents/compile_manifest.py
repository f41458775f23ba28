"""``compile.json``, the manifest of a run folder of `compile`: programs, targets and sources."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from perfscope.model.documents.bounded_json import read_document
from perfscope.model.documents.run_folders import COMPILED_FILE
from perfscope.model.errors import DataError

SCHEMA = "perfscope.compiled/1"
FILE = COMPILED_FILE
PROGRAMS = "programs"
MOST_BYTES = 64 << 20
"""A manifest of a thousand programs takes some MB; perfscope never writes a larger file."""


class CompiledLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code, relative to the folder the program was started in if it is below it."""

    file: str
    line: int


class CompiledTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The machine it was compiled for."""

    asked: str
    """As the user wrote it."""
    device: str
    """Name of one device in our tables."""
    platform: Literal["gpu", "tpu"]
    count: int
    topology: str | None
    """For XLA: ``partitions x hosts x devices`` of GPUs (``1x1x8``), chips of a TPU slice (``2x4``)."""
    memory_bytes: int | None
    """Memory of one device."""
    description: dict[str, Any] = msgspec.field(default_factory=dict)
    """All numbers that were used, with their sources, so that a report needs no table."""


class CompiledProgram(msgspec.Struct, frozen=True, kw_only=True):
    """One program that was compiled, or one graph that was planned. Bytes are of one device."""

    file: str
    """Relative to the run folder."""
    name: str
    """Name of the module in XLA: ``jit_step``."""
    function: str = ""
    place: CompiledLine | None = None
    calls: int = 1
    """How often it was called while the program was watched."""
    seconds_to_compile: float | None = None
    seconds_to_lower: float | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    """Bytes of outputs that reuse donated arguments."""
    temporary_bytes: int | None = None
    code_bytes: int | None = None
    mesh: dict[str, int] | None = None
    """Axis -> devices."""
    fingerprint: str = ""
    """SHA-256 over the compiled program without lines and names of files: the same program has the same."""


class NotCompiled(msgspec.Struct, frozen=True, kw_only=True):
    """A program that was seen but not compiled, and the reason."""

    name: str
    reason: str
    place: CompiledLine | None = None


class CheckpointSite(msgspec.Struct, frozen=True, kw_only=True):
    """A loop, a checkpoint or a function of the program, and the effect of ``--checkpoint`` on it."""

    kind: Literal["scan", "checkpoint", "calls"]
    how: Literal["wrapped", "replaced", "removed", "left"]
    """A checkpoint was put in, has another policy, or is gone; or it is as the program has it."""
    place: CompiledLine | None = None
    count: int = 1
    """Turns of the scan, or calls."""
    reason: str = ""
    """Why it was left."""


class Checkpointed(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint policy that a program's layers were given without editing it."""

    policy: str
    """Policy as in ``--checkpoint``: ``full``, ``dots@train.py:35``."""
    places: tuple[CheckpointSite, ...] = ()


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest. No host name, user name, environment or absolute path is in it."""

    framework: Literal["jax", "torch"]
    created_utc: str
    name: str
    command: tuple[str, ...]
    """As started, secrets and home directories masked as in reports."""
    target: CompiledTarget
    schema: str = SCHEMA
    git: dict[str, str | bool] | None = None
    sources: str | None = None
    """SHA-256 over the sources it was compiled from (`build_key.sources_digest`); None if they were too many."""
    functions: tuple[str, ...] = ()
    """Functions that the user selected; empty for all."""
    until_exit: bool = False
    checkpoint: Checkpointed | None = None
    """None: the program's own policies."""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    """Versions of python, jax, jaxlib, the plugin, torch, triton: they decide how the program is compiled."""
    programs: tuple[CompiledProgram, ...] = ()
    not_compiled: tuple[NotCompiled, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes for the reader of a report: assumptions, and parts that are not covered."""
    stopped: str | None = None
    """Why the program was not run to its end."""
    complete: bool = False
    """False: killed, out of time or memory; the programs compiled by then are here."""
    seconds: float | None = None
    """The whole command."""


def dump(manifest: Compiled) -> bytes:
    """A manifest as UTF-8 JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def load(path: Path) -> Compiled:
    """The manifest in a folder or file; ``DataError`` if missing, corrupt, of another schema, or leading outside."""
    file = path / FILE if path.is_dir() else path
    manifest = read_document(file, Compiled, SCHEMA, what="a manifest", most_bytes=MOST_BYTES)
    for program in manifest.programs:
        parts = PurePosixPath(program.file)
        if parts.is_absolute() or ".." in parts.parts or "\\" in program.file or "\0" in program.file:
            raise DataError(f"{file}: {program.file!r} leads out of the folder")
    return manifest
