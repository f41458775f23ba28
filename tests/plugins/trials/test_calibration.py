"""Predicted and measured savings of rules, kept per machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.__main__ import main
from perfscope.plugins.trials.calibration import calibrate, of_machine
from perfscope.plugins.trials.calibration_section import render_text
from perfscope.plugins.trials.document import MOST_KEPT, Try, keep, kept, kept_folder
from perfscope.profiler.ab.machine import Gpus, machine_facts
from tests.plugins.trials.launches import attempt, document, left, pairs_of, rejected

RULES = {"unfused_optimizer": True, "host_sync": True, "peak_owner": False}


def tried(factor: float, **head: object) -> Try:
    on_top = replace(attempt("gc-off", 0.5, "unfused_optimizer"), base=("compile",), head=("compile", "gc-off"))
    return document(
        attempt("fused-optimizer", factor, "unfused_optimizer"),
        rejected("autocast-bf16", "unfused_optimizer"),
        left("pin-memory", "no GPU", "host_sync"),
        on_top,
        **head,
    )


def test_promises_beside_gains_by_rule_and_intervention() -> None:
    made = calibrate([tried(0.8), tried(0.9), tried(1.0)], RULES)
    rejecting, fused = made.rows
    assert (rejecting.intervention, rejecting.measured, rejecting.rejected) == ("autocast-bf16", 0, 3)
    assert (fused.rule, fused.intervention, fused.measured, fused.gains) == (
        "unfused_optimizer",
        "fused-optimizer",
        3,
        2,
    )
    assert fused.predicted_ns == 4_000_000
    assert fused.saved_ns == pytest.approx(1_000_000, rel=0.02)
    assert fused.kept == pytest.approx(0.25, rel=0.02)
    assert (fused.kept_low, fused.kept_high) == (pytest.approx(0, abs=0.01), pytest.approx(0.5, rel=0.02))
    assert (made.untried, made.unanswered) == (("host_sync",), ("peak_owner",))


def test_what_stays_open_measures_nothing() -> None:
    scattered = replace(attempt("fused-optimizer", 0.5, "unfused_optimizer"), pairs=pairs_of([10] * 6, [2, 20] * 3))
    (row,) = calibrate([document(scattered)], RULES).rows
    assert (row.measured, row.gains, row.unclear) == (1, 0, 1)
    assert (row.predicted_ns, row.saved_ns, row.kept) == (4_000_000, None, None)
    (row,) = calibrate(
        [document(scattered), document(attempt("fused-optimizer", 0.8, "unfused_optimizer"))], RULES
    ).rows
    assert (row.measured, row.gains, row.unclear) == (2, 1, 1)
    assert row.kept == pytest.approx(0.5, rel=0.02)


def test_the_table_names_rules_without_a_row() -> None:
    shown = render_text(calibrate([tried(0.8)], RULES, others=2))
    assert "unfused_optimizer  fused-optimizer" in shown
    assert "-4.00 ms  -2.00 ms" in shown
    assert "2 more on other hardware are left out" in shown
    assert "has not tried here: host_sync" in shown
    assert "nothing to calibrate rules by: 0 tries" in render_text(calibrate([], RULES))


def test_other_hardware_is_left_out() -> None:
    here, there = tried(0.8, machine={"cpu": "a", "torch": "2"}), tried(0.8, machine={"cpu": "b"})
    assert of_machine([here, there], {"cpu": "a", "python": "3.13"}) == [here]


def test_what_is_kept_is_bounded_and_shown(capsys: pytest.CaptureFixture[str], own_state: Path) -> None:
    assert kept() == []
    keep(tried(0.8, machine=machine_facts(Gpus())), "one")
    keep(tried(0.8, machine={"cpu": "another"}), "two")
    assert kept_folder().is_relative_to(own_state)
    (kept_folder() / "three.json").write_text("{}")
    assert len(kept()) == 2, "what cannot be read is left out"
    with pytest.raises(SystemExit):
        main(["rules", "--calibration", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert (shown["tries"], shown["others"]) == (1, 1)
    assert shown["rows"][1]["intervention"] == "fused-optimizer"
    assert "excess_remat" in shown["untried"]
    for number in range(MOST_KEPT):
        (kept_folder() / f"{number}.json").touch()
    keep(tried(0.8), "last")
    assert len(list(kept_folder().iterdir())) == MOST_KEPT
    assert (kept_folder() / "last.json").is_file()
