"""Kernels and library calls in the code that inductor made."""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.analyzers.torch_compile.summary import KernelSummary, compile_summary
from perfscope.analyzers.torch_compile.tables import place_of
from perfscope.model.results import Column, Place, ResultTable
from perfscope.model.trace import Trace


def _rows(trace: Trace) -> Iterable[KernelSummary]:
    summary = trace.fact(compile_summary)
    return () if summary is None else summary.kernels


def _ops(kernel: KernelSummary) -> tuple[str, ...]:
    names = (op.removeprefix("aten.").removesuffix(".default").removesuffix(".Tensor") for op in kernel.ops)
    return tuple(dict.fromkeys(names))


def _lines(kernel: KernelSummary) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(place for line in kernel.places if (place := place_of(line)) is not None))


RESULT: ResultTable[KernelSummary] = ResultTable(
    name="compile_kernels",
    title="Compiled kernels",
    doc="Kernels and library calls in the code that inductor made, by name. Kernels with the most time in the "
    "recording first, then generated kernels, those that fuse the most ops first.",
    columns=(
        Column("name", str, "code", "name of the kernel or call", "key", title="kernel"),
        Column("time_ns", int | None, "ns", "time in the recording; missing: it did not run, or its time is unknown"),
        Column("backend", str, "text", "what made it: triton, cpp, extern (a library) or other", "key"),
        Column("calls", int, "count", "calls in the code of all graphs"),
        Column("ops", tuple[str, ...], "code", "ATen ops in it", of=_ops, title="ATen ops"),
        Column("lines", tuple[Place, ...], "place", "lines of the program that it computes", of=_lines),
    ),
    rows=_rows,
)
