"""A run without a step to plan for says which option left it out, and what to record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.__main__ import run as perfscope
from perfscope.analyzers.readers._run_absent import why_no_step
from perfscope.profiler.run import Capture, Process, Run
from tests.analyzers.readers.test_run import DETAIL, TIMING, captured, make, one
from tests.conftest import REPOSITORY

TORCH = Process(rank=0, directory="rank00000", steps_seen=4, captures=(captured("timing", TIMING),))


def run_of(**options: Any) -> Run:
    return Run(id="x", name="x", created_utc="2026-01-01T00:00:00", command=("x",), state="finished", options=options)


def structure(reason: str | None) -> Process:
    missing = Capture(pass_name="structure", tool="op_graph", state="missing", reason=reason)
    return Process(rank=0, directory="rank00000", steps_seen=4, captures=(captured("timing", TIMING), missing))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"level": "light"}, "recorded with --level light, which takes no op graph of a step: record it with perfscope "
                             "run without it"),
        ({"level": "default", "whole": True}, "recorded with --whole, which takes no op graph of a step: record it "
                                              "with perfscope run without it (steps are found"),
        ({"level": "light", "whole": True}, "recorded with --whole and --level light, which takes no op graph of a "
                                            "step: record it with perfscope run without them"),
        ({"level": "deep", "capture": "nsys"}, "recorded with --capture nsys"),
        ({"times_only": True}, "nothing but the times of steps"),
    ],
)  # fmt: skip
def test_options_that_leave_it_out(options: dict[str, Any], said: str) -> None:
    assert said in why_no_step(run_of(**options), TORCH)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("the program ended before this pass began", "It took 4 steps: let it take more, or record with --warmup 1 "),
        ("the program runs graphs of torch.compile, whose ops ...", "Record it without torch.compile"),
        ("the program has a dispatch mode of its own", "the structure pass says: the program has a dispatch mode"),
        (None, "the structure pass says: it is missing"),
    ],
)  # fmt: skip
def test_what_stopped_it(reason: str | None, said: str) -> None:
    assert said in why_no_step(run_of(level="default"), structure(reason))


def test_an_option_of_a_stranger_is_not_repeated() -> None:
    said = why_no_step(run_of(level="\x1b[31m", capture="<script>"), TORCH)
    assert "\x1b" not in said
    assert "<script>" not in said
    assert "the run has no structure pass" in said


@pytest.mark.parametrize(
    ("artifact", "reason", "said"),
    [
        (None, "no compiled program was alive", "has no compiled XLA program: no compiled program was alive. Put the"),
        ("rank00000/hlo", None, "no compiled XLA program ran in the traced steps of this JAX run"),
    ],
)
def test_jax(artifact: str | None, reason: str | None, said: str) -> None:
    state: Any = "missing" if artifact is None else "recorded"
    hlo = Capture(pass_name="hlo", tool="jax_hlo", state=state, reason=reason, artifact=artifact)
    process = Process(rank=0, directory="rank00000", captures=(hlo,))
    assert said in why_no_step(run_of(level="default"), process)
    assert "jax.jit" in why_no_step(run_of(level="default"), process)


def test_the_command_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path / "run", TORCH, options={"level": "light"})
    assert perfscope(["advise", "memory", str(path)]) == 4
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"perfscope: {path}: the run was recorded with --level light")


def test_a_run_that_has_one_is_not_asked(tmp_path: Path) -> None:
    bare = make(tmp_path / "bare", Process(rank=0, directory="rank00000", captures=(captured("detail", DETAIL),)))
    assert one(bare).why_no_step is not None
    assert one(REPOSITORY / "fixtures" / "cpu-attention-sdpa").why_no_step is None
