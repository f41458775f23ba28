"""What a JAX program compiles, seen by running it without data (`jax_abstract.py`)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfscope.profiler.aot import jax_abstract_compat as compat
from perfscope.profiler.aot.jax_abstract import is_internal, without_data
from perfscope.profiler.aot.jax_abstract_array import AbstractArray
from perfscope.profiler.aot.jax_seen_lines import Line, line_of_user, shown_file
from perfscope.profiler.aot.jax_seen_program import SeenProgram, key_of
from perfscope.profiler.aot.jax_seen_stop import Limits, Stop, Watch

__all__ = ["Failure", "Limits", "Line", "Operations", "Seen", "SeenProgram", "seen_programs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Operations that the program calls outside of jit, from one line: on a device each is a program of its own."""

    place: Line | None
    calls: int
    names: tuple[str, ...]
    """Sorted."""
    programs: int
    """How many different ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The exception that the program ended with."""

    kind: str
    message: str
    place: Line | None
    text: str
    """The traceback, as Python prints it, without what is not the program's."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What was seen of a program."""

    programs: list[SeenProgram] = field(default_factory=list)
    """In the order of their first calls."""
    operations: list[Operations] = field(default_factory=list)
    """The most called first."""
    notes: list[str] = field(default_factory=list)
    """What the program was given that nobody computed."""
    stopped: str = ""
    """Why it was not followed further."""
    complete: bool = False
    """Whether it ran to its own end."""
    failure: Failure | None = None


def seen_programs(run: Callable[[], Any], devices: Sequence[Any], limits: Limits | None = None) -> Seen:
    """Call ``run`` without data and see what it compiles for ``devices``.

    Nothing of the program is computed or copied but small values that it wrote down itself. Whatever it raises is kept
    (``Seen.failure``); ``DataError``: a jax that we do not know.
    """
    compat.check()
    watch = Watch(limits or Limits())
    listener = _Listener(devices, watch)
    seen = Seen()
    try:
        with without_data(devices, listener):
            run()
        seen.stopped, seen.complete = "it ran to its end", True
    except Stop as stop:
        seen.stopped = str(stop)
    except SystemExit as left:
        seen.complete = left.code in (None, 0)
        seen.stopped = "it ran to its end" if seen.complete else f"it ended itself (sys.exit({left.code!r}))"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if watch.stopped is None:
            seen.failure = _failure(error)
            seen.stopped = f"it raised {seen.failure.kind}: {seen.failure.message}"
    if watch.stopped is not None:  # also where the program swallowed it, or raised another while it unwound
        seen.stopped, seen.complete = watch.stopped, False
    seen.programs = list(listener.programs.values())
    seen.operations = listener.all_operations()
    seen.notes = listener.notes()
    return seen


def _failure(error: BaseException) -> Failure:
    frames = traceback.extract_tb(error.__traceback__)
    skipped = compat.package_folders()
    own = [one for one in frames if not one.filename.startswith((*skipped, "<frozen"))]
    place = Line(file=shown_file(own[-1].filename), line=own[-1].lineno or 0) if own else None
    message = (str(error).strip().splitlines() or [""])[0][:400]
    text = "".join(traceback.format_list(own)) + "".join(traceback.format_exception_only(error))
    return Failure(kind=type(error).__name__, message=message, place=place, text=text)


class _Listener:
    """Keeps what the program did."""

    def __init__(self, devices: Sequence[Any], watch: Watch) -> None:
        self.devices, self.watch = devices, watch
        self.programs: dict[Any, SeenProgram] = {}
        self._alike: dict[Any, Any] = {}
        self._operations: dict[Line | None, dict[Any, int]] = {}
        self._reads: dict[tuple[str, str, Line | None], int] = {}
        self._large: list[str] = []

    def called(self, arguments: Sequence[Any], params: dict[str, Any], types: Sequence[Any]) -> None:
        """A compiled function is called."""
        place = line_of_user()
        if is_internal(params["jaxpr"]):
            self._operation(params["name"], (id(params["jaxpr"]), tuple(t.aval for t in types)), place)
            self.watch.operated()
            return
        quick = (
            id(params["jaxpr"]),
            tuple(types),
            params["in_shardings"],
            params["out_shardings"],
            params["donated_invars"],
        )
        key = self._alike.get(quick)
        anew = key is None
        if key is None:
            key = self._alike[quick] = key_of(params, types)
        program = self.programs.get(key)
        new = program is None
        if program is None:
            program = self.programs[key] = SeenProgram(params, types, self.devices, place)
        program.calls += 1
        program.traces += anew
        program.hold(params)
        self.watch.called(key, new=new)

    def operated(self, name: str, arguments: Sequence[Any], params: dict[str, Any]) -> None:
        """An operation is called outside of jit."""
        avals = tuple(str(getattr(one, "aval", type(one).__name__)) for one in arguments)
        self._operation(name, (name, avals), line_of_user())
        self.watch.operated()

    def read(self, how: str, array: AbstractArray) -> None:
        """The host reads what nobody knows."""
        shape = "x".join(map(str, array.shape))
        what = f"{array.dtype.name}[{shape.replace('x', ',')}]"
        key = (how, what, line_of_user())
        self._reads[key] = self._reads.get(key, 0) + 1

    def _operation(self, name: str, key: Any, place: Line | None) -> None:
        found = self._operations.setdefault(place, {})
        found[(name, key)] = found.get((name, key), 0) + 1

    def all_operations(self) -> list[Operations]:
        """By line, the most called first."""
        made = [
            Operations(
                place=place, calls=sum(found.values()), programs=len(found),
                names=tuple(sorted({name for name, _ in found})),
            )
            for place, found in self._operations.items()
        ]  # fmt: skip
        return sorted(made, key=lambda one: (-one.calls, str(one.place)))

    def notes(self) -> list[str]:
        """What was made up."""
        told = []
        for (how, what, place), count in self._reads.items():
            times = "once" if count == 1 else f"{count} times"
            told.append(
                f"the program read {what} on the host ({how}, {times}) at {place or 'a line that is not known'}; nobody "
                "computed it, it was given zeros: a path that depends on it may differ"
            )
        for program in self.programs.values():
            if program.guessed:
                told.append(
                    f"{program.name}: where {program.guessed} of its results lie is the compiler's choice; they were taken to lie "
                    "like the donated argument whose place they take, else on every device"
                )
        return told
