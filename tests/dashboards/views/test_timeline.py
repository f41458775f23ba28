"""What the timeline knows of an event besides its times: partner, line, number, and the clock of its rank."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from perfscope.dashboards.timeline import answer
from tests.build import TraceBuilder
from tests.dashboards.views.made import view_of


def _made(shift: float = 0.0, rank: int = 0) -> TraceBuilder:
    made = TraceBuilder(rank=rank)
    made.step(7, shift, shift + 100)
    made.python("train.py(12): step", shift, shift + 95)
    made.op("aten::mm", shift + 10, shift + 30)
    made.launched("gemm", shift + 12, shift + 40, shift + 60, correlation=1, blocks=128)
    made.copy("Memcpy HtoD", shift + 70, shift + 80, size=4096)
    return made


def _ask(folder: Path, what: str, **asked: object) -> dict:
    return json.loads(answer.LOOKS[what](folder, {"trace": "0", **{key: str(value) for key, value in asked.items()}}))


def _prepared(tmp_path: Path) -> Path:
    view = view_of("timeline", [_made().build()], tmp_path / "timeline")
    (tmp_path / "timeline.json").write_text(json.dumps({"view": view}))
    return tmp_path


def _event(folder: Path, text: str) -> dict:
    names = {name: code for code, name, *_ in _ask(folder, "names")}
    first = _ask(folder, "matches", names=names[text], t0=-(2**50))["first"]
    return _ask(folder, "event", event=first["event"])


def test_a_kernel_knows_its_launch_its_line_and_its_blocks(tmp_path: Path) -> None:
    folder = _prepared(tmp_path)
    kernel = _event(folder, "gemm")
    assert (kernel["start"], kernel["ns"]) == ("40000", 20_000)
    assert kernel["partner"]["text"] == "cudaLaunchKernel"
    assert kernel["number"] == 128
    assert kernel["site"]["label"].startswith("train.py:12")
    assert kernel["group"] == "Test GPU (0)"


def test_a_launch_knows_its_kernel_and_what_encloses_it(tmp_path: Path) -> None:
    launch = _event(_prepared(tmp_path), "cudaLaunchKernel")
    assert launch["partner"]["text"] == "gemm"
    assert [one["text"] for one in launch["enclosing"]] == ["aten::mm"]


def test_numbers_of_copies_and_steps(tmp_path: Path) -> None:
    folder = _prepared(tmp_path)
    assert _event(folder, "Memcpy HtoD")["number"] == 4096
    assert _event(folder, "ProfilerStep#7")["number"] == 7


def test_a_piece_is_cut_at_its_edges(tmp_path: Path) -> None:
    folder = _prepared(tmp_path)
    lanes = len(_ask(folder, "about")["traces"][0]["lanes"])
    found = _ask(folder, "selection", t0=50_000, t1=75_000, lanes=f"0-{lanes - 1}")
    names = {code: name for code, name, *_ in _ask(folder, "names")}
    held = {names[row["name"]]: row["ns"] for row in found["rows"]}
    assert held["gemm"] == 10_000
    assert held["Memcpy HtoD"] == 5_000
    assert held["train.py(12): step"] == 25_000
    assert "aten::mm" not in held
    assert found["ns"] == sum(held.values())


def test_ranks_whose_times_overlap_share_a_clock(tmp_path: Path) -> None:
    view = view_of("timeline", [_made(0, 0).build(), _made(50, 1).build()], tmp_path)
    assert view["together"]
    assert {one["origin"] for one in view["traces"]} == {"0"}


def test_ranks_of_other_clocks_begin_at_their_own_start(tmp_path: Path) -> None:
    view = view_of("timeline", [_made(0, 0).build(), _made(1e9, 1).build()], tmp_path)
    assert not view["together"]
    assert [one["origin"] for one in view["traces"]] == ["0", "1000000000000"]


def test_refused_numbers(tmp_path: Path) -> None:
    import pytest

    from perfscope.model.errors import UsageError

    folder = _prepared(tmp_path)
    for asked in (
        {"t0": 5, "t1": 5, "w": 10, "lanes": "0"}, {"t0": 0, "t1": 9, "w": 10**9, "lanes": "0"},
        {"t0": 0, "t1": 9, "w": 10, "lanes": "0-99999999"}, {"t0": "x", "t1": 9, "w": 10, "lanes": "0"},
        {"t0": 0, "t1": 10**40, "w": 10, "lanes": "0"}, {"t0": 0, "t1": 9, "w": 10, "lanes": "-1"},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            answer.tile_of(folder, {"trace": "0", **{key: str(value) for key, value in asked.items()}})
    with pytest.raises(UsageError):
        answer.event_of(folder, {"trace": "0", "event": "999"})


def test_tiles_are_of_the_lanes_that_were_asked_for(tmp_path: Path) -> None:
    content = answer.tile_of(_prepared(tmp_path), {"trace": "0", "t0": "0", "t1": "100000", "w": "100", "lanes": "1,0"})
    size = int(np.frombuffer(content, "<u4", 1)[0])
    assert json.loads(content[4 : 4 + size])["lanes"] == [1, 0]


def test_the_nearest_event_of_a_lane_is_found(tmp_path: Path) -> None:
    folder = _prepared(tmp_path)
    kernel = _event(folder, "gemm")
    first, last = "gemm", "Memcpy HtoD"
    for moment, text in ((-(2**61), first), (50_000, first), (64_000, first), (66_000, last), (2**61, last)):
        assert _ask(folder, "near", lane=kernel["lane"], t=moment)["text"] == text, moment
