"""What is said of several compiled programs: nothing summed, nothing passed over."""

from __future__ import annotations

from perfscope.analyzers.finding import Finding, Outcome, Where
from perfscope.analyzers.program_outcomes import merge_programs


def finding(subject: str = "slow", *, line: int = 3, cost_bytes: int = 0, cost_ns: int | None = None) -> Finding:
    return Finding(
        subject=subject, title=f"{cost_bytes} bytes", severity="low", basis="structural", advice="mend it",
        where=Where(file="step.py", line=line), cost_bytes=cost_bytes, cost_ns=cost_ns,
        evidence=tuple({"kernel": f"k{row}", "program": "jit_step", "moved_bytes": cost_bytes} for row in range(5)),
    )  # fmt: skip


def flagged(*findings: Finding) -> Outcome:
    return Outcome(rule="r", status="flagged", findings=findings)


def blind(reason: str) -> Outcome:
    return Outcome(rule="r", status="abstained", reason=reason)


CLEAN = Outcome(rule="r", status="clean")


def test_the_same_place_in_several_programs_is_one_finding_about_the_worst() -> None:
    merged = merge_programs([flagged(finding(cost_bytes=5)), CLEAN, flagged(finding(cost_bytes=9))], ["a", "b", "c"])
    (found,) = merged.findings
    assert (merged.status, merged.reason) == ("flagged", None)
    assert found.title == "c: 9 bytes (the like in 1 other program)"
    assert found.cost_bytes == 9
    assert [row["program"] for row in found.evidence] == ["c"] * 3 + ["a"] * 3
    assert list(found.evidence[0]) == ["program", "kernel", "moved_bytes"]


def test_a_finding_of_one_program_keeps_all_its_rows() -> None:
    (found,) = merge_programs([flagged(finding(cost_bytes=5)), CLEAN], ["a", "b"]).findings
    assert found.title == "a: 5 bytes"
    assert len(found.evidence) == 5


def test_another_line_or_subject_is_another_finding() -> None:
    found = merge_programs([flagged(finding()), flagged(finding(line=4), finding("wide"))], ["a", "b"]).findings
    assert len(found) == 3


def test_a_time_counts_before_bytes() -> None:
    timed = finding(cost_bytes=1, cost_ns=7)
    (found,) = merge_programs([flagged(finding(cost_bytes=9)), flagged(timed)], ["a", "b"]).findings
    assert found.title.startswith("b: ")


def test_clean_only_if_all_were_looked_at() -> None:
    assert merge_programs([CLEAN, CLEAN], ["a", "b"]).status == "clean"
    partly = merge_programs([CLEAN, blind("no schedule")], ["a", "b"])
    assert (partly.status, partly.reason) == ("abstained", "b: no schedule")
    found = merge_programs([flagged(finding()), blind("no schedule")], ["a", "b"])
    assert (found.status, found.reason) == ("flagged", "b: no schedule")


def test_a_reason_that_all_share_names_none() -> None:
    assert merge_programs([blind("for a CPU")] * 2, ["a", "b"]).reason == "for a CPU"
    many = merge_programs([blind("for a CPU")] * 5 + [blind("no schedule"), CLEAN], list("abcdefg"))
    assert many.reason == "a, b, c and 2 more: for a CPU; 1 more for other reasons"
