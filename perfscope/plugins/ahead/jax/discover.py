"""Finds the programs that a JAX program compiles by running it without data (`ahead/jax/abstract`)."""

from __future__ import annotations

import contextlib
import hashlib
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field

from perfscope.model.errors import DataError
from perfscope.plugins.ahead.jax import compat as compat
from perfscope.plugins.ahead.jax.abstract.array import AbstractArray
from perfscope.plugins.ahead.jax.abstract.execution import is_internal, without_data
from perfscope.plugins.ahead.jax.abstract.placement import target_devices
from perfscope.plugins.ahead.jax.lines import SourceLine, display_path, is_user_file, user_line

# Removes prints from compiled functions, because a compiler without its device cannot call the host.


PLATFORMS = ("cuda", "rocm", "tpu")
EFFECTS = frozenset(("Debug", "OrderedDebug"))
"""jax's names of the effects of ``jax.debug.print`` and ``jax.debug.callback``."""

_ADDRESS = re.compile(r"0x[0-9a-f]+")
"""Address of a function, which changes whenever it is traced again."""

MAX_READS = 40
"""Most places of host reads that are reported one by one."""
UNKNOWN = "a line that is not known"

MAX_MESSAGE = 400
"""Most characters of an exception's message."""


def has_debug_callbacks(closed: Any) -> bool:
    """Whether a compiled function calls ``jax.debug.print`` or ``jax.debug.callback``."""
    return any(str(effect) in EFFECTS for effect in closed.jaxpr.effects)


def is_compile_only(devices: Sequence[Any]) -> bool:
    """Whether these devices cannot run anything."""
    return str(devices[0].client.runtime_type).startswith("compile_only")


@contextlib.contextmanager
def without_callbacks(devices: Sequence[Any]) -> Iterator[None]:
    """Inside, callbacks are lowered to nothing in programs for compile-only devices."""
    if not is_compile_only(devices):
        yield
        return
    with compat.debug_callbacks_lowered_by(_lower_to_nothing, PLATFORMS):
        yield


def _lower_to_nothing(context: Any, *_: Any, effect: Any = None, **__: Any) -> list[Any]:
    """Lower a print to nothing, keeping the order of effects."""
    if compat.ordered_effects.contains(effect):
        context.set_tokens_out(context.tokens_in)
    return []


class DiscoveredProgram:
    """A function with the shapes, shardings and static arguments of its calls."""

    def __init__(
        self, params: dict[str, Any], types: Sequence[Any], devices: Sequence[Any], line: SourceLine | None
    ) -> None:
        """``params``, ``types``: jax's data on the call; ``devices``: the target's; ``place``: its first call."""
        self._params, self._types, self._devices = params, tuple(types), devices
        info = params["jaxpr"].jaxpr.debug_info
        self.name = f"jit_{params['name']}"
        """Name of the compiled module, except for characters that XLA replaces."""
        self.function = str(params["name"])
        own = info.func_filename
        self.place = SourceLine(file=display_path(own), line=info.func_lineno) if own and is_user_file(own) else line
        """Line of the function, else of its first call."""
        self.called_at = line
        """Line of its first call."""
        self.calls = 0
        self.traces = 0
        """Number of times jax traced it: more than one means repeated work in every run for the same program."""
        self.guessed = 0
        """Number of arguments whose placement was the compiler's choice and was guessed."""
        self.prints = has_debug_callbacks(params["jaxpr"]) and is_compile_only(devices)
        """Whether ``jax.debug.print`` or ``jax.debug.callback`` in it is removed in its lowering."""
        self.stand_ins = sum(
            const.nbytes for const in params["jaxpr"].consts if isinstance(const, AbstractArray) and const._made_up
        )
        """Bytes of constants, arrays that it closes over, whose values were not computed."""
        self._held: list[Any] = []
        self._setting = compat.lowering_context()

    @property
    def arguments(self) -> tuple[Any, ...]:
        """``jax.ShapeDtypeStruct`` of each argument, in the order of the leaves, with its sharding if specified."""
        import jax

        return tuple(
            jax.ShapeDtypeStruct(
                type_.aval.shape, type_.aval.dtype, sharding=where, weak_type=bool(type_.aval.weak_type)
            )
            if hasattr(type_.aval, "dtype")
            else type_.aval
            for type_, where in zip(self._types, self.shardings, strict=True)
        )

    @property
    def shardings(self) -> tuple[Any, ...]:
        """Placement of each argument; ``None``: not specified."""
        return tuple(type_.sharding if type_.committed else None for type_ in self._types)

    @property
    def donated(self) -> tuple[bool, ...]:
        """Whether each argument may be overwritten."""
        return tuple(self._params["donated_invars"])

    @property
    def mesh(self) -> dict[str, int] | None:
        """Axes of its mesh with their numbers of devices."""
        from jax.sharding import NamedSharding

        for sharding in (*self._params["in_shardings"], *self._params["out_shardings"], *self.shardings):
            if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
                return dict(sharding.mesh.shape)
        context = self._params["ctx_mesh"]
        return None if context is None or context.empty else dict(context.shape)

    def traced(self, closed: Any) -> None:
        """Count a jaxpr and keep it, because its identity represents this program."""
        if all(kept is not closed for kept in self._held):
            self._held.append(closed)
            self.traces += 1

    def lower(self) -> Any:
        """``jax.stages.Lowered`` for the target's devices, as a call of the function makes it.

        Lines and settings are those of the first call, as in a real run. Raises jax's exceptions for a program that
        cannot be lowered for these devices.
        """
        with target_devices(self._devices), self._setting(), without_callbacks(self._devices):
            computation = compat.lower_call(self._params, self._types)
        if is_compile_only(self._devices) and computation.compile_args.get("host_callbacks"):
            raise DataError(
                "it calls back into Python (jax.pure_callback, io_callback), which cannot be compiled without a device"
            )
        return compat.lowered_stage(computation, self._params)


def program_key(params: dict[str, Any], types: Sequence[Any]) -> Any:
    """Identity of a program: operations, arguments and placements, independent of source lines."""
    taken = compat._resolve_in_shardings(types, params["in_shardings"])
    several = any(hasattr(one, "device_set") and len(one.device_set) > 1 for one in taken)
    return (
        params["name"],
        hashlib.sha256(_ADDRESS.sub("", str(params["jaxpr"])).encode()).hexdigest(),
        frozenset(device.platform for one in taken if hasattr(one, "device_set") for device in one.device_set),
        tuple((one.aval, _placement_key(where, one.aval, several)) for one, where in zip(types, taken, strict=True)),
        params["out_shardings"],
        params["in_layouts"],
        params["out_layouts"],
        params["donated_invars"],
    )


def _placement_key(sharding: Any, aval: Any, several: bool) -> Any:
    """The program-specific part of an argument's placement: nothing on one device, or for a number on several."""
    if getattr(sharding, "memory_kind", None) not in (None, "device"):
        return sharding
    shape = aval.shape if hasattr(aval, "shape") else ()
    return sharding if several and shape else None


# When to stop following a program: no new programs, too many, or too much time.


class RunLimits(Struct, frozen=True, kw_only=True):
    """Limits for following a program."""

    calls: int = 3
    """Calls of every program of a loop after the last new one, before the loop counts as repeating."""
    quiet: int = 100
    """Consecutive calls without a new program before the program counts as repeating: a program called every hundredth
    step is found, one called every thousandth is not."""
    programs: int = 32
    """Most programs: a function that is traced again in every step would never end."""
    operations: int = 200_000
    """Most operations outside of jit in a row without a call of a program."""
    until_exit: bool = False
    """Follow the program to its end; the limit of programs still applies."""


class StopProgram(BaseException):
    """Ends the user's program from inside a call of jax; the text is the reason."""


class RunWatch:
    """Counts calls and stops the program."""

    def __init__(self, limits: RunLimits) -> None:
        self.limits = limits
        self.stopped: str | None = None
        """Why it is not followed further; ``None`` while it is."""
        self._programs = 0
        self._since: dict[Any, int] = {}
        self._quiet = self._operations = 0

    def called(self, key: Any, *, new: bool) -> None:
        """Count a call of a program."""
        self._again()
        limits = self.limits
        self._operations = 0
        if new:
            self._programs += 1
            self._since, self._quiet = {}, 0
            if self._programs >= limits.programs:
                self._stop(
                    f"{limits.programs} different programs: the limit (a function that is traced again in every step "
                    "makes a new one each time)"
                )
        else:
            self._since[key] = self._since.get(key, 0) + 1
            self._quiet += 1
            if not limits.until_exit and self._quiet >= limits.quiet:
                if min(self._since.values()) < limits.calls and self._quiet < 3 * limits.quiet:
                    return
                self._stop(
                    f"nothing new in {self._quiet} calls of compiled functions, each of them called at least "
                    f"{min(self._since.values())} times"
                )

    def operated(self) -> None:
        """Count an operation outside of jit."""
        self._again()
        self._operations += 1
        if not self.limits.until_exit and self._operations > self.limits.operations:
            self._stop(f"more than {self.limits.operations:,} operations outside of jit in a row")

    def _stop(self, why: str) -> None:
        self.stopped = self.stopped or why
        self._again()

    def _again(self) -> None:
        """Raise if the limit is reached, also at the next call if the program caught the exception."""
        if self.stopped is not None:
            raise StopProgram(self.stopped)


# Recorded while a program runs without data: its programs, operations outside of jit, reads by the host.


class EagerOperations(Struct, frozen=True, kw_only=True):
    """Operations outside of jit from one line: on a device each is a separate program."""

    place: SourceLine | None
    calls: int
    names: tuple[str, ...]
    """Sorted."""
    programs: int
    """Number of different ones."""
    bytes: int
    """Bytes of arguments and results of all calls: a lower bound of what they read and write."""


class RunRecorder:
    """Listener for a program that runs without data."""

    def __init__(self, devices: Sequence[Any], watch: RunWatch) -> None:
        """``devices``: the target's; ``watch``: stops the program."""
        self.programs: dict[Any, DiscoveredProgram] = {}
        """In the order of their first calls."""
        self._devices, self._watch = devices, watch
        self._keys: dict[Any, Any] = {}
        self._operations: dict[SourceLine | None, dict[Any, int]] = {}
        self._moved: dict[SourceLine | None, int] = {}
        self._reads: dict[tuple[str, str, SourceLine | None], int] = {}
        self._questions: dict[tuple[str, SourceLine | None], int] = {}

    def called(self, arguments: Sequence[Any], params: dict[str, Any], types: Sequence[Any]) -> None:
        """Handle a call of a compiled function."""
        line = user_line()
        if is_internal(params["jaxpr"], params["name"]):
            avals = tuple(type_.aval for type_ in types)
            moved = _bytes((*avals, *params["jaxpr"].out_avals))
            self._operation(params["name"], (id(params["jaxpr"]), avals), line, moved)
            return
        key, new = self._program(params, types, line)
        program = self.programs[key]
        program.calls += 1
        program.guessed = max(
            program.guessed, sum(bool(getattr(argument, "_guessed", False)) for argument in arguments)
        )
        self._watch.called(key, new=new)

    def made(self, params: dict[str, Any], types: Sequence[Any]) -> None:
        """Handle a function compiled before its calls."""
        key, new = self._program(params, types, user_line())
        if new:
            self._watch.called(key, new=True)

    def operated(self, name: str, arguments: Sequence[Any], results: Sequence[Any]) -> None:
        """Handle an operation outside of jit; ``results``: their abstract values."""
        avals = [getattr(argument, "aval", None) for argument in arguments]
        key = tuple(str(aval or type(argument).__name__) for aval, argument in zip(avals, arguments, strict=True))
        self._operation(name, key, user_line(), _bytes((*avals, *results)))

    def read(self, how: str, array: AbstractArray) -> None:
        """Handle a host read of an unknown value."""
        key = (how, f"{array.dtype.name}[{','.join(map(str, array.shape))}]", user_line())
        self._reads[key] = self._reads.get(key, 0) + 1

    def question(self, what: str) -> None:
        """Handle a question that only a compiled program, a device or a job of several processes could answer."""
        key = (what, user_line())
        self._questions[key] = self._questions.get(key, 0) + 1

    def _program(self, params: dict[str, Any], types: Sequence[Any], line: SourceLine | None) -> tuple[Any, bool]:
        """The key of a call's program, and whether it is new."""
        quick = (
            id(params["jaxpr"]), tuple(types),
            params["in_shardings"], params["out_shardings"], params["donated_invars"],
        )  # fmt: skip
        key = self._keys.get(quick)
        if key is None:
            key = self._keys[quick] = program_key(params, types)
        program = self.programs.get(key)
        new = program is None
        if program is None:
            program = self.programs[key] = DiscoveredProgram(params, types, self._devices, line)
        program.traced(params["jaxpr"])
        return key, new

    def _operation(self, name: str, key: Any, line: SourceLine | None, moved: int) -> None:
        counts = self._operations.setdefault(line, {})
        counts[(name, key)] = counts.get((name, key), 0) + 1
        self._moved[line] = self._moved.get(line, 0) + moved
        self._watch.operated()

    def operations(self) -> list[EagerOperations]:
        """Operations outside of jit by line, most calls first."""
        made = []
        for line, counts in self._operations.items():
            names = tuple(sorted({name for name, _ in counts}))
            calls = sum(counts.values())
            made.append(
                EagerOperations(place=line, calls=calls, names=names, programs=len(counts), bytes=self._moved[line])
            )
        return sorted(made, key=lambda eager: (-eager.calls, str(eager.place)))

    def notes(self) -> list[str]:
        """Notes on values that the program got without computing them."""
        notes = [
            f"the program read {what} on the host ({how}, {_count_text(count)}) at {line or UNKNOWN}; it was "
            "not computed and zeros were returned: a path that depends on it may differ"
            for (how, what, line), count in list(self._reads.items())[:MAX_READS]
        ]
        left = len(self._reads) - MAX_READS
        if left > 0:
            notes.append(f"the program read values that were not computed at {left:,} more places")
        notes += [
            f"the program asked for {what} ({_count_text(count)}) at {line or UNKNOWN}, which only a compiled "
            "program, a device or a job of several processes has: zeros, or nothing, was the answer"
            for (what, line), count in self._questions.items()
        ]
        notes += [
            f"{program.name}: where {program.guessed} of its arguments lie is the compiler's choice in the program "
            "that made them; they were taken to lie like its arguments of the same shape and dtype, else on every "
            "device"
            for program in self.programs.values()
            if program.guessed
        ]
        notes += [
            f"{program.name}: it closes over {program.stand_ins:,} bytes that were not computed, constants of the "
            "program; placeholders replace them"
            for program in self.programs.values()
            if program.stand_ins
        ]
        notes += [
            f"{program.name}: what it prints or calls back (jax.debug) is left out of the compiled program, and so is "
            "what only that needs: a compiler without its device has no way back to the host"
            for program in self.programs.values()
            if program.prints
        ]
        return notes


def _bytes(avals: Iterable[Any]) -> int:
    """Bytes of arrays of these types; 0 for types without shape or size (tokens, Python numbers)."""
    return sum(
        int(getattr(aval, "size", 0)) * int(getattr(getattr(aval, "dtype", None), "itemsize", 0)) for aval in avals
    )


def _count_text(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


class ProgramFailure(Struct, frozen=True, kw_only=True):
    """The exception that ended the program."""

    kind: str
    message: str
    """Its first line."""
    place: SourceLine | None
    text: str
    """The traceback as printed by Python, without frames of jax and perfscope."""


class Discovery(Struct, kw_only=True):
    """Observations on a program."""

    programs: list[DiscoveredProgram] = field(default_factory=list)
    """In the order of their first calls."""
    operations: list[EagerOperations] = field(default_factory=list)
    """Outside of jit; most calls first."""
    notes: list[str] = field(default_factory=list)
    """Values that the program got without computing them."""
    stopped: str = ""
    """Why it was not followed further."""
    complete: bool = False
    """Whether it ran to its end."""
    failure: ProgramFailure | None = None


def discover_programs(run: Callable[[], Any], devices: Sequence[Any], limits: RunLimits | None = None) -> Discovery:
    """Call ``run`` without data and record what it compiles for ``devices``.

    Nothing is computed or copied except small values that follow from constants. Its exception is kept
    (``Seen.failure``). ``DataError``: an unsupported jax.
    """
    watch = RunWatch(limits or RunLimits())
    kept = RunRecorder(devices, watch)
    seen = Discovery()
    with without_data(devices, kept):
        try:
            run()
            seen.stopped, seen.complete = "it ran to its end", True
        except StopProgram:
            pass
        except SystemExit as left:
            seen.complete = left.code in (None, 0)
            seen.stopped = "it ran to its end" if seen.complete else f"it ended itself (sys.exit({left.code!r}))"
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            seen.failure = _program_failure(error)
            seen.stopped = f"it raised {seen.failure.kind}: {seen.failure.message}"
    if watch.stopped is not None:  # also if the program swallowed it, or raised another while unwinding
        seen.stopped, seen.complete, seen.failure = watch.stopped, False, None
    seen.programs = list(kept.programs.values())
    seen.operations, seen.notes = kept.operations(), kept.notes()
    return seen


def _program_failure(error: BaseException) -> ProgramFailure:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*compat.package_folders(), "<frozen"))]
    line = SourceLine(file=display_path(own[-1].filename), line=own[-1].lineno or 0) if own else None
    message = (str(error).strip().splitlines() or [""])[0][:MAX_MESSAGE]
    text = "".join(traceback.format_list(own)) + "".join(traceback.format_exception_only(error))
    return ProgramFailure(kind=type(error).__name__, message=message, place=line, text=text)
