"""One rank's recording as declared tables on one clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from perfscope.model import hooks
from perfscope.model.plugins import named
from perfscope.model.trace.columns import MISSING, Rows
from perfscope.model.trace.tables import TABLES, CallKind

if TYPE_CHECKING:
    import pandas as pd

    from perfscope.analyzers.devices import Target, Topology
    from perfscope.analyzers.hlo import HloModule
    from perfscope.model.compile_log import CompileLog
    from perfscope.model.documents.flight_recorder import FlightRecord
    from perfscope.model.documents.run import ProgramFact
    from perfscope.model.documents.stacks import SampledLoader
    from perfscope.model.jax_log import CompileEvent, HostRead
    from perfscope.model.memory import AllocatorCounters
    from perfscope.model.op_graph import OpGraph
    from perfscope.model.plugins import Recording
    from perfscope.model.torch_plan import LoadedPlan
    from perfscope.model.trace.core_facts import CoreFacts

RECORDED: dict[str, str] = {
    "device_work": "kernels and copies of an accelerator",
    "host_ops": "framework ops on the host",
    "launch_links": "which call launched which kernel (correlation ids)",
    "op_links": "which host op launched which device work",
    "runtime_calls": "runtime and driver calls of the accelerator",
    "waiting_calls": "runtime and driver calls that wait for the accelerator (some profilers record launches only)",
    "python_stack": "Python functions",
    "python_samples": "sampled Python stacks (`perfscope run`)",
    "native_samples": "sampled native stacks (`nsys profile --sample=process-tree`)",
    "shapes": "input shapes of ops",
    "autograd": "autograd sequence numbers",
    "memory": "allocator events",
    "memory_state": "what the allocator held at one moment (a memory snapshot)",
    "tensors": "parameters, gradients and optimizer state at the start of the recording (`perfscope run`)",
    "collectives": "collectives with their sizes",
    "sync_records": "synchronisations as the driver saw them",
    "steps": "step boundaries",
    "core_waits": "time in which the host waited for a core (`perfscope run` on Linux)",
    "run_steps": "all steps of the run, with and without a profiler (`perfscope run`)",
    "side_work": "saves and evaluations of the run (`perfscope run`)",
    "storage": "bytes read from files after each step (`perfscope run` on Linux)",
    "run_memory": "memory of the process after later steps (`perfscope run`)",
    "hlo": "the compiled XLA programs",
    "compile_events": "compilations and retraces of jax (`perfscope run`)",
    "host_reads": "reads of jax arrays by the host (`perfscope run`)",
    "compile_log": "the log of torch.compile (`perfscope run`, or TORCH_TRACE=DIR)",
    "flight_record": "the NCCL flight recorder (TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1)",
    "torch_plan": "what torch.compile would make of the program (`perfscope compile` of a PyTorch program)",
    "op_graph": "the op graph of one step (structure pass of `perfscope run`)",
}
"""Kinds of data that a source may have recorded, besides the recordings of plug-ins. A rule that needs an absent kind
abstains.
"""


def recording_words(key: str) -> str:
    """Description of a key of ``recorded``; the key itself if no installed plug-in declares it."""
    if key in RECORDED:
        return RECORDED[key]
    recording: Recording | None = named("recordings").get(key)
    return key if recording is None else recording.what


MEMORY_TABLES = ("frames", "held", "memory", "segments", "tensors")
"""Tables of memory. They point at each other and share addresses and a clock, so all five are of one pass."""

FactT = TypeVar("FactT")


class Source(Struct, frozen=True, kw_only=True):
    """Origin of a trace, and numbers on its reading. Counts are events of the file."""

    path: str
    """Where it was read from; the home directory is shown as ``~``."""
    format: str
    """Which reader read it."""
    rank: int | None
    """Rank in the job, null if the source does not say."""
    events_read: int
    """Events of the file."""
    events_unplaced: int
    """Events that fit no table of the model; they are counted, never dropped in silence."""
    unplaced: Mapping[str, int] = field(default_factory=dict)
    """Unplaced events by reason."""
    repairs: Mapping[str, int] = field(default_factory=dict)
    """Kind -> number of repairs while reading (unescaped quotes ...)."""
    notes: tuple[str, ...] = ()
    """Notes for the reader of a report, one sentence each."""
    rank_source: str | None = None
    """Source of the rank, such as ``distributedInfo`` or ``file name``; ``None`` without a rank."""
    world_size: int | None = None
    """Ranks of the job, null if the source does not say."""
    backend: str | None = None
    """Communication backend, null if the source does not say."""
    events_only: bool = False
    """The source has an order of events and no times: ``time_ns`` of its tables counts events."""
    part: str | None = None
    """The part of the recording that the user chose, in words; ``None``: all of it."""
    programs: int | None = None
    """Number of compiled programs, if the source has nothing else; several of them were handed in together."""


class Part(Struct, frozen=True, kw_only=True):
    """Which part of a recording a trace is: work and host spans within it, whole, and the calls that launched them."""

    start_ns: int
    end_ns: int
    origin_ns: int
    """When the whole recording begins: what reports count times from."""
    facts: Mapping[Any, Any] = field(default_factory=dict)
    """Facts that need rows outside of the part: function -> its result for the part."""


class Tables(Mapping[str, Rows]):
    """The tables of a trace by name, all that are declared; their arrays are read-only from here on."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Mapping[str, Rows]) -> None:
        """Hold ``rows``; tables left out are empty."""
        self._rows = {name: rows[name] if name in rows else _empty(name) for name in TABLES}
        for table in self._rows.values():
            table.freeze()

    def __getitem__(self, name: str) -> Rows:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        """Number of tables."""
        return len(self._rows)

    def __reduce__(self) -> tuple[type[Tables], tuple[dict[str, Rows]]]:
        return Tables, ({name: rows for name, rows in self._rows.items() if len(rows)},)


@cache
def _empty(table: str) -> Rows:
    return Rows(TABLES[table], {})


class Trace(Struct, frozen=True, kw_only=True, eq=False):
    """One rank's recording: declared tables, the string pool, and what was recorded at all. Immutable.

    ``trace.kernels`` and its sisters are pandas frames (columns: ``docs/model.md``);
    ``trace.rows["kernels"]`` holds the same as read-only numpy arrays. The frames of the memory tables are those of
    ``trace.memory_pass``; all others are the trace's own, whose times are those of the lightest pass.

    ``TraceBuilder`` makes traces; ``msgspec.structs.replace`` gives a copy with other values and without facts.
    """

    source: Source
    strings: Sequence[str]
    """Texts by code, for text columns; a tuple."""
    rows: Mapping[str, Rows]
    """All declared tables; those left out are empty."""
    recorded: frozenset[str]
    detail: Trace | None = None
    """A second recording of the same program with shapes and Python stacks: for call sites and never for time."""
    op_graph: OpGraph | None = None
    step_times_ns: tuple[int, ...] = ()
    """Steps timed with no profiler on."""
    step_tokens: tuple[tuple[int, int] | None, ...] = ()
    """(Sequences, tokens per sequence) of the model's input in the same steps; empty if unknown."""
    step_idle_rows: tuple[int | None, ...] = ()
    """Sequences of the same steps that have ended and only fill the batch; empty if unknown."""
    window_ns: int | None = None
    """Duration of ``window_steps`` steps without a profiler, with a wait for the devices before and after them."""
    window_steps: int = 0
    hlo: tuple[HloModule, ...] = ()
    """The XLA programs that ran, or that were handed in alone."""
    compile_events: tuple[CompileEvent, ...] = ()
    """Compilations and retraces of jax that a run logged."""
    host_reads: tuple[HostRead, ...] = ()
    """Reads of jax arrays by the host that a run logged."""
    compile_log: CompileLog | None = None
    """The log of torch.compile."""
    documents: Mapping[str, Any] = field(default_factory=dict)
    """Recordings of plug-ins, by their key of ``recorded``."""
    flight_record: FlightRecord | None = None
    """The dump of NCCL's flight recorder."""
    held_before: Trace | None = None
    """``held`` and ``frames`` when the recording began; the trace's own are of its end."""
    allocator_counters: AllocatorCounters | None = None
    """Counters of the process' allocator before and after the passes of a run."""
    loaders: tuple[SampledLoader, ...] = ()
    """The ``DataLoader``s over which the program iterated in a run."""
    core_facts: CoreFacts | None = None
    """Cores of the process, as a run recorded them."""
    program_facts: tuple[ProgramFact, ...] = ()
    """Settings of the program that a run logged."""
    why_no_step: str | None = None
    """Reason why a run has neither an op graph nor a compiled program, and the recording that would have one."""
    judged_device: str | None = None
    """Device chosen by the user for programs whose recording names none."""
    torch_plans: tuple[LoadedPlan, ...] = ()
    """Plans of a PyTorch program for a device that is not there."""
    topology: Topology | None = None
    """Links of the machines as the user described them; used only to compare ranks."""
    target: Target | None = None
    """Target of the compiled programs, if they were compiled for machines that are not present."""
    checkpoint: str | None = None
    """The policy that their layers were given from outside (``--checkpoint``); ``None``: the program's own."""
    part: Part | None = None
    """The part of a recording that this is, if the user chose one; ``None``: all of it."""
    _facts: dict[Any, Any] = field(default_factory=dict)
    """Cached facts: the one part that grows. They follow from the rest, and a copy derives them again."""

    def __post_init__(self) -> None:
        """``ValueError`` for undeclared keys in ``recorded``."""
        unknown = self.recorded - set(RECORDED)
        if unknown and (unknown := unknown - set(named("recordings"))):
            raise ValueError(f"undeclared recorded keys {sorted(unknown)}")
        force_setattr(self, "strings", tuple(self.strings))
        if not isinstance(self.rows, Tables):
            force_setattr(self, "rows", Tables(self.rows))
        force_setattr(self, "_facts", {})  # not those that `replace` copies

    def __reduce__(self) -> tuple[Any, ...]:
        """With the facts, as the state: they may refer to the trace, and `seed` may have set some."""
        reduced: Any = super().__reduce__()
        rebuild, (kind, values) = reduced
        return rebuild, (kind, {name: value for name, value in values.items() if name != "_facts"}), self._facts

    def __setstate__(self, facts: dict[Any, Any]) -> None:
        self._facts.update(facts)

    def noted(self, *notes: str) -> Trace:
        """The trace with further notes in its source. Facts do not depend on notes, so they are carried over."""
        copy = replace(self, source=replace(self.source, notes=(*self.source.notes, *notes)))
        copy._facts.update(self._facts)
        return copy

    def fact(self, derive: Callable[[Trace], FactT]) -> FactT:
        """``derive(self)``, computed once and kept. Facts are pure functions of a trace."""
        if derive not in self._facts:
            known = self.part is not None and derive in self.part.facts
            self._facts[derive] = self.part.facts[derive] if self.part is not None and known else derive(self)
        result: FactT = self._facts[derive]
        return result

    def seed(self, derive: Callable[[Trace], FactT], value: FactT) -> None:
        """Hold ``value`` for ``derive(self)``: the rows it is derived from are not all here."""
        self._facts[derive] = value

    def forget(self) -> None:
        """Drop all facts; each is computed again when it is needed."""
        self._facts.clear()

    def text(self, code: int) -> str:
        """The string of a text column's code; ``''`` for ``MISSING``."""
        return "" if code == MISSING else self.strings[code]

    def span_ns(self) -> tuple[int, int]:
        """First start and last end of everything in the trace; ``(0, 0)`` if there is nothing."""
        return self.fact(span)

    @property
    def memory_pass(self) -> Trace:
        """The recording with the memory tables: this one, or ``detail`` if this one has no memory.

        A run records memory in its detail pass. Their times and the rows in ``slices`` and ``threads`` they
        name are that recording's: ``trace.memory_pass.slices``.
        """
        recorded_here = any(len(self.rows[table]) for table in ("memory", "held", "segments"))
        return self if recorded_here or self.detail is None else self.detail

    def frame(self, table: str) -> pd.DataFrame:
        """A table as pandas, with the rank, if known, as first column; for memory, that of ``memory_pass``."""
        recording = self.memory_pass if table in MEMORY_TABLES else self
        shown = recording.rows[table].frame(recording.strings)
        if self.source.rank is not None:
            shown.insert(0, "rank", self.source.rank)
        return shown

    @property
    def slices(self) -> pd.DataFrame:
        """Host spans: ops, annotations, Python functions."""
        return self.frame("slices")

    @property
    def kernels(self) -> pd.DataFrame:
        """Kernels."""
        return self.frame("kernels")

    @property
    def copies(self) -> pd.DataFrame:
        """Copies and memsets."""
        return self.frame("copies")

    @property
    def collectives(self) -> pd.DataFrame:
        """Collectives."""
        return self.frame("collectives")

    @property
    def memory(self) -> pd.DataFrame:
        """Allocator events, of ``memory_pass``."""
        return self.frame("memory")

    @property
    def held(self) -> pd.DataFrame:
        """Memory of the allocator at one moment, of ``memory_pass``."""
        return self.frame("held")

    @property
    def segments(self) -> pd.DataFrame:
        """The segments it held it in, of ``memory_pass``."""
        return self.frame("segments")

    @property
    def tensors(self) -> pd.DataFrame:
        """Parameters, gradients and optimizer state when the recording began, of ``memory_pass``."""
        return self.frame("tensors")

    @property
    def frames(self) -> pd.DataFrame:
        """Frames of the Python stacks of the memory tables, of ``memory_pass``."""
        return self.frame("frames")

    @property
    def cores(self) -> pd.DataFrame:
        """Waits of the steps' thread for a core, between readings."""
        return self.frame("cores")

    @property
    def run_steps(self) -> pd.DataFrame:
        """Steps of the whole run, with and without a profiler."""
        return self.frame("run_steps")

    @property
    def run_memory(self) -> pd.DataFrame:
        """Memory of the process after steps without a profiler."""
        return self.frame("run_memory")

    @property
    def side_work(self) -> pd.DataFrame:
        """Saves, waits for saves and evaluations of the run."""
        return self.frame("side_work")

    @property
    def storage(self) -> pd.DataFrame:
        """Bytes read from files, after steps of the run."""
        return self.frame("storage")

    @property
    def held_names(self) -> pd.DataFrame:
        """Variables of the program whose values grew."""
        return self.frame("held_names")

    @property
    def samples(self) -> pd.DataFrame:
        """Sampled stacks; ``function``, ``file`` and ``line`` are of the innermost frame."""
        shown, frames = self.frame("samples"), self.rows["frames"].frame(self.strings)
        innermost = frames.reindex(shown["frame"].to_numpy()).set_axis(shown.index)
        return shown.assign(function=innermost["name"], file=innermost["file"], line=innermost["line"])

    @property
    def hlo_ops(self) -> pd.DataFrame:
        """Instructions of compiled XLA programs, a row each time one ran."""
        return self.frame("hlo_ops")

    @property
    def devices(self) -> pd.DataFrame:
        """Accelerators that did work; column ``device`` of the other frames has the row."""
        return self.frame("devices")

    @property
    def threads(self) -> pd.DataFrame:
        """Host threads; column ``thread`` of the other frames has the row."""
        return self.frame("threads")

    @property
    def sync_records(self) -> pd.DataFrame:
        """Waits as the device driver recorded them."""
        return self.frame("sync_records")

    @property
    def steps(self) -> pd.DataFrame:
        """Steps."""
        return self.frame("steps")

    @property
    def counters(self) -> pd.DataFrame:
        """Counter samples."""
        return self.frame("counters")

    @property
    def kernel_counters(self) -> pd.DataFrame:
        """Hardware counters of kernels and ranges, a row each."""
        return self.frame("kernel_counters")

    @property
    def calls(self) -> pd.DataFrame:
        """All runtime and driver calls."""
        return self.frame("calls")

    @property
    def launches(self) -> pd.DataFrame:
        """The calls that put work on a device; the index is the row in ``calls``."""
        kinds = (CallKind.KERNEL, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET)
        return self._calls_of(*kinds)

    @property
    def syncs(self) -> pd.DataFrame:
        """The calls that wait for a device; the index is the row in ``calls``."""
        return self._calls_of(CallKind.SYNC)

    def _calls_of(self, *kinds: CallKind) -> pd.DataFrame:
        calls = self.frame("calls")
        return calls[np.isin(calls["kind"].to_numpy(), [int(kind) for kind in kinds])]

    def sizes(self) -> dict[str, int]:
        """Rows of each frame that has any, by name of its table."""
        of = {name: self.memory_pass if name in MEMORY_TABLES else self for name in self.rows}
        return {name: len(trace.rows[name]) for name, trace in of.items() if len(trace.rows[name])}

    def check(self) -> None:
        """Hold the trace to its declaration; ``ValueError`` names the first thing that is wrong.

        Intervals do not end before they start, codes and row references point at something, and
        the parts of every device's time sum to its span.
        """
        for name, rows in self.rows.items():
            if "start_ns" in rows and (rows["end_ns"] < rows["start_ns"]).any():
                raise ValueError(f"{name}: a row ends before it starts")
            for column in rows.table.columns:
                limit = None
                if column.text:
                    limit = len(self.strings)
                elif column.refers is not None:
                    limit = len(self.rows[column.refers])
                if limit is None or not len(rows):
                    continue
                low, high = int(rows[column.name].min()), int(rows[column.name].max())
                if high >= limit or low < (MISSING if column.nullable else 0):
                    raise ValueError(f"{name}.{column.name}: points outside its target ({low}..{high} of {limit})")
        hooks.call("check_device_times", self)

    def __repr__(self) -> str:
        counts = ", ".join(f"{size:,} {name}" for name, size in self.sizes().items())
        return f"<perfscope.Trace {self.source.path}: {counts or 'empty'}>"

    def _repr_html_(self) -> str:
        return str(hooks.call("trace_html", self))


def span(trace: Trace) -> tuple[int, int]:
    """``Trace.span_ns`` as a fact."""
    if trace.part is not None:
        return trace.part.start_ns, trace.part.end_ns
    filled = [rows for rows in trace.rows.values() if "start_ns" in rows and len(rows)]
    if not filled:
        return (0, 0)
    return (
        int(min(rows["start_ns"].min() for rows in filled)),
        int(max(rows["end_ns"].max() for rows in filled)),
    )
