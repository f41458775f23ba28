"""Compilations: start (``dynamo_start``), end (metrics), and the symbols of dynamic sizes.

Only times, counts and reasons of the metrics are read; configurations, versions and provenance are not.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter

import msgspec
from msgspec import Struct, field

from perfscope.analyzers.readers.torch_log.records import (
    MAX_COMPILES,
    MAX_ITEMS,
    MAX_SPANS,
    CorruptRecordError,
    Frame,
    Record,
    Strings,
    clean,
    decode,
    headline,
)
from perfscope.analyzers.readers.torch_log.unit import Unit, unread
from perfscope.model.compile_log import CacheResult, CodeLine, Compile, Phase

MAX_EXECUTED = 100_000
"""Maximum number of graph calls whose order is kept."""


LATEST_US = 4e15
"""Upper bound of a time in µs: the year 2096."""

_Lane = tuple[int, int | str, int | str]

_SUFFIXES = (
    ("_cumulative_compile_time_us", 1e6),
    ("_time_us", 1e6),
    ("_time_s", 1.0),
)
"""Suffixes of the metrics' times, and their units per second."""

_NOT_PHASES = frozenset({"start", "end", "remote_cache_time_saved"})

_NAMES = {
    "dynamo": "entire_frame_compile",
    "aot_autograd": "backend_compile",
    "inductor": "inductor_compile",
    "inductor_code_gen": "code_gen",
    "backward": "backward_compile",
    "dynamo_compile_time_before_restart": "dynamo_before_restart",
    "dynamo_time_before_restart": "dynamo_before_restart",
}
"""Common names of the metrics in all versions of torch (``CompilationMetrics`` of ``torch._dynamo.utils``)."""

LIMIT_REACHED = "cache_size_limit reached"
"""Text of torch 2.6 for a frame that was compiled too often (``_compile`` of ``convert_frame``)."""

_RESULTS: dict[str, CacheResult | None] = {"hit": "hit", "miss": "miss", "bypass": "bypass", "hash": None}

CACHE_ANSWERS: dict[str, tuple[str, CacheResult | None]] = {
    f"{cache}{bundled}_cache_{answer}": (cache, result)
    for cache in ("fx_graph", "aotautograd")
    for bundled in ("", "_bundled")
    for answer, result in _RESULTS.items()
}
"""Name of an artifact -> the cache and its answer; ``None`` if the answer is in the payload."""


# Chromium events as timed phases: B and E pairs, and complete X events.


class _Args(msgspec.Struct):
    compile_id: str | None = None


class _Event(msgspec.Struct):
    name: str
    ph: str
    ts: float
    dur: float = 0.0
    args: _Args | None = None
    tid: int | str = 0
    pid: int | str = 0


class Phases:
    """Collector of events in the order of the log."""

    def __init__(self) -> None:
        self._open: dict[tuple[_Lane, str], list[tuple[int, str | None]]] = {}
        self._closed: list[tuple[_Lane, int, int, str, str | None]] = []
        self.left_out: Counter[str] = Counter()

    def add(self, record: Record) -> int | None:
        """Add an event; return its time in ns since the epoch if it was written as it happened (B and E)."""
        event = decode(record.payload(), _Event)
        if not (0 < event.ts < LATEST_US and math.isfinite(event.dur) and 0 <= event.dur < LATEST_US):
            raise CorruptRecordError("not a time")
        time_ns = _ns(event.ts)
        lane = (record.process, event.pid, event.tid)
        name = clean(event.name, 200)
        text = event.args.compile_id if event.args else None
        compile_id = record.compile_id if text is None or text == "None" else clean(text, 64)
        if event.ph == "B":
            if len(self._open) < MAX_SPANS:
                self._open.setdefault((lane, name), []).append((time_ns, compile_id))
        elif event.ph == "E":
            begun = self._open.get((lane, name))
            if not begun:
                self.left_out["ends of phases without their begin"] += 1
                return time_ns
            start, begun_id = begun.pop()
            if not begun:
                del self._open[lane, name]
            self._close(lane, start, max(start, time_ns), name, begun_id or compile_id)
        elif event.ph == "X":
            self._close(lane, time_ns, time_ns + round(event.dur * 1000), name, compile_id)
        return time_ns if event.ph in ("B", "E") else None

    def _close(self, lane: _Lane, start: int, end: int, name: str, compile_id: str | None) -> None:
        if len(self._closed) >= MAX_SPANS:
            self.left_out["phases beyond the limit"] += 1
            return
        self._closed.append((lane, start, end, name, compile_id))

    def finish(self) -> tuple[Phase, ...]:
        """Return all phases by start, the outer first.

        The parent of a phase is the innermost phase of its thread that contains it completely: torch writes one thread
        id for all threads, so phases of several threads may overlap.
        """
        unclosed = sum(len(begun) for begun in self._open.values())
        if unclosed:
            self.left_out["phases without their end"] += unclosed
        self._closed.sort(key=lambda span: (span[1], -span[2]))
        stacks: dict[_Lane, list[tuple[int, int]]] = {}
        phases: list[Phase] = []
        for index, (lane, start, end, name, compile_id) in enumerate(self._closed):
            stack = stacks.setdefault(lane, [])
            while stack and stack[-1][0] < end:
                stack.pop()  # It ends sooner, so it contains neither this phase nor anything outside of it.
            around = stack[-1][1] if stack else None
            phases.append(
                Phase(
                    name=name,
                    start_ns=start,
                    end_ns=end,
                    compile_id=compile_id,
                    depth=0 if around is None else phases[around].depth + 1,
                    parent=around,
                )
            )
            stack.append((end, index))
        return tuple(phases)


def _ns(us: float) -> int:
    """Convert µs since the epoch, which a float holds to a quarter of one, to whole ns."""
    whole = int(us)
    return whole * 1000 + round((us - whole) * 1000)


class _Start(msgspec.Struct):
    stack: list[Frame] = []


class _Metrics(msgspec.Struct):
    co_name: str | None = None
    co_filename: str | None = None
    co_firstlineno: int | None = None
    guard_count: int | msgspec.UnsetType | None = msgspec.UNSET
    graph_op_count: int | None = None
    start_time: float | None = None
    duration_us: float | None = None
    fail_type: str | None = None
    fail_reason: str | None = None
    fail_user_frame_filename: str | None = None
    fail_user_frame_lineno: int | None = None
    restart_reasons: list[str] | None = None
    has_guarded_code: bool | None = None
    pytorch_version: str | None = None


class _Symbol(msgspec.Struct):
    symbol: str
    source: str | None = None


class Units(Struct):
    """All compilations so far. After ``torch._dynamo.reset()`` an id is used again for another compilation."""

    all: list[Unit] = field(default_factory=list)
    latest: dict[str, Unit] = field(default_factory=dict)
    beyond: int = 0
    """Records of compilations beyond the limit."""

    def of(self, record: Record) -> Unit | None:
        """Return the compilation of a record; ``None`` if the record has no id."""
        compile_id = record.compile_id
        if compile_id is None:
            return None
        unit = self.latest.get(compile_id) or self.new(compile_id)
        attempts = 1 + min(record.envelope.attempt or 0, MAX_COMPILES)
        if attempts > unit.compilation.attempts:
            unit.update(attempts=attempts)
        return unit

    def new(self, compile_id: str) -> Unit:
        """Start another compilation under this id."""
        unit = unread(clean(compile_id, 64))
        if len(self.all) >= MAX_COMPILES:  # It is filled, but not kept.
            self.beyond += 1
            return unit
        self.latest[compile_id] = unit
        self.all.append(unit)
        return unit

    def begin(self, record: Record) -> Unit | None:
        """Return the compilation that a record begins: a new one if that id was already used."""
        compile_id = record.compile_id
        if compile_id is None:
            return None
        before = self.latest.get(compile_id)
        if before is not None and not record.envelope.attempt and (before.started or before.compilation.complete):
            self.new(compile_id)
        return self.of(record)


def end(units: Units, record: Record) -> Unit | None:
    """Return the compilation of a record with metrics: a new one if the known one already has metrics."""
    compile_id = record.compile_id
    before = units.latest.get(compile_id) if compile_id is not None else None
    if compile_id is not None and before is not None and before.compilation.complete:
        units.new(compile_id)
    return units.of(record)


def name_by_frame(units: list[Unit]) -> None:
    """Name compilations without a frame (recompile limit) after the last compilation of their frame."""
    named: dict[str, Compile] = {}
    for unit in units:
        compilation = unit.compilation
        frame = compilation.compile_id.rpartition("/")[0]
        before = named.get(frame)
        if compilation.function is not None:
            named[frame] = compilation
        elif before is not None and frame:
            stack = compilation.stack or before.stack
            unit.update(function=before.function, place=before.place, stack=stack)


def start(unit: Unit, record: Record, strings: Strings, now_ns: int | None) -> None:
    """Apply ``dynamo_start``: the frame and its callers."""
    unit.started = True
    stack = strings.places(decode(record.body, _Start).stack)
    unit.update(stack=stack)
    if stack:
        unit.update(place=stack[-1], function=stack[-1].function)
    if unit.compilation.start_ns is None:
        unit.update(start_ns=now_ns)


def metrics(unit: Unit, record: Record) -> str | None:
    """Apply ``compilation_metrics``: the result of the compilation. Return torch's version, if recorded."""
    reported = decode(record.body, _Metrics)
    before = unit.compilation
    function = clean(reported.co_name) if reported.co_name else before.function
    place = before.place
    if reported.co_filename is not None and reported.co_firstlineno is not None:
        place = CodeLine(file=clean(reported.co_filename, 4096), line=reported.co_firstlineno, function=function)
    if reported.fail_reason:
        unit.update(fail_reason=headline(reported.fail_reason))
        unit.fail_text = clean_block(reported.fail_reason)
    if reported.fail_user_frame_filename is not None and reported.fail_user_frame_lineno is not None:
        unit.fail_place = CodeLine(
            file=clean(reported.fail_user_frame_filename, 4096), line=reported.fail_user_frame_lineno
        )
    if reported.has_guarded_code is not None or reported.fail_type:
        # torch 2.8 reports true for skipped frames; a frame without guards has no code.
        unit.update(has_code=bool(reported.has_guarded_code) and reported.guard_count is not None)
    seconds = _seconds(record)
    whole = seconds.get("entire_frame_compile")
    if whole is not None:
        unit.update(duration_ns=round(whole * 1e9))
    elif reported.duration_us is not None and 0 <= reported.duration_us < 1e15:
        unit.update(duration_ns=round(reported.duration_us * 1000))
    unit.update(
        complete=True,
        function=function,
        place=place,
        guards=reported.guard_count if isinstance(reported.guard_count, int) else None,
        graph_ops=reported.graph_op_count,
        fail_type=clean(reported.fail_type, 200) if reported.fail_type else None,
        restart_reasons=tuple(headline(reason) for reason in (reported.restart_reasons or [])[:MAX_ITEMS]),
        start_ns=_start_ns(reported) or before.start_ns,
        seconds_by_phase=before.seconds_by_phase | seconds,
    )
    return clean(reported.pytorch_version, 100) if reported.pytorch_version else None


def backward_metrics(unit: Unit, record: Record) -> None:
    """Apply ``bwd_compilation_metrics``: the backward graph, compiled when the first backward ran."""
    reported = decode(record.body, _Metrics)
    before = unit.compilation
    if not unit.started and not before.complete and not unit.sections:
        # torch 2.6 gives a frame up before it begins, and logs the metrics like those of a backward.
        start_ns = _start_ns(reported) or before.start_ns
        unit.update(complete=True, has_code=False, fail_reason=LIMIT_REACHED, start_ns=start_ns)
        return
    seconds = _seconds(record)
    before.seconds_by_phase.update({f"backward.{name}": value for name, value in seconds.items()})
    whole = reported.duration_us / 1e6 if reported.duration_us is not None else seconds.get("backward_compile")
    whole = seconds.get("inductor_compile") if whole is None else whole
    if whole is not None and 0 <= whole < 1e9:
        unit.update(backward_ns=(before.backward_ns or 0) + round(whole * 1e9))


def symbol(unit: Unit, record: Record) -> None:
    """Apply ``create_symbol``: a dynamic size and its source."""
    reported = decode(record.body, _Symbol)
    symbols = unit.compilation.symbols
    if reported.source and len(symbols) < 16 * MAX_ITEMS:
        symbols[clean(reported.symbol, 64)] = clean(reported.source, 500)


def clean_block(text: str) -> str:
    """Return a bounded text of several lines."""
    return clean(text, 8_000)


def _start_ns(reported: _Metrics) -> int | None:
    """Return the start in ns since the epoch (metrics have it to a µs); ``None`` if missing or invalid."""
    if reported.start_time is None or not 0 < reported.start_time < 4e9:
        return None
    return round(reported.start_time * 1e6) * 1000


def _seconds(record: Record) -> dict[str, float]:
    """Return the times among the metrics in seconds, by torch's name of the phase."""
    result: dict[str, float] = {}
    for key, raw in decode(record.body, dict[str, msgspec.Raw]).items():
        ending = next(((end, unit) for end, unit in _SUFFIXES if key.endswith(end)), None)
        if ending is None:
            continue
        name = key.removesuffix(ending[0])
        name = _NAMES.get(name, clean(name, 64))
        try:
            value = float(bytes(raw))
        except ValueError:  # Null, or not a number.
            continue
        if name in _NOT_PHASES or not math.isfinite(value) or len(result) >= MAX_ITEMS:
            continue
        result.setdefault(name, value / ending[1])
    return result


# Answers of the compiler's caches: hit, miss, or bypass with its reason.


class _CacheAnswer(msgspec.Struct):
    cache_state: str | None = None
    cache_bypass_reason: str | None = None
    cache_bypass_exception_type: str | None = None


def record_cache_answer(unit: Unit, record: Record) -> None:
    """Record the answer; that of a backward graph under ``fx_graph_backward``."""
    cache, result = CACHE_ANSWERS[record.name]
    reported = decode(record.payload(), _CacheAnswer)
    result = result or _RESULTS.get(reported.cache_state or "")
    if result is None:
        return
    if cache == "fx_graph" and unit.direction_of(unit.section) == "backward":
        cache = "fx_graph_backward"
    unit.compilation.caches[cache] = result
    if result == "bypass" and reported.cache_bypass_reason:
        unit.compilation.cache_reasons[cache] = clean(" ".join(reported.cache_bypass_reason.split()), 500)


class _Output(msgspec.Struct):
    shape: list[int | str] = []
    stride: list[int | str] = []
    dtype: str | None = None


class _Estimate(msgspec.Struct):
    estimated_runtime_ns: float | None = None
    outputs: list[_Output] = []


class _Estimates(msgspec.Struct):
    ops: list[_Estimate] = []


class _Execution(msgspec.Struct):
    compile_id: str | None = None


class _Executions(msgspec.Struct):
    graph_execution_order: list[_Execution] = []


def executed(record: Record) -> tuple[str | None, ...]:
    """Return the compile ids of graphs in the order in which they ran."""
    order = decode(record.payload(), _Executions).graph_execution_order[:MAX_EXECUTED]
    return tuple(None if run.compile_id is None else clean(run.compile_id, 80) for run in order)


def schedule(unit: Unit, record: Record) -> None:
    """Record the collectives of a graph in the order of their calls, without waits."""
    names = [name for name in decode(record.payload(), list[str]) if "wait_tensor" not in name]
    known = unit.compilation.schedule
    unit.update(schedule=(*known, *(clean(name, 200) for name in names))[:MAX_COMPILES])


def estimate(unit: Unit, record: Record) -> None:
    """Record inductor's estimate of a graph's time, and the results of its calls."""
    ops = decode(record.payload(), _Estimates).ops
    known = [op.estimated_runtime_ns for op in ops if op.estimated_runtime_ns is not None]
    before = unit.compilation
    estimated_ns = (before.estimated_ns or 0.0) + sum(ns for ns in known if math.isfinite(ns) and ns >= 0)
    text = repr([[(output.shape, output.stride, output.dtype) for output in op.outputs] for op in ops])
    tensors = hashlib.sha256(f"{before.tensors} {text}".encode()).hexdigest()[:16]
    unit.update(estimated_ns=estimated_ns, tensors=tensors)
