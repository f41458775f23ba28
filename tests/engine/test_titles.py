"""A title is one line on the problem, without the saving; the advice begins with the fix."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.merge_programs import merge_programs
from perfscope.analyzers.readers.load import load_path
from perfscope.model.errors import DataError
from perfscope.model.finding import NAME_LENGTH, TITLE_LENGTH, Finding, Outcome, fit_title
from perfscope.model.units import format_bytes, format_ns
from tests.conftest import CORPUS, corpus_files

LONGEST_SENTENCE = 160

EVERYDAY = (
    "kineto/TraceLens__h100_bert-small.json.gz",
    "kineto/HolisticTraceAnalysis__cuda_event_sync_multi_stream.json.gz",
    "hlo_text/Primus__moe_dp1_pp2_ep8.gfx950_after_opt.txt.gz",
    "nccl_fr/nvidia-resiliency-ext__lock_gil_1st.tar.gz",
    "torch_mem/assignment2-systems__tiny.pickle.gz",
)
FOLDERS = sorted(path.name for path in CORPUS.glob("*") if path.is_dir())
"""All of the corpus."""
JOBS = ("torchrec__sst_long_a2a*", "torchrec__sst_sleep*", "astra-sim__megatron_kineto_*")
"""Ranks of one job, of the folder ``kineto``."""


def wrong(analysis: Analysis) -> list[str]:
    """Violations, one line each."""
    return [problem for rule, finding in analysis.findings() for problem in problems(rule, finding)]


def without_evidence(analysis: Analysis) -> list[str]:
    """Clean rules that do not say how many records they looked at, and of what."""
    clean = [outcome for outcome in analysis.outcomes if outcome.status == "clean"]
    return [outcome.rule for outcome in clean if outcome.examined <= 0 or not outcome.examined_what]


def problems(rule: str, finding: Finding) -> Iterable[str]:
    if not 0 < len(finding.title) <= TITLE_LENGTH or "\n" in finding.title:
        yield f"{rule}: {len(finding.title)} characters: {finding.title}"
    costs = (finding.cost_ns, finding.cost_ns_per_step, finding.untraced_ns_per_step)
    amounts = [format_ns(cost) for cost in costs if cost is not None]
    if finding.cost_bytes is not None and finding.bytes_are == "freed":
        amounts.append(format_bytes(finding.cost_bytes))
    if any(f": {amount}" in finding.title for amount in amounts):
        yield f"{rule}: the saving stands beside the title and not in it: {finding.title}"
    sentence = re.split(r"(?<=[.!?])\s", finding.advice or finding.record, maxsplit=1)[0]
    if not 0 < len(sentence) <= LONGEST_SENTENCE:
        yield f"{rule}: a first sentence of {len(sentence)} characters: {sentence}"


@pytest.mark.corpus
@pytest.mark.parametrize("name", EVERYDAY)
def test_titles_are_one_line_and_advice_begins_with_the_fix(name: str, corpus: Path) -> None:
    analysis = analyze(load_path(corpus / name).traces)
    assert analysis.findings()
    assert wrong(analysis) == []
    assert without_evidence(analysis) == []


@pytest.mark.corpus
@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_so_do_those_of_all_files_and_clean_rules_have_their_evidence(folder: str, corpus: Path) -> None:
    found, without = [], []
    for path in corpus_files(folder):
        try:
            analysis = analyze(load_path(path).traces)
        except DataError:
            continue
        found += [f"{path.name}: {problem}" for problem in wrong(analysis)]
        without += [(path.name, rule) for rule in without_evidence(analysis)]
    assert found == []
    assert without == []


@pytest.mark.corpus
@pytest.mark.slow
@pytest.mark.parametrize("pattern", JOBS)
def test_so_do_those_of_jobs(pattern: str, corpus: Path) -> None:
    traces = [trace for path in corpus_files("kineto", pattern) for trace in load_path(path).traces]
    analysis = analyze(traces)
    assert analysis.findings()
    assert wrong(analysis) == []
    assert without_evidence(analysis) == []


def finding_of(title: str) -> Finding:
    return Finding(subject="x", title=title, severity="low", basis="measured", advice="Do less.", detail="Why.")


def test_a_title_with_the_saving_is_reported() -> None:
    priced = replace(finding_of("copies: 1.00 ms per step, 3 times"), cost_ns_per_step=1_000_000)
    assert len(list(problems("r", priced))) == 1
    assert list(problems("r", replace(priced, title="copies: 3 times"))) == []


def outcome_of(title: str) -> Outcome:
    return Outcome(rule="host_sync", status="flagged", findings=(finding_of(title),))


def test_a_long_name_in_a_title_is_shortened_and_the_numbers_stay() -> None:
    name = "forward_of_" + 40 * "a_very_"
    title = fit_title(f"{name} is compiled 3 more times: 1.37 s in all", name)
    assert len(title) == TITLE_LENGTH
    assert title.startswith("forward_of_a_very_")
    assert title.endswith("... is compiled 3 more times: 1.37 s in all")


def test_the_longest_of_several_names_is_shortened_first() -> None:
    long, short = 120 * "l", 20 * "s"
    title = fit_title(f"{long} ends a graph in {short}", long, short)
    assert len(title) == TITLE_LENGTH
    assert title.endswith(f"... ends a graph in {short}")


def test_a_title_that_fits_stays_as_it_is_and_no_name_is_cut_to_nothing() -> None:
    assert fit_title("name: 1 ms", "name") == "name: 1 ms"
    assert fit_title(f"{30 * 'n'}: {100 * 'x'}", 30 * "n") == f"{(NAME_LENGTH - 3) * 'n'}...: {100 * 'x'}"


def test_the_program_is_named_in_the_title_if_there_is_room_and_else_in_the_detail() -> None:
    label = "jit_" + 60 * "train_step"
    short, full = (
        merge_programs([outcome_of(title), replace(outcome_of(title), findings=())], [label, "b"]).findings[0]
        for title in ("copies: 1 ms", 85 * "t")
    )
    assert short.title.startswith("jit_train_step")
    assert short.title.endswith("...: copies: 1 ms")
    assert len(short.title) == TITLE_LENGTH
    assert short.detail == "Why."
    assert full.title == 85 * "t"
    assert full.detail == f"In {label}. Why."
