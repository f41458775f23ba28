"""The report for a language model: bounded, the same each time, every finding with its basis and a check."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.dashboards.report.llm import ACCOUNT_BASIS, BUDGET, CHARACTERS_PER_TOKEN, TOP_BASIS, render
from perfscope.model.finding import Finding, Outcome, Where
from tests.build import TraceBuilder
from tests.report.analyses import HOSTILE_NAMES, MS, analysis, hostile


def test_whole(golden: Callable[[str, str], None]) -> None:
    golden("analysis-llm.md", render(analysis()))


def many(count: int) -> tuple[Outcome, ...]:
    findings = tuple(
        Finding(
            subject=str(number), title=f"finding {number}", severity="low", basis="measured", advice="Mend it. " * 40,
            cost_ns_per_step=(1000 - number) * MS, cost_ns=(1000 - number) * MS, where=Where(file="a.py", line=number),
            evidence=({"wait_ns": 10, "call": "read"},) * 5,
        )
        for number in range(1, count + 1)
    )  # fmt: skip
    return (Outcome(rule="host_sync", status="flagged", findings=findings),)


@pytest.mark.parametrize("budget", [500, 1_000, BUDGET, 100_000])
@pytest.mark.parametrize("count", [0, 1, 30, 400])
def test_it_keeps_to_its_budget_and_counts_what_is_left_out(count: int, budget: int) -> None:
    judged = analysis(outcomes=many(count) if count else ())
    text = render(judged, budget=budget)
    assert len(text) <= budget * CHARACTERS_PER_TOKEN
    assert text == render(judged, budget=budget)
    numbers = [int(number) for number in re.findall(r"^(?:### )?(\d+)\. host_sync", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1)), "the costliest are kept"
    left = re.search(r"\((\d+) more findings", text)
    assert len(numbers) + (int(left.group(1)) if left else 0) == count
    assert numbers or not count, "the first finding always fits"


def test_each_finding_has_its_basis_and_a_check() -> None:
    text = render(analysis())
    parts = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    assert len(parts) == len(analysis().findings())
    for part, (rule, finding) in zip(parts, analysis().findings(), strict=True):
        assert f"basis: {finding.basis}" in part
        assert f"--rule {rule}" in part


def test_the_account_and_the_top_tables_have_their_basis_too() -> None:
    builder = TraceBuilder(path="t.json")
    builder.launched("gemm", 0, 10, 30, correlation=1)
    builder.step(0, 0, 100)
    builder.device(0)
    text = render(analyze(builder.build()))
    assert text.index("## Where the step goes") < text.index(ACCOUNT_BASIS) < text.index("## Findings")
    assert text.index("## Top kernels") < text.index(TOP_BASIS)


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, "x\n# heading", "`code`"])
def test_no_name_makes_a_heading(name: str) -> None:
    headings = [line for line in render(hostile(name)).splitlines() if line.startswith("#")]
    ours = r"# perfscope report: |## (Findings|Where|Rules|Verify|Top)|### \d+\. "
    assert all(re.match(ours, heading) for heading in headings)
