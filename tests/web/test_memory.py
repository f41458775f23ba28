"""The curve and every moment of it sum to the bytes in use; details of blocks are correct."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.readers.load import load_all
from perfscope.dashboards.web.views import memory as _memory_parts
from perfscope.dashboards.web.views.memory import read_curve
from tests.conftest import corpus_files
from tests.memory.build import MemoryBuilder
from tests.web.views import view_of

HOSTILE = "<img src=x onerror=alert(1)>"


def _made() -> MemoryBuilder:
    made = MemoryBuilder()
    made.starts_with(1000)
    made.step(4, 0, 200)
    made.python("train.py(3): main", 0, 199)
    for at in range(6):
        made.op(HOSTILE, 10 + 20 * at, 20 + 20 * at)
        made.make(at + 1, 100 * (at + 1), 12 + 20 * at)
    made.free(6, 150)
    made.free(5, 180)
    return made


def _total(curve: dict[str, Any], place: int) -> int:
    return sum(area["bytes"][place] for area in curve["areas"])


def _sums(curve: dict[str, Any]) -> None:
    """Every moment: the listed blocks, those left out and the unseen ones sum to the bytes in use."""
    for moment, (places, _, rest) in zip(curve["moments"], curve["alive"], strict=True):
        told = sum(curve["blocks"][place]["bytes"] for place in places)
        assert told + rest + curve["unseen"] == _total(curve, moment)
        sizes = [curve["blocks"][place]["bytes"] for place in places]
        assert sizes == sorted(sizes, reverse=True)
    assert _total(curve, curve["peak"]["place"]) == curve["peak"]["bytes"]
    assert curve["peak"]["place"] in curve["moments"]


def test_the_blocks_of_each_moment_sum_to_the_curve(tmp_path: Path) -> None:
    view = view_of("memory", [_made().build()], tmp_path)
    (memory,) = view["memories"]
    curve = read_curve(tmp_path, memory)["curve"]
    _sums(curve)
    assert memory["peak_bytes"] == curve["peak"]["bytes"] == 1000 + 2100
    assert curve["unseen"] == 1000


def test_a_block_says_who_asked_for_it_and_how_long_it_lives(tmp_path: Path) -> None:
    view = view_of("memory", [_made().build()], tmp_path)
    curve = read_curve(tmp_path, view["memories"][0])["curve"]
    largest = curve["alive"][curve["moments"].index(curve["peak"]["place"])][0][0]
    block = curve["blocks"][largest]
    assert (block["bytes"], block["step"], block["blocks"]) == (600, 4, 1)
    assert block["op"] == HOSTILE  # as text: the page never takes it for anything else
    assert block["line"].startswith("train.py:3")
    first = int(curve["first"])
    assert (block["start"] + first, block["end"] + first) == (112_000, 150_000)


def test_few_blocks_are_told_and_the_rest_is_a_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory_parts, "MOST_BLOCKS", 2)
    view = view_of("memory", [_made().build()], tmp_path)
    curve = read_curve(tmp_path, view["memories"][0])["curve"]
    _sums(curve)
    places, more, rest = curve["alive"][curve["moments"].index(curve["peak"]["place"])]
    assert (len(places), more, rest) == (2, 4, 100 + 200 + 300 + 400)


def test_tables_of_the_peak_sum_to_it(tmp_path: Path) -> None:
    view = view_of("memory", [_made().build()], tmp_path)
    for kind in ("modules", "lines", "ops", "categories"):
        held = view["tables"][f"0-{kind}"]
        at = [column["key"] for column in held["columns"]].index("bytes")
        assert sum(row[at] for row in held["rows"]) == 3100, kind
    assert sum(row[0] for row in view["tables"]["0-blocks"]["rows"]) == 2100


def test_ranks_have_a_memory_each_the_highest_first(tmp_path: Path) -> None:
    small, large = _made(), _made()
    large.make(99, 5_000, 190)
    traces = [small.build(), large.build()]
    traces[1] = replace(traces[1], source=replace(traces[1].source, rank=1))
    view = view_of("memory", traces, tmp_path)
    assert [one["whose"] for one in view["memories"]] == ["rank 1", "rank 0"]
    _sums(read_curve(tmp_path, view["memories"][0])["curve"])


@pytest.mark.corpus
def test_real_snapshots_and_programs(corpus: Path, tmp_path: Path) -> None:
    files = sorted(corpus_files("torch_mem"), key=lambda file: file.stat().st_size)[:3]
    for number, file in enumerate(files):
        traces = load_all(file)
        view = view_of("memory", traces, tmp_path / str(number))
        peaks = {one.label: one.peak()[1] for trace in traces for one in trace.fact(memory_timelines)}
        assert view["memories"], file.name
        for memory in view["memories"]:
            assert memory["peak_bytes"] == peaks[memory["label"]]
            curve = read_curve(tmp_path / str(number), memory)["curve"]
            if curve is not None:
                _sums(curve)
