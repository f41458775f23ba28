"""How a try is shown."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from perfscope.plugins.trials.sections import render_markdown, render_text
from tests.plugins.trials.launches import attempt, document, launch, left, pairs_of, rejected, report


def test_golden(golden: Callable[[str, str], None]) -> None:
    started = {"reports": (report(rss=600 << 20),), "seconds": 2.0 + 1.0 + 30 * 8 / 1e3}
    silent = replace(attempt("gc-off", 1.0), first=launch("head", reports=(report(applied=("gc-off",)),)))
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


def test_a_ladder_is_drawn_with_what_remains_of_the_step() -> None:
    replaced = replace(attempt("fused", 0.9), base=("workers", "foreach"), head=("workers", "fused"))
    climbed = (attempt("workers", 0.5), attempt("foreach", 0.8), attempt("gc-off", 1.0), replaced)
    made = document(*climbed, together=attempt("together", 0.4), ladder=True)
    shown = render_text(made)
    bars = [" ".join(line.split()[1:]) for line in shown.splitlines() if "█" in line]
    assert bars == [
        "100% the unchanged program",
        "50% + workers",
        "40% + foreach",
        "36% + fused for foreach",
        "40% together, measured",
    ]
    assert "fused: in place of foreach" in shown
    assert "fused: on top of workers" in shown
    assert "fused = True" in shown
    assert "foreach = True" not in shown, "another one stands in its place"
    assert "█" not in render_text(document(attempt("gc-off", 1.0), ladder=True))


def test_what_stays_open_says_how_many_pairs_would_tell() -> None:
    times = ([10.0] * 6, [9.0, 11.0, 8.0, 12.0, 9.5, 8.5])
    open_ = replace(attempt("fused", 0.97), pairs=pairs_of(*times))
    near = replace(attempt("fused", 0.97), pairs=pairs_of([10.0] * 6, [9.8, 10.3, 9.8, 10.3, 9.8, 10.3]))
    assert "open after 6 pairs: the launches scatter" in render_text(document(open_))
    assert " would settle it (--pairs)" in render_text(document(near))
