"""Details of one event in the timeline, and links to it from other pages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.readers.load import load_all
from perfscope.dashboards.web.timeline import answer
from perfscope.dashboards.web.timeline.lanes import CATEGORY_WORDS, Category, kernel_category, op_category
from perfscope.dashboards.web.timeline.names import name_id
from tests.build import TraceBuilder
from tests.ranks.build import KERNEL, rank_set
from tests.web.views import view_of

LONG = "void at::native::elementwise_kernel<" + ", ".join(f"argument_{at}" for at in range(60)) + ">(int)"
LONGER = LONG.replace("argument_30", "argument_xx")
"""Names that are the same once they are cut in the middle."""


def _made() -> TraceBuilder:
    made = TraceBuilder()
    made.step(7, 0, 100)
    made.python("train.py(12): step", 0, 95)
    made.op("aten::mm", 10, 30, shapes="[[4, 8], [8, 2], []]", dtypes='["float", "float", "Scalar"]')
    made.launched("sgemm", 12, 40, 60, correlation=1, blocks=128, threads=256)
    made.launched(LONG, 14, 61, 62, correlation=2)
    made.launched(LONGER, 16, 63, 67, correlation=3)
    made.launched("sgemm", 18, 80, 83, correlation=4)
    made.copy("Memcpy HtoD", 70, 80, size=4096)
    return made


def _ask(folder: Path, what: str, **asked: object) -> dict:
    return json.loads(answer.LOOKS[what](folder, {"trace": "0", **{key: str(value) for key, value in asked.items()}}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    view_of("timeline", [_made().build()], tmp_path / "timeline")
    return tmp_path


def _code(folder: Path, name: str) -> int:
    return next(code for code, _, _, _, known in _ask(folder, "names") if known == name_id(name))


def _event(folder: Path, name: str) -> dict:
    first = _ask(folder, "matches", names=_code(folder, name), t0=-(2**50))["first"]
    return _ask(folder, "event", event=first["event"])


def test_an_event_has_every_argument(folder: Path) -> None:
    event = _event(folder, "sgemm")
    facts = {word: value for word, value, _ in event["facts"]}
    assert (facts["thread blocks of the grid"], facts["threads of a block"]) == (128, 256)
    assert facts["correlation"] == 1
    assert facts["input shapes"] == "[[4, 8], [8, 2]]"
    assert event["op"]["text"] == "aten::mm"
    assert event["stack"] == ["aten::mm", "train.py(12): step"]
    assert event["partner"]["table"] == "calls"


def test_a_copy_says_its_bytes_and_kind(folder: Path) -> None:
    facts = {word: (value, unit) for word, value, unit in _event(folder, "Memcpy HtoD")["facts"]}
    assert facts["bytes"] == (4096, "bytes")
    assert "kind" in facts


def test_names_that_are_cut_alike_are_told_apart(folder: Path, tmp_path: Path) -> None:
    rows = [row for row in _ask(folder, "names") if row[4] in (name_id(LONG), name_id(LONGER))]
    assert rows[0][1] == rows[1][1]
    assert {row[3] for row in rows} == {1_000, 4_000}
    view = view_of("kernels", [_made().build()], tmp_path / "kernels")["tables"]["kernels"]
    keys = [column["key"] for column in view["columns"]]
    times = {row[keys.index("id")]: row[keys.index("time_ns")] for row in view["rows"]}
    assert (times[name_id(LONG)], times[name_id(LONGER)]) == (1_000, 4_000)


@pytest.mark.corpus
@pytest.mark.parametrize(
    "file", ["kineto/TraceLens__h100_bert-small.json.gz", "kineto/TraceLens__h100_qwen1.5-0.5b.json.gz"]
)
def test_every_kernel_of_the_table_is_on_the_timeline(corpus: Path, tmp_path: Path, file: str) -> None:
    traces = load_all(corpus / file)
    view_of("timeline", traces, tmp_path / "timeline")
    there = {known: (count, ns) for _, _, count, ns, known in _ask(tmp_path, "names")}
    view = view_of("kernels", traces, tmp_path / "kernels")["tables"]["kernels"]
    keys = [column["key"] for column in view["columns"]]
    rows = [dict(zip(keys, row, strict=True)) for row in view["rows"]]
    assert rows
    assert all(there[row["id"]] == (row["calls"], row["time_ns"]) for row in rows)


def test_a_search_goes_forth_and_back_and_round(folder: Path) -> None:
    code = _code(folder, "sgemm")
    ask = {"names": code}
    first = _ask(folder, "matches", t0=0, **ask)
    second = _ask(folder, "matches", t0=int(first["first"]["start"]) + 1, **ask)
    assert (first["at"], second["at"], first["events"]) == (0, 1, 2)
    assert not second["wrapped"]
    third = _ask(folder, "matches", t0=int(second["first"]["start"]) + 1, **ask)
    assert (third["at"], third["wrapped"]) == (0, True)
    back = _ask(folder, "matches", t0=int(second["first"]["start"]), by=-1, **ask)
    assert (back["at"], back["wrapped"]) == (0, False)


def test_the_longest_event_of_a_pixel(folder: Path) -> None:
    lane = _event(folder, "sgemm")["lane"]
    found = _ask(folder, "largest", lane=lane, t0=60_500, t1=68_000)
    assert (found["ns"], found["events"]) == (4_000, 2)
    assert _ask(folder, "largest", lane=lane, t0=90_000, t1=95_000) is None


def test_pages_and_timeline_say_the_same_of_a_name(tmp_path: Path) -> None:
    view = view_of("kernels", [_made().build()], tmp_path)["tables"]
    for kind, of in (("kernels", kernel_category), ("ops", lambda name: op_category(name, Category.OP))):
        keys = [column["key"] for column in view[kind]["columns"]]
        for row in view[kind]["rows"]:
            held = dict(zip(keys, row, strict=True))
            if not held["name"].startswith("Memcpy"):
                assert held["class"] == CATEGORY_WORDS[of(held["whole"])]
    assert "matrix product" in {row[keys.index("class")] for row in view["ops"]["rows"]}


def test_groups_sum_to_the_table(tmp_path: Path) -> None:
    tables = view_of("kernels", [_made().build()], tmp_path)["tables"]
    for group in ("kernels-what", "kernels-op"):
        assert sum(row[1] for row in tables[group]["rows"]) == tables["kernels"]["ns"]


def test_a_backward_op_leads_to_its_forward_op_and_back(tmp_path: Path) -> None:
    made = TraceBuilder()
    made.op("aten::linear", 0, 10, sequence=5, forward_thread=0)
    made.op("autograd::engine::evaluate_function: AddmmBackward0", 50, 90, sequence=5, forward_thread=1, tid=2)
    view_of("timeline", [made.build()], tmp_path / "timeline")
    ahead = _event(tmp_path, "aten::linear")
    behind = _event(tmp_path, "autograd::engine::evaluate_function: AddmmBackward0")
    assert ahead["forward"]["event"] == behind["event"]
    assert behind["forward"]["event"] == ahead["event"]
    assert _event(tmp_path, "aten::linear")["peers"] == []


def test_a_collective_leads_to_the_other_ranks(tmp_path: Path) -> None:
    view_of("timeline", rank_set([[0, 50], [30, 0]]), tmp_path / "timeline")
    events = [_ask(tmp_path, "event", event=event) for event in range(4)]
    reduces = [event for event in events if event["text"] == KERNEL]
    assert len(reduces) == 2
    for mine in reduces:
        (peer,) = mine["peers"]
        (back,) = json.loads(answer.event_of(tmp_path, {"trace": "1", "event": str(peer["event"])}))["peers"]
        assert (peer["trace"], back["trace"], back["event"]) == (1, 0, mine["event"])


def test_what_is_nested_counts_once_by_category_and_module(tmp_path: Path) -> None:
    made = TraceBuilder()
    made.python("nn.Module: Linear_3", 0, 100)
    made.op("aten::linear", 10, 60)
    made.op("aten::addmm", 20, 50)
    made.op("aten::relu", 70, 90)
    made.launched("sgemm", 25, 60, 90, correlation=1)
    view_of("timeline", [made.build()], tmp_path / "timeline")
    piece = {"t0": -(2**50), "t1": 2**50, "lanes": "0-4"}
    by_name = {row["ns"]: row["own_ns"] for row in _ask(tmp_path, "selection", **piece)["rows"]}
    assert by_name[50_000] == 20_000  # aten::linear without aten::addmm
    kinds = {row["text"]: row["own_ns"] for row in _ask(tmp_path, "selection", by="category", **piece)["rows"]}
    assert kinds["matrix product"] == 20_000 + 28_000 + 30_000  # linear, addmm without its launch, the kernel
    assert kinds["launch"] == 2_000
    modules = {row["text"]: row["own_ns"] for row in _ask(tmp_path, "selection", by="module", **piece)["rows"]}
    assert modules["Linear_*"] == 20_000 + 28_000 + 20_000 + 30_000
    whole = _ask(tmp_path, "selection", by="category", **piece)["rows"]
    assert sum(row["own_ns"] for row in whole) == 100_000 + 30_000  # all of the host's thread, and the kernel


@pytest.mark.corpus
def test_sides_of_collectives_are_found_among_all_kernels(corpus: Path, tmp_path: Path) -> None:
    """For a job the judged traces hold only the rows of collectives, renumbered."""
    from perfscope.analyzers.judge import judge_paths
    from perfscope.dashboards.web.timeline import index, links

    paths = [str(corpus / "kineto" / f"astra-sim__megatron_kineto_{rank}.json.gz") for rank in (0, 1)]
    for number, path in enumerate(paths):
        (trace,) = load_all(path)
        view_of("timeline", [trace], tmp_path / "one")
        (tmp_path / "one" / "0").rename(tmp_path / str(number))
    judged = judge_paths(paths).loaded.traces
    links.save_peers(judged, {0: 0, 1: 1}, tmp_path)
    indexes = [index.load(tmp_path / str(number)) for number in (0, 1)]
    of = [np.load(tmp_path / str(number) / "peer_of.npy") for number in (0, 1)]
    assert [int((each >= 0).sum()) for each in of] == [84, 84]
    for each, events in zip(of, indexes, strict=True):
        assert set(events.category[each >= 0].tolist()) == {Category.COLLECTIVE}
