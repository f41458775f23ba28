"""Report on one launch of a kernel, and names of kernels as several tools write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from perfscope.model.trace import Trace, TraceBuilder

DOCUMENT = "kernel_reports"
"""Key of the reports in ``Trace.documents``."""

Bound = Literal["compute", "memory", "latency"]

BUSY = 60.0
"""Percent of its peak below which a unit does not limit a kernel: Nsight Compute's rule for its speed of light."""


class KernelReport(Struct, frozen=True, kw_only=True):
    """One launch. ``None``: the tool did not report it. Shares are percent of the peak that was sustained."""

    name: str
    """As the tool wrote it."""
    tool: str
    blocks: int | None = None
    threads_per_block: int | None = None
    duration_ns: float | None = None
    """ncu: on locked clocks and with flushed caches, unless an option turned that off."""
    compute: float | None = None
    """Throughput of the SMs."""
    memory: float | None = None
    """Throughput of the busiest part of memory: DRAM, L2 or L1."""
    dram: float | None = None
    occupancy: float | None = None
    """Active warps, percent of those that an SM holds."""
    possible_occupancy: float | None = None
    """The same by the resources of a block."""
    limit: str | None = None
    """Resource that limits the blocks of an SM: registers, shared memory, warps, blocks."""
    registers: int | None = None
    """Per thread."""
    shared_bytes: int | None = None
    """Per block, static and dynamic."""
    spills: float | None = None
    """Requests, instructions or registers that spill. rocprofv3: bytes of scratch memory per work-item."""
    waves: float | None = None
    """Waves of blocks over all SMs."""
    config: str = ""
    """Constants and options that a Triton kernel was compiled with."""
    tuned: str = ""
    """Result of autotuning."""
    line: str = ""
    """Place of the kernel's source."""

    @property
    def bound(self) -> Bound | None:
        """Limit of the kernel; ``latency`` if neither arithmetic nor memory is busy."""
        if self.compute is None or (self.memory is None and self.dram is None):
            return None
        memory = max(self.memory or 0.0, self.dram or 0.0)
        if max(self.compute, memory) < BUSY:
            return "latency"
        return "compute" if self.compute > memory else "memory"


def reports_of(trace: Trace) -> tuple[KernelReport, ...]:
    """Return the reports that a trace carries, in the order of the launches."""
    reports: tuple[KernelReport, ...] = trace.documents.get(DOCUMENT, ())
    return reports


def attach_reports(trace: Trace, reports: Sequence[KernelReport]) -> Trace:
    """Return a trace with further reports."""
    return msgspec.structs.replace(trace, documents={**trace.documents, DOCUMENT: (*reports_of(trace), *reports)})


def report_trace(path: str, tool: str, reports: Sequence[KernelReport], *notes: str) -> Trace:
    """Return a trace that has reports and nothing else."""
    builder = TraceBuilder(path, tool)
    builder.events, builder.events_only = len(reports), True
    builder.note(*notes)
    return builder.build(documents={DOCUMENT: tuple(reports)})


_LITERAL = re.compile(r"\b(\d+)(?:ull|ul|ll|u|l)\b", re.IGNORECASE)
_LAMBDA = re.compile(r"\[lambda\([^()]{0,2000}\) \(instance (\d{1,9})\)\]|\{lambda\([^()]{0,2000}\)#(\d{1,9})\}")
_UNSPELLED = re.compile(r"\b(?:const|void)\b|\s+")
_WORDS = (
    ("(anonymous namespace)::", ""), ("<unnamed>::", ""), ("{anonymous}::", ""),
    ("(bool)1", "true"), ("(bool)0", "false"),
)  # fmt: skip


def plain_name(name: str) -> str:
    """Return a name without what demanglers write differently: arguments, casts, ``const``, ``void``, spaces."""
    for word, replacement in _WORDS:
        name = name.replace(word, replacement)
    name = _LAMBDA.sub(lambda match: f"{{lambda{match[1] or match[2]}}}", name)
    return _UNSPELLED.sub("", _LITERAL.sub(r"\1", _without_arguments(name))).removesuffix(".kd")


def base_name(name: str) -> str:
    """Return the function of a name, without namespaces and template arguments."""
    return plain_name(name).partition("<")[0].rpartition("::")[2]


def _without_arguments(name: str) -> str:
    """Return a name without what is in parentheses."""
    depth, kept = 0, []
    for letter in name:
        depth += letter == "("
        if not depth:
            kept.append(letter)
        depth -= letter == ")" and depth > 0
    return "".join(kept)
