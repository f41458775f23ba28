"""An array without data: what a program gets instead of ``jax.Array`` while it is run for its shapes.

It is a ``jax.Array`` and no ``Tracer``, so that code which asks for either goes the way it goes in a real run. A small
one whose value follows from what the program itself wrote down (keys, schedules, counters) has that value; of every
other one a read by the host gets zeros, and is reported to the listener.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from perfscope.profiler.ahead.jax import compat as compat

ReadListener = Callable[[str, "AbstractArray"], None]
"""Called when the host reads an unknown value: how it was read, and of which array."""

_read_listener: ReadListener | None = None


def on_host_read(heard: ReadListener | None) -> None:
    """Tell ``heard`` of reads from now on."""
    global _read_listener
    _read_listener = heard


class AbstractArray(jax.Array):  # type: ignore[misc]
    """Shape, dtype and place of an array, and its value where it is small and known."""

    aval: Any
    __array_priority__ = 100  # as that of jax: a number of numpy leaves the operation to it

    def __init__(self, aval: Any, sharding: Any, *, committed: bool, known: Any = None, made_up: bool = False) -> None:
        """``known``: a ``jax.Array`` on the CPU; ``made_up``: whether that depends on unknown values."""
        self.aval = aval
        self._sharding = sharding
        self._committed = committed
        self._known = known
        self._made_up = made_up or known is None
        self._deleted = False
        self._guessed = False
        """Whether the compiler chooses where it lies."""

    # what it is ---------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.aval.shape)

    @property
    def dtype(self) -> Any:
        """Its dtype."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return int(np.prod(self.aval.shape, dtype=np.int64))

    @property
    def weak_type(self) -> bool:
        """Whether it takes the dtype of what it meets."""
        return bool(getattr(self.aval, "weak_type", False))

    @property
    def sharding(self) -> Any:
        """Where it lies."""
        return self._sharding

    @property
    def format(self) -> Any:
        """Layout and sharding; the layout is the compiler's."""
        from jax.experimental.layout import Format

        return Format(None, self._sharding)

    @property
    def committed(self) -> bool:
        """Whether the program said where it lies."""
        return self._committed

    @property
    def device(self) -> Any:
        """Its device, or its sharding over several."""
        found = self._sharding.device_set
        return next(iter(found)) if len(found) == 1 else self._sharding

    def devices(self) -> set[Any]:
        """Where it lies."""
        return set(self._sharding.device_set)

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all of it lies at this process."""
        return bool(self._sharding.is_fully_addressable)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device has all of it."""
        return bool(self._sharding.is_fully_replicated)

    @property
    def addressable_shards(self) -> list[Any]:
        """The parts that lie at this process."""
        here = self._sharding.addressable_devices
        return [one for one in self.global_shards if one.device in here]

    @property
    def global_shards(self) -> list[Any]:
        """All parts."""
        aval = self.aval.update(shape=self._sharding.shard_shape(self.shape))
        return [
            compat.shard(
                device, self._sharding, self.shape,
                AbstractArray(aval, SingleDeviceSharding(device), committed=True),
            )
            for device in self._sharding.device_set
        ]  # fmt: skip

    def addressable_data(self, index: int) -> Any:
        """One of the parts that lie here."""
        return self.addressable_shards[index].data

    def on_device_size_in_bytes(self) -> int:
        """Its bytes."""
        return int(self.nbytes)

    # what waits or ends -------------------------------------------------------------------------------------

    def block_until_ready(self) -> AbstractArray:
        """Itself: nothing runs."""
        return self

    def copy_to_host_async(self) -> None:
        """Nothing: nothing runs."""

    def is_ready(self) -> bool:
        """True: nothing runs."""
        return True

    def delete(self) -> None:
        """Say that it is gone."""
        self._deleted = True

    def is_deleted(self) -> bool:
        """Whether it was deleted or donated."""
        return self._deleted

    def unsafe_buffer_pointer(self) -> int:
        """There is none."""
        return 0

    # what the host reads ------------------------------------------------------------------------------------

    def value(self, how: str) -> np.ndarray[Any, Any]:
        """What the host gets: the value where it is known, else zeros that take no memory."""
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
        compat.check_conversion(self, "bool")
        return bool(self.value("bool"))

    def __float__(self) -> float:
        compat.check_conversion(self, "scalar")
        return float(self.value("float"))

    def __int__(self) -> int:
        compat.check_conversion(self, "scalar")
        return int(self.value("int"))

    def __complex__(self) -> complex:
        compat.check_conversion(self, "scalar")
        return complex(self.value("complex"))

    def __index__(self) -> int:
        compat.check_conversion(self, "integer")
        return operator.index(self.value("int").item())

    def item(self, *places: int) -> Any:
        """One element as a Python number."""
        return self.value("item").item(*places)

    def tolist(self) -> Any:
        """As Python numbers."""
        return self.value("tolist").tolist()

    def tobytes(self, order: Any = "C") -> bytes:
        """As bytes."""
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

    def __dlpack__(self, **asked: Any) -> Any:
        return np.array(self.value("dlpack")).__dlpack__()

    def __dlpack_device__(self) -> Any:
        return (1, 0)

    def __reduce__(self) -> Any:
        return (np.array, (np.array(self.value("pickle")),))

    # what gives arrays again ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[at] for at in range(self.shape[0]))

    def __getitem__(self, at: Any) -> Any:
        return compat.take(self, at)

    __hash__ = None  # type: ignore[assignment]


def register_abstract_arrays() -> None:
    """Have jax accept these arrays as arguments and as constants, and give them the methods of its own."""
    compat.register_array_type(AbstractArray, _constant, {name for name in vars(AbstractArray) if name != "__doc__"})


MAX_CONSTANT_BYTES = 256 << 20
"""Of an array without data that a program closes over: what is larger is refused, as the program would hold it."""


def _constant(array: AbstractArray, aval: Any) -> Any:
    """What a program has in place of an array that it closes over: its value, or numbers that XLA cannot guess."""
    if array._known is not None and not (array._made_up and isinstance(array.dtype, np.dtype)):
        return compat.lowered_constant(type(array._known), array._known, aval)
    if array.size * np.dtype(array.dtype).itemsize > MAX_CONSTANT_BYTES:
        raise ValueError(
            f"it closes over an array of {array.size * np.dtype(array.dtype).itemsize:,} bytes, which would be part "
            "of the program: pass it as an argument"
        )
    pattern = (np.arange(array.size, dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(24)).reshape(array.shape)
    return compat.lowered_constant(np.ndarray, np.asarray(pattern).astype(array.dtype), aval)
