"""Traces of XLA programs for tests, spelled as HLO text."""

from __future__ import annotations

import gzip
from pathlib import Path
from textwrap import dedent

from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.parse.text import module_of
from perfscope.model.trace import Source, Trace
from tests.build import TraceBuilder

GPU = 'backend_config={"operation_queue_id":"0"}'
"""Marker of a program compiled for a GPU."""


def hlo_module(text: str, name: str = "jit_step", *, scheduled: bool = True) -> HloModule:
    """A module from its computations as HLO text."""
    head = f"HloModule {name}, is_scheduled={str(scheduled).lower()}, num_partitions=8\n"
    return module_of((head + dedent(text)).splitlines(), "built.hlo.txt")


def hlo_trace(*modules: HloModule) -> Trace:
    """A trace of programs alone, as a reader of HLO makes it."""
    return Trace(
        source=Source(path="built.hlo.txt", format="hlo", rank=None, events_read=0, events_unplaced=0),
        strings=[],
        rows={},
        recorded=frozenset({"hlo"}),
        hlo=modules,
    )


def corpus_module(path: Path) -> HloModule:
    """A module of the corpus: gzipped HLO text."""
    with gzip.open(path, "rt") as lines:
        return module_of(lines, path.name)


def recorded_trace(
    *modules: HloModule,
    ops: list[tuple[str, float, float]],
    steps: list[tuple[float, float]] | None = None,
    device: str = "NVIDIA H100 80GB HBM3",
    runs: list[int] | None = None,
    ordinals: list[int] | None = None,
    around: tuple[str, ...] = (),
) -> Trace:
    """A recording of the first module's instructions on a device: (instruction, start, end) in microseconds.

    ``runs`` and ``ordinals``: of each row; left out: not known, and all on one device. ``around``: instructions that
    enclose others.
    """
    builder = TraceBuilder(recorded=frozenset({"hlo", "device_work"} | ({"steps"} if steps else set())))
    for ordinal in sorted(set(ordinals or [0])):
        builder.device(ordinal, name=device)
    for i, (name, start, end) in enumerate(ops):
        encloses = name in around
        if not encloses:
            builder.kernel(name, start, end, device=0 if ordinals is None else ordinals[i])
        builder.row("hlo_ops", start_ns=round(start * 1000), end_ns=round(end * 1000), name=builder.code(name),
                    module=builder.code(modules[0].name), run_id=-1 if runs is None else runs[i],
                    ordinal=0 if ordinals is None else ordinals[i], encloses=encloses)  # fmt: skip
    for number, (start, end) in enumerate(steps or []):
        builder.step(number, start, end)
    built = builder.build()
    return Trace(source=built.source, strings=built.strings, rows=built.rows, recorded=built.recorded, hlo=modules)
