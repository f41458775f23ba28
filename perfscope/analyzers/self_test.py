"""Captures of programs with a known amount of work, compared count by count (`perfscope doctor --self-test`).

A program (``perfscope.workloads.known`` and its JAX counterpart) logs its work with times. The capture must match
exactly: operations, step times, memory, reads and copies. The rules must find the planted defects at their lines, and
must find nothing in the variant without defects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from perfscope.model.documents.run import RUN_FILE, Process, load_run
from perfscope.model.environment import Check
from perfscope.model.errors import PerfscopeError

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis
    from perfscope.model.trace import Trace

CLOCK_NS = 500_000
"""Largest allowed difference between the clocks of trace and program. Kineto and XLA convert time stamps to within
microseconds; a step of the programs takes at least 10 ms, so a wrong unit or offset far exceeds the limit.
"""
PLANTED = "# planted: "
TRACED_STEPS = 3
"""Number of steps that the timing pass records by default."""


class Captured(Struct, frozen=True, kw_only=True):
    """A capture of a known program."""

    run: Path
    truth: dict[str, Any]


def judge(planted: Captured, twin: Captured) -> list[Check]:
    """Compare the captures of a program and its variant without defects with their logs."""
    from perfscope.analyzers.engine import analyze
    from perfscope.analyzers.readers import load_one

    analyses: list[Analysis] = []
    traces: list[Trace] = []
    framework = planted.truth["framework"]
    for captured in (planted, twin):
        try:
            trace = load_one(captured.run)
            trace.check()
            analyses.append(analyze(trace))
        except (PerfscopeError, ValueError) as error:
            return [Check(name=f"{framework} capture", status="problem", text=f"{captured.run.name}: {error}")]
        traces.append(trace)
    truth, trace = planted.truth, traces[0]
    (process,) = load_run(planted.run / RUN_FILE).processes
    checks = {
        "capture": _captured(truth, trace, process),
        "clocks": _clocks(truth, trace),
        "memory": _memory(truth, trace),
        "syncs": _syncs(truth, trace),
        "copies": _copies(truth, trace),
        "rules": _rules(truth, *analyses),
    }
    return [_check(f"{framework} {name}", list(seen)) for name, seen in checks.items()]


class Seen(Struct, frozen=True):
    """One quantity: the program's value, and the value in the capture."""

    what: str
    done: object
    shown: object


def _check(name: str, rows: list[Seen]) -> Check:
    wrong = [row for row in rows if row.done != row.shown]
    if wrong:
        text = "; ".join(f"{row.what}: {row.shown} instead of {row.done}" for row in wrong)
        return Check(name=name, status="problem", text=text)
    return Check(name=name, status="ok", text=", ".join(f"{row.what} {row.done}" for row in rows))


def _captured(truth: dict[str, Any], trace: Trace, process: Process) -> Iterator[Seen]:
    """Yield steps, passes, and the operations of the traced steps."""
    yield Seen("steps of the program", len(truth["moments"]), process.steps_seen)
    missing = sorted(one.pass_name for one in process.captures if one.state != "recorded")
    yield Seen("passes without a recording", 0, ", ".join(missing) or 0)
    yield Seen("traced steps", TRACED_STEPS, len(trace.rows["steps"]))
    yield Seen("events without a place", 0, trace.source.events_unplaced)
    if truth["framework"] == "jax":
        executions = _executions(trace, truth["module"])
        yield Seen("runs of the program", truth["matmuls"] * TRACED_STEPS, executions)
        return
    products = _slices(trace, "aten::mm")
    yield Seen("matrix products", truth["matmuls"] * TRACED_STEPS, len(products))
    if truth["device"] != "cpu":
        launched = set(trace.rows["kernels"]["op"].tolist())
        yield Seen("products with a kernel", len(products), sum(row in launched for row in products))
        unlinked = int((trace.rows["kernels"]["call"] < 0).sum())
        yield Seen("kernels without a launch", 0, unlinked)


def _clocks(truth: dict[str, Any], trace: Trace) -> Iterator[Seen]:
    """Check that each traced step contains the program's own interval and ends before the next step of the program."""
    steps, moments = trace.rows["steps"], truth["moments"]
    wrong = 0
    for number, start, end in zip(*(steps[name].tolist() for name in ("number", "start_ns", "end_ns")), strict=True):
        if not 0 < number < len(moments) - 1:
            wrong += 1
            continue
        moment, before, behind = moments[number], moments[number - 1], moments[number + 1]
        wrong += not (
            before["end_ns"] - CLOCK_NS <= start <= moment["begin_ns"] + CLOCK_NS
            and moment["end_ns"] - CLOCK_NS <= end <= behind["begin_ns"] + CLOCK_NS
        )
    yield Seen("steps at a wrong time", 0, wrong)
    slices = trace.rows["slices"]
    sleeps = _slices(trace, "self_test.sleep")
    yield Seen("sleeps", TRACED_STEPS, len(sleeps))
    lengths = [int(slices["end_ns"][row] - slices["start_ns"][row]) for row in sleeps]
    yield Seen("sleeps that are too short", 0, sum(length < truth["sleep_ns"] for length in lengths))
    within = [
        any(
            moment["sleep_begin_ns"] - CLOCK_NS <= slices["start_ns"][row]
            and slices["end_ns"][row] <= moment["sleep_end_ns"] + CLOCK_NS
            for moment in truth["moments"]
        )
        for row in sleeps
    ]
    yield Seen("sleeps at a wrong time", 0, within.count(False))


def _memory(truth: dict[str, Any], trace: Trace) -> Iterator[Seen]:
    """Check memory. Torch: the blocks of a step in bytes. JAX: the needs of the compiled program."""
    if truth["framework"] == "jax":
        from perfscope.analyzers.hlo import peak_bytes

        modules = [module for module in trace.hlo if module.name == truth["module"]]
        yield Seen("compiled programs", 1, len(modules))
        for module in modules:
            yield Seen("bytes of the program", truth["program_bytes"], peak_bytes(module))
        return
    from perfscope.model.trace.tables import MemoryAction

    rows = (trace.detail or trace).rows["memory"]
    own = (rows["on_device"] == (truth["device"] != "cpu")) & (abs(rows["bytes"]) == truth["block_bytes"])
    allocated = own & (rows["action"] == MemoryAction.ALLOCATE)
    freed = own & (rows["action"] == MemoryAction.FREE)
    yield Seen("blocks", truth["blocks"], int(allocated.sum()))
    yield Seen("blocks freed", truth["blocks"], int(freed.sum()))
    if not own.any():
        return
    totals = rows["allocated_bytes"][own]
    before = int(totals[0]) - truth["block_bytes"]
    yield Seen("bytes held", truth["blocks"] * truth["block_bytes"], int(totals.max()) - before)
    yield Seen("bytes kept", 0, int(totals[-1]) - before)


def _syncs(truth: dict[str, Any], trace: Trace) -> Iterator[Seen]:
    """Check reads of values by the host."""
    expected = truth["reads"] * TRACED_STEPS
    if truth["framework"] == "jax":
        numbers = set(trace.rows["steps"]["number"].tolist())
        reads = sum(read.step in numbers and read.traced for read in trace.host_reads)
        yield Seen("reads on the host", expected, reads)
        return
    rows = _slices(trace, "aten::_local_scalar_dense")
    yield Seen("reads on the host", expected, len(rows))
    if truth["device"] != "cpu":
        from perfscope.model.trace.tables import CallKind

        calls = trace.rows["calls"]
        waits = set(calls["parent"][calls["kind"] == CallKind.SYNC].tolist())
        yield Seen("reads with a wait for the device", expected, sum(row in waits for row in rows))


def _copies(truth: dict[str, Any], trace: Trace) -> Iterator[Seen]:
    """Check copies and their bytes: on a GPU copies of the device, else operations that copy."""
    from perfscope.model.trace.tables import CopyKind

    if truth["framework"] == "jax":
        numbers = set(trace.rows["steps"]["number"].tolist())
        moved = sum(read.bytes or 0 for read in trace.host_reads if read.step in numbers and read.traced)
        yield Seen("bytes read by the host", truth["reads"] * truth["read_bytes"] * TRACED_STEPS, moved)
        return
    if truth["device"] != "cpu":
        copies = trace.rows["copies"]
        incoming = copies["kind"] == CopyKind.HOST_TO_DEVICE
        yield Seen("copies to the device", truth["copies"] * TRACED_STEPS, int(incoming.sum()))
        expected = truth["copies"] * truth["copy_bytes"] * TRACED_STEPS
        yield Seen("bytes to the device", expected, int(copies["bytes"][incoming].sum()))
        outgoing = int((copies["kind"] == CopyKind.DEVICE_TO_HOST).sum())
        yield Seen("copies to the host", truth["reads"] * TRACED_STEPS, outgoing)
        return
    yield Seen("copies", truth["copies"] * TRACED_STEPS, len(_slices(trace, "aten::copy_")))
    detail = trace.detail or trace
    shapes = [detail.text(int(detail.rows["slices"]["shapes"][row])) for row in _slices(detail, "aten::copy_")]
    # byte elements, so the number of elements is the number of bytes
    moved = sum(int(json.loads(shape)[0][0]) for shape in shapes if shape)
    yield Seen("bytes copied in a step", truth["copies"] * truth["copy_bytes"], moved)


def _rules(truth: dict[str, Any], planted: Analysis, twin: Analysis) -> Iterator[Seen]:
    """Check that planted defects are found at their lines, and not in the variant without defects."""
    # the line of a sleep comes from sampled stacks, and a short program has few samples
    yield Seen("host_bound", "flagged", _status_of(planted, "host_bound"))
    rules: tuple[str, ...] = ("host_sync",)
    if truth["framework"] == "torch" and truth["device"] != "cpu":
        rules = (*rules, "pageable_copy")
    for rule in rules:
        line = _planted_line(Path(truth["file"]), rule)
        yield Seen(f"{rule} at line", line, _lines_of(planted, rule, line))
        yield Seen(f"{rule} in the variant without defects", "clean", _lines_of(twin, rule, line))


def _lines_of(analysis: Analysis, rule: str, line: int) -> int | str:
    """Return the line if the rule flags it, else ``clean``.

    Findings at other lines, due to machine load, are ignored.
    """
    (outcome,) = (outcome for outcome in analysis.outcomes if outcome.rule == rule)
    if outcome.status == "abstained":
        return "not evaluated"
    return line if any(finding.where.line == line for finding in outcome.findings) else "clean"


def _status_of(analysis: Analysis, rule: str) -> str:
    return next(outcome.status for outcome in analysis.outcomes if outcome.rule == rule)


def _planted_line(file: Path, rule: str) -> int:
    lines = file.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, start=1) if line.endswith(PLANTED + rule))


def _slices(trace: Trace, name: str) -> list[int]:
    """Return the rows of the host spans with this name inside the recorded steps."""
    slices, steps = trace.rows["slices"], trace.rows["steps"]
    return [
        row
        for row, (code, start) in enumerate(zip(slices["name"].tolist(), slices["start_ns"].tolist(), strict=True))
        if trace.text(code) == name and ((steps["start_ns"] <= start) & (start < steps["end_ns"])).any()
    ]


def _executions(trace: Trace, module: str) -> int:
    """Count the runs of a compiled program: its most frequent instruction runs once per run."""
    rows = trace.rows["hlo_ops"]
    names = [trace.text(code) for code in rows["name"].tolist()]
    modules = [trace.text(code) for code in rows["module"].tolist()]
    own = [name for name, of in zip(names, modules, strict=True) if of == module]
    return max((own.count(name) for name in set(own)), default=0)
