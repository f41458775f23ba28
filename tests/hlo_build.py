"""Traces of XLA programs for tests, spelled as HLO text."""

from __future__ import annotations

import gzip
from pathlib import Path
from textwrap import dedent

from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.text import module_of
from perfscope.analyzers.trace import Source, Trace

GPU = 'backend_config={"operation_queue_id":"0"}'
"""What marks a program as compiled for a GPU."""


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
