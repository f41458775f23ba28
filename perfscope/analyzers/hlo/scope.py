"""Parts of ``op_name``: the user's scope, the pass it belongs to, and the primitive.

```
jit(step)/transpose(jvp(mlp))/while/body/closed_call/checkpoint/rematted_computation/dot_general
-> path ("mlp",), phase recompute, primitive dot_general
jit(step)/(jvp()/reduce_sum:transpose(jvp())/dot_general)          a combined collective has several
jit(step)/jvp()/add;jit(step)/transpose(jvp())/add_any              so has an instruction for two equal ones
```

``transpose(...)`` is the backward pass; ``rematted_computation`` the part of it that ``jax.checkpoint``
computes again. ``checkpoint`` without it is ordinary backward work.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

if TYPE_CHECKING:
    from perfscope.analyzers.hlo.module import Computation, Instruction


Phase = Literal["forward", "backward", "recompute"]

_TRANSFORMS = frozenset(
    {
        "jit", "pjit", "jvp", "transpose", "vmap", "pmap", "xmap", "shard_map", "checkpoint", "remat", "remat2",
        "custom_jvp", "custom_vjp", "linearize", "batch", "named", "xla_call", "core_call", "mask",
    }
)  # fmt: skip
"""Functions that wrap a scope; the wrapped scope is kept."""
_FUNCTIONS = frozenset({"jit", "pjit", "xla_call"})
"""Functions whose content is the name of a function, not a scope."""
_STRUCTURE = frozenset(
    {
        "while", "cond", "scan", "closed_call", "core_closed_call", "core_call", "eval_jaxpr", "checkpoint",
        "rematted_computation", "remat", "remat2", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
        "pjit", "shard_map",
    }
)  # fmt: skip
"""Segments that JAX adds for control flow and transformations."""
_BRANCH = re.compile(r"branch_\d+_fun")
_CALL = re.compile(r"([A-Za-z_]\w*)\(", re.ASCII)
_EQUATION = "->"
"""Part of the scopes that einsum names by its equation."""
_NUMBER = re.compile(r"(?<=[._\[])\d+(?=[/.\]]|$)")
_DEEPEST = 32
"""Maximum number of nested transformations that are removed; programs have three or four."""

_LIBRARY = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages)/"
    r"|(?:^|/)lib/python3\.\d+/"
    r"|(?:^|/)(?:jax/(?:_src|experimental|interpreters|numpy)|jaxlib|flax/(?:linen|nnx|core|training)"
    r"|optax/(?:_src|transforms|losses)|haiku/_src|equinox/_\w+|torch_xla|torch/(?:nn|_\w+|autograd|utils|optim))(?:/|\.py$)"
    r"|^<"
)
"""Folders inside packages, not only their names: a user's own ``jax/`` folder is not the library."""

FURTHEST = 64
"""Maximum number of instructions examined: instructions added by XLA are next to the ones they serve."""


class Scope(Struct, frozen=True, kw_only=True):
    """One origin of an instruction."""

    path: tuple[str, ...]
    """The user's named scopes, module names and inner jitted functions, outermost first."""
    modules: tuple[str, ...] = ()
    """Part of ``path`` that names layers: without einsum's equations, and without jitted functions that contain no
    named scope, which are mostly those of libraries (``log_softmax``).
    """
    phase: Phase
    primitive: str
    """JAX primitive, such as ``dot_general``; an argument's name for a parameter; ``''`` without a name."""

    @property
    def label(self) -> str:
        """``mlp/dot_general``."""
        return "/".join((*self.path, self.primitive))

    @property
    def module(self) -> str:
        """Layer, as a name without the numbers of equal layers: ``Block_*/mlp``; ``''`` outside of named scopes."""
        return _NUMBER.sub("*", "/".join(self.modules))


def scope_of(op_name: str) -> Scope:
    """Return the scope of a name; for a merged name, that of its first part."""
    return scopes_of(op_name)[0]


@lru_cache(maxsize=65_536)
def scopes_of(op_name: str) -> tuple[Scope, ...]:
    """Return every scope of a name once, in written order; several if XLA combined collectives."""
    return tuple(dict.fromkeys(_scope(name) for name in _merged(op_name)))


def _merged(op_name: str) -> Iterator[str]:
    """Yield the parts of a merged name, ``prefix/(a:b)`` or ``a;b``."""
    for name in _split(op_name, ";"):
        *before, last = _split(name, "/")
        if last.startswith("(") and last.endswith(")"):
            yield from ("/".join((*before, part)) for part in _split(last[1:-1], ":"))
        else:
            yield name


def _split(text: str, mark: str) -> list[str]:
    """Split a text at the outermost marks. Unmatched brackets, as in a name, are ignored."""
    result, depth, begin = [], 0, 0
    for index, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth = max(depth - 1, 0)
        elif character == mark and not depth:
            result.append(text[begin:index])
            begin = index + 1
    return [*result, text[begin:]]


def _scope(name: str) -> Scope:
    segments = _split(name, "/")
    path: list[str] = []
    named = 0  # length of the path up to its last named scope
    backward = recompute = False
    before = ""
    primitive = segments[-1]
    for index, segment in enumerate(segments):
        is_last = index == len(segments) - 1
        peeled, wrappers = _peeled(segment)
        backward |= "transpose" in wrappers
        recompute |= segment == "rematted_computation"
        # the outermost jit is the program itself, and older versions name its body "main"
        program = wrappers and wrappers[-1] in _FUNCTIONS and (index == 0 or peeled == "main")
        # older versions wrap the control flow itself: jvp(while)/body
        structure = peeled in _STRUCTURE or _BRANCH.fullmatch(peeled) or (before == "while" and segment == "body")
        if is_last and peeled and not program:
            primitive = peeled
        elif not is_last and not program and not structure and peeled:
            path.extend(_split(peeled, "/"))
            is_function = wrappers and wrappers[-1] in _FUNCTIONS
            named = named if is_function or _EQUATION in peeled else len(path)
        before = peeled
    return Scope(
        path=tuple(path),
        modules=tuple(part for part in path[:named] if _EQUATION not in part),
        phase="recompute" if recompute else "backward" if backward else "forward",
        primitive=primitive,
    )


def _peeled(segment: str) -> tuple[str, list[str]]:
    """Return the content inside the transformations of a segment, and their names, outermost first."""
    wrappers: list[str] = []
    while len(wrappers) < _DEEPEST and segment.endswith(")"):
        call = _CALL.match(segment)
        if call is None or call[1] not in _TRANSFORMS:
            break
        wrappers.append(call[1])
        segment = segment[call.end() : -1]
    return segment, wrappers


# From a stack frame table to the user's line: the innermost frame outside of libraries.


def is_library(path: str) -> bool:
    """Whether a source path is in an installed package, the standard library or a framework's checkout."""
    return _LIBRARY.search(path.replace("\\", "/")) is not None


class FrameTable(Struct, frozen=True, kw_only=True):
    """The tables of a module, by their ids (from 1)."""

    files: Mapping[int, str] = field(default_factory=dict)
    locations: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Location -> file id, line."""
    frames: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Frame -> location id, id of the caller's frame (0 without a caller)."""
    _found: dict[int, tuple[tuple[str, int], ...]] = field(default_factory=dict)

    def user_line(self, frame: int) -> tuple[str, int] | None:
        """Return file and line of the innermost frame of the user's code, else of the innermost frame.

        ``None`` if the tables lack the frame. A cyclic chain ends at its repetition.
        """
        lines = self.user_lines(frame)
        return lines[-1] if lines else None

    def user_lines(self, frame: int) -> tuple[tuple[str, int], ...]:
        """Return file and line of the user's frames, the outermost call first; without any, the innermost frame."""
        if frame not in self._found:
            self._found[frame] = self._walked(frame)
        return self._found[frame]

    def _walked(self, frame: int) -> tuple[tuple[str, int], ...]:
        innermost: tuple[tuple[str, int], ...] = ()
        found: list[tuple[str, int]] = []
        seen: set[int] = set()
        while frame in self.frames and frame not in seen:
            seen.add(frame)
            location, caller = self.frames[frame]
            file, line = self.locations.get(location, (0, 0))
            if file in self.files:
                place = (self.files[file], line)
                innermost = innermost or (place,)
                if not is_library(place[0]):
                    found.append(place)
            frame = caller
        return tuple(reversed(found)) or innermost


# Source lines for instructions without one: copies, zeros and layout changes that XLA adds get the line they serve.


def users_of(computation: Computation) -> Mapping[str, tuple[Instruction, ...]]:
    """Map each instruction of a computation to the instructions that read it, in order."""
    result: dict[str, list[Instruction]] = {}
    for instruction in computation.instructions:
        for name in dict.fromkeys(instruction.operands):
            result.setdefault(name, []).append(instruction)
    return {name: tuple(users) for name, users in result.items()}


def served(instruction: Instruction, users: Mapping[str, tuple[Instruction, ...]]) -> Instruction | None:
    """Return the nearest reader of its value with a source line, through readers without one.

    A value that a loop carries serves the line of the loop. Nearest by steps, then by the order of the program;
    ``None`` without such a reader within ``FURTHEST`` instructions.
    """
    seen, queue = {instruction.name}, deque([instruction.name])
    while queue and len(seen) <= FURTHEST:
        for user in users.get(queue.popleft(), ()):
            if user.file is not None:
                return user
            if user.name not in seen:
                seen.add(user.name)
                queue.append(user.name)
    return None
