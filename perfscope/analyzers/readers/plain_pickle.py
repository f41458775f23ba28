"""Pickles of strangers: numbers, strings and containers come out, and nothing can be run by them.

A pickle runs whatever it names when it is loaded by Python's own means. Here the opcodes are an allow-list without
any that names, builds or calls: a global, an extension, a persistent id, ``REDUCE`` are refused where they stand.
The pure-Python unpickler is used, because the other one allocates as much memory as a forged file asks for.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, cast

_PLAIN = (
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.DUP, pickle.NONE,
    pickle.NEWTRUE, pickle.NEWFALSE, pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG,
    pickle.LONG1, pickle.LONG4, pickle.FLOAT, pickle.BINFLOAT, pickle.STRING, pickle.BINSTRING,
    pickle.SHORT_BINSTRING, pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8,
    pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8, pickle.EMPTY_LIST, pickle.LIST, pickle.APPEND,
    pickle.APPENDS, pickle.EMPTY_DICT, pickle.DICT, pickle.SETITEM, pickle.SETITEMS, pickle.EMPTY_TUPLE,
    pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.GET, pickle.BINGET, pickle.LONG_BINGET,
    pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE,
)  # fmt: skip
"""Opcodes that make numbers, strings and containers. Sets are not among them: what is in one is hashed."""

_NAMING = (pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.INST, pickle.PERSID, pickle.BINPERSID)
"""Opcodes that end in ``find_class`` or ``persistent_load``, which refuse and say for what they were asked."""

_KEYS = (str, int)
"""Types of keys: the hash of a tuple in a tuple in a tuple ... runs out of stack, and takes the process with it."""


class PlainUnpickler(pickle._Unpickler):
    """Unpickles numbers, strings and containers; ``pickle.UnpicklingError`` for whatever else is asked for."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {}

    def load_setitem(self) -> None:
        """``SETITEM``, held to keys that can be hashed at once."""
        _check_keys(self.stack[-2:-1])  # type: ignore[attr-defined]
        pickle._Unpickler.load_setitem(self)  # type: ignore[attr-defined]

    def load_setitems(self) -> None:
        """``SETITEMS``, held to keys that can be hashed at once."""
        _check_keys(self.stack[::2])  # type: ignore[attr-defined]
        pickle._Unpickler.load_setitems(self)  # type: ignore[attr-defined]

    def load_dict(self) -> None:
        """``DICT``, held to keys that can be hashed at once."""
        _check_keys(self.stack[::2])  # type: ignore[attr-defined]
        pickle._Unpickler.load_dict(self)  # type: ignore[attr-defined]

    def refuse(self) -> NoReturn:
        """Any other opcode."""
        raise pickle.UnpicklingError("it asks for more than numbers, strings and containers")

    def find_class(self, module: str, name: str) -> NoReturn:
        """Never: no opcode that names a class is let through."""
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        """Never."""
        raise pickle.UnpicklingError("it asks for a persistent object")


PlainUnpickler.dispatch.update(
    (code, cast("Callable[[Any], None]", load) if bytes([code]) in (*_PLAIN, *_NAMING) else PlainUnpickler.refuse)
    for code, load in pickle._Unpickler.dispatch.items()
)
PlainUnpickler.dispatch.update(
    {
        pickle.SETITEM[0]: PlainUnpickler.load_setitem,
        pickle.SETITEMS[0]: PlainUnpickler.load_setitems,
        pickle.DICT[0]: PlainUnpickler.load_dict,
    }
)


def _check_keys(keys: list[Any]) -> None:
    if any(type(key) not in _KEYS for key in keys):
        raise pickle.UnpicklingError("a key is neither text nor a number")


def load_plain(data: bytes) -> Any:
    """What the pickle ``data`` holds.

    Any exception may come of a forged one (``pickle.UnpicklingError``, ``IndexError``, ``KeyError``, ``EOFError`` ...);
    nothing is run. Memory is at most some tens of times that of ``data``.
    """
    return PlainUnpickler(io.BytesIO(data)).load()
