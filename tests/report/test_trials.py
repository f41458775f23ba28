"""How a try is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from perfscope.dashboards.report.sections.trials import render_markdown, render_text
from tests.trials.launches import attempt, document, launch, left, rejected, report


def test_golden(golden: Callable[[str, str], None]) -> None:
    started = {"trials": (report(rss=600 << 20),), "seconds": 2.0 + 1.0 + 30 * 8 / 1e3}
    silent = replace(attempt("gc-off", 1.0), first=launch("head", trials=(report(applied=("gc-off",)),)))
    failed = replace(attempt("ddp", 1.0), pairs=None, stop="failed", reason="exit code 1: boom")
    made = document(
        attempt("compile", 0.8, "unfused_optimizer", **started),
        attempt("threads-one", 1.1),
        silent,
        rejected("autocast-bf16"),
        failed,
        left("pin-memory", "the program uses no GPU"),
        together=attempt("together", 0.75),
        unanswered=("host_sync",),
        notes=("a note",),
    )
    shown = render_text(made) + "\n=== -v, 160 columns\n\n" + render_text(made, verbose=True, width=160)
    golden("try.txt", shown)
    golden("try.md", render_markdown(made))


def test_a_try_without_a_gain_says_so() -> None:
    assert "1 intervention tried, and none made the step faster" in render_text(document(attempt("gc-off", 1.0)))
    assert "nothing was tried" in render_text(document(left("pin-memory", "no GPU")))
