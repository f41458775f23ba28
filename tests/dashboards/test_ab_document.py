"""The document of an A/B: what of the launches and what of their profiled sisters stands in it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.compare.ab_judge import AbJudge, AbResult
from perfscope.analyzers.compare.ab_profiles import Profiles, compare_profiles
from perfscope.dashboards.reports import ab_document, compare_document, compare_text
from perfscope.dashboards.reports.compare_json import as_text
from perfscope.dashboards.reports.compare_rows import is_quiet
from perfscope.model.documents.ab import Pairs
from perfscope.model.trace import Trace
from tests.compare.runs import gpu_run
from tests.compare.test_ab import CALIBRATION, pairs
from tests.profiler.test_ab import plan

JUDGE = AbJudge(pairs=10, least=0.02)
QUIET = JUDGE.result(Pairs(calibration=CALIBRATION, measured=pairs(6), confirming=()))
WORSE = JUDGE.result(Pairs(calibration=CALIBRATION, measured=pairs(6, 0.06), confirming=pairs(6, 0.05, seed=1)))


def profiles(base: Trace, head: Trace) -> Profiles:
    return compare_profiles([(Path("base"), Path("head"))], read=lambda path: [base if path.name == "base" else head])


def made(result: AbResult, found: Profiles = Profiles(), **more: Any) -> dict[str, Any]:  # noqa: B008 (it is frozen)
    held = ab_document.document(result, plan(**more), found)
    compare_document.parse(as_text(held).encode(), "it")  # what we write can be read
    return held


def test_a_regression_with_its_cause() -> None:
    held = made(WORSE, profiles(gpu_run(), gpu_run(item=True)), profile=1)
    assert held["headline"] == "regression"
    assert held["summary"].startswith("regression: step time +5.5% (97.2% CI +")
    assert [held["metrics"][0][key] for key in ("name", "verdict", "gates", "confirmed")] == [
        "step time", "regression", True, True,
    ]  # fmt: skip
    syncs = next(one for one in held["metrics"] if one["name"] == "host syncs a step")
    assert (syncs["verdict"], syncs["gates"]) == ("regression", True)
    assert held["causes"][0]["place"] == "train.py:11"
    assert [one["name"] for one in held["beside"]] == ["step time, mean", "step time, p90", "step time (profiled)"]
    assert not any(one["gates"] for one in held["beside"])
    assert held["step"]["delta_ns"] == held["step"]["head_ns"] - held["step"]["base_ns"]
    (note,) = [one for one in held["notes"] if one.startswith("the step itself changed by +5.5%")]
    assert "(12 pairs of launches without a profiler)" in note
    assert "the parts sum to the second" in note
    method = held["method"]
    assert (method["kind"], method["pairs"], method["confirming_pairs"], method["profiled"]) == (
        "launches in turns", 6, 6, 1,
    )  # fmt: skip
    assert (method["base_ref"], method["base_commit"], method["seed"]) == ("main", "a" * 40, 7)
    assert len(method["launches"]) == 34
    text = compare_text.render(compare_document.of(held))
    assert text.startswith("perfscope: regression: step time +5.5%")
    assert "train.py:11" in text
    assert "6 pairs and 6 to confirm, order by seed 7" in text


def test_an_exact_regression_alone_is_one_though_the_step_is_quiet() -> None:
    held = made(QUIET, profiles(gpu_run(), gpu_run(item=True)), profile=1)
    assert (held["metrics"][0]["verdict"], held["headline"]) == ("no change", "regression")
    back = made(QUIET, profiles(gpu_run(item=True), gpu_run()), profile=1)
    assert back["headline"] == "improvement"


def test_without_a_change_it_is_quiet() -> None:
    held = made(QUIET, profiles(gpu_run(), gpu_run()), profile=1)
    assert held["headline"] == "no change"
    assert not any(one["exact"] for one in held["causes"])


@pytest.mark.parametrize(
    ("lost", "asked", "reason"),
    [
        ((), 0, "no launch was profiled (--profile 0)"),
        ((), 1, "no profiled pair is whole yet"),
        (
            ("profiled launch of head: exit code 1: no space left",),
            1,
            "profiled launch of head: exit code 1: no space left",
        ),
    ],
)
def test_without_profiles_the_verdict_stands_and_the_cause_was_not_looked_for(
    lost: tuple[str, ...], asked: int, reason: str
) -> None:
    held = made(WORSE, Profiles(lost=lost), profile=asked)
    assert (held["headline"], held["step"], held["causes"], held["findings"]) == ("regression", None, [], [])
    (said,) = held["not_looked"]
    assert (said["reason"], said["sides"]) == (reason, ["base", "head"])
    assert "could not look" in compare_text.render(compare_document.of(held))


def test_of_several_pairs_those_that_are_lost_are_told() -> None:
    found = replace(profiles(gpu_run(), gpu_run()), lost=("head-2: damaged",))
    assert {"name": "profiled pairs beyond 1", "reason": "head-2: damaged", "sides": ["base", "head"]} in made(
        QUIET, found, profile=2
    )["not_looked"]


def test_paths_of_worktrees_are_those_of_the_repository() -> None:
    def run(arm: str, item: bool) -> Trace:
        return gpu_run(file=f"/tmp/perfscope-ab-x1y2z3/{arm}/pkg/train.py", item=item)

    held = made(WORSE, profiles(run("base", False), run("head", True)), profile=1)
    assert "perfscope-ab-" not in json.dumps(held)
    assert held["causes"][0]["place"] == "pkg/train.py:11"


def test_nothing_at_all_has_a_document_too() -> None:
    held = made(JUDGE.result(Pairs(calibration=(), measured=(), confirming=())))
    assert (held["headline"], held["metrics"][0]["base"]) == ("inconclusive", None)


def test_secrets_and_what_steers_a_terminal_are_not_shown() -> None:
    held = made(QUIET, command=("train.py", "--api-key", "hush"), base_ref="\x1b[31mred\nline")
    text = compare_text.render(compare_document.of(held), verbose=True)
    assert "\x1b" not in text + json.dumps(held)
    assert "hush" not in text + json.dumps(held)


def test_a_module_is_named_as_one() -> None:
    assert made(QUIET, command=("pkg.train", "--lr", "1"), kind="module")["method"]["command"] == [
        "-m", "pkg.train", "--lr", "1",
    ]  # fmt: skip


def test_a_kernel_that_cannot_be_told_did_not_change() -> None:
    runs = [(Path(f"base-{number}"), Path(f"head-{number}")) for number in range(4)]
    found = compare_profiles(runs, read=lambda path: [gpu_run()])
    held = made(QUIET, found, profile=4)
    assert {one["verdict"] for one in held["kernels"]} == {"inconclusive"}
    document = compare_document.of(held)
    assert f"kernels: 0 of {len(held['kernels'])} changed" in compare_text.render(document)
    assert is_quiet(document)
