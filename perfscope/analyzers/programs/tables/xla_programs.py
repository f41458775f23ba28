"""Compiled XLA programs with their executions and modelled work."""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.analyzers.programs.programs import Program, programs
from perfscope.model.results import Column, ResultTable
from perfscope.model.trace import Trace


def _rows(trace: Trace) -> Iterable[Program]:
    return trace.fact(programs) if trace.hlo or len(trace.rows["hlo_ops"]) else ()


def _exact(program: Program) -> str | None:
    return None if program.flops is None else "exact" if program.exact else "at least"


RESULT: ResultTable[Program] = ResultTable(
    name="xla_programs",
    title="Programs",
    doc="Compiled XLA programs: executions and times are measured; FLOPs, bytes and least time are modelled; peak "
    "memory is as XLA assigned it, or modelled. The longest first.",
    columns=(
        Column("name", str, "code", "name of its module, with its file or number where several share it", "key",
               title="program"),
        Column("executions", int | None, "count", "runs in the recording; missing: it did not run",
               of=lambda row: row.execution and row.execution.count),
        Column("instructions_ns", int | None, "ns", "summed time of its instructions",
               of=lambda row: row.execution and row.execution.instructions_ns, title="instructions, all"),
        Column("run_ns", float | None, "ns", "time of a run", of=lambda row: row.execution and row.execution.run_ns,
               title="one run"),
        Column("least_ns", float | None, "ns", "least time of a run on the device, by its roofline",
               of=lambda row: row.least and row.least.total_ns, title="least possible"),
        Column("bound", str | None, "text", "what bounds the least time", of=lambda row: row.least and row.least.bound,
               title="bound by"),
        Column("mfu", float | None, "share", "model FLOPs utilization of a run",
               of=lambda row: row.utilization and row.utilization.mfu, title="MFU"),
        Column("hfu", float | None, "share", "hardware FLOPs utilization of a run, with recomputation",
               of=lambda row: row.utilization and row.utilization.hfu, title="HFU"),
        Column("flops", int | None, "quantity", "FLOPs of a run on one device", title="FLOPs per run"),
        Column("bytes", int | None, "bytes", "device memory read and written by a run", title="bytes per run"),
        Column("peak_bytes", int | None, "bytes", "peak memory", title="peak memory"),
        Column("peak_known_by", str | None, "text", "how the peak is known", title="basis of peak"),
        Column("flops_are", str | None, "text", "exact, or at least: the arithmetic of an instruction is unknown",
               of=_exact, title="FLOPs are"),
        Column("device", str | None, "text", "device of the least time", of=lambda row: row.least and row.least.device,
               title="roof of"),
    ),
    rows=_rows,
)  # fmt: skip
