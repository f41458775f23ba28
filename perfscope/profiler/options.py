"""What the user asked to capture, and how it travels from ``perfscope run`` into the program's processes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal, get_args

from perfscope.profiler.errors import AskedWronglyError

Level = Literal["light", "default", "deep"]
LEVELS: tuple[Level, ...] = get_args(Level)

Tool = Literal["nsys"]
TOOLS: tuple[Tool, ...] = get_args(Tool)
"""Profilers that wrap the whole program, in place of those that run inside it."""

VARIABLE = "PERFSCOPE_CAPTURE"
"""The environment variable that carries a ``Message``."""

DEFAULT_WARMUP = 2
"""Steps left alone: the first fills caches and allocator pools, the second the optimizer's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """What to capture. ``steps``: half-open numbers of the timing pass, counted from 0; ``None``: after the warm-up."""

    level: Level = "default"
    steps: tuple[int, int] | None = None
    warmup: int = DEFAULT_WARMUP
    whole: bool = False
    step_annotation: str | None = None
    quiet: bool = False
    xla_dump: bool = False
    """Have XLA write what it compiles (jax only)."""
    capture: Tool | None = None
    """The profiler around the program; ``None``: the framework's own, inside it."""
    times_only: bool = False
    """Find the steps and time them, and record nothing: what the launches of an A/B comparison do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What ``perfscope run`` tells the processes it starts."""

    directory: str
    """The run directory, absolute."""
    options: CaptureOptions
    pythonpath: str | None
    """The program's own ``PYTHONPATH``, which the bootstrap puts back."""
    follow: bool
    """Whether processes that this process starts capture too."""
    recording: str | None = None
    """Where the export of ``options.capture`` will lie, relative to the run directory."""
    checkout: str | None = None
    """Folder that the program must not import from: it runs a copy of what lies there (A/B)."""
    tree: str | None = None
    """That copy."""

    def dump(self) -> str:
        """As JSON text."""
        return json.dumps(dataclasses.asdict(self))


def load_message(text: str) -> Message:
    """The message of our own ``Message.dump``; ``ValueError``, ``KeyError`` or ``TypeError`` if it is not one."""
    raw = json.loads(text)
    options = dict(raw["options"])
    if options["steps"] is not None:
        first, end = options["steps"]
        options["steps"] = (int(first), int(end))
    return Message(
        directory=raw["directory"],
        options=CaptureOptions(**options),
        pythonpath=raw["pythonpath"],
        follow=raw["follow"],
        recording=raw.get("recording"),
        checkout=raw.get("checkout"),
        tree=raw.get("tree"),
    )


def parse_steps(text: str) -> tuple[int, int]:
    """``'20:25'`` -> ``(20, 25)``. The first step cannot be captured: where it began is not known."""
    first, colon, end = text.partition(":")
    if not colon or not first.isdecimal() or not end.isdecimal():
        raise AskedWronglyError(f"--steps {text}: give A:B, two step numbers, such as 20:25")
    steps = (int(first), int(end))
    if steps[0] < 1:
        raise AskedWronglyError(f"--steps {text}: the first step that can be captured is 1 (nobody sees step 0 begin)")
    if steps[1] <= steps[0]:
        raise AskedWronglyError(f"--steps {text}: captures no step; B is not included and must be above A")
    return steps
