"""What ``op_name`` says: the user's scope, the pass it belongs to, and the primitive.

```
jit(step)/transpose(jvp(mlp))/while/body/closed_call/checkpoint/rematted_computation/dot_general
-> path ("mlp",), phase recompute, primitive dot_general
jit(step)/(jvp()/reduce_sum:transpose(jvp())/dot_general)          a combined collective has several
```

``transpose(...)`` is the backward pass; ``rematted_computation`` the part of it that ``jax.checkpoint``
computes again. ``checkpoint`` without it is ordinary backward work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Phase = Literal["forward", "backward", "recompute"]

_TRANSFORMS = frozenset(
    {
        "jit", "pjit", "jvp", "transpose", "vmap", "pmap", "xmap", "shard_map", "checkpoint", "remat", "remat2",
        "custom_jvp", "custom_vjp", "linearize", "batch", "named", "xla_call", "core_call", "mask",
    }
)  # fmt: skip
"""Functions that wrap a scope; what they wrap stays."""
_FUNCTIONS = frozenset({"jit", "pjit", "xla_call"})
"""Those whose content is the name of a function, not a scope."""
_STRUCTURE = frozenset(
    {
        "while", "cond", "scan", "closed_call", "core_closed_call", "core_call", "checkpoint", "rematted_computation",
        "remat", "remat2", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "pjit", "shard_map",
    }
)  # fmt: skip
"""Segments that JAX adds for control flow and transformations."""
_BRANCH = re.compile(r"branch_\d+_fun")
_CALL = re.compile(r"([A-Za-z_]\w*)\(", re.ASCII)
_DEEPEST = 32
"""Transformations around one another that are peeled; programs have three or four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One origin of an instruction."""

    path: tuple[str, ...]
    """The user's named scopes, module names and inner jitted functions, outermost first."""
    phase: Phase
    primitive: str
    """JAX primitive, such as ``dot_general``; an argument's name for a parameter; ``''`` without a name."""

    @property
    def label(self) -> str:
        """``mlp/dot_general``."""
        return "/".join((*self.path, self.primitive))


def scope_of(op_name: str) -> Scope:
    """The scope of a name; of a merged one, that of its first part."""
    return scopes_of(op_name)[0]


@lru_cache(maxsize=65_536)
def scopes_of(op_name: str) -> tuple[Scope, ...]:
    """Every scope of a name, in written order, each once: several where XLA combined collectives."""
    return tuple(dict.fromkeys(_scope(name) for name in _merged(op_name)))


def _merged(op_name: str) -> Iterator[str]:
    """The names that a merged one, ``prefix/(a:b)``, stands for."""
    *before, last = _split(op_name, "/")
    if not (last.startswith("(") and last.endswith(")")):
        yield op_name
        return
    for part in _split(last[1:-1], ":"):
        yield "/".join((*before, part))


def _split(text: str, mark: str) -> list[str]:
    """Pieces of a text between the outermost marks. Brackets that do not match, as in a name, bind nothing."""
    found, depth, begin = [], 0, 0
    for place, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth = max(depth - 1, 0)
        elif character == mark and not depth:
            found.append(text[begin:place])
            begin = place + 1
    return [*found, text[begin:]]


def _scope(name: str) -> Scope:
    segments = _split(name, "/")
    path: list[str] = []
    backward = recompute = False
    before = ""
    primitive = segments[-1]
    for place, segment in enumerate(segments):
        is_last = place == len(segments) - 1
        peeled, wrappers = _peeled(segment)
        backward |= "transpose" in wrappers
        recompute |= segment == "rematted_computation"
        # the outermost jit is the program itself, and older versions name its body "main"
        program = wrappers and wrappers[-1] in _FUNCTIONS and (place == 0 or peeled == "main")
        # older versions wrap the control flow itself: jvp(while)/body
        structure = peeled in _STRUCTURE or _BRANCH.fullmatch(peeled) or (before == "while" and segment == "body")
        if is_last and peeled and not program:
            primitive = peeled
        elif not is_last and not program and not structure and peeled:
            path.extend(_split(peeled, "/"))
        before = peeled
    return Scope(
        path=tuple(path),
        phase="recompute" if recompute else "backward" if backward else "forward",
        primitive=primitive,
    )


def _peeled(segment: str) -> tuple[str, list[str]]:
    """What the transformations of a segment wrap, and their names, outermost first."""
    wrappers: list[str] = []
    while len(wrappers) < _DEEPEST and segment.endswith(")"):
        call = _CALL.match(segment)
        if call is None or call[1] not in _TRANSFORMS:
            break
        wrappers.append(call[1])
        segment = segment[call.end() : -1]
    return segment, wrappers
