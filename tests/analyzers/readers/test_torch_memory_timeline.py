"""Timelines that torch.profiler exports: rows become blocks, totals counters, a picture an error."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.facts.memory_timelines import memory_timelines
from perfscope.analyzers.load import load
from perfscope.analyzers.readers import torch_memory_timeline
from perfscope.analyzers.trace import Trace
from perfscope.analyzers.trace.memory_tables import MemoryAction, MemoryCategory
from perfscope.profiler.errors import DataError
from tests.conftest import corpus_files

SAMPLES = corpus_files("torch_mem_timeline", "*.gz")


def read_one(path: Path) -> Trace:
    (trace,) = load(path)
    trace.check()
    assert trace.source.format == "torch_memory_timeline"
    return trace


def written(path: Path, rows: Any) -> Path:
    path.write_text(json.dumps(rows))
    return path


ROWS = [
    [-1, 1, 1000, 0], [-1, 1, 500, 7],
    [10, 2, 200, 4], [20, 2, 200, 4], [30, 3, -500, 7], [30, 3, 500, 1], [40, 4, -200, 4], [50, 4, -500, 1],
]  # fmt: skip


def test_rows_become_blocks(tmp_path: Path) -> None:
    memory = read_one(written(tmp_path / "x.raw.json", ROWS)).rows["memory"]
    held, made, freed = MemoryAction.HELD_BEFORE, MemoryAction.ALLOCATE, MemoryAction.FREE
    assert memory["action"].tolist() == [held, held, made, made, freed, made, freed, freed]
    assert memory["time_ns"].tolist() == [10, 10, 10, 20, 30, 30, 40, 50]
    assert memory["address"].tolist() == [1, 2, 3, 4, 2, 2, 3, 2]
    assert memory["allocated_bytes"].tolist() == [1000, 1500, 1700, 1900, 1400, 1900, 1700, 1200]
    assert [MemoryCategory(code).name for code in memory["category"].tolist()[:3]] == [
        "PARAMETER",
        "UNKNOWN",
        "ACTIVATION",
    ]


def test_what_no_row_made_was_held_before(tmp_path: Path) -> None:
    trace = read_one(written(tmp_path / "x.raw.json", [[5, 2, 8, 4], [6, 4, -8, 3]]))
    assert trace.rows["memory"]["address"].tolist() == [1, 2]
    assert any("1 rows let go" in note for note in trace.source.notes)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-1, 2**62), st.integers(1, 4), st.integers(-(10**12), 10**12), st.integers(0, 7)),
        min_size=1,
    )
)
def test_any_rows(rows: list[tuple[int, int, int, int]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        trace = read_one(written(Path(folder) / "x.json", rows))
    memory = trace.rows["memory"]
    assert memory["bytes"].tolist() == [row[2] for row in rows]
    assert memory["allocated_bytes"].tolist() == np.cumsum([row[2] for row in rows]).tolist()
    assert (np.diff(memory["time_ns"]) >= 0).all()


def test_files_longer_than_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_one(written(tmp_path / "x.raw.json", ROWS * 40)).rows["memory"]
    for piece in (40, 41, 57, 100):
        monkeypatch.setattr(torch_memory_timeline, "_PIECE", piece)
        pieces = read_one(tmp_path / "x.raw.json").rows["memory"]
        assert all(np.array_equal(whole[name], pieces[name], equal_nan=True) for name in whole)


DAMAGES: tuple[Callable[[str], str], ...] = (
    lambda text: text[:-30],
    lambda text: text[:-1],
    lambda text: text + "x",
    lambda text: text.replace("], [", "], ", 1),
    lambda text: text.replace(", 4]", ", 9]", 1),
    lambda text: text.replace("[40", "[4.5"),
    lambda text: text.replace("10", '"a"'),
    lambda text: text.replace("[20,", "[20000000000000000000,"),
    lambda text: text + ", [1, 2, 3, 4]]",
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_one_line(damage: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "x.raw.json"
    path.write_text(damage(json.dumps(ROWS)))
    with pytest.raises(DataError) as error:
        load(path)
    assert "\n" not in str(error.value)


def test_a_picture_says_what_to_export_instead(tmp_path: Path) -> None:
    path = tmp_path / "memory.html"
    path.write_text(
        '<html>\n<head><meta charset="utf-8" /><title>GPU Memory Timeline HTML</title></head>\n<body>\n'
        "<img src='data:image/png;base64,AAAA'>\n</body></html>"
    )
    with pytest.raises(DataError, match=r"memory\.raw\.json\.gz"):
        load(path)


@pytest.mark.parametrize(
    "text", ["[[1, 2], [3, 4]]", "[]", "[[]]", "[[1, 1, 1, 1, 1]]", "[[1, 5, 1, 1]]", "<html></html>"]
)
def test_other_lists_are_not_taken(text: str, tmp_path: Path) -> None:
    assert not torch_memory_timeline.sniff(tmp_path, text.encode())


@pytest.mark.corpus
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_a_real_one_has_the_totals_of_its_rows(path: Path, corpus: Path) -> None:
    rows = json.loads(gzip.decompress(path.read_bytes()))
    trace = read_one(path)
    totals = np.cumsum([row[2] for row in rows])
    assert trace.rows["memory"]["allocated_bytes"].tolist() == totals.tolist()
    (timeline,) = trace.fact(memory_timelines)
    assert int(timeline.live().bytes.max()) == int(totals.max())
    assert not any("rows let go" in note for note in trace.source.notes)  # each has a block of its size and category


def test_what_torch_exports(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters())
    with torch.profiler.profile(profile_memory=True, with_stack=True, record_shapes=True) as profile:
        for _ in range(2):
            model(torch.randn(32, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    for name in ("memory.raw.json.gz", "memory.json", "memory.json.gz"):
        profile.export_memory_timeline(str(tmp_path / name), device="cpu")
    times, totals = json.loads((tmp_path / "memory.json").read_text())
    for name in ("memory.json", "memory.json.gz"):
        trace = read_one(tmp_path / name)
        counters = trace.rows["counters"]
        assert trace.recorded == frozenset()
        assert counters["time_ns"][::8].tolist() == [time * 1000 for time in times]
        assert counters["value"].reshape(-1, 8).tolist() == [row[1:] for row in totals]
        assert trace.text(counters["name"][0]) == "memory: parameter"
    memory = read_one(tmp_path / "memory.raw.json.gz").rows["memory"]
    by_category = [
        int(memory["bytes"][memory["category"] == int(category)].sum()) for category in torch_memory_timeline.CATEGORIES
    ]
    assert by_category == totals[-1][1:]
