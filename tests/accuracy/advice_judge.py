"""Judges the first advice of a report: right, partly or wrong."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_path
from perfscope.dashboards.report.blocks import FindingBlock
from perfscope.dashboards.report.summary import summarize
from perfscope.dashboards.report.text import render
from perfscope.model.errors import PerfscopeError
from perfscope.model.finding import ONCE
from perfscope.profiler.ab.launch import ArmFolder, run_and_wait
from tests.accuracy.advice import AdviceCase
from tests.accuracy.job_recordings import JOBS
from tests.accuracy.memory_recordings import MEMORIES
from tests.accuracy.recordings import GPU
from tests.conftest import REPOSITORY

RECORDINGS = {**GPU, **JOBS, **MEMORIES}
"""Name -> function that writes the recording of a case into a folder."""

RUN_LIMIT_S = 300.0

Verdict = Literal["right", "partly", "wrong"]

MOST_SHARE = 1.005
"""A saving above what it is a share of is impossible; half a percent is rounding."""

ABSURD = (
    r"Move `[^`]*<module>",
    r"Move `[^`]*\.py\(\d+\)",
    r"Move `(train|main|fit|step|train_step|training_step|forward|backward|loss\.backward\(\)|Forward \d+|run)`",
    r"Move `(FSDP::|<built-in method|CommonPjRt|PjitFunction)",
    r"\b0x[0-9a-f]{6,}",
    r"\.py:-1\b",
)
"""Advice that no author can follow, in any program."""

FOREIGN = {
    "torch": (r"\bjax\.", r"\bjnp\.", r"\blax\.", r"\bFlax\b", r"\boptax\b"),
    "jax": (r"(?<![\w/])torch\.", r"\bdetach\(\)", r"\btorch\b(?=[^`]*`)"),
}
"""Words of the other framework: advice from the wrong table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The report of a case, as far as it is judged."""

    findings: tuple[FindingBlock, ...]
    screen: str
    """The report as text with what the command printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A case with its verdict."""

    case: AdviceCase
    verdict: Verdict
    why: str
    """Missing or false parts; empty if the advice is right."""
    first: str
    """The first finding: rule, place and title."""
    fix: str
    seconds: float


def missing_package(case: AdviceCase) -> str | None:
    """The first package of ``needs`` that is not installed."""
    return next((name for name in case.needs if importlib.util.find_spec(name) is None), None)


def judge(case: AdviceCase, folder: Path) -> Judged:
    """Run or read a case and judge its report."""
    began = time.monotonic()
    said = report_of(case, folder)
    verdict, why = verdict_of(case, said)
    first = said.findings[0] if said.findings else None
    return Judged(
        case=case,
        verdict=verdict,
        why=why,
        first="no findings" if first is None else f"{first.rule} {first.finding.where.label()}: {first.finding.title}",
        fix="" if first is None else first.finding.advice,
        seconds=round(time.monotonic() - began, 1),
    )


def judge_recorded(case: AdviceCase) -> tuple[Verdict, str]:
    """Verdict on the recording of a case in fixtures/advice, and why. Right only with the first rule of the case."""
    return of_first_rule(case, _said(REPOSITORY / "fixtures" / "advice" / Path(case.program).stem, ""))


def judge_file(case: AdviceCase, folder: Path) -> tuple[Verdict, str]:
    """Verdict on a file or on a recording that is written into a folder. Right only with the first rule of the case."""
    return of_first_rule(case, report_of(case, folder))


def of_first_rule(case: AdviceCase, said: Said) -> tuple[Verdict, str]:
    """Verdict on a report, in which the first rule of the case is before its other rules."""
    verdict, why = verdict_of(case, said)
    first = next((block.rule for block in said.findings if block.rule in case.rules), None)
    if verdict == "right" and case.rules and first != case.rules[0]:
        return "partly", f"{first} is before {case.rules[0]}"
    return verdict, why


def report_of(case: AdviceCase, folder: Path) -> Said:
    """The findings in the order of the report, and its text."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    printed = ""
    source = RECORDINGS[case.program](folder) if case.path is None else case.path
    if case.how != "analyze":
        printed = _run(case, source, folder)
        source = folder / "work" / "perfscope-runs"
    return _said(source, printed)


def _said(source: Path, printed: str) -> Said:
    try:
        analysis = analyze(load_path(source).traces)
    except PerfscopeError as error:
        return Said(findings=(), screen=f"{printed}\n{error}")
    findings = tuple(block for block in summarize(analysis).findings if block.finding.about == "program")
    return Said(findings=findings, screen=f"{printed}\n{render(analysis)}")


def _run(case: AdviceCase, program: Path, folder: Path) -> str:
    """Run the program as its author would, in an empty folder; what was printed."""
    work = folder / "work"
    work.mkdir()
    command = [sys.executable, "-m", "perfscope", "compile" if case.how == "compile" else "run"]
    command += case.options
    if case.how == "torchrun":
        command += ["torchrun", "--standalone", "--nproc-per-node", "2"]
    command.append(str(program))
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    log = folder / "output.log"
    run_and_wait(command, ArmFolder(root=work, folder=work), environment, log, RUN_LIMIT_S)
    return log.read_text(encoding="utf-8", errors="replace")


def verdict_of(case: AdviceCase, said: Said) -> tuple[Verdict, str]:
    """Right, partly or wrong, and why."""
    absurd = forbidden_words(case, said)
    if absurd:
        return "wrong", f"says {absurd}"
    lacking = [words for words in case.says if not re.search(words, said.screen, re.IGNORECASE)]
    if case.is_control:
        alarms = [
            block.rule
            for block in said.findings
            if block.rule not in case.true_too and block.finding.severity in ("medium", "high")
        ]
        why = f"advice for a program that is fine: {', '.join(alarms)}" if alarms else ""
        return ("wrong", why) if alarms else ("partly", f"lacks {lacking}") if lacking else ("right", "")
    if not case.rules:
        several = len(lacking) < len(case.says)
        return ("right", "") if not lacking else ("partly" if several else "wrong", f"lacks {lacking}")
    return _of_findings(case, said.findings, lacking)


def _of_findings(case: AdviceCase, blocks: Sequence[FindingBlock], lacking: list[str]) -> tuple[Verdict, str]:
    ours = [block for block in blocks if block.rule in case.rules]
    if not ours:
        return "wrong", f"{' or '.join(case.rules)} is not among {len(blocks)} findings"
    first = next(iter(block for block in blocks if block.rule in case.rules or block.rule not in case.true_too))
    faults = min((_faults(case, block) for block in ours), key=len)
    if not faults and not lacking and any(block is first and not _faults(case, block) for block in ours):
        return "right", ""
    if first.rule not in case.rules:
        faults = [f"{first.rule} is above it", *faults]
    elif not faults:
        faults = ["another finding of the rule is above it"]
    return "partly", "; ".join([*faults, *(f"the first screen lacks {words!r}" for words in lacking)])


def _faults(case: AdviceCase, block: FindingBlock) -> list[str]:
    """Yield the faults of a finding of the right rule."""
    finding, places = block.finding, case.places
    text = text_of(block)
    faults = []
    where = finding.where
    lines = () if where.file is None else (where.line, finding.fix_line)
    named = any((Path(where.file or "").name, line) in places for line in lines)
    if places and not (named or any(f"{file}:{line}" in text for file, line in places)):
        faults.append(f"names {where.label()}, not {', '.join(f'{file}:{line}' for file, line in sorted(places))}")
    faults += [f"has no {words!r}" for words in case.fix if not re.search(words, text, re.IGNORECASE)]
    return faults


def text_of(block: FindingBlock) -> str:
    """All texts of a finding except its evidence."""
    finding = block.finding
    return "\n".join((finding.where.label(), finding.title, finding.detail, finding.advice))


def forbidden_words(case: AdviceCase, said: Said) -> str:
    """The first words that may not be in the report, with what is around them; empty: none."""
    findings = [text_of(block) for block in said.findings]
    for words, texts in (
        *((words, findings) for words in (*ABSURD, *FOREIGN[case.framework])),
        *((words, [*findings, said.screen]) for words in case.forbidden),
    ):
        found = _found(words, texts)
        if found:
            return found
    above = [block for block in said.findings if block.share is not None and block.share > MOST_SHARE]
    whole = next((block for block in above if block.share_of != ONCE), None)
    return "" if whole is None else f"{whole.rule} saves {whole.share:.0%} of the {whole.share_of}"


def _found(words: str, texts: Iterable[str]) -> str:
    for text in texts:
        match = re.search(words, text, re.IGNORECASE)
        if match:
            return repr(text[max(0, match.start() - 20) : match.end() + 40])
    return ""


def to_json(judged: Judged) -> dict[str, Any]:
    """A verdict as plain values."""
    case = judged.case
    return {
        "name": case.name,
        "framework": case.framework,
        "kind": case.kind,
        "thread": case.thread,
        "program": case.program,
        "how": " ".join((case.how, *case.options)),
        "expected": " or ".join(case.rules) or ("no advice" if case.is_control else " ".join(case.says)),
        "verdict": judged.verdict,
        "why": judged.why,
        "first": judged.first,
        "fix": judged.fix,
        "seconds": judged.seconds,
    }
