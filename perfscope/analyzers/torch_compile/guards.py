"""Failed guards of torch.compile, classified by subject: a size, a Python number, an object's identity and so on.

Supports the forms of torch 2.3 to 2.13 (``torch._dynamo.guards`` and ``torch/csrc/dynamo/guards.cpp``). The source of a
value is written ``L['x']`` (a local) or ``G['x']`` (a global); newer versions omit the brackets of locals.
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

GuardKind = Literal[
    "size", "number", "identity", "type", "grad_mode", "global_state", "training", "tensor", "container", "other"
]

_TENSOR = re.compile(
    r"tensor '(?P<source>.{1,300}?)' (?P<what>size|stride|rank|dtype|device|requires_grad|\w[\w ]{0,40}?) mismatch"
    r"(?: at index (?P<dim>\d{1,3}))?\. "
    r"expected (?P<expected>.{1,80}?)(?:, actual (?P<actual>.{1,80}?))?(?: \(HINT.*)?$"
)
_SIZE = re.compile(r"(?P<source>[\w.\[\]'\"]{1,300}?)\.size\(\)\[(?P<dim>\d{1,3})\]")
_STATE = re.compile(r"GLOBAL_STATE changed: (?P<what>.{0,200}?)\s*$")
_OBJECT = re.compile(r"(?:___check_(?P<check>\w+?)|id|type)\((?P<source>[^,()]{1,300})[,)]")
_LENGTH = re.compile(r"len\((?P<source>.{1,300}?)\)")
_EQUAL = re.compile(r"^(?P<source>[\w.\[\]'\"]{1,300}) (?:==|is) (?P<value>.{1,80}?)(?: \(HINT.*)?$")
_NUMBER = re.compile(r"-?(?:\d[\d_]*(?:\.\d*)?(?:e[+-]?\d+)?|inf|nan)$")
_WHOLE = re.compile(r"==\s*(?P<right>\d+)\b|\b(?P<left>\d+)\s*==")
_STACK = "___stack"
"""Start of the names of values that a graph break passes to the next graph."""
_SUBMODULE = re.compile(r"\._modules\[['\"](?P<at>\w{1,100})['\"]\]")
_LOCAL = re.compile(r"^[LG]\[['\"](?P<name>\w+)['\"]\]")

_LEARNING_RATE = re.compile(r".{0,200}param_groups\[\d{1,6}\]\[['\"]lr['\"]\]")

FIXES: dict[GuardKind, str] = {
    "number": "Pass {source} as a tensor (torch.tensor({source}, device=...)): a Python number that changes is part "
    "of the graph. If it must be a number, use few values.",
    "size": "Mark the dimension as dynamic before the first call: torch._dynamo.mark_dynamic({source}, {dimension}). "
    "Or compile with dynamic=True, or pad to a few sizes.",
    "identity": "Make {source} once, outside the loop: functions, lambdas, modules and configuration objects made "
    "again are other objects for the guard.",
    "type": "Pass the same type each time as {source}: convert before the call.",
    "training": "Call it in one mode: model.train() and model.eval() between calls make two programs. Compile each "
    "(torch.compile(model) twice) if both are needed in turn.",
    "grad_mode": "Call it in one gradient mode: with and without torch.no_grad() are two programs. Compile one for "
    "training and one for evaluation.",
    "global_state": "Keep global state as it is between calls: autocast, default dtype, number of threads, "
    "deterministic mode and torch function modes are guarded.",
    "tensor": "Pass {source} with one layout: dtype, device, requires_grad, rank and strides are guarded "
    "(.contiguous(), .detach(), .to(dtype) before the call).",
    "container": "Pass {source} with the same length and keys each time, or as one stacked tensor.",
}
"""Advice by subject of the failed guard."""

OTHER_FIX = (
    "Keep the guarded value the same from call to call, or pass it as a tensor. "
    'TORCH_LOGS="recompiles_verbose" shows all guards.'
)


HANDED_ON_FIX = (
    "Keep the value on the device: the number was read where a graph ends in this function (`.item()`, `float()`). "
    "The graph after it is compiled for that number."
)

LEARNING_RATE_FIX = (
    "Make the learning rate a tensor where the optimizer is made: lr=torch.tensor({value}). A scheduler then changes "
    "its value in place, and nothing is compiled again."
)


class Guard(Struct, frozen=True, kw_only=True):
    """One guard. Values are text as torch wrote it; the model of the log excludes string values."""

    kind: GuardKind
    text: str
    source: str | None = None
    """The guarded value, in the program's words: ``x``, ``rate``, ``self.k``."""
    dimension: int | None = None
    expected: str | None = None
    """Value for which the earlier compilation was made."""
    actual: str | None = None

    @property
    def key(self) -> tuple[GuardKind, str | None, int | None]:
        """Subject of the guard, without values."""
        return (self.kind, self.source, self.dimension)

    def in_words(self) -> str:
        """Return the subject of the guard in the program's words, without values."""
        if self.kind == "size":
            return f"the size of {self.source} in dimension {self.dimension}"
        if self.kind == "number" and (self.source or "").startswith(_STACK):
            return f"the number that the graph break hands on ({self.source})"
        words = {
            "number": f"the number {self.source}",
            "identity": f"the identity of {self.source}",
            "type": f"the type of {self.source}",
            "training": f"the flag {self.source}",
            "container": f"the length or keys of {self.source}",
            "tensor": f"the layout or type of tensor {self.source}",
            "grad_mode": "the gradient mode",
            "global_state": "global state",
        }
        return words.get(self.kind, "a guard")

    def changes(self) -> str:
        """Return a sentence: what differs from the call for which the program was compiled."""
        subject = self.in_words() if self.kind != "other" else "The guarded value"
        return f"{subject[:1].upper()}{subject[1:]} changes."


def parse_guard(text: str) -> Guard:
    """Parse the guard in a line of ``recompile_reasons``; kind ``other`` for an unknown form."""
    tensor = _TENSOR.match(text)
    if tensor is not None:
        size = tensor["what"] == "size" and tensor["dim"] is not None
        return Guard(
            kind="size" if size else "tensor",
            text=text,
            source=plain_source(tensor["source"]),
            dimension=int(tensor["dim"]) if tensor["dim"] is not None else None,
            expected=tensor["expected"],
            actual=tensor["actual"],
        )
    size_of = _SIZE.search(text)
    if size_of is not None:
        whole = _WHOLE.search(text)
        return Guard(
            kind="size",
            text=text,
            source=plain_source(size_of["source"]),
            dimension=int(size_of["dim"]),
            expected=(whole["right"] or whole["left"]) if whole is not None else None,
        )
    return _of_state(text) or _of_object(text) or _of_value(text) or Guard(kind="other", text=text)


def plain_source(source: str) -> str:
    """Return ``x`` for ``L['x']``, ``self.k`` for ``L['self'].k``, ``m.blocks[0]`` for its path in ``_modules``."""
    named = _LOCAL.match(source)
    text = source if named is None else named["name"] + source[named.end() :]
    return _SUBMODULE.sub(lambda found: f"[{found['at']}]" if found["at"].isdecimal() else f".{found['at']}", text)


def _of_state(text: str) -> Guard | None:
    state = _STATE.search(text)
    if state is None and "___check_global_state" not in text and "is_grad_enabled" not in text:
        return None
    what = state["what"] if state is not None else None
    gradients = "grad_mode" in (what or "") or "is_grad_enabled" in text
    return Guard(kind="grad_mode" if gradients else "global_state", text=text, source=what or None)


def _of_object(text: str) -> Guard | None:
    checked = _OBJECT.search(text)
    if checked is None:
        length = _LENGTH.search(text)
        return None if length is None else Guard(kind="container", text=text, source=plain_source(length["source"]))
    by_type = checked["check"] == "type_id" or text.lstrip("(").startswith("type(")
    keys = checked["check"] in ("dict_contains", "dict_version", "dict_keys")
    kind: GuardKind = "container" if keys else "type" if by_type else "identity"
    return Guard(kind=kind, text=text, source=plain_source(checked["source"].strip()))


def _of_value(text: str) -> Guard | None:
    equal = _EQUAL.match(text.strip())
    if equal is None:
        return None
    source, value = plain_source(equal["source"]), equal["value"].strip()
    if source.rpartition(".")[2] == "training":
        return Guard(kind="training", text=text, source=source, expected=value)
    kind: GuardKind = "number" if _NUMBER.match(value) or value in ("True", "False") else "other"
    return Guard(kind=kind, text=text, source=source, expected=value)


def fix_of(guard: Guard | None) -> str:
    """Return the advice for a failed guard."""
    if guard is None or guard.kind not in FIXES:
        return OTHER_FIX
    if guard.kind == "number" and guard.source is not None and _LEARNING_RATE.fullmatch(guard.source):
        return LEARNING_RATE_FIX.format(value=guard.expected or "rate")
    if guard.kind == "number" and guard.source is not None and guard.source.startswith(_STACK):
        return HANDED_ON_FIX
    return FIXES[guard.kind].format(source=guard.source, dimension=guard.dimension)
