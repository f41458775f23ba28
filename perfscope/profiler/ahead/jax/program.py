"""One program that jax would compile: what it is called with, and its lowering for the target."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from perfscope.model.errors import DataError
from perfscope.profiler.ahead.jax import compat as compat
from perfscope.profiler.ahead.jax.abstract.array import AbstractArray
from perfscope.profiler.ahead.jax.abstract.devices import target_devices
from perfscope.profiler.ahead.jax.lines import SourceLine, display_path, is_user_file

# Prints out of compiled functions: a compiler without its device has no way back to the host, so they are left out.


PLATFORMS = ("cuda", "rocm", "tpu")
EFFECTS = frozenset(("Debug", "OrderedDebug"))
"""What jax calls the effects of ``jax.debug.print`` and ``jax.debug.callback``."""


def has_debug_callbacks(closed: Any) -> bool:
    """Whether a compiled function calls ``jax.debug.print`` or ``jax.debug.callback``."""
    return any(str(one) in EFFECTS for one in closed.jaxpr.effects)


def is_compile_only(devices: Sequence[Any]) -> bool:
    """Whether nothing can run on these devices."""
    return str(devices[0].client.runtime_type).startswith("compile_only")


@contextlib.contextmanager
def without_callbacks(devices: Sequence[Any]) -> Iterator[None]:
    """Inside, they become nothing in programs for devices that nothing runs on."""
    if not is_compile_only(devices):
        yield
        return
    with compat.debug_callbacks_lowered_by(_lower_to_nothing, PLATFORMS):
        yield


def _lower_to_nothing(context: Any, *_: Any, effect: Any = None, **__: Any) -> list[Any]:
    """The lowering of a print: nothing, in its order."""
    if compat.is_ordered(effect):
        context.set_tokens_out(context.tokens_in)
    return []


_ADDRESS = re.compile(r"0x[0-9a-f]+")
"""Where a function lies in memory, which is another one whenever it is traced again."""


class DiscoveredProgram:
    """A function with the shapes, shardings and static arguments that it was called with."""

    def __init__(
        self, params: dict[str, Any], types: Sequence[Any], devices: Sequence[Any], place: SourceLine | None
    ) -> None:
        """``params``, ``types``: what jax knows of the call; ``devices``: the target's; ``place``: its first call."""
        self._params, self._types, self._devices = params, tuple(types), devices
        info = params["jaxpr"].jaxpr.debug_info
        self.name = f"jit_{params['name']}"
        """As the compiled module is called, but for characters that XLA replaces."""
        self.function = str(params["name"])
        own = info.func_filename
        self.place = SourceLine(file=display_path(own), line=info.func_lineno) if own and is_user_file(own) else place
        """Where the function is written, else where it was called first."""
        self.called_at = place
        """Where it was called first."""
        self.calls = 0
        self.traces = 0
        """How often jax had to trace it: more than once is work in every run for the same program."""
        self.guessed = 0
        """How many arguments came to lie where the compiler puts them, which was guessed."""
        self.prints = has_debug_callbacks(params["jaxpr"]) and is_compile_only(devices)
        """Whether ``jax.debug.print`` or ``jax.debug.callback`` in it is left out of its lowering."""
        self.stand_ins = sum(
            one.nbytes for one in params["jaxpr"].consts if isinstance(one, AbstractArray) and one._made_up
        )
        """Bytes of constants, arrays that it closes over, whose values were not computed."""
        self._held: list[Any] = []
        self._setting = compat.lowering_context()

    @property
    def arguments(self) -> tuple[Any, ...]:
        """``jax.ShapeDtypeStruct`` of each argument, in the order of the leaves, with its sharding where it is said."""
        import jax

        return tuple(
            jax.ShapeDtypeStruct(one.aval.shape, one.aval.dtype, sharding=where, weak_type=bool(one.aval.weak_type))
            if hasattr(one.aval, "dtype")
            else one.aval
            for one, where in zip(self._types, self.shardings, strict=True)
        )

    @property
    def argument_names(self) -> tuple[str, ...]:
        """``state.weights['head_DV']``, as jax names them in the program."""
        closed = self._params["jaxpr"]
        return tuple(closed.jaxpr.debug_info.safe_arg_names(len(closed.in_avals)))

    @property
    def shardings(self) -> tuple[Any, ...]:
        """Where each argument lies; ``None``: not specified."""
        return tuple(one.sharding if one.committed else None for one in self._types)

    @property
    def donated(self) -> tuple[bool, ...]:
        """Whether each argument may be overwritten."""
        return tuple(self._params["donated_invars"])

    @property
    def mesh(self) -> dict[str, int] | None:
        """Axes of its mesh and how many devices are along each."""
        from jax.sharding import NamedSharding

        for one in (*self._params["in_shardings"], *self._params["out_shardings"], *self.shardings):
            if isinstance(one, NamedSharding) and not one.mesh.empty:
                return dict(one.mesh.shape)
        context = self._params["ctx_mesh"]
        return None if context is None or context.empty else dict(context.shape)

    def traced(self, closed: Any) -> None:
        """Count a jaxpr, and keep it: its identity stands for this program."""
        if all(one is not closed for one in self._held):
            self._held.append(closed)
            self.traces += 1

    def lower(self) -> Any:
        """``jax.stages.Lowered`` for the target's devices, as a call of the function makes it.

        Its lines and settings are those of the first call, as in a real run. Raises what jax raises of a program that
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
    """What tells programs apart: operations, arguments and where they lie; not the lines they are written in."""
    taken = compat.argument_shardings(types, params["in_shardings"])
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
    """What of an argument's place is part of a program: on one device, and of a number on several, nothing is."""
    if getattr(sharding, "memory_kind", None) not in (None, "device"):
        return sharding
    shape = aval.shape if hasattr(aval, "shape") else ()
    return sharding if several and shape else None
