"""A program compiled for a machine that is not there: its modelled time is shown, and said to be modelled."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.hardware.target_text import parse_target
from perfscope.analyzers.readers.load import load
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.conftest import REPOSITORY
from tests.dashboards.views.made import view_of
from tests.hlo_build import GPU

SHAPE = "f32[4096,4096]{1,0}"
PROGRAM = f"""HloModule jit_step, is_scheduled=true

doubled {{
  p = {SHAPE} parameter(0)
  ROOT m = {SHAPE} add(p, p)
}}

ENTRY main {{
  a = {SHAPE} parameter(0)
  one = {SHAPE} fusion(a), kind=kLoop, calls=doubled, {GPU}
  ROOT two = {SHAPE} transpose(one), dimensions={{1,0}}, {GPU}
}}
"""
LEAST_NS = 2 * 2 * 4 * 4096 * 4096 / 3.35e12 * 1e9
"""Two kernels that read and write 64 MiB each, at the peak bandwidth of an H100."""


@pytest.fixture
def compiled(tmp_path: Path) -> Trace:
    file = tmp_path / "step.hlo.txt"
    file.write_text(PROGRAM)
    (trace,) = load(file)
    trace.judged_device = "H100 SXM"
    trace.target = parse_target("h100")
    return trace


def _words(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", text))


def test_the_first_page_says_that_nothing_ran_and_gives_the_modelled_step(compiled: Trace, tmp_path: Path) -> None:
    view = view_of("overview", [compiled], tmp_path / "view")
    assert view["planned"].startswith("Compiled for H100 SXM and never run")
    words = _words(view["parts"]["tiles"])
    low = re.search(r"modelled time of a run\s+([\d.]+)", words)
    assert low is not None, words
    assert float(low[1]) == pytest.approx(LEAST_NS / 1_000, rel=0.02)
    assert [row["what"].split(":")[0] for row in view["missing"]] == ["a run"]


def test_the_page_of_compilation_has_its_lines_and_what_is_assumed(compiled: Trace, tmp_path: Path) -> None:
    words = _words(view_of("compile", [compiled], tmp_path / "view")["html"])
    assert "Modelled time on H100 SXM" in words
    assert "what is assumed" in words


def test_the_timeline_is_the_modelled_schedule(compiled: Trace, tmp_path: Path) -> None:
    view = view_of("timeline", [compiled], tmp_path / "view")
    assert not any(one["events"] for one in view["traces"])
    assert "one run, modelled" in view["modelled"]
    assert view["modelled"].count("<title>") == 2


def test_of_what_ran_nothing_of_it_is_said(tmp_path: Path) -> None:
    made = TraceBuilder()
    made.step(0, 0, 100)
    made.kernel("gemm", 10, 90)
    assert view_of("overview", [made.build()], tmp_path / "a")["planned"] == ""
    held: dict[str, Any] = view_of("timeline", [made.build()], tmp_path / "b")
    assert held["modelled"] == ""


def test_the_page_of_memory_has_the_planned_peaks(tmp_path: Path) -> None:
    """What nothing recorded was planned: the same bytes as on the first page, and who holds them."""
    traces = load(REPOSITORY / "fixtures" / "plans-h100" / "attention-naive")
    view = view_of("memory", traces, tmp_path / "memory")
    assert view["memories"] == []
    words = _words(view["planned"])
    tiles = _words(view_of("overview", traces, tmp_path / "overview")["parts"]["tiles"])
    peaks = re.findall(r"Peak \w+, planned\s+([\d.]+ \w+)", tiles)
    assert len(peaks) == 2
    assert all(peak in words for peak in peaks)
    assert "activation" in words


def test_what_ran_has_no_planned_peak(tmp_path: Path) -> None:
    assert view_of("memory", [TraceBuilder().build()], tmp_path)["planned"] == ""
