"""Logs of a JAX program that `perfscope run` writes next to its trace: compilations, and array reads by the host.

Written by ``perfscope.profiler.jax.events`` and ``jax_sync``; the files are in docs/capture-jax.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EVENTS_FILE, EVENTS_SCHEMA = "events.jsonl", "perfscope.jax_events/1"
SYNCS_FILE, SYNCS_SCHEMA = "syncs.jsonl", "perfscope.jax_syncs/1"

CompileKind = Literal[
    "trace", "lower", "compile", "cache_hit", "cache_miss", "cache_read", "cache_saved", "first_trace", "retrace",
    "donation_unusable",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileEvent:
    """A part of a compilation that ended, or a word on one.

    The words: a function is traced (``first_trace``, ``retrace``); donated buffers of a program could not be used
    (``donation_unusable``).
    """

    kind: CompileKind
    end_ns: int
    """Nanoseconds since 1970."""
    duration_ns: int | None = None
    """Duration; that of a ``trace`` includes the traces inside it."""
    step: int | None = None
    """The running step; ``None`` before steps were found, and between them."""
    function: str | None = None
    file: str | None = None
    """File of the user's line that called it."""
    line: int | None = None
    defined_file: str | None = None
    defined_line: int | None = None
    reason: str | None = None
    """Why it is traced again, in jax's words."""
    module: str | None = None
    """Name of the program whose donated buffers could not be used."""
    shapes: tuple[str, ...] = ()
    """Shapes of these buffers, such as ``float32[8,128]``; at most 64 of ``count``."""
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRead:
    """The host read an array, or waited for it."""

    call: str
    """``float``, ``item``, ``block_until_ready`` ..."""
    begin_ns: int
    """Nanoseconds since 1970."""
    duration_ns: int
    traced: bool
    """Whether the timing pass ran."""
    main_thread: bool
    ready: bool | None = None
    """Whether the array was ready already; ``None`` if unknown."""
    disturbed: bool = False
    """Whether perfscope waited for the devices at the begin of the step, which makes ``ready`` meaningless."""
    bytes: int | None = None
    step: int | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None
    library: str | None = None
    """``package/file.py:line`` of the installed package that reads, if the user's line calls it."""
