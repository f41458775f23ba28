"""Finds the variables of the program whose values grow from step to step, and the lines that make them grow.

Between steps, a few times in a run, the variables of the user's functions on the stack are measured: tensors with an
autograd graph, tensors and arrays, lists and dicts, and the same in the attributes of the user's objects. Only sizes
are kept, no value and no reference. Variables that grew from each measurement to the next are recorded.
"""

from __future__ import annotations

import dis
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from time import thread_time_ns
from types import CodeType, FrameType
from typing import Any, NamedTuple

from perfscope.model.documents.counters import HeldName
from perfscope.profiler.source_files import SourceFiles
from perfscope.profiler.torch.compat import without_overrides

MOST_FRAMES = 30
"""Innermost frames of the stack that are examined."""
MOST_VALUES = 2_000
"""Variables and attributes that one look visits."""
MOST_NODES = 20_000
"""Nodes of autograd graphs that one look visits, some 10 ms. A graph beyond that is not measured."""
MOST_ELEMENTS = 8
"""Elements of a container whose bytes are read, the last ones."""
SPACING = 2
"""Times the steps since the first look at which the next one is due: early growth is seen, and late growth too."""
MOST_LOOKS = 64
MOST_NAMES = 10
"""Variables that are recorded: the ones that grew most often, by size."""
DEPTH = 2
"""Levels of attributes: ``self.buffer.items`` is two below ``self``."""

_CONTAINERS: tuple[Any, ...] = (list, dict, set, deque, tuple)
_PLAIN = frozenset(
    {int, float, complex, str, bytes, bool, type(None), type, type(sys), type(lambda: 0), type(len), range}
)
_ARRAYS = frozenset({("torch", "Tensor"), ("torch", "Parameter"), ("numpy", "ndarray")})
_JAX_ARRAY = "ArrayImpl"
_NEWLOCALS_OPTIMIZED = 0x3
"""Flags of a function's code: its ``f_locals`` is a copy. For a module it is the namespace itself."""


class _Key(NamedTuple):
    """A variable: the code that it is in (or the class of its object), and its path of attributes."""

    code: CodeType
    path: tuple[str, ...]
    owner: type | None
    """Class of the object whose attribute it is; ``None`` for a variable."""


class _Size(NamedTuple):
    step: int
    kind: str
    size: int
    bytes: int
    graphs: bool


class HeldNames:
    """The looks of one process. Called on the thread of the steps, between two steps."""

    def __init__(self) -> None:
        self._files: SourceFiles | None = None
        self._sizes: dict[_Key, list[_Size]] = {}
        self._first = self._next = 0
        self._nodes_left = 0
        self.looks = 0
        self.last_cost_ns = 0

    def clear(self) -> None:
        """Forget the looks so far."""
        self._sizes.clear()
        self.looks = self._next = 0

    def due(self, step: int) -> bool:
        """Whether enough steps passed since the look before."""
        return step >= self._next and self.looks < MOST_LOOKS

    def look(self, step: int) -> None:
        """Note the sizes of variables after ``step``."""
        before = thread_time_ns()  # on a busy machine the clock would count what others took
        if not self.looks:
            self._first = step
        self._next = step + 1 + int((SPACING - 1) * (step - self._first))
        if sys.gettrace() is None:
            with suppress(Exception), without_overrides():  # a look that fails is a look that found nothing
                self._look(step)
        self.looks += 1
        self.last_cost_ns = thread_time_ns() - before

    def grown(self) -> tuple[HeldName, ...]:
        """The variables that were larger at every look than at the one before; of three looks at least."""
        grown = [(key, sizes) for key, sizes in self._sizes.items() if _grew(sizes)]
        grown.sort(key=lambda item: (item[1][-1].kind != "graph", -item[1][-1].bytes, -item[1][-1].size))
        return tuple(self._named(key, sizes) for key, sizes in grown[:MOST_NAMES])

    def _named(self, key: _Key, sizes: list[_Size]) -> HeldName:
        code, line = _growing_line(key)
        assert self._files is not None
        return HeldName(
            name=".".join(key.path),
            kind=sizes[-1].kind,
            file=self._files.name_with_owner(code.co_filename),
            line=line,
            function=code.co_qualname if sys.version_info >= (3, 11) else code.co_name,
            step=tuple(size.step for size in sizes),
            size=tuple(size.size for size in sizes),
            bytes=tuple(size.bytes for size in sizes),
            graphs=sizes[-1].graphs,
        )

    def _look(self, step: int) -> None:
        if self._files is None:
            self._files = SourceFiles(Path.cwd(), ())
        self._nodes_left = MOST_NODES
        seen: set[int] = set()
        for number, (key, value) in enumerate(self._values(sys._getframe(1))):
            if number >= MOST_VALUES:
                break
            if id(value) in seen:
                continue
            seen.add(id(value))
            size = self._size(step, value)
            if size is None:
                continue
            self._sizes.setdefault(key, []).append(size)

    def _values(self, frame: FrameType | None) -> Iterator[tuple[_Key, Any]]:
        """The variables of the user's frames, innermost frame first, and the attributes of their objects."""
        assert self._files is not None
        for _ in range(MOST_FRAMES):
            if frame is None:
                return
            if self._files.is_user(frame.f_code.co_filename) and not self._files.is_installed(frame.f_code.co_filename):
                variables = frame.f_locals
                for name, value in list(variables.items()):
                    if type(value) not in _PLAIN and not name.startswith("__"):
                        yield _Key(frame.f_code, (name,), None), value
                        yield from self._attributes(_Key(frame.f_code, (name,), None), value, DEPTH)
                if sys.version_info < (3, 13) and frame.f_code.co_flags & _NEWLOCALS_OPTIMIZED == _NEWLOCALS_OPTIMIZED:
                    variables.clear()  # the frame would keep this copy, and the values in it, until it returns
            frame = frame.f_back

    def _attributes(self, key: _Key, value: Any, depth: int) -> Iterator[tuple[_Key, Any]]:
        """Attributes of an object whose class the user wrote."""
        owner = type(value)
        module = sys.modules.get(owner.__module__)
        path = getattr(module, "__file__", None)
        assert self._files is not None
        if not depth or path is None or not self._files.is_user(path) or self._files.is_installed(path):
            return
        try:
            attributes = object.__getattribute__(value, "__dict__")  # no code of the class runs
        except AttributeError:
            return
        for name, inner in list(attributes.items()):
            if type(inner) in _PLAIN or type(name) is not str:
                continue
            below = _Key(key.code, (*key.path, name), owner)
            yield below, inner
            yield from self._attributes(below, inner, depth - 1)

    def _size(self, step: int, value: Any) -> _Size | None:
        """Size of a value; ``None`` for a value that is not measured."""
        base = next((base for base in _CONTAINERS if issubclass(type(value), base)), None)
        if base is not None:
            length = base.__len__(value)
            last = _last_elements(base, value, length)
            sizes = [_bytes_inside(element) for element in last]
            mean = sum(sizes) / len(sizes) if sizes else 0
            graphs = any(_has_graph(element) for element in last[-1:])
            return _Size(step, "container", length, round(mean * length), graphs)
        size = _array_bytes(value)
        if size is None:
            return None
        if _has_graph(value):
            nodes = _graph_nodes(value.grad_fn, self._nodes_left)
            self._nodes_left -= min(nodes, self._nodes_left)
            return _Size(step, "graph", nodes, size, True) if self._nodes_left else None
        return _Size(step, "array", size, size, False)


def _last_elements(base: type, value: Any, length: int) -> list[Any]:
    """The last elements of a list or deque, the last values of a dict; empty for a set."""
    if base in (list, deque, tuple):
        return [base.__getitem__(value, index) for index in range(max(0, length - MOST_ELEMENTS), length)]
    if base is dict:
        return [dict.__getitem__(value, key) for key in islice(dict.__reversed__(value), MOST_ELEMENTS)][::-1]
    return []


def _kind_of(value: Any) -> tuple[str, str]:
    return type(value).__module__.partition(".")[0], type(value).__name__


def _array_bytes(value: Any) -> int | None:
    """Bytes of a torch tensor, a JAX array or a NumPy array; ``None`` for anything else."""
    package, name = _kind_of(value)
    if (package, name) not in _ARRAYS and not (package in ("jax", "jaxlib") and name == _JAX_ARRAY):
        return None
    return int(value.nbytes)


def _bytes_inside(value: Any) -> int:
    """Bytes of an array, or of the last arrays in a container of them, such as the keys and values of a layer."""
    size = _array_bytes(value)
    if size is not None:
        return size
    base = next((base for base in _CONTAINERS if issubclass(type(value), base)), None)
    if base is None:
        return 0
    return sum(_array_bytes(element) or 0 for element in _last_elements(base, value, base.__len__(value)))


def _has_graph(value: Any) -> bool:
    return _kind_of(value) == ("torch", "Tensor") and value.grad_fn is not None


def _graph_nodes(root: Any, most: int) -> int:
    """Nodes of an autograd graph, at most ``most`` plus the successors of one node."""
    seen, waiting = {root}, [root]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
        if len(seen) >= most:
            break
    return len(seen)


def _grew(sizes: list[_Size]) -> bool:
    """Whether a variable was of one kind, never smaller than before, and larger at half of the measurements.

    It needs three measurements. If the second half grew more often than the first, the growth has not levelled off.
    """
    if len(sizes) < 3 or len({size.kind for size in sizes}) > 1:
        return False
    return _rises([size.size for size in sizes]) or _rises([size.bytes for size in sizes])


def _rises(values: list[int]) -> bool:
    pairs = list(pairwise(values))
    rising = sum(later > earlier for earlier, later in pairs)
    falls = any(later < earlier for earlier, later in pairs)
    return values[-1] > values[len(values) // 2] and not falls and 2 * rising >= len(pairs)


# Which line makes a variable grow, by the bytecode of the function that it is in, or of its class.


_ADDING = frozenset({"append", "extend", "add", "update", "insert", "appendleft", "setdefault"})


def _growing_line(key: _Key) -> tuple[CodeType, int | None]:
    """The code and the line that reads and assigns the variable, or adds to it; the line ``None`` if none is found."""
    name = key.path[-1]
    codes = [key.code]
    if key.owner is not None:
        codes = [code for value in vars(key.owner).values() if isinstance(code := _code(value), CodeType)] + codes
    stored: tuple[CodeType, int] | None = None
    for code in [inner for outer in codes for inner in _with_inner(outer)]:
        for line, uses in _uses_by_line(code, name).items():
            if "add" in uses or {"load", "store"} <= uses:
                return code, line
            if "store" in uses:
                stored = code, line
    return stored if stored is not None else (key.code, None)


def _code(value: Any) -> Any:
    function = getattr(value, "__func__", value)
    return getattr(getattr(function, "fget", function), "__code__", None)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _uses_by_line(code: CodeType, name: str) -> dict[int, set[str]]:
    """Per line of ``code`` how it uses the variable or attribute ``name``."""
    uses: dict[int, set[str]] = {}
    line, loaded = code.co_firstlineno, False
    for instruction in dis.get_instructions(code):
        started = instruction.starts_line
        positions = getattr(instruction, "positions", None)
        if positions is not None and positions.lineno is not None:
            line = positions.lineno
        elif isinstance(started, int) and not isinstance(started, bool):
            line = started
        is_name = instruction.argval == name or (isinstance(instruction.argval, tuple) and name in instruction.argval)
        if instruction.opname.startswith("STORE_") and is_name:
            uses.setdefault(line, set()).add("store")
        if instruction.opname.startswith("STORE_SUBSCR") and "load" in uses.get(line, ()):
            uses[line].add("add")
        if instruction.opname.startswith("LOAD_"):
            if is_name:
                uses.setdefault(line, set()).add("load")
            elif loaded and instruction.argval in _ADDING:
                uses.setdefault(line, set()).add("add")
            loaded = is_name
    return uses
