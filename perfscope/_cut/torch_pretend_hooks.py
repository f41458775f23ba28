"""The two tricks in a torch without CUDA that make it believe in a device: nothing here is safe, all of it is checked.

The autograd engine asks C++ objects whether there is a device, and ends the process where there is none:

- the guard that switches devices: torch has one that does nothing, and installs it where a guard counts no devices.
  So an object whose every function answers 0 is registered for a moment;
- ``CUDAHooksInterface``: while the engine runs, the object that answers for CUDA has another table of functions, in
  which few answers differ. Their places follow from the header of the installed torch (``torch_pretend_slots``), and
  are held against the size of the real table and against what its functions answer.

Linux, 64 bits, glibc, the C++ ABI of Itanium. Only for a process of its own that may die of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from perfscope._cut.torch_pretend_fit import unfit
from perfscope._cut.torch_pretend_slots import slots_of
from perfscope.model.errors import DataError

_CUDA = 1
"""``c10::DeviceType::CUDA``."""
_MOST_SLOTS = 256
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_REGISTER = "_ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"
_TABLE = "_ZTVN2at18CUDAHooksInterfaceE"
_OBJECT = "_ZN2at6detail12getCUDAHooksEv"
_SYMBOL = 1
"""``RTLD_DL_SYMENT`` of dladdr1(3): the entry of the symbol table, which has its size."""

_SAYS = {"isBuilt": 0, "isAvailable": 0, "deviceCount": 0, "current_device": -1, "getNumGPUs": 0, "hasCUDA": 0}
"""What a torch without CUDA answers: asked, to know that places are right. The last ones lie far behind."""
_ANSWERS = {"isBuilt": 1, "isAvailable": 1, "hasPrimaryContext": 1, "deviceCount": 1}
"""What is answered while the engine runs."""

_Function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)


class MisfitError(DataError):
    """The installed torch is not one that the tricks fit, in a line."""


class Hooks:
    """The tricks, once in a process: ``install()``, then ``running(function)`` around the autograd engine."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._object = self._real = self._ours = 0

    def install(self) -> None:
        """Install the guard that does nothing, and make the other table.

        ``MisfitError`` where something is not as known; what is wrong and cannot be seen from here ends the process.
        """
        fits()
        folder = Path(torch.__file__).parent
        try:
            self._guard(ctypes.CDLL(str(folder / "lib" / "libc10.so")))
            self._table(ctypes.CDLL(str(folder / "lib" / "libtorch_cpu.so")), slots_in(folder / "include" / "ATen"))
        except (AttributeError, OSError, ValueError) as error:
            raise MisfitError(f"a private part of torch has changed: {error}") from error
        seen = self.running(torch._C._accelerator_getAccelerator)
        if seen is None or torch.device(seen).type != "cuda":
            raise MisfitError(f"torch does not take it: its accelerator is {seen}")

    def running(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """What a function gives back, called while there is a device."""
        place = ctypes.c_void_p.from_address(self._object)
        before = place.value
        place.value = self._ours
        try:
            return function(*arguments, **named)
        finally:
            place.value = before

    def _guard(self, library: ctypes.CDLL) -> None:
        guards = ctypes.c_void_p * (_CUDA + 1)
        held = guards.in_dll(library, _GUARDS)
        if held[_CUDA] is None:
            nothing = _Function(lambda *_: 0)
            table = (ctypes.c_void_p * _MOST_SLOTS)(*[ctypes.cast(nothing, ctypes.c_void_p).value] * _MOST_SLOTS)
            thing = (ctypes.c_void_p * 2)(ctypes.addressof(table), 0)
            self._kept += [nothing, table, thing]
            register = getattr(library, _REGISTER)
            register.argtypes, register.restype = (ctypes.c_int8, ctypes.c_void_p), None
            register(_CUDA, ctypes.addressof(thing))
            torch._C._ensureCUDADeviceGuardSet()
            if held[_CUDA] in (None, ctypes.addressof(thing)):
                raise ValueError("torch does not put a guard of its own in place of ours")

    def _table(self, library: ctypes.CDLL, slots: dict[str, int]) -> None:
        start = ctypes.addressof(ctypes.c_char.in_dll(library, _TABLE)) + 16  # behind offset and type
        count = _size(start - 16) // 8 - 2
        if count != _count(slots):
            raise ValueError(f"the table of CUDAHooksInterface has {count} functions, its header {_count(slots)}")
        ask = getattr(library, _OBJECT)
        ask.restype = ctypes.c_void_p
        self._object = int(ask())
        self._real = int(ctypes.c_void_p.from_address(self._object).value or 0)
        if self._real != start:
            raise ValueError("another CUDAHooksInterface answers: this torch is built with CUDA")
        real = (ctypes.c_void_p * count).from_address(start)
        for name, expected in _SAYS.items():
            said = ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)(real[slots[name]] or 0)(self._object)
            if said != expected:
                raise ValueError(f"{name} of CUDAHooksInterface answers {said} and not {expected}")
        ours = (ctypes.c_void_p * (count + 2)).from_buffer_copy(ctypes.string_at(start - 16, 8 * (count + 2)))
        for name, answer in _ANSWERS.items():
            function = _Function(lambda *_, answer=answer: answer)
            self._kept.append(function)
            ours[slots[name] + 2] = ctypes.cast(function, ctypes.c_void_p).value
        self._kept.append(ours)
        self._ours = ctypes.addressof(ours) + 16


def fits() -> None:
    """``MisfitError`` where the system or the build of torch is none with which the tricks were tried."""
    why = unfit(torch.__version__, for_gpu=torch.version.cuda is not None or torch.version.hip is not None)
    if why is not None:
        raise MisfitError(why)


def slots_in(folder: Path) -> dict[str, int]:
    """Function of ``CUDAHooksInterface`` -> its place, by the headers in ``include/ATen`` of a torch.

    ``OSError`` where they are not there, ``ValueError`` where they are not understood.
    """
    base = (folder / "detail" / "AcceleratorHooksInterface.h").read_text()
    hooks = (folder / "detail" / "CUDAHooksInterface.h").read_text()
    slots = slots_of(hooks, "CUDAHooksInterface", slots_of(base, "AcceleratorHooksInterface"))
    missing = {*_SAYS, *_ANSWERS} - slots.keys()
    if missing:
        raise ValueError(f"CUDAHooksInterface has no {', '.join(sorted(missing))}")
    return slots


def _count(slots: dict[str, int]) -> int:
    return max(slots.values()) + 1


def _size(address: int) -> int:
    """Bytes of the symbol that begins at an address, as the dynamic linker knows it."""
    libc = ctypes.CDLL(None)
    info, symbol = (ctypes.c_void_p * 4)(), ctypes.c_void_p()
    if not libc.dladdr1(ctypes.c_void_p(address), info, ctypes.byref(symbol), _SYMBOL) or not symbol.value:
        raise ValueError("the dynamic linker does not know the table of CUDAHooksInterface")
    if info[3] != address:
        raise ValueError("the table of CUDAHooksInterface does not begin where it should")
    return int(ctypes.c_uint64.from_address(symbol.value + 16).value)
