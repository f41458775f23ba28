"""What a JAX program compiles, seen by running it without data (`jax_abstract.py`)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfscope.profiler.aot import jax_abstract_compat as compat
from perfscope.profiler.aot.jax_abstract import without_data
from perfscope.profiler.aot.jax_seen_kept import Kept, Operations
from perfscope.profiler.aot.jax_seen_lines import Line, shown_file
from perfscope.profiler.aot.jax_seen_program import SeenProgram
from perfscope.profiler.aot.jax_seen_stop import Limits, Stop, Watch

__all__ = ["Failure", "Limits", "Line", "Operations", "Seen", "SeenProgram", "seen_programs"]

MOST_MESSAGE = 400
"""Characters of an exception's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The exception that the program ended with."""

    kind: str
    message: str
    """Its first line."""
    place: Line | None
    text: str
    """The traceback as Python prints it, without frames of jax and of ours."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What was seen of a program."""

    programs: list[SeenProgram] = field(default_factory=list)
    """In the order of their first calls."""
    operations: list[Operations] = field(default_factory=list)
    """Outside of jit; the most called first."""
    notes: list[str] = field(default_factory=list)
    """What the program was given that nobody computed."""
    stopped: str = ""
    """Why it was not followed further."""
    complete: bool = False
    """Whether it ran to its own end."""
    failure: Failure | None = None


def seen_programs(run: Callable[[], Any], devices: Sequence[Any], limits: Limits | None = None) -> Seen:
    """Call ``run`` without data and see what it compiles for ``devices``.

    Nothing of the program is computed or copied but small values that it wrote down itself. What it raises is kept
    (``Seen.failure``). ``DataError``: a jax that we do not know.
    """
    watch = Watch(limits or Limits())
    kept = Kept(devices, watch)
    seen = Seen()
    with without_data(devices, kept):
        try:
            with watch.running():
                run()
            seen.stopped, seen.complete = "it ran to its end", True
        except Stop:
            pass
        except SystemExit as left:
            seen.complete = left.code in (None, 0)
            seen.stopped = "it ran to its end" if seen.complete else f"it ended itself (sys.exit({left.code!r}))"
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            seen.failure = _failure(error)
            seen.stopped = f"it raised {seen.failure.kind}: {seen.failure.message}"
    if watch.stopped is not None:  # also where the program swallowed it, or raised another while it unwound
        seen.stopped, seen.complete, seen.failure = watch.stopped, False, None
    seen.programs = list(kept.programs.values())
    seen.operations, seen.notes = kept.operations(), kept.notes()
    return seen


def _failure(error: BaseException) -> Failure:
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if not one.filename.startswith((*compat.package_folders(), "<frozen"))]
    place = Line(file=shown_file(own[-1].filename), line=own[-1].lineno or 0) if own else None
    message = (str(error).strip().splitlines() or [""])[0][:MOST_MESSAGE]
    text = "".join(traceback.format_list(own)) + "".join(traceback.format_exception_only(error))
    return Failure(kind=type(error).__name__, message=message, place=place, text=text)
