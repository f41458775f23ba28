"""Meshes of a program, each compiled for the absent machine: what the compiler makes of them takes the formulas' place.

Every mesh whose product is the number of devices and whose axes the program takes is compiled as `perfscope compile`
does, several at once, until the budget of time ends. A compiled mesh is found again by the next call.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import Target
from perfscope.analyzers.hlo import HloModule, assigned_memory, collectives_of
from perfscope.analyzers.plans import XLA_KINDS, pipeline_step, plan_works, rank_of
from perfscope.analyzers.predict import CollectiveRange, Range, collective_range, estimate, factors_for
from perfscope.analyzers.readers import load_one
from perfscope.model.errors import DataError, UsageError
from perfscope.model.trace import Trace
from perfscope.plugins import ahead
from perfscope.plugins.plan.assemble import deciding
from perfscope.plugins.plan.assumptions import UNKNOWNS, Scenarios, Times, moved, scenarios
from perfscope.plugins.plan.calibrate import Narrowed
from perfscope.plugins.plan.candidate import Candidate, Mesh, meshes
from perfscope.plugins.plan.compiled_times import MOVED, step_times
from perfscope.plugins.plan.document import (
    Plan,
    PlannedCandidate,
    PlannedExchange,
    PlannedPart,
    Searched,
    Sensitivity,
    now,
)
from perfscope.plugins.plan.exchanges import Planned
from perfscope.plugins.plan.mesh import axes_of_template, environment_of, words_of

VARIANTS = "variants"
"""Folder of a plan that holds the run folders."""

MEASURE = "a few steps of both meshes, or the exchanges of the first table between two nodes"


class Wanted(Struct, frozen=True, kw_only=True):
    """The program to plan."""

    words: tuple[str, ...]
    """Script or module, and its arguments."""
    module: bool
    template: str | None
    """Its flags for the mesh; None: it reads its environment."""
    axes: tuple[str, ...]
    """Axes that it takes, if it reads its environment."""
    target: Target
    fixed: dict[str, int]
    policies: tuple[str | None, ...]
    """Checkpoint policies of a JAX program; None is the program's own."""
    headroom: float
    output: Path
    budget_s: float
    jobs: int | None = None
    tokens: int | None = None
    """Tokens of one step, if known."""
    price: float | None = None
    narrowed: tuple[Narrowed, ...] = ()
    """Assumptions that a recording narrowed (JAX)."""
    calibrated_by: str = ""

    @property
    def scenarios(self) -> Scenarios:
        """The scenarios of all meshes."""
        return scenarios({one.assumption: (one.low, one.high) for one in self.narrowed})


class _Mesh(Struct, frozen=True, kw_only=True):
    """One mesh to compile."""

    candidate: Candidate
    request: Any
    key: str | None


def compile_plan(wanted: Wanted, progress: Callable[[str], None]) -> Plan:
    """Compile the meshes and compare them. ``UsageError`` or ``DataError`` in one line."""
    from perfscope.model.documents.run_folders import create

    began = time.monotonic()
    framework = ahead.frameworks_asked("auto", wanted.words, module=wanted.module)[0]
    if wanted.narrowed and framework == "torch":
        raise UsageError("--calibrate: narrows the times of a model or of a JAX program, not of a PyTorch program")
    digest = ahead.sources_digest(wanted.words, module=wanted.module)
    asked = [_asked(wanted, candidate, framework, digest) for candidate in _candidates(wanted)]
    ahead.need_compilers([one.request for one in asked])
    name = Path(wanted.words[0]).name.removesuffix(".py")
    folder = create(wanted.output, f"{name}-plan", latest=False)
    (folder / VARIANTS).mkdir()
    kept = ahead.kept_variants(wanted.output, {one.key for one in asked if one.key})
    found: dict[int, Any] = {}
    for number, one in enumerate(asked):
        if one.key in kept:
            found[number] = _judged(kept[one.key], one)
    left = [number for number in range(len(asked)) if number not in found]
    earlier = f"{len(found)} of an earlier plan"
    if digest is None:
        earlier = "no earlier plan was looked at: the program's folder is too large to see changes in"
    progress(f"{len(asked)} meshes to compile, {earlier}")
    at_once = wanted.jobs or len(os.sched_getaffinity(0))
    while left and time.monotonic() - began < wanted.budget_s:
        now_numbers, left = left[:at_once], left[at_once:]
        _compile(now_numbers, asked, folder, found, progress)
    rows = _rows(wanted, asked, found)
    if not rows:
        reasons = Counter(outcome.reason[:200] for outcome in found.values() if outcome.state == "failed")
        if not found:
            raise DataError(f"--budget: it ended before the first of {len(asked)} meshes was compiled; give more time")
        raise DataError(f"{wanted.words[0]}: no mesh was compiled: {reasons.most_common(1)[0][0] if reasons else ''}")
    _check_ignored(wanted, asked, found)
    return _document(wanted, name, asked, found, rows, began, complete=not left)


def _candidates(wanted: Wanted) -> list[Candidate]:
    axes = axes_of_template(wanted.template) if wanted.template is not None else wanted.axes
    limits = {axis: 1 for axis in Mesh().sizes if axis not in axes}
    fitting = [
        mesh
        for mesh in meshes(wanted.target.count, limits)
        if all(mesh.sizes[axis] == size for axis, size in wanted.fixed.items())
    ]
    if not fitting:
        fixed = ", ".join(f"{axis} {size}" for axis, size in wanted.fixed.items())
        raise UsageError(f"--target {wanted.target.asked}: no mesh of {wanted.target.count} devices has {fixed}")
    return [
        Candidate(mesh=mesh, micro_batch=0, policy=policy or "own")  # type: ignore[arg-type]
        for mesh in fitting
        for policy in wanted.policies
    ]


def _asked(wanted: Wanted, candidate: Candidate, framework: Any, digest: str | None) -> _Mesh:
    flags = () if wanted.template is None else words_of(wanted.template, candidate.mesh)
    request = ahead.request_of(
        (*wanted.words, *flags), module=wanted.module, framework=framework, target=wanted.target,
        checkpoint=None if candidate.policy == "own" else candidate.policy,
    )  # fmt: skip
    if wanted.template is None:
        request = replace(request, environment=environment_of(candidate.mesh, wanted.axes))
    return _Mesh(
        candidate=candidate, request=request, key=None if digest is None else ahead.variant_key(request, digest)
    )


def _settings(one: _Mesh) -> dict[str, str]:
    sizes = {axis: str(size) for axis, size in one.candidate.mesh.sizes.items() if size > 1}
    return {**(sizes or {"data": "1"}), "checkpoint": one.candidate.policy}


def _compile(
    numbers: Sequence[int], asked: Sequence[_Mesh], folder: Path, found: dict[int, Any], progress: Callable[[str], None]
) -> None:
    root = folder / VARIANTS
    jobs = [ahead.Job(request=asked[number].request, root=str(root), settings=_settings(asked[number]))
            for number in numbers]  # fmt: skip

    def ended(index: int, outcome: Any) -> None:
        number = numbers[index]
        one = asked[number]
        if outcome.state == "compiled":
            outcome = _judged(root / outcome.folder, one)
            if one.key is not None and outcome.state != "failed":
                ahead.keep_variant(root / Path(outcome.folder).name, one.key)
        elif ahead.exceeds_memory(outcome.reason):
            outcome = replace(outcome, state="does not fit")
        found[number] = outcome
        progress(f"{len(found)} of {len(asked)}: {one.candidate.mesh.words}: {outcome.state}")

    ahead.run_jobs(jobs, ended)


def _judged(folder: Path, one: _Mesh) -> Any:
    return replace(ahead.evaluate_variant(folder, _settings(one)), folder=str(folder))


def _check_ignored(wanted: Wanted, asked: Sequence[_Mesh], found: dict[int, Any]) -> None:
    """``UsageError`` if meshes that must differ are one program."""
    by_program: dict[tuple[str, ...], list[str]] = {}
    for number, outcome in found.items():
        if outcome.fingerprints and outcome.state != "failed":
            mesh = asked[number].candidate.mesh
            by_program.setdefault(outcome.fingerprints, []).append(mesh.words)
    alike = next((words for words in by_program.values() if len(set(words)) > 1), None)
    if alike is not None and len(by_program) == 1:
        flag = f"--mesh-flag {wanted.template}" if wanted.template is not None else "perfscope.mesh() or PERFSCOPE_MESH"
        raise UsageError(
            f"{wanted.words[0]}: one program for {alike[0]} and for {alike[1]}: it ignores its mesh ({flag})"
        )


def _rows(wanted: Wanted, asked: Sequence[_Mesh], found: dict[int, Any]) -> list[PlannedCandidate]:
    """Meshes with a time and a peak, those that fit first, by the middle of their range."""
    usable = _usable(wanted)
    timed = [
        (asked[number].candidate, outcome)
        for number, outcome in found.items()
        if outcome.step_low_ns is not None and outcome.step_high_ns is not None and outcome.peak_bytes is not None
    ]
    timed.sort(key=lambda pair: (pair[1].peak_bytes > usable, pair[1].step_ns))
    if not timed:
        return []
    best = _Timed.of(timed[0][1], wanted)
    return [
        _row(wanted, candidate, outcome, best if number == 0 else _Timed.of(outcome, wanted), best, usable)
        for number, (candidate, outcome) in enumerate(timed)
    ]


class _Timed(Struct, frozen=True, kw_only=True):
    """A compiled mesh with its step times in the scenarios; ``None`` for planned PyTorch programs."""

    outcome: Any
    trace: Trace
    times: Times | None

    @classmethod
    def of(cls, outcome: Any, wanted: Wanted) -> _Timed:
        """Read the run folder of a mesh."""
        trace = load_one(Path(outcome.folder))
        modules = step_modules(trace, outcome.programs)
        return cls(
            outcome=outcome,
            trace=trace,
            times=step_times(modules, wanted.target, wanted.scenarios) if modules else None,
        )

    @property
    def allocated_bytes(self) -> int:
        """Bytes that the hungriest program takes from a device; not below its peak of live bytes."""
        found = [memory.allocated_bytes for module in self.trace.hlo if (memory := assigned_memory(module)) is not None]
        return max(found, default=0)

    def equal(self, other: _Timed) -> bool:
        """Whether no order of the two holds in all scenarios; without scenarios: whether their ranges overlap."""
        if self.times is None or other.times is None:
            mine, theirs = self.outcome, other.outcome
            return bool(mine.step_low_ns <= theirs.step_high_ns and theirs.step_low_ns <= mine.step_high_ns)
        return not (np.all(self.times < other.times) or np.all(other.times < self.times))


def step_modules(trace: Trace, names: Sequence[str]) -> list[HloModule]:
    """The programs of a step by their names."""
    left = Counter(names)
    found = []
    for module in trace.hlo:
        if left[module.name]:
            left[module.name] -= 1
            found.append(module)
    return found


def _usable(wanted: Wanted) -> int:
    memory = wanted.target.memory_bytes
    if memory is None:
        raise DataError(f"--target {wanted.target.asked}: its memory is unknown; give it with --memory 80GiB")
    return int(memory * (1 - wanted.headroom))


def _row(
    wanted: Wanted, candidate: Candidate, outcome: Any, timed: _Timed, best: _Timed, usable: int
) -> PlannedCandidate:
    taken = max(outcome.peak_bytes, timed.allocated_bytes)
    low, middle, high = outcome.step_low_ns, outcome.step_ns, outcome.step_high_ns
    if wanted.narrowed and timed.times is not None:
        low, middle, high = round(timed.times.min()), round(timed.times[0]), round(timed.times.max())
    rates = [None if wanted.tokens is None else wanted.tokens / (ns / 1e9) for ns in (high, low)]
    cost = None if wanted.price is None or not rates[0] else wanted.price * wanted.target.count / 3600 * 1e6
    trace = timed.trace
    return PlannedCandidate(
        candidate=candidate, micro_batches=0, layers=(), basis="compiled",
        step_low_ns=low, step_middle_ns=middle, step_high_ns=high,
        memory_low=outcome.peak_bytes, memory_high=taken, fits=taken <= usable,
        tokens_per_s_low=rates[0], tokens_per_s_high=rates[1],
        price_low=None if cost is None else cost / rates[1], price_high=None if cost is None else cost / rates[0],  # type: ignore[operator]
        equal_to_best=timed is best or timed.equal(best),
        account=tuple(_account(trace, wanted.target)), exchanges=tuple(compiled_exchanges(trace, wanted.target)),
        folder=outcome.folder,
    )  # fmt: skip


def _account(trace: Trace, target: Target) -> Iterator[PlannedPart]:
    """Parts of the step's longest program; nothing for planned PyTorch programs: `perfscope report` has theirs."""
    found = [estimate(module, target) for module in trace.hlo]
    if not found:
        return
    low, high = max(found, key=lambda one: one.step_ns.middle).parts
    for name in ("compute", "communication", "copies", "gaps"):
        ends = sorted((getattr(low, name), getattr(high, name)))
        if ends[1]:
            yield PlannedPart(
                name=name, low_ns=ends[0], middle_ns=Range(low=ends[0], high=ends[1]).middle, high_ns=ends[1]
            )


def compiled_exchanges(trace: Trace, target: Target) -> list[PlannedExchange]:
    """Collectives of compiled or planned programs by kind, bytes and group, the most bytes first."""
    found = [*_of_programs(trace, target), *_of_plans(trace)]
    counted: Counter[tuple[str, int, int]] = Counter()
    first: dict[tuple[str, int, int], CollectiveRange] = {}
    for kind, size, times, once in found:
        if once.devices < 2:  # a copy
            continue
        counted[kind, size, once.devices] += times
        first.setdefault((kind, size, once.devices), once)
    rows = []
    for key, times in sorted(counted.items(), key=lambda pair: -pair[0][1] * pair[1]):
        kind, size, _ = key
        planned = Planned(
            what="program", kind=kind, bytes=size, axes=(), times=times, per="step", hidden="sends hidden"
        )
        once = first[key]
        rows.append(
            PlannedExchange(
                exchange=planned, devices=once.devices, nodes=once.nodes, low_ns=once.time.low * times,
                high_ns=once.time.high * times,
            )
        )  # fmt: skip
    return rows


def _of_programs(trace: Trace, target: Target) -> Iterator[tuple[str, int, int, CollectiveRange]]:
    """(Kind, bytes, number, one of them) of XLA programs."""
    factors = factors_for(target)
    for module in trace.hlo:
        for one in collectives_of(module):
            yield one.kind, one.bytes, one.runs.times, collective_range(one, target, factors)


def _of_plans(trace: Trace) -> Iterator[tuple[str, int, int, CollectiveRange]]:
    """The same of the step of planned PyTorch programs, as the program runs it; of a pipeline of its slowest rank."""
    pipeline = None if trace.hlo else trace.fact(pipeline_step)
    for work in () if trace.hlo else trace.fact(plan_works):
        if pipeline is not None and rank_of(work) != pipeline.slowest.rank:
            continue
        compiled = work.held.plan.compiled_by == "program"
        step = work.compiled_exchanges if compiled else work.eager_exchanges
        for cost in () if step is None else step.rows:
            kind = cost.collective.kind
            yield XLA_KINDS.get(kind, kind), cost.collective.bytes, 1, cost.once


def _sensitivity(wanted: Wanted, first: PlannedCandidate, other: PlannedCandidate, number: int) -> Sensitivity:
    """The assumption that decides between two equal meshes; for PyTorch programs the ends of their ranges."""
    modules = [_step_of(row) for row in (first, other)]
    if all(modules):
        base, found = wanted.scenarios, []
        for unknown in UNKNOWNS:
            if unknown.name in MOVED:
                one, two = (step_times(step, wanted.target, moved(base, unknown.name)) for step in modules)
                found.append((unknown, two / one, two - one))
        return deciding(found, number)
    return Sensitivity(
        other=number, assumption="the ends of compiled times", text="docs/compile-model.md",
        ratio_low=other.step_low_ns / max(1, first.step_low_ns),
        ratio_high=other.step_high_ns / max(1, first.step_high_ns),
        changes_order=(other.step_low_ns < first.step_low_ns) != (other.step_high_ns < first.step_high_ns),
        measurement=MEASURE,
    )  # fmt: skip


def _step_of(row: PlannedCandidate) -> list[HloModule]:
    folder = Path(row.folder)
    trace = load_one(folder)
    return step_modules(trace, ahead.evaluate_variant(folder, {}).programs) if trace.hlo else []


def _document(
    wanted: Wanted,
    name: str,
    asked: Sequence[_Mesh],
    found: dict[int, Any],
    rows: Sequence[PlannedCandidate],
    began: float,
    *,
    complete: bool,
) -> Plan:
    failed = [
        f"{asked[number].candidate.mesh.words}: {outcome.state}: {outcome.reason[:200]}"
        for number, outcome in found.items()
        if outcome.state == "failed"
    ]
    large = sum(outcome.state == "does not fit" and outcome.step_low_ns is None for outcome in found.values())
    equal = [number for number, row in enumerate(rows) if number and row.equal_to_best]
    first = rows[0]
    return Plan(
        name=name, parameters=0, active_parameters=0, target=wanted.target.shown, devices=wanted.target.count,
        memory_bytes=wanted.target.memory_bytes or 0, usable_bytes=_usable(wanted), global_batch=0, sequence=0,
        created_utc=now(), price_per_hour=wanted.price, candidates=tuple(rows),
        sensitivities=tuple(_sensitivity(wanted, first, rows[number], number) for number in equal[:8]),
        searched=Searched(
            candidates=len(asked), too_large=large, cannot_win=0, evaluated=len(rows), front=len(rows),
            complete=complete, seconds=round(time.monotonic() - began, 1),
        ),
        assumptions=wanted.target.assumptions, calibrated_by=wanted.calibrated_by,
        notes=(*(one.words(wanted.calibrated_by) for one in wanted.narrowed), *failed),
    )  # fmt: skip
