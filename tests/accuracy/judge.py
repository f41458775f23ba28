"""Runs the cases, evaluates all rules, and compares their findings with the labels."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_path, load_paths
from perfscope.analyzers.savings import Wholes
from perfscope.dashboards.report.sections.findings import finding_blocks
from perfscope.model.finding import Finding
from perfscope.model.trace import Trace
from perfscope.profiler.ab.launch import TIMED_OUT, ArmFolder, log_tail, run_and_wait
from tests.accuracy.cases import Case, Program, Source
from tests.accuracy.known import limit, right
from tests.accuracy.labels import labelled_lines, lines_of, place_of
from tests.accuracy.picture import Strip, strip_of, svg
from tests.conftest import CORPUS, REPOSITORY

TORN = "terminate called without an active exception"
"""C++ ends a process so that leaves while a thread of it still runs: seen once, of four with gloo, and tried again."""
RUN_LIMIT_S = 120.0
"""Now and then one of four gloo processes hangs at its start; the launch is tried again once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The result of one rule for one program."""

    rule: str
    status: str
    reason: str | None = None
    places: tuple[tuple[str, int] | None, ...] = ()
    """Places of findings, costliest first, and the line that the fix changes; ``None``: not a line of the workloads."""
    titles: tuple[str, ...] = ()
    savings: tuple[tuple[frozenset[tuple[str, int]], int], ...] = ()
    """The lines of a finding, and the saving that the report shows for it, ns per step (of a run where no step is
    known); findings without a time are left out."""
    basis: str | None = None

    def saves_ns(self, lines: frozenset[tuple[str, int]]) -> int | None:
        """The savings shown at these lines together, or the largest one if none of them is named."""
        at = [saves for places, saves in self.savings if places & lines]
        return sum(at) if at else max((saves for _, saves in self.savings), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """The first finding of a report."""

    rule: str
    title: str
    place: str
    """``file:line`` below the workloads; empty: no line of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A source with all rules."""

    said: tuple[Said, ...]
    first: First | None
    strip: Strip | None
    """One step for the picture; known for programs that ran here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The expected and the actual result of one rule."""

    rule: str
    label: str | None
    """``file:line`` of the label."""
    found: bool
    line_found: bool | None
    """``None``: not found, or without a line."""
    status: str
    reason: str | None
    places: tuple[str, ...]
    saves_ns: int | None
    """What the report promises for the labelled line (`Said.saves_ns`)."""
    basis: str | None
    explained: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A rule flagged what no label names."""

    rule: str
    of: str
    """``defect`` or ``twin``."""
    title: str
    explained: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One case."""

    case: Case
    answers: tuple[Answer, ...]
    alarms: tuple[Alarm, ...]
    besides: Mapping[str, str]
    """Other correct findings, with the reason."""
    clean: tuple[str, ...]
    """Rules that looked at the defect's program or its twin, and rightly found nothing; one entry for each."""
    seconds: float
    first: First | None
    twin_first: First | None
    picture: str
    """The steps of both as SVG; empty for recorded files and without steps."""
    saving: Mapping[str, Any] | None = field(default=None)


def capture(program: Program, folder: Path) -> Path:
    """Run a program under ``perfscope run``; its runs folder. ``RuntimeError`` with its output if it fails."""
    runs = folder / "perfscope-runs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "perfscope", "run", "--level", program.level, "--no-report", "-q"]
    if program.processes > 1:
        ranks = ["--standalone", f"--nproc-per-node={program.processes}"]
        command += ["--", sys.executable, "-m", "torch.distributed.run", *ranks]
    command += ["-m", program.module, *program.arguments]
    log = folder / "output.log"
    here = ArmFolder(root=folder, folder=folder)
    for _ in range(2):
        code = run_and_wait(command, here, environment_of(program), log, RUN_LIMIT_S)
        if code != TIMED_OUT and TORN not in log.read_text(errors="replace"):
            break
        shutil.rmtree(runs, ignore_errors=True)
    if code:
        raise RuntimeError(f"{program.key}: exit code {code}: {log_tail(log)}")
    return runs


def environment_of(program: Program) -> dict[str, str]:
    """The environment of a program: one thread of each library, so that two runs of it take the same path."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    if program.devices > 1:
        count = f"--xla_force_host_platform_device_count={program.devices}"
        environment["XLA_FLAGS"] = f"{count} --xla_cpu_multi_thread_eigen=false"
    return environment


def traces_of(source: Source, folder: Path) -> tuple[Trace, ...]:
    """A program's run, or recorded files."""
    if isinstance(source, Program):
        return tuple(load_path(capture(source, folder)).traces)
    return tuple(load_paths([path_of(path) for path in source.paths]).traces)


def path_of(path: str) -> Path:
    """A path of the table in the file system."""
    return CORPUS / path.removeprefix("corpus/") if path.startswith("corpus/") else REPOSITORY / path


def lacking(case: Case) -> str | None:
    """The first package or file that is not on this machine; ``None``: it can be judged."""
    paths = () if isinstance(case.source, Program) else case.source.paths
    lacks = [name for name in case.needs if importlib.util.find_spec(name) is None]
    return next(iter((*lacks, *(path for path in paths if not path_of(path).exists()))), None)


class Judge:
    """Judges cases; a program that several of them share runs once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[str, Seen] = {}

    def seen(self, source: Source, rules: frozenset[str]) -> Seen:
        """The result of each rule for a source; its picture marks what ``rules`` found."""
        if source.key not in self._seen:
            name = "".join(letter if letter.isalnum() else "-" for letter in source.key)[-80:]
            traces = traces_of(source, self.folder / name)
            analysis = analyze(traces)
            self._seen[source.key] = Seen(
                said=tuple(_said(analysis)),
                first=_first(analysis),
                strip=strip_of(traces, analysis, rules) if isinstance(source, Program) else None,
            )
        return self._seen[source.key]

    def result(self, case: Case) -> Result:
        """One case against its labels."""
        began = time.monotonic()
        source = self.seen(case.source, frozenset(case.expects))
        twin = None if case.twin is None else self.seen(case.twin, frozenset())
        of_defect = {said.rule: said for said in source.said}
        of_twin = {} if twin is None else {said.rule: said for said in twin.said}
        answers = tuple(_answer(case, rule, of_defect[rule]) for rule in case.expects)
        judged = set(case.clean) if case.story else set(of_defect)
        unlabelled = {rule: said for rule, said in of_defect.items() if rule in judged and rule not in case.expects}
        flagged = [(of, said) for of, each in (("defect", unlabelled), ("twin", of_twin)) for said in each.values()]
        flagged = [(of, said) for of, said in flagged if said.status == "flagged"]
        alarms = tuple(_alarm(case, of, said) for of, said in flagged if right(case.title, said.rule, of) is None)
        besides = {f"{said.rule} ({of})": why for of, said in flagged if (why := right(case.title, said.rule, of))}
        clean = [rule for rule, said in unlabelled.items() if said.status == "clean"]
        clean += [rule for rule, said in of_twin.items() if said.status == "clean"]
        return Result(
            case=case,
            answers=answers,
            alarms=alarms,
            besides=besides,
            clean=tuple(sorted(clean)),
            seconds=round(time.monotonic() - began, 1),
            first=source.first,
            twin_first=None if twin is None else twin.first,
            picture="" if source.strip is None else svg(source.strip, None if twin is None else twin.strip),
        )


def _first(analysis: Analysis) -> First | None:
    """The first finding about the program, as reports show it."""
    block = next((block for block in finding_blocks(analysis) if block.finding.about == "program"), None)
    if block is None:
        return None
    places = sorted(
        (place for place in _places(block.finding) if place), key=lambda place: place not in labelled_lines()
    )
    place = next(iter(places), None)
    return First(rule=block.rule, title=block.finding.title, place="" if place is None else f"{place[0]}:{place[1]}")


def _said(analysis: Analysis) -> Iterator[Said]:
    wholes = Wholes(analysis)
    for outcome in analysis.outcomes:
        ordered = sorted(outcome.findings, key=lambda finding: -(finding.ordering_ns or 0))
        shares = [(finding, wholes.share(finding)) for finding in ordered]
        yield Said(
            rule=outcome.rule,
            status=outcome.status,
            reason=outcome.reason,
            places=tuple(place for finding in ordered for place in _places(finding)),
            titles=tuple(finding.title for finding in ordered),
            savings=tuple(
                (frozenset(place for place in _places(finding) if place is not None), round(share.saves_ns))
                for finding, share in shares
                if share is not None
            ),
            basis=ordered[0].basis if ordered else None,
        )


def _places(finding: Finding) -> Iterator[tuple[str, int] | None]:
    yield place_of(finding.where.file, finding.where.line)
    if finding.fix_line is not None:
        yield place_of(finding.where.file, finding.fix_line)


def _answer(case: Case, rule: str, said: Said) -> Answer:
    text = case.expects[rule]
    module = case.source.module if isinstance(case.source, Program) else None
    labels = frozenset() if text is None else lines_of(rule, text, module or _module_of(case))
    if text is not None and not labels:
        raise ValueError(f"{case.name}: no line with {text!r} is labelled {rule}")
    found = said.status == "flagged"
    line_found = bool(labels & set(said.places)) if found and labels else None
    return Answer(
        rule=rule,
        label=", ".join(f"{file}:{line}" for file, line in sorted(labels)) or None,
        found=found,
        line_found=line_found,
        status=said.status,
        reason=said.reason,
        places=tuple("-" if place is None else f"{place[0]}:{place[1]}" for place in dict.fromkeys(said.places)),
        saves_ns=said.saves_ns(labels),
        basis=said.basis,
        explained=None if found and line_found is not False else limit(case.title, rule, "line" if found else "missed"),
    )


def _module_of(case: Case) -> str:
    return "perfscope.workloads.jax." if case.framework == "jax" else "perfscope.workloads."


def _alarm(case: Case, of: str, said: Said) -> Alarm:
    return Alarm(rule=said.rule, of=of, title=said.titles[0], explained=limit(case.title, said.rule, "alarm"))


def to_json(result: Result) -> dict[str, Any]:
    """A result as plain values."""
    case = result.case
    return {
        "name": case.name,
        "framework": case.framework,
        "mode": case.mode,
        "source": case.source.key,
        "twin": None if case.twin is None else case.twin.key,
        "story": case.story,
        "besides": dict(result.besides),
        "answers": [asdict(answer) for answer in result.answers],
        "alarms": [asdict(alarm) for alarm in result.alarms],
        "clean": list(result.clean),
        "saving": None if result.saving is None else dict(result.saving),
        "first": None if result.first is None else asdict(result.first),
        "twin_first": None if result.twin_first is None else asdict(result.twin_first),
        "seconds": result.seconds,
    }
