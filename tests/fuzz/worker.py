"""One process of the fuzzer: makes inputs of one reader by their numbers, and does with each what a user would.

A limit that an input breaks ends the process: the parent knows its number, and makes the input again.
"""

from __future__ import annotations

import importlib
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load
from perfscope.dashboards.report import render
from perfscope.model.errors import PerfscopeError
from tests.fuzz.mutate import mutated
from tests.fuzz.seeds import FORMATS, seeds

LIMIT_S = 10.0
"""Of processor time, for one input: a loaded machine makes no hang."""
LIMIT_BYTES = 2 << 30
"""Beyond what the process has mapped before its first input."""
HTML_EVERY = 4

Examination = Callable[[Path, int], str]
"""What is done with a file and its number: one word of how it ended; an exception is a failure."""


def make(reader: str, number: int) -> bytes:
    """The input of a number: the same on every machine with the same seeds. 0 is the first seed as it is."""
    random = Random(f"{reader} {number}")
    known = seeds(reader)
    if number < len(known):
        return known[number]
    return mutated(random.choice(known), FORMATS[reader].mutate, random)


def examine(path: Path, number: int) -> str:
    """Read, judge and report. ``refused``: in one line; ``analysed`` otherwise."""
    try:
        traces = load(path)
        for trace in traces:
            trace.check()
        analysis = analyze(traces)
        for form in ("text", "json", *(("markdown", "html") if number % HTML_EVERY == 0 else ())):
            render(analysis, form)
    except PerfscopeError as error:
        if "\n" in str(error):
            raise AssertionError(f"an error of several lines: {error}") from error
        return "refused"
    _check(analysis)
    return "analysed"


def _check(analysis: Analysis) -> None:
    """No rule failed, and the account of every device adds up."""
    failed = [f"{item.rule}: {item.reason}" for item in analysis if " failed" in (item.reason or "")]
    assert not failed, failed
    for device in analysis.devices:
        parts = device.compute_ns + device.exposed_communication_ns + device.exposed_copy_ns + device.idle_ns
        assert parts == device.span_ns, device


def main(reader: str, first: int, count: int, folder: Path, examination: Examination) -> None:
    """Print a line an input: its number before, and how it ended after. Failures are written into ``folder``."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT_BYTES, used + LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    suffix = FORMATS[reader].suffix
    path = folder / f"input.{suffix}"
    for number in range(first, first + count):
        content = make(reader, number)
        path.write_bytes(content)
        print(f"begin {number}", flush=True)
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        try:
            ended = examination(path, number)
        except MemoryError:
            ended = "memory"
        except Exception:
            ended = "crash"
            (folder / f"{number}.txt").write_text(traceback.format_exc(), errors="backslashreplace")
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(f"end {number} {ended}", flush=True)


if __name__ == "__main__":
    module, _, name = sys.argv[5].partition(":")
    examination = getattr(importlib.import_module(module), name)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), examination)
