"""Time of torch.compile by phase: every moment counts once, for the innermost phase of the log."""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct, field

from perfscope.analyzers.torch_compile.frames import compilation_of
from perfscope.model.trace import Trace

if TYPE_CHECKING:
    from perfscope.model.compile_log import Compile, CompileLog, Phase

NOT_COMPILING = frozenset({"CUDAGraphTreeManager.run_eager"})
"""The program's own first run, which inductor records as a phase."""


class Stage(StrEnum):
    """A part of the compiler's work, in its order."""

    TRACING = "dynamo: tracing and guards"
    START = "starting the backend (imports)"
    AOT = "AOT autograd"
    LOWERING = "graph passes, lowering and fusion"
    CODE = "code generation"
    KERNELS = "building kernels (C++ or Triton)"
    TUNING = "autotuning"
    CACHES = "caches and loading"
    CUDA_GRAPHS = "CUDA graphs"
    OTHER = "other"


CACHED = (Stage.AOT, Stage.LOWERING, Stage.CODE, Stage.KERNELS, Stage.TUNING)
"""Stages that a warm cache saves. Dynamo traces and guards again in every process."""


_STAGES: tuple[tuple[re.Pattern[str], Stage], ...] = (
    (re.compile(r"autotun|benchmark|CachingAutotuner", re.IGNORECASE), Stage.TUNING),
    (re.compile(r"cudagraph", re.IGNORECASE), Stage.CUDA_GRAPHS),
    (
        re.compile(r"^(entire_frame_compile|dynamo|compile_attempt_\d+|bytecode_tracing|build_guards|gc)$"),
        Stage.TRACING,
    ),
    (re.compile(r"^(insert_deferred_runtime_asserts|pgo\.|_compile\b|compile_inner|cleanup)"), Stage.TRACING),
    (re.compile(r"^backend_compile$"), Stage.START),
    (re.compile(r"^(compile_file|async_compile|triton|compile_worker|precompile)"), Stage.KERNELS),
    (re.compile(r"cache|TritonBundler", re.IGNORECASE), Stage.CACHES),
    (re.compile(r"^(create_aot|aot_|min_cut|compile_fx\.|entire_backward_compile|additional_fake_tensor)"), Stage.AOT),
    (re.compile(r"^(pass\.|_recursive_|inductor_compile$|fx_codegen_and|GraphLowering\.run)"), Stage.LOWERING),
    (re.compile(r"^Scheduler\.(?!codegen)"), Stage.LOWERING),
    (re.compile(r"codegen|code_gen|compile_to_fn|compile_to_module", re.IGNORECASE), Stage.CODE),
)
"""Names of phases in torch 2.5 to 2.13; the first match counts. ``backend_compile`` itself is mostly the import of
inductor.
"""


def stage_of(name: str) -> Stage:
    """Return the stage of a phase with that name."""
    return next((stage for pattern, stage in _STAGES if pattern.search(name)), Stage.OTHER)


def exclusive_ns(phases: Sequence[Phase]) -> list[int]:
    """Return, per phase, the ns in which it is the innermost one, that is, the running phase that began last.

    Phases of several threads may overlap; every moment counts for one of them, so the sum equals their union.
    """
    spent = [0] * len(phases)
    order = sorted(range(len(phases)), key=lambda index: (phases[index].start_ns, -phases[index].end_ns, index))
    running: list[tuple[int, int, int]] = []  # (-rank in the order, index, end): the top entry began last
    now = 0
    for rank, index in enumerate(order):
        start, end = phases[index].start_ns, phases[index].end_ns
        now = _advance(running, spent, now, start)
        if end > start:
            heapq.heappush(running, (-rank, index, end))
    _advance(running, spent, now, None)
    return spent


def _advance(running: list[tuple[int, int, int]], spent: list[int], now: int, until: int | None) -> int:
    """Assign the time from ``now`` to ``until`` (``None``: to the end) to the running phase.

    Return the time reached.
    """
    while running:
        _, index, end = running[0]
        if end <= now:
            heapq.heappop(running)
            continue
        reached = end if until is None else min(end, until)
        spent[index] += reached - now
        now = reached
        if until is not None and now >= until:
            return now
    return now if until is None else until


class CompileTime(Struct, frozen=True, kw_only=True):
    """Time of one compilation, including its backward; each moment counts once over the whole log."""

    compile: Compile
    stages_ns: dict[Stage, int] = field(default_factory=dict)
    """Empty if the log has no phases of it."""

    @property
    def total_ns(self) -> int:
        """Sum of all stages; without phases, the duration in the metrics."""
        if self.stages_ns:
            return sum(self.stages_ns.values())
        return (self.compile.duration_ns or 0) + (self.compile.backward_ns or 0)

    @property
    def cached_ns(self) -> int:
        """Upper bound of the part that a warm cache saves.

        Without phases, everything after dynamo, from the metrics.
        """
        if self.stages_ns:
            return sum(self.stages_ns.get(stage, 0) for stage in CACHED)
        return round(self.compile.seconds_by_phase.get("backend_compile", 0) * 1e9) + (self.compile.backward_ns or 0)


class PhaseTime(Struct, frozen=True, kw_only=True):
    """Phases of one name."""

    name: str
    stage: Stage
    count: int
    exclusive_ns: int


class CompileTimes(Struct, frozen=True, kw_only=True):
    """Compile time of a log. The stages sum to the total, and so do the phases."""

    compiles: tuple[CompileTime, ...]
    """In the order of the log."""
    phases: tuple[PhaseTime, ...]
    """Most expensive first."""
    stages_ns: dict[Stage, int]
    """Most expensive first."""

    @property
    def total_ns(self) -> int:
        """Time in which something was compiled; without phases, the sum of all durations."""
        return (
            sum(self.stages_ns.values())
            if self.stages_ns
            else sum(compile_time.total_ns for compile_time in self.compiles)
        )


def compile_times(trace: Trace) -> CompileTimes:
    """Return the exclusive times of the log's phases, by name, stage and compilation; empty without a log."""
    log = trace.compile_log
    if log is None:
        return CompileTimes(compiles=(), phases=(), stages_ns={})
    owned = zip(log.phases, _owners(trace, log), strict=True)
    kept = [(phase, owner) for phase, owner in owned if phase.name not in NOT_COMPILING]
    by_name: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    by_stage: dict[Stage, int] = defaultdict(int)
    by_compile: dict[int, dict[Stage, int]] = defaultdict(lambda: defaultdict(int))
    for (phase, owner), spent in zip(kept, exclusive_ns([phase for phase, _ in kept]), strict=True):
        stage = stage_of(phase.name)
        by_name[phase.name][0] += 1
        by_name[phase.name][1] += spent
        by_stage[stage] += spent
        if owner is not None and spent:
            by_compile[id(owner)][stage] += spent
    return CompileTimes(
        compiles=tuple(
            CompileTime(compile=compilation, stages_ns=dict(by_compile.get(id(compilation), {})))
            for compilation in log.compiles
        ),
        phases=tuple(
            sorted(
                (
                    PhaseTime(name=name, stage=stage_of(name), count=n, exclusive_ns=ns)
                    for name, (n, ns) in by_name.items()
                ),
                key=lambda phase_time: (-phase_time.exclusive_ns, phase_time.name),
            )
        ),
        stages_ns=dict(sorted(by_stage.items(), key=lambda pair: -pair[1])),
    )


def _owners(trace: Trace, log: CompileLog) -> list[Compile | None]:
    """Return the compilation of each phase: by its id, or by the id of the enclosing phase.

    An outermost phase begins some ms before the start in the metrics, so its end is used.
    """
    owners: list[Compile | None] = []
    for phase in log.phases:
        around = phase.parent
        if around is not None and phase.compile_id in (None, log.phases[around].compile_id):
            owners.append(owners[around])
        else:
            owners.append(None if phase.compile_id is None else compilation_of(trace, phase.compile_id, phase.end_ns))
    return owners
