"""The results of the fixtures: a recording with assertions, and the times of two functions in turns."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from perfscope.analyzers.compare import Effect, effect_of, is_worse, log_ratios
from perfscope.analyzers.engine import Analysis
from perfscope.analyzers.judge import analysis_of_run
from perfscope.analyzers.savings import step_time
from perfscope.model.documents import run_folders
from perfscope.model.errors import see
from perfscope.model.finding import Finding
from perfscope.model.severity import SEVERITIES, Severity
from perfscope.model.units import format_bytes, format_ns

OUTPUT_CHARS = 2_000
"""Characters of a failed program's output that the test shows."""
WARM_UP = 2
"""Calls of each function before the first pair: they compile, and fill caches."""


class Profiled(Struct, frozen=True, kw_only=True):
    """The recording of a program, with assertions; a failed one names the line and the fix."""

    directory: Path
    analysis: Analysis

    @property
    def step_ns(self) -> float | None:
        """Step time of the report, ns; ``None`` if no step was timed."""
        timed = step_time(self.analysis)
        return None if timed is None else timed.ns

    @property
    def peak_bytes(self) -> int | None:
        """Highest peak of the recorded memories; ``None`` if none was recorded."""
        return max((entry.worst.peak_bytes for entry in self.analysis.memory.entries), default=None)

    def findings(self, rule: str | None = None, *, at_least: Severity = "low") -> tuple[Finding, ...]:
        """Findings of a rule or of all, costliest first, of this severity or a worse one."""
        least = SEVERITIES.index(at_least)
        return tuple(
            finding
            for name, finding in self.analysis.findings()
            if rule in (None, name) and SEVERITIES.index(finding.severity) >= least
        )

    def assert_no_finding(self, rule: str | None = None, *, at_least: Severity = "low") -> None:
        """Fail with title, place and fix of each finding that there is."""
        found = self.findings(rule, at_least=at_least)
        assert not found, "\n".join(["perfscope found:", *map(_described, found)])

    def assert_finding(self, rule: str, *, file: str | None = None, line: int | None = None) -> None:
        """Fail if the rule has no finding, or none at this place; ``file``: its name or the end of its path."""
        found = self.findings(rule)
        at = [
            finding
            for finding in found
            if (file is None or (finding.where.file or "").endswith(file)) and line in (None, finding.where.line)
        ]
        outcome = next((outcome for outcome in self.analysis.outcomes if outcome.rule == rule), None)
        why = "there is no such rule" if outcome is None else outcome.reason or outcome.status
        place = "" if file is None else f" at {file}{'' if line is None else f':{line}'}"
        assert at, "\n".join([f"{rule} found nothing{place} ({why})", *map(_described, found)])

    def assert_peak_below(self, most_bytes: int) -> None:
        """Fail if the peak of memory is not below, or unknown."""
        peak = self.peak_bytes
        assert peak is not None, "no memory was recorded"
        assert peak < most_bytes, f"peak memory {format_bytes(peak)}, not below {format_bytes(most_bytes)}"

    def assert_step_below(self, most_ns: float) -> None:
        """Fail if the step time is not below, or unknown. Prefer ``perfscope_pairs``: machines differ."""
        step = self.step_ns
        assert step is not None, "no step was timed"
        assert step < most_ns, f"step {format_ns(step)}, not below {format_ns(most_ns)}"


def _described(finding: Finding) -> str:
    place = finding.where.label()
    fix = f"\n    Fix: {finding.advice}" if finding.advice else ""
    return f"  {finding.title}{f' ({place})' if place else ''}{fix}"


def profile_script(words: Sequence[str], folder: Path, level: str) -> Profiled:
    """Run a script under ``perfscope run``; ``AssertionError`` with its output if it fails or nothing is captured."""
    command = [sys.executable, "-m", "perfscope", "run", "--no-report", "--level", level, "-o", str(folder), *words]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    output = f"{done.stdout}\n{done.stderr}".strip()[-OUTPUT_CHARS:]
    assert not done.returncode, f"{words[0]} ended with exit code {done.returncode}:\n{output}"
    runs = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    assert runs, f"nothing was captured of {words[0]}:\n{output}"
    return Profiled(directory=runs[0], analysis=analysis_of_run(runs[0]))


def profile_function(function: Callable[..., Any], arguments: Sequence[Any], folder: Path, level: Any) -> Profiled:
    """Call a function inside ``perfscope.profile``; ``AssertionError`` if nothing was captured."""
    from perfscope import profile

    with profile(name=getattr(function, "__name__", "function"), level=level, output=folder, quiet=True) as captured:
        function(*arguments)
    directory = captured.directory
    assert directory is not None, (
        "nothing was captured: this process is profiled already, or torch and jax are missing"
        f"{see('nothing was captured')}"
    )
    notes = run_folders.read(directory).notes
    assert run_folders.read(directory).processes, "; ".join(notes) or "nothing was captured"
    return Profiled(directory=directory, analysis=analysis_of_run(directory))


class Pairs(Struct, frozen=True, kw_only=True):
    """Times of two functions called in turns."""

    base_ns: tuple[int, ...]
    head_ns: tuple[int, ...]
    effect: Effect
    """Head against base; 0.05 is 5 % slower."""

    def assert_not_slower(self, least: float = 0.05, *, alpha: float = 0.01) -> None:
        """Fail if the second function is certainly slower by ``least`` or more (Student's t on the log ratios)."""
        effect = self.effect
        between = "" if effect.low is None or effect.high is None else f" ({effect.low:+.1%} to {effect.high:+.1%})"
        slower = is_worse(effect, alpha=alpha, least=least)
        assert not slower, f"slower by {effect.effect:+.1%}{between}, {effect.pairs} pairs"


def time_pairs(base: Callable[[], Any], head: Callable[[], Any], *, pairs: int = 15, seed: int = 0) -> Pairs:
    """Call both functions ``pairs`` times in turns, in random order within each pair, after a warm-up.

    A function that returns before its device has ended must wait for it itself. ``ValueError`` for less than two pairs.
    """
    if pairs < 2:
        raise ValueError("pairs: at least 2")
    for function in (base, head) * WARM_UP:
        function()
    order = random.Random(seed)  # noqa: S311 (an order, no secret)
    of_base, of_head = list[int](), list[int]()
    for _ in range(pairs):
        sides = [(base, of_base), (head, of_head)]
        order.shuffle(sides)
        for function, into in sides:
            began = time.perf_counter_ns()
            function()
            into.append(time.perf_counter_ns() - began)
    return Pairs(base_ns=tuple(of_base), head_ns=tuple(of_head), effect=effect_of(log_ratios(of_base, of_head)))
