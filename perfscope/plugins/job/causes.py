"""Causes of a job's time, and the cause of a sampled stack."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from msgspec import Struct

from perfscope.model.frames import Owner, owner_of
from perfscope.model.frames.kinds import FrameKind, frame_kind, kind_below
from perfscope.model.frames.side_work import evaluates, restores
from perfscope.plugins.job.document import ProcessLedger, text_at
from perfscope.plugins.job.recorder import SET_UP, WARM_UP

Cause = Literal[
    "training steps",
    "warm-up steps",
    "compilation",
    "waiting for data",
    "evaluation",
    "saving checkpoints",
    "restoring",
    "logging",
    "waiting for ranks",
    "waiting for a core",
    "waiting for a thread or process",
    "sleeping",
    "stalled",
    "imports",
    "set-up",
    "after the last step",
    "lost work",
    "between attempts",
    "not recorded",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)
"""In the order in which reports list equal times."""

KEPT: frozenset[Cause] = frozenset({"training steps"})
"""Causes in which the job trains what it keeps."""

_IMPORTS = "<frozen importlib"

K = FrameKind
_BY_KIND: dict[FrameKind, Cause] = {
    K.COMPILER: "compilation",
    K.LOADER: "waiting for data",
    K.WORKER_START: "waiting for data",
    K.TOKENIZER: "waiting for data",
    K.LOGGING: "logging",
    K.COLLECTIVE: "waiting for ranks",
    K.SLEEP: "sleeping",
    K.LOCK: "waiting for a thread or process",
    K.QUEUE: "waiting for a thread or process",
}


class Place(Struct, frozen=True, kw_only=True):
    """Properties of a stack: its cause after the set-up, and the line of the program."""

    cause: Cause
    kind: FrameKind
    imports: bool
    line: str
    """``train.py:88``: the innermost line of the program, else of the stack."""


class _Above(Struct, frozen=True):
    """Properties of a stack that its callees inherit."""

    kind: FrameKind = K.UNKNOWN
    evaluates: bool = False
    restores: bool = False
    imports: bool = False
    line: str = ""
    owner: int = int(Owner.FRAMEWORK)


def places(ledger: ProcessLedger) -> list[Place]:
    """The place of each node, and of node -1 at the end of the list: no stack."""
    above: list[_Above] = []
    for number, (caller, file, line, function) in enumerate(ledger.nodes):
        outer = above[caller] if 0 <= caller < number else _Above()
        above.append(_below(outer, text_at(ledger, file), line, text_at(ledger, function)))
    found = []
    for number, stack in enumerate(above):
        if number in ledger.calls:
            stack = _called(stack, text_at(ledger, ledger.calls[number]))
        found.append(_place(stack))
    return [*found, Place(cause="not recorded", kind=K.UNKNOWN, imports=False, line="")]


def place_of(frames: Iterable[tuple[str, int, str]]) -> Place:
    """The place of a stack, given innermost first as (file, line, function)."""
    stack = _Above()
    for file, line, function in reversed(tuple(frames)):
        stack = _below(stack, file, line, function)
    return _place(stack)


def cause_in(place: Place, phase: int) -> Cause:
    """The cause of a stack in a phase: before the first step all but compiling, restoring and importing is set-up."""
    if phase == SET_UP:
        if place.imports:
            return "imports"
        early: tuple[Cause, ...] = ("compilation", "restoring", "waiting for ranks", "not recorded")
        return place.cause if place.cause in early else "set-up"
    if phase == WARM_UP and place.cause == "training steps":
        return "warm-up steps"
    return place.cause


def _below(outer: _Above, file: str, line: int, function: str) -> _Above:
    if not file and not function:  # perfscope's own
        return outer
    text = f"{file}({line}): {function.rpartition('.')[2]}" if file else function
    own = frame_kind(text)
    owner = int(owner_of(file)) if file else int(Owner.FRAMEWORK)
    nearer = bool(file) and owner <= outer.owner
    return _Above(
        kind=kind_below(outer.kind, own, is_python=bool(file)),
        evaluates=outer.evaluates or evaluates(file, function),
        restores=outer.restores or restores(function),
        imports=outer.imports or file.startswith(_IMPORTS),
        line=f"{file}:{line}" if nearer else outer.line,
        owner=min(owner, outer.owner),
    )


def _called(stack: _Above, callee: str) -> _Above:
    kind = kind_below(stack.kind, frame_kind(callee), is_python=False)
    reads = stack.restores or restores(callee)
    return _Above(kind, stack.evaluates, reads, stack.imports, stack.line, stack.owner)


def _place(stack: _Above) -> Place:
    cause: Cause = "training steps"
    if stack.kind is K.COMPILER:
        cause = "compilation"
    elif stack.evaluates:
        cause = "evaluation"
    elif stack.kind is K.CHECKPOINT:
        cause = "restoring" if stack.restores else "saving checkpoints"
    else:
        cause = _BY_KIND.get(stack.kind, cause)
    return Place(cause=cause, kind=stack.kind, imports=stack.imports, line=stack.line)
