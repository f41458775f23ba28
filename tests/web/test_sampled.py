"""Sampled stacks on the pages: calls on the timeline, and frames of the flame graph where no op was recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.sections import sampled_calls
from perfscope.dashboards.web.timeline.answer import event_of, selection_of
from perfscope.dashboards.web.timeline.index import build, load
from perfscope.dashboards.web.timeline.lanes import TABLES, Category, events_of
from perfscope.dashboards.web.views import Place
from perfscope.dashboards.web.views.timeline import gather
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.web.views import view_of

LAUNCHER = "lib/python3.12/runpy.py(88): _run_code > train.py(60): <module> > train.py(30): main"
US = 1_000


def _trace() -> Trace:
    """A step of 20 ms: 17 ms of a tokenizer and a log, then an op that two frames of a module called."""
    made = TraceBuilder()
    made.step(0, 0, 20_000)
    made.annotation("ProfilerStep#0", 0, 20_000)
    made.op("aten::mm", 17_000, 20_000)
    made.sample(f"{LAUNCHER} > train.py(12): tokenize", 2_000, step=0)
    made.sample(f"{LAUNCHER} > train.py(13): tokenize > str.split", 6_000, step=0)
    made.sample(f"{LAUNCHER} > train.py(12): tokenize", 10_000, step=0)
    made.sample(f"{LAUNCHER} > train.py(20): log", 14_000, step=0)
    call = "lib/site-packages/torch/nn/modules/module.py(1773): Module._wrapped_call_impl"
    made.sample(f"{LAUNCHER.replace('30', '31')} > {call} > model.py(4): forward", 18_000, step=0)
    made.sample(f"{LAUNCHER} > train.py(12): tokenize", 50_000, step=7)  # of a step that no profiler recorded
    return made.build()


def _named(trace: Trace) -> list[tuple[str, int, int, int, int]]:
    """(Function, line, depth, start and end in us) of the calls."""
    calls, frames = sampled_calls(trace), trace.rows["frames"]
    return [
        (trace.text(int(frames["name"][frame])), int(frames["line"][frame]), depth, start // US, end // US)
        for frame, depth, start, end in zip(
            calls.frame.tolist(), calls.depth.tolist(), calls.start.tolist(), calls.end.tolist(), strict=True
        )
    ]


def test_calls_last_from_half_way_to_half_way_between_samples() -> None:
    assert _named(_trace()) == [
        ("<module>", 60, 0, 0, 20_000),
        ("main", 30, 1, 0, 20_000),  # 30 has more of its time than 31
        ("tokenize", 12, 2, 0, 12_000),
        ("log", 20, 2, 12_000, 16_000),
        ("forward", 4, 2, 16_000, 20_000),
        ("str.split", -1, 3, 4_000, 8_000),
    ]


def test_a_thread_besides_the_steps_is_shown_only_where_it_worked() -> None:
    made = TraceBuilder()
    made.step(0, 0, 20_000)
    made.op("aten::mm", 0, 20_000)
    made.sample("train.py(5): main", 10_000, step=0)
    made.sample("data.py(7): fetch", 4_000, lasts=1_000, worker="DataLoader worker 0", step=0)
    made.sample("data.py(7): fetch", 5_000, lasts=1_000, worker="DataLoader worker 0", step=0)
    made.sample("data.py(7): fetch", 9_000, lasts=1_000, worker="DataLoader worker 0", step=0)
    trace = made.build()
    assert [row[3:] for row in _named(trace) if row[0] == "fetch"] == [(3_000, 5_000), (8_000, 9_000)]
    lanes = {(lane.group, lane.label) for lane in events_of(trace).lanes}
    assert ("host, DataLoader worker 0", "sampled stack main") in lanes


def test_a_recorded_stack_needs_no_samples() -> None:
    made = TraceBuilder()
    made.step(0, 0, 20_000)
    made.python("train.py(5): main", 0, 20_000)
    made.sample("train.py(5): main", 10_000, step=0)
    labels = [lane.label for lane in events_of(made.build()).lanes]
    assert labels == ["steps", "thread 1, Python"]


def test_an_event_has_its_line_callers_and_basis(tmp_path: Path) -> None:
    (tmp_path / "timeline" / "0").mkdir(parents=True)
    gather(_trace(), Place(folder=tmp_path / "timeline" / "0", number=0))
    (tmp_path / "timeline" / "code.json").write_text("{}")
    index = load(tmp_path / "timeline" / "0")
    sampled = index.table == TABLES.index("frames")
    assert set(index.category[sampled].tolist()) == {Category.PYTHON}
    np.save(tmp_path / "timeline" / "0" / "peer_of.npy", np.full(len(index), -1, np.int32))
    (event,) = [at for at in np.flatnonzero(sampled).tolist() if index.end[at] == 12_000 * US]
    told = json.loads(event_of(tmp_path, {"trace": "0", "event": str(event)}))
    assert told["text"] == "tokenize"
    assert told["site"]["label"] == "train.py:12"
    assert told["facts"] == [["basis", "sampled stacks: begin and end are between two samples", "text"]]
    assert told["stack"][0] == "main train.py:30"
    lanes = sorted({int(lane) for lane in index.lane[sampled]})
    asked = {"trace": "0", "t0": "0", "t1": str(20_000 * US), "lanes": ",".join(map(str, lanes))}
    rows = json.loads(selection_of(tmp_path, asked))["rows"]
    assert sum(row["own_ns"] for row in rows) == 20_000 * US, "nested calls count once"


def test_a_finding_is_not_marked_by_a_call_that_lasts_as_long_as_its_step(tmp_path: Path) -> None:
    index = build(events_of(_trace()))
    assert (index.table == TABLES.index("frames")).sum() == 6
    view = view_of("timeline", [_trace()], tmp_path)
    marked = [span for finding in view["findings"] if finding["how"] != "piece" for span in finding["spans"]]
    assert all(int(end) - int(start) < 20_000 * US for _, start, end in marked)


@pytest.fixture(scope="module")
def flame(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return view_of("flame", [_trace()], tmp_path_factory.mktemp("sampled"))


def _rows(tree: dict[str, Any]) -> dict[str, dict[str, Any]]:
    rows = [dict(zip(tree, values, strict=True)) for values in zip(*tree.values(), strict=True)]
    return {row["name"]: row for row in rows}


def test_time_without_ops_is_divided_and_the_sum_stays(flame: Any) -> None:
    rows = _rows(flame["trees"]["host"]["merged"])
    assert rows["all"]["ns"] == 20_000 * US == sum(row["own_ns"] for row in rows.values())
    assert rows["ProfilerStep"]["own_ns"] == 0
    tokenize = rows["tokenize (train.py:12)"]
    assert (tokenize["ns"], tokenize["own_ns"], tokenize["count"]) == (12_000 * US, 8_000 * US, 3)
    assert tokenize["sampled"]
    assert tokenize["category"] == Category.PYTHON
    assert rows["log (train.py:20)"]["ns"] == 5_000 * US, "up to the op"
    assert rows["str.split"]["line"] == "train.py:13", "the line that calls it"
    assert "forward (model.py:4)" not in rows, "an op is recorded there"


def test_sampled_stacks_of_all_steps(flame: Any) -> None:
    assert flame["kinds"] == ["host", "samples"]
    rows = _rows(flame["trees"]["samples"]["merged"])
    assert rows["all"]["ns"] == 6_000 * US == sum(row["own_ns"] for row in rows.values())
    assert rows["tokenize (train.py:12)"]["count"] == 4
    assert flame["trees"]["samples"]["merged"] == flame["trees"]["samples"]["apart"]
