"""Guards of torch.compile that failed, as what they are about: a size, a Python number, an object's identity ...

Forms of torch 2.3 to 2.13 (``torch._dynamo.guards`` and ``torch/csrc/dynamo/guards.cpp``). The source of a value is
written ``L['x']`` (a local) or ``G['x']`` (a global); newer versions leave the brackets of locals out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from perfscope.analyzers.torch_compile.frames import CompiledFrame, compile_spans, compiled_frames, is_users
from perfscope.model.compile_log import CodeLine, Compile, CompileLog, Recompile
from perfscope.model.finding import Cell
from perfscope.model.trace import Trace

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
_LOCAL = re.compile(r"^[LG]\[['\"](?P<name>\w+)['\"]\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One guard. Values are text as torch wrote them; string values are not in the log's model."""

    kind: GuardKind
    text: str
    source: str | None = None
    """The value it looks at, in the program's words: ``x``, ``rate``, ``self.k``."""
    dimension: int | None = None
    expected: str | None = None
    """What the earlier compilation was made for."""
    actual: str | None = None

    @property
    def key(self) -> tuple[GuardKind, str | None, int | None]:
        """What it is about, without values."""
        return (self.kind, self.source, self.dimension)

    def in_words(self) -> str:
        """What it is about in the program's words, without values."""
        if self.kind == "size":
            return f"the size of {self.source} in dimension {self.dimension}"
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


def parse_guard(text: str) -> Guard:
    """The guard that a line of ``recompile_reasons`` names; of kind ``other`` where the form is not known."""
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
    """``x`` of ``L['x']``, ``self.k`` of ``L['self'].k``."""
    named = _LOCAL.match(source)
    return source if named is None else named["name"] + source[named.end() :]


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


# Frames that torch.compile compiled again while the program ran its steps, and which guards made it do so.
#
# Not counted: the first compilation of a frame, what is compiled in the first step that was seen, and one single
# recompilation afterwards: dynamo makes a size or number dynamic when it sees a second value, and is done.


MIN_RECOMPILATIONS = 2
"""Of a frame, in different steps where steps are known. One is how dynamo learns that a size is dynamic."""

MIN_SIZES = 3
"""Of one dimension of one tensor. With automatic dynamic shapes the second size makes the dimension dynamic, so a third
one that is compiled anew shows that it stays specialised."""

CHURN_SHARE = 0.5
"""Of a frame's recompilations: where so many are for sizes of one dimension, that dimension is what to fix."""

MAX_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A frame that was compiled again and again."""

    frame: CompiledFrame
    compiles: tuple[Compile, ...]
    """Those that count, in order."""
    guards: tuple[Guard | None, ...]
    """For each, the guard that failed of the latest compilation before it; ``None``: the log does not say."""
    places: tuple[CodeLine | None, ...]
    """For each, the line that made that guard necessary, if the log says it."""
    steps: tuple[int | None, ...]
    """For each, the step it happened in."""
    spent_ns: int
    """Moments once."""
    over_steps: int | None
    """Steps it is spread over; ``None`` where nobody counted steps."""

    @property
    def per_step_ns(self) -> int | None:
        """The time as that of one step; ``None`` where no step is known."""
        return None if self.over_steps is None else self.spent_ns // self.over_steps

    def main_guard(self) -> Guard | None:
        """A guard of the most frequent kind and source; of those the first."""
        known = [guard for guard in self.guards if guard is not None]
        if not known:
            return None
        key = Counter(guard.key for guard in known).most_common(1)[0][0]
        return next(guard for guard in known if guard.key == key)

    def values_of(self, guard: Guard) -> tuple[str, ...]:
        """Values that the earlier compilations were made for, as far as guards of the same key name them."""
        same = [one for one in self.guards if one is not None and one.key == guard.key]
        return tuple(dict.fromkeys(one.expected for one in same if one.expected is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """A dimension that is compiled anew for each of its sizes."""

    tensor: str
    dimension: int
    sizes: tuple[int, ...]
    """Seen, ascending."""
    recompilations: int
    """Of the frame, for this dimension."""


def compiled_again(trace: Trace) -> tuple[Again, ...]:
    """Frames with at least ``MIN_RECOMPILATIONS`` that count."""
    log = trace.compile_log
    if log is None:
        return ()
    steps = (log.step_at(one.start_ns) for one in log.compiles if one.start_ns is not None)
    first = min((step for step in steps if step is not None), default=None)
    found = []
    for frame in trace.fact(compiled_frames):
        again = _again(trace, log, frame, first)
        if again is not None:
            found.append(again)
    return tuple(found)


def churn_of(again: Again) -> Churn | None:
    """The dimension whose sizes make up most of a frame's recompilations; ``None`` if there is none with many sizes."""
    counted = Counter(
        (guard.source, guard.dimension)
        for guard in again.guards
        if guard is not None and guard.kind == "size" and guard.source is not None and guard.dimension is not None
    )
    if not counted:
        return None
    (tensor, dimension), most = counted.most_common(1)[0]
    every = [parse_guard(one.reasons[0]) for one in again.frame.recompiles if one.reasons]
    about = [guard for guard in every if guard.key == ("size", tensor, dimension)]
    said = (size for guard in about for size in (guard.expected, guard.actual) if size is not None)
    sizes = {int(size) for size in said if size.isdecimal()}
    if len(sizes) < MIN_SIZES or most < CHURN_SHARE * len(again.compiles):
        return None
    return Churn(tensor=tensor, dimension=dimension, sizes=tuple(sorted(sizes)), recompilations=most)


def user_line(trace: Trace, again: Again) -> CodeLine | None:
    """The user's line: the one that most often made the guard necessary, else the frame's."""
    made = Counter(
        place
        for one, guard in zip(again.places, again.guards, strict=True)
        if guard is not None and (place := _whole(trace, one)) is not None
    )
    return made.most_common(1)[0][0] if made else again.frame.user_place


def rows_of(trace: Trace, again: Again) -> tuple[Mapping[str, Cell], ...]:
    """Evidence: one row a compilation, the dearest first."""
    rows: list[dict[str, Cell]] = []
    for one, guard, place, step in zip(again.compiles, again.guards, again.places, again.steps, strict=True):
        line = _whole(trace, place)
        rows.append(
            {
                "compile_id": one.compile_id,
                "step": step,
                "spent_ns": compile_spans(trace, (one,)).total(),
                "guard": guard.text if guard is not None else None,
                "guard_made_at": f"{line.file}:{line.line}" if line is not None else None,
            }
        )
    rows.sort(key=lambda row: -int(row["spent_ns"] or 0))
    return tuple(rows[:MAX_ROWS])


def _again(trace: Trace, log: CompileLog, frame: CompiledFrame, first_step: int | None) -> Again | None:
    reasons = _reasons(frame)
    chosen: list[Compile] = []
    steps: list[int | None] = []
    for one in frame.compiles[1:]:
        step = log.step_at(one.start_ns) if one.start_ns is not None else None
        if first_step is not None and (step is None or step <= first_step):
            continue
        if one.traced_graphs or one.has_code is not False:  # the one that hit the limit compiled nothing
            chosen.append(one)
            steps.append(step)
    different = len(chosen) if first_step is None else len(set(steps))
    if different < MIN_RECOMPILATIONS:
        return None
    said = [reasons.get(one.compile_id) for one in chosen]
    return Again(
        frame=frame,
        compiles=tuple(chosen),
        guards=tuple(parse_guard(one.reasons[0]) if one is not None and one.reasons else None for one in said),
        places=tuple(one.guard_place if one is not None else None for one in said),
        steps=tuple(steps),
        spent_ns=compile_spans(trace, chosen).total(),
        over_steps=None if first_step is None else _over_steps(trace, log),
    )


def _over_steps(trace: Trace, log: CompileLog) -> int:
    """Steps of the run as far as they are known: those that compiled something may be few, those timed as well."""
    numbers = [span.step for span in log.steps if span.step is not None]
    spanned = max(numbers) - min(numbers) + 1 if numbers else 1
    recorded = trace.rows["steps"]["number"]
    seen = int(recorded.max()) + 1 if len(recorded) else 0
    return max(spanned, seen, len(trace.step_times_ns))


def _reasons(frame: CompiledFrame) -> dict[str, Recompile]:
    return {one.compile_id: one for one in frame.recompiles}


def _whole(trace: Trace, place: CodeLine | None) -> CodeLine | None:
    """The user's place with its whole path where the log has it elsewhere; ``None`` if it is not the user's."""
    if place is None:
        return None
    if not place.file.startswith("/"):  # torch keeps the end of a long path, perhaps from within a folder's name
        full = {file for file in trace.fact(_files) if file.endswith(place.file)}
        if len(full) == 1:
            place = CodeLine(file=full.pop(), line=place.line, function=place.function, code=place.code)
    return place if is_users(place.file) else None


def _files(trace: Trace) -> frozenset[str]:
    """All files that the log names with their whole path."""
    log = trace.compile_log
    return frozenset(place.file for place in (_places(log) if log is not None else ()) if place.file.startswith("/"))


def _places(log: CompileLog) -> Iterable[CodeLine]:
    for one in log.compiles:
        yield from one.stack
        if one.place is not None:
            yield one.place
    for found in log.breaks:
        yield from found.stack
    for kernel in log.kernels:
        yield from kernel.places
    for graph in log.graphs:
        yield from (node.place for node in graph.nodes if node.place is not None)
    for recompile in log.recompiles:
        if recompile.guard_place is not None:
            yield recompile.guard_place
