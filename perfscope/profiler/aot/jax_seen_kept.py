"""What is kept of a program while it runs without data: its programs, operations outside of jit, reads by the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from perfscope.profiler.aot.jax_abstract import is_internal
from perfscope.profiler.aot.jax_abstract_array import AbstractArray
from perfscope.profiler.aot.jax_seen_lines import Line, line_of_user
from perfscope.profiler.aot.jax_seen_program import SeenProgram, key_of
from perfscope.profiler.aot.jax_seen_stop import Watch

MOST_READS = 40
"""Places of reads by the host that are told one by one."""
UNKNOWN = "a line that is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Operations that the program calls outside of jit, from one line: on a device each is a program of its own."""

    place: Line | None
    calls: int
    names: tuple[str, ...]
    """Sorted."""
    programs: int
    """How many different ones."""
    bytes: int
    """Of arguments and results of all calls: what they read and write at least."""


class Kept:
    """Listens to a run (`jax_abstract.Listener`)."""

    def __init__(self, devices: Sequence[Any], watch: Watch) -> None:
        """``devices``: the target's; ``watch``: says when it is enough."""
        self.programs: dict[Any, SeenProgram] = {}
        """In the order of their first calls."""
        self._devices, self._watch = devices, watch
        self._keys: dict[Any, Any] = {}
        self._operations: dict[Line | None, dict[Any, int]] = {}
        self._moved: dict[Line | None, int] = {}
        self._reads: dict[tuple[str, str, Line | None], int] = {}
        self._questions: dict[tuple[str, Line | None], int] = {}

    def called(self, arguments: Sequence[Any], params: dict[str, Any], types: Sequence[Any]) -> None:
        """A compiled function is called."""
        place = line_of_user()
        if is_internal(params["jaxpr"], params["name"]):
            avals = tuple(one.aval for one in types)
            moved = _bytes((*avals, *params["jaxpr"].out_avals))
            self._operation(params["name"], (id(params["jaxpr"]), avals), place, moved)
            return
        key, new = self._program(params, types, place)
        program = self.programs[key]
        program.calls += 1
        program.guessed = max(program.guessed, sum(bool(getattr(one, "_guessed", False)) for one in arguments))
        self._watch.called(key, new=new)

    def made(self, params: dict[str, Any], types: Sequence[Any]) -> None:
        """A function is compiled ahead of its calls."""
        key, new = self._program(params, types, line_of_user())
        if new:
            self._watch.called(key, new=True)

    def operated(self, name: str, arguments: Sequence[Any], results: Sequence[Any]) -> None:
        """An operation is called outside of jit; ``results``: their abstract values."""
        avals = [getattr(one, "aval", None) for one in arguments]
        key = tuple(str(aval or type(one).__name__) for aval, one in zip(avals, arguments, strict=True))
        self._operation(name, key, line_of_user(), _bytes((*avals, *results)))

    def read(self, how: str, array: AbstractArray) -> None:
        """The host reads what nobody knows."""
        key = (how, f"{array.dtype.name}[{','.join(map(str, array.shape))}]", line_of_user())
        self._reads[key] = self._reads.get(key, 0) + 1

    def asked(self, what: str) -> None:
        """The program asks what only a compiled program, a device or a job of several processes knows."""
        key = (what, line_of_user())
        self._questions[key] = self._questions.get(key, 0) + 1

    def _program(self, params: dict[str, Any], types: Sequence[Any], place: Line | None) -> tuple[Any, bool]:
        """The key of the program of a call, and whether it is a new one."""
        quick = (
            id(params["jaxpr"]), tuple(types),
            params["in_shardings"], params["out_shardings"], params["donated_invars"],
        )  # fmt: skip
        key = self._keys.get(quick)
        if key is None:
            key = self._keys[quick] = key_of(params, types)
        program = self.programs.get(key)
        new = program is None
        if program is None:
            program = self.programs[key] = SeenProgram(params, types, self._devices, place)
        program.traced(params["jaxpr"])
        return key, new

    def _operation(self, name: str, key: Any, place: Line | None, moved: int) -> None:
        found = self._operations.setdefault(place, {})
        found[(name, key)] = found.get((name, key), 0) + 1
        self._moved[place] = self._moved.get(place, 0) + moved
        self._watch.operated()

    def operations(self) -> list[Operations]:
        """Operations outside of jit by line, the most called first."""
        made = []
        for place, found in self._operations.items():
            names = tuple(sorted({name for name, _ in found}))
            calls = sum(found.values())
            made.append(
                Operations(place=place, calls=calls, names=names, programs=len(found), bytes=self._moved[place])
            )
        return sorted(made, key=lambda one: (-one.calls, str(one.place)))

    def notes(self) -> list[str]:
        """What the program was given that nobody computed."""
        told = [
            f"the program read {what} on the host ({how}, {_times(count)}) at {place or UNKNOWN}; nobody computed it, "
            "it was given zeros: a path that depends on it may differ"
            for (how, what, place), count in list(self._reads.items())[:MOST_READS]
        ]
        left = len(self._reads) - MOST_READS
        if left > 0:
            told.append(f"the program read values that nobody computed at {left:,} more places")
        told += [
            f"the program asked for {what} ({_times(count)}) at {place or UNKNOWN}, which only a compiled program, a "
            "device or a job of several processes has: zeros, or nothing, was the answer"
            for (what, place), count in self._questions.items()
        ]
        told += [
            f"{one.name}: where {one.guessed} of its arguments lie is the compiler's choice in the program that made "
            "them; they were taken to lie like its arguments of the same shape and dtype, else on every device"
            for one in self.programs.values()
            if one.guessed
        ]
        told += [
            f"{one.name}: it closes over {one.stand_ins:,} bytes that nobody computed, constants of the program; "
            "other numbers stand in their place"
            for one in self.programs.values()
            if one.stand_ins
        ]
        told += [
            f"{one.name}: what it prints or calls back (jax.debug) is left out of the compiled program, and so is what "
            "only that needs: a compiler without its device has no way back to the host"
            for one in self.programs.values()
            if one.prints
        ]
        return told


def _bytes(avals: Iterable[Any]) -> int:
    """Of arrays of these types; what has no shape or no size (tokens, numbers of Python) counts nothing."""
    return sum(int(getattr(one, "size", 0)) * int(getattr(getattr(one, "dtype", None), "itemsize", 0)) for one in avals)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
