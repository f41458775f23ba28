"""The process that fuzzes: imports everything once, then forks a child for each piece of inputs.

A child makes inputs of one reader by their numbers, and uses each as a user would. If an input exceeds a limit, the
child ends: the parent has its number, and makes the input again.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import NoReturn
from unittest.mock import patch

from perfscope.analyzers import engine, sections
from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.dashboards.report import render
from perfscope.model.errors import PerfscopeError
from tests.fuzz.mutate import mutated
from tests.fuzz.seeds import FORMATS, seeds

LIMIT_S = 10.0
"""Seconds of processor time for one input: a loaded machine causes no hang."""
LIMIT_BYTES = 2 << 30
"""Beyond what the process has mapped before its first input."""
PIECE_S = 20.0
"""Seconds of processor time after which a piece ends: each reader has the same share, and small files are many."""
WALL_S = 1_800
"""For a piece, waiting included: a process that does nothing is ended too."""
REPORTS = ("text", "json", "markdown", "html")
"""Each input is reported in one of them."""
USUAL_SEED_BYTES = 4_096
"""Larger seeds are taken less often, by as much as they cost more."""

Examination = Callable[[Path, int], str]
"""Function of a file and its number: returns the outcome in one word; an exception is a failure."""


def make(reader: str, number: int) -> bytes:
    """The input of a number: the same on every machine with the same seeds. 0 is the first seed as it is."""
    random = Random(f"{reader} {number}")
    known = seeds(reader)
    if number < len(known):
        return known[number]
    return mutated(random.choices(known, _weights(reader))[0], FORMATS[reader].mutate, random)


@cache
def _weights(reader: str) -> tuple[float, ...]:
    return tuple(USUAL_SEED_BYTES / max(len(seed), USUAL_SEED_BYTES) for seed in seeds(reader))


def examine(path: Path, number: int) -> str:
    """Read, judge and report. ``refused``: in one line; ``analysed`` otherwise."""
    try:
        traces = load_all(path)
        for trace in traces:
            trace.check()
        with patch.object(engine, "log_failure", _fail), patch.object(sections, "log_failure", _fail):
            analysis = analyze(traces)
        render(analysis, REPORTS[number % len(REPORTS)])
    except PerfscopeError as error:
        if "\n" in str(error):
            raise AssertionError(f"an error of several lines: {error}") from error
        return "refused"
    _check(analysis)
    return "analysed"


def _fail(_: logging.Logger, what: str, error: BaseException) -> NoReturn:
    """Raise errors of a rule or section, which cost a user no more than that, but are defects."""
    raise AssertionError(what) from error


def _check(analysis: Analysis) -> None:
    """The account of every device adds up."""
    for device in analysis.devices:
        parts = device.compute_ns + device.exposed_communication_ns + device.exposed_copy_ns + device.idle_ns
        assert parts == device.span_ns, device


def piece(reader: str, first: int, count: int, folder: Path, examination: Examination) -> None:
    """Print a line an input: its number before, and how it ended after. Failures are written into ``folder``."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT_BYTES, used + LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(WALL_S)
    suffix = FORMATS[reader].suffix
    path = folder / f"input.{suffix}"
    end = time.process_time() + PIECE_S
    for number in range(first, first + count):
        if time.process_time() > end:
            break
        content = make(reader, number)
        path.write_bytes(content)
        print(f"begin {number}", flush=True)
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        try:
            ended = examination(path, number)
        except Exception as error:
            out_of_memory = isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError)
            ended = "memory" if out_of_memory else "crash"
            (folder / f"{number}.txt").write_text(traceback.format_exc(), errors="backslashreplace")
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(f"end {number} {ended}", flush=True)


def serve() -> None:
    """For each line ``READER FIRST COUNT FOLDER MODULE:EXAMINATION`` of standard input: a child that does that piece.

    A line ``done STATUS`` follows what the child printed; its errors are in ``FOLDER/stderr``.
    """
    for line in sys.stdin:
        reader, first, count, folder, examination = line.split()
        _warm(reader)
        module, _, name = examination.partition(":")
        chosen = getattr(importlib.import_module(module), name)
        gc.freeze()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(Path(folder, "stderr"), os.O_WRONLY | os.O_CREAT), 2)
            piece(reader, int(first), int(count), Path(folder), chosen)
            sys.stdout.flush()
            os._exit(0)
        print(f"done {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)


@cache
def _warm(reader: str) -> None:
    """Import what the reader and the reports import when they are first used."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"input.{FORMATS[reader].suffix}")
        path.write_bytes(seeds(reader)[0])
        for number in range(len(REPORTS)):
            examine(path, number)


if __name__ == "__main__":
    serve()
