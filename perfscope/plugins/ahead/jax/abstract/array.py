"""An array without data: replaces ``jax.Array`` while a program is run for its shapes.

It is a ``jax.Array`` and not a ``Tracer``, so that code which checks for either behaves as in a real run. A small array
whose value follows from constants of the program (keys, schedules, counters) has that value; reads of any other array
return zeros and are reported to the listener.
"""

from __future__ import annotations

import functools
import math
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from perfscope.plugins.ahead.jax import compat as compat

ReadListener = Callable[[str, "AbstractArray"], None]
"""Called when the host reads an unknown value, with the kind of read and the array."""

_read_listener: ReadListener | None = None

MAX_CONSTANT_BYTES = 256 << 20
"""Most bytes of a closed-over array without data: a larger one is refused, because the program would contain it."""

MAX_ELEMENTS = 4096
"""Most elements of an array whose value is followed."""
MAX_WORK = 1 << 20
"""Most elements written by all operations inside one that is computed."""
TRIPS = 1000
"""Assumed trip count of a loop whose end is unknown."""
NEVER_EVALUATED = frozenset(
    (
        "debug_callback", "debug_print", "io_callback", "pure_callback", "pallas_call", "shard_map", "ffi_call",
        "custom_partitioning", "infeed", "outfeed", "core_map", "run_state", "mpmd_map",
    )
)  # fmt: skip
"""Operations that are never computed, because they call the program or need the device."""
IDENTITIES = frozenset(("sharding_constraint", "reshard", "device_put", "copy", "copy_p", "layout_constraint", "stage"))
"""Operations that pass a value on unchanged."""


def on_host_read(heard: ReadListener | None) -> None:
    """Report reads to ``heard`` from now on."""
    global _read_listener
    _read_listener = heard


class AbstractArray(jax.Array):  # type: ignore[misc]
    """Shape, dtype and device of an array, and its value if it is small and known."""

    aval: Any
    __array_priority__ = 100  # as in jax: a numpy number leaves the operation to it

    def __init__(self, aval: Any, sharding: Any, *, committed: bool, known: Any = None, made_up: bool = False) -> None:
        """``known``: a ``jax.Array`` on the CPU; ``made_up``: whether that depends on unknown values."""
        self.aval = aval
        self._sharding = sharding
        self._committed = committed
        self._known = known
        self._made_up = made_up or known is None
        self._deleted = False
        self._guessed = False
        """Whether its device is the compiler's choice."""

    # properties ------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.aval.shape)

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.aval.shape, dtype=np.int64))

    @property
    def weak_type(self) -> bool:
        return bool(getattr(self.aval, "weak_type", False))

    @property
    def sharding(self) -> Any:
        return self._sharding

    @property
    def format(self) -> Any:
        from jax.experimental.layout import Format

        return Format(None, self._sharding)

    @property
    def committed(self) -> bool:
        return self._committed

    @property
    def device(self) -> Any:
        devices = self._sharding.device_set
        return next(iter(devices)) if len(devices) == 1 else self._sharding

    def devices(self) -> set[Any]:
        return set(self._sharding.device_set)

    @property
    def is_fully_addressable(self) -> bool:
        return bool(self._sharding.is_fully_addressable)

    @property
    def is_fully_replicated(self) -> bool:
        return bool(self._sharding.is_fully_replicated)

    @property
    def addressable_shards(self) -> list[Any]:
        here = self._sharding.addressable_devices
        return [shard for shard in self.global_shards if shard.device in here]

    @property
    def global_shards(self) -> list[Any]:
        aval = self.aval.update(shape=self._sharding.shard_shape(self.shape))
        return [
            compat.Shard(
                device, self._sharding, self.shape,
                AbstractArray(aval, SingleDeviceSharding(device), committed=True),
            )
            for device in self._sharding.device_set
        ]  # fmt: skip

    def addressable_data(self, index: int) -> Any:
        return self.addressable_shards[index].data

    def on_device_size_in_bytes(self) -> int:
        return int(self.nbytes)

    # waiting and deletion ---------------------------------------------------------------------------------------

    def block_until_ready(self) -> AbstractArray:
        return self

    def copy_to_host_async(self) -> None:
        """Do nothing, because nothing runs."""

    def is_ready(self) -> bool:
        return True

    def delete(self) -> None:
        self._deleted = True

    def is_deleted(self) -> bool:
        return self._deleted

    def unsafe_buffer_pointer(self) -> int:
        return 0

    # reads by the host -------------------------------------------------------------------------------------------

    def value(self, how: str) -> np.ndarray[Any, Any]:
        """The value read by the host: the known value, else zeros that take no memory."""
        if self._made_up and _read_listener is not None:
            _read_listener(how, self)
        if self._known is not None:
            with compat.computing_on_cpu():
                return np.asarray(self._known)
        return np.broadcast_to(np.zeros((), self.dtype), self.shape)

    @property
    def _value(self) -> np.ndarray[Any, Any]:
        return self.value("read")

    def __array__(self, dtype: Any = None, context: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        value = self.value("numpy.asarray")
        if not value.flags.writeable and copy:
            value = value.copy()
        return value if dtype is None else value.astype(dtype)

    def __bool__(self) -> bool:
        compat.check_bool_conversion(self)
        return bool(self.value("bool"))

    def __float__(self) -> float:
        compat.check_scalar_conversion(self)
        return float(self.value("float"))

    def __int__(self) -> int:
        compat.check_scalar_conversion(self)
        return int(self.value("int"))

    def __complex__(self) -> complex:
        compat.check_scalar_conversion(self)
        return complex(self.value("complex"))

    def __index__(self) -> int:
        compat.check_integer_conversion(self)
        return operator.index(self.value("int").item())

    def item(self, *positions: int) -> Any:
        return self.value("item").item(*positions)

    def tolist(self) -> Any:
        return self.value("tolist").tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        return self.value("tobytes").tobytes(order)

    def __format__(self, spec: str) -> str:
        value = self.value("format")
        return format(value[()] if self.ndim == 0 else value, spec)

    def __str__(self) -> str:
        if not isinstance(self.dtype, np.dtype):  # keys
            return repr(self)
        return str(self.value("str"))

    def __repr__(self) -> str:
        if self._known is not None:
            with compat.computing_on_cpu():
                return repr(self._known)
        return f"Array(shape={self.shape}, dtype={self.dtype.name}, no data)"

    def __dlpack__(self, **options: Any) -> Any:
        return np.array(self.value("dlpack")).__dlpack__()

    def __dlpack_device__(self) -> Any:
        return (1, 0)

    def __reduce__(self) -> Any:
        return (np.array, (np.array(self.value("pickle")),))

    # methods that return arrays -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[index] for index in range(self.shape[0]))

    def __getitem__(self, at: Any) -> Any:
        return compat.rewriting_take(self, at)

    __hash__ = None  # type: ignore[assignment]


def register_abstract_arrays() -> None:
    """Make jax accept these arrays as arguments and constants, and give them the methods of jax's arrays."""
    compat.register_array_type(AbstractArray, _constant, {name for name in vars(AbstractArray) if name != "__doc__"})


def _constant(array: AbstractArray, aval: Any) -> Any:
    """The value in the program for a closed-over array: its own, or numbers that XLA cannot predict."""
    if array._known is not None and not (array._made_up and isinstance(array.dtype, np.dtype)):
        return compat.get_constant_handler(type(array._known))(array._known, aval)
    if array.size * np.dtype(array.dtype).itemsize > MAX_CONSTANT_BYTES:
        raise ValueError(
            f"it closes over an array of {array.size * np.dtype(array.dtype).itemsize:,} bytes, which would be part "
            "of the program: pass it as an argument"
        )
    pattern = (np.arange(array.size, dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(24)).reshape(array.shape)
    return compat.get_constant_handler(np.ndarray)(np.asarray(pattern).astype(array.dtype), aval)


# Values that are known without data: small values that follow from constants of the program, computed on the CPU.
#
# Keys, schedules, counters and similar values decide the control flow of a program. They and their inputs are small: an
# operation is computed if its arguments are known, its results have at most `MAX_ELEMENTS` elements each, and all
# operations inside it write at most `MAX_WORK` elements. A compiled function is computed only in the part that leads
# from known arguments to small results, such as the step counter of a training state.


def elements(aval: Any) -> int:
    """Number of elements of a value; 0 for a value without shape."""
    return (
        math.prod(getattr(aval, "shape", ()))
        if all(isinstance(n, int) for n in getattr(aval, "shape", ()))
        else 1 << 62
    )


def is_small(aval: Any) -> bool:
    """Whether a value of this type is followed."""
    return hasattr(aval, "dtype") and elements(aval) <= MAX_ELEMENTS


def known_value(value: Any) -> Any:
    """The value of an argument on the CPU; ``None`` if it is unknown or large."""
    if isinstance(value, AbstractArray):
        return value._known
    if isinstance(value, np.ndarray) and value.size > MAX_ELEMENTS:
        return None
    return value


def is_placeholder(value: Any) -> bool:
    """Whether a value depends on unknown values."""
    return isinstance(value, AbstractArray) and value._made_up


def placeholder(aval: Any) -> Any:
    """A placeholder for a small unknown value: zeros on the CPU; ``None`` for keys and tokens."""
    if not is_small(aval):
        return None
    try:
        with compat.computing_on_cpu():
            return jax.device_put(np.zeros(aval.shape, aval.dtype))
    except (TypeError, ValueError):  # keys, tokens
        return None


def evaluate_operation(
    primitive: Any, arguments: Sequence[Any], params: dict[str, Any], avals: Sequence[Any]
) -> list[Any] | None:
    """Values of an operation outside of jit, on the CPU; ``None`` if they are not followed."""
    if primitive.name in IDENTITIES:
        return [known_value(argument) for argument in arguments]
    values = [known_value(argument) for argument in arguments]
    if (
        any(value is None for value in values)
        or primitive.name in NEVER_EVALUATED
        or not all(map(is_small, avals))
        or any(True for _ in compat.jaxprs_in_params(params))
    ):
        return None
    try:
        with compat.computing_on_cpu():
            results = primitive.bind(*values, **params)
    except Exception:  # unknown if the CPU cannot compute it (a sharding over the target's devices)
        return None
    return list(results) if primitive.multiple_results else [results]


def work_of(jaxpr: Any) -> float:
    """Elements that running a jaxpr writes; infinite if it contains an operation that is never computed."""
    total: float = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name in NEVER_EVALUATED or equation.effects:
            return math.inf
        inner = sum(work_of(jaxpr_inside) for jaxpr_inside in compat.jaxprs_in_params(equation.params))
        trips = {"while": TRIPS, "scan": equation.params.get("length", 1)}.get(equation.primitive.name, 1)
        total += inner * trips + sum(elements(v.aval) if hasattr(v.aval, "shape") else 1 for v in equation.outvars)
        if total > MAX_WORK:
            return math.inf
    return total


KnownPart = tuple[tuple[int, ...], tuple[int, ...], Callable[..., Any]]
"""The computed part of a function: positions of its arguments and results, and the function that computes it."""

_known_parts: weakref.WeakKeyDictionary[Any, dict[tuple[bool, ...], KnownPart | None]] = weakref.WeakKeyDictionary()


def known_part(closed: Any, knows: tuple[bool, ...]) -> KnownPart | None:
    """The part of a compiled function from known arguments to small results; ``None`` if it is empty."""
    parts = _known_parts.setdefault(closed, {})
    if knows not in parts:
        try:
            parts[knows] = _build_known_part(closed, knows)
        except Exception:  # a function that cannot be partitioned is not followed
            parts[knows] = None
    return parts[knows]


def _build_known_part(closed: Any, knows: tuple[bool, ...]) -> KnownPart | None:
    if any(isinstance(one, AbstractArray) and one._known is None for one in closed.consts):
        return None
    known, _, unknown, _ = compat.partial_eval_jaxpr_nounits(closed, [not one for one in knows], instantiate=False)
    outputs = [not one and is_small(aval) for one, aval in zip(unknown, closed.out_avals, strict=True)]
    results = tuple(index for index, one in enumerate(outputs) if one)
    if not results:
        return None
    places = [index for index, one in enumerate(knows) if one]
    wanted = [outputs[index] for index, one in enumerate(unknown) if not one]
    wanted += [False] * (len(known.out_avals) - len(wanted))  # inputs of the unknown part
    less, used = compat.dce_jaxpr(known.jaxpr, wanted)
    if less.effects or work_of(less) == math.inf:
        return None
    arguments = tuple(index for index, one in zip(places, used, strict=True) if one)
    function = functools.partial(compat.eval_jaxpr, less, [known_value(one) for one in known.consts])
    with compat.computing_on_cpu():
        return arguments, results, jax.jit(function)


def evaluate_known_results(closed: Any, arguments: Sequence[Any], *, from_made_up: bool) -> dict[int, tuple[Any, bool]]:
    """Small results of a compiled function that can be computed, by position, and whether they are made up.

    ``from_made_up``: also compute from made-up values.
    """
    values = [known_value(argument) for argument in arguments]
    if not from_made_up:
        values = [
            None if is_placeholder(argument) else value for argument, value in zip(arguments, values, strict=True)
        ]
    part = known_part(closed, tuple(value is not None for value in values))
    if part is None:
        return {}
    positions, results, function = part
    try:
        with compat.computing_on_cpu():
            known = function(*(values[index] for index in positions))
    except Exception:  # see `computed`
        return {}
    doubtful = any(is_placeholder(arguments[index]) for index in positions)
    return {index: (value, doubtful) for index, value in zip(results, known, strict=True)}
